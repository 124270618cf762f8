"""The command `twinsolve longrange`."""

from functools import partial
from typing import Annotated

import typer

from ..options import Quick, Steps
from ..row_command import Asked, choose_data, trains_rows

_QUICK = "listops:n_train=4000,min_length=10,max_length=40", 300


@trains_rows(seeds=3)
def longrange(
    data: Annotated[
        str | None,
        typer.Argument(metavar="DATA", help="listops [the default], pathfinder or cifar-pixels."),
    ] = None,
    quick: Quick = False,
    steps: Steps = None,
) -> Asked:
    """Train classifiers of long sequences that differ in one part, and compare them.

    ```
    twinsolve longrange --quick
    twinsolve longrange pathfinder:size=32 --row Sequence:operator=tupe
    ```

    **DATA** is one of these, each shorter than in the Long Range Arena, so that two cores train it:

    - listops: values of nested expressions, with the settings min_length, max_length, max_depth and
      max_args, such as listops:max_length=200
    - pathfinder: whether two dots lie on one dashed path, by pixels, with the setting size
    - cifar-pixels: CIFAR-10 in grey, by pixels, from --data-home, with the setting size

    listops and pathfinder are generated, the same each time. All three have the setting n_train.
    --quick takes short expressions and 300 steps.

    **--row** names a network with its settings: a name of --list, or Sequence:NAME=VALUE,... with
    the parts that classify knows. By default rows are softmax, ALiBi, bilateral and sparse coding.
    With one seed all rows see the same batches, and start from the same weights wherever they have
    them in common. Each row takes the learning rate that is best on validation sequences. --recipe
    changes dim, depth, num_heads, mlp_ratio, batch_size, weight_decay, warm_up, ema_decay,
    label_smoothing, drop_path and precision.

    The command prints mean accuracies beside the share of the most frequent class. A row that stays
    at this share says nothing of its method. The difference of each row to its backbone (the same
    network without the part that is tested), or to --against, has a 95 % interval over seeds and
    test sequences; verdicts are corrected for the number of rows. Then come parameters, operations,
    speed, and the mean cosine of the last tokens. DIR gets table.json (a line for each row and
    seed), means.csv and .tex, settings.json, summary.md, and differences and curves (accuracy on
    validation sequences against steps) as .png and .pdf. DIR/runs keeps finished and interrupted
    runs.
    """
    from .report import sequences_study
    from .study import SEQUENCES

    settings = choose_data(data, steps, "listops", _QUICK if quick else None)
    return Asked(SEQUENCES, partial(sequences_study, settings["data"]), settings)
