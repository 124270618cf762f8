"""The command `twinsolve language`."""

from functools import partial
from typing import Annotated

import typer

from ..options import DataHome, Quick, Steps
from ..row_command import Asked, choose_data, trains_rows


@trains_rows(seeds=3)
def language(
    data: Annotated[
        str | None,
        typer.Argument(
            metavar="DATA",
            help="wikitext2, wikitext2:n_words=8000, generated or recall [wikitext2].",
        ),
    ] = None,
    quick: Quick = False,
    steps: Steps = None,
    data_home: DataHome = None,
) -> Asked:
    """Train causal language models that differ in one part, and compare them over paired seeds.

    ```
    twinsolve language --quick
    twinsolve language wikitext2:n_words=8000 --row LM:correction=twicing
    ```

    **DATA** is wikitext2 (the words of WikiText-2, from --data-home), generated (a text whose lines
    come from one of eight Markov chains) or recall (pairs of words, and the same in another order).
    n_words is the size of the vocabulary; other words count as unknown. Without the training file
    of WikiText-2, the models learn from nine tenths of the validation file; this is no standard,
    and the summary says so. --quick takes the generated text and 200 steps.

    **--row** names a network with its settings: a name of --list, or LM:NAME=VALUE,..., such as
    LM:correction=twicing,residual=boosting. Operators must be able to be causal; --load may
    register more. Each row takes the better of the same two learning rates on the validation part.
    --recipe changes dim, depth, num_heads, mlp_ratio, dropout, length (words of a window),
    batch_size, weight_decay, warm_up, ema_decay and precision.

    The command prints perplexities of the test part, as it is and with 2.5 % of the shown words
    swapped for the unknown word. The difference of each row to its backbone (the same network
    without the part that is tested), or to --against, has a 95 % interval over seeds and stretches
    of text; verdicts are corrected for the number of comparisons. DIR gets table.json, means.csv
    and .tex, settings.json, summary.md and differences.png. DIR/runs keeps finished and interrupted
    runs.
    """
    from .report import text_study
    from .study import TEXT

    settings = choose_data(data, steps, "wikitext2", ("generated", 200) if quick else None)
    return Asked(TEXT, partial(text_study, settings["data"], data_home), settings)
