"""Command `twinsolve segment`."""

from functools import partial
from pathlib import Path

from ...options import (
    Against,
    DataHome,
    Device,
    Jobs,
    ListAll,
    Load,
    Output,
    RecipeWords,
    Rows,
    Seeds,
    Steps,
    list_rows,
    load_modules,
    run_rows,
)


def segment(
    row: Rows = None,
    seeds: Seeds = 3,
    steps: Steps = None,
    recipe: RecipeWords = None,
    against: Against = None,
    n_jobs: Jobs = 1,
    device: Device = "auto",
    data_home: DataHome = None,
    output: Output = Path("results/segment"),
    load: Load = None,
    list_all: ListAll = False,
) -> None:
    """Train segmenters of road scenes (CamVid) that differ in one part, and compare them.

    ```
    twinsolve segment --list
    twinsolve segment --row Segmenter:operator=sparse_coding,residual=boosting
    ```

    **--row** names a network with its settings: a name of --list, or Segmenter:NAME=VALUE,... with
    the parts that classify knows. With one seed all rows see the same pictures in the same order,
    and parameters that they share start equal. --recipe changes dim, depth, num_heads, batch_size,
    weight_decay, warm_up, ema_decay and precision. Pixels without a label do not count.

    The command prints the mean intersection over union (IoU) of the test pictures, at one scale and
    over three. The difference of each row to its backbone (the same network without the part that
    is tested), or to --against, has a 95 % interval over seeds and test pictures; verdicts are
    corrected for the number of comparisons. Then come the shares of correct pixels, of all and by
    class, parameters, processor time, and the IoU of each class.

    DIR gets table.json (a line for each row and seed), means.csv and .tex, settings.json,
    summary.md, and differences, curves (mean IoU on validation pictures against steps) and scenes
    as .png and .pdf. DIR/runs keeps finished and interrupted runs.
    """
    from .report import scenes_study
    from .study import SCENES

    load_modules(load)
    if list_all:
        list_rows(SCENES)
        return
    settings = {
        "row": row, "seeds": seeds, "steps": steps, "recipe": recipe, "against": against,
        "device": device,
    }  # fmt: skip
    make = partial(scenes_study, data_home)
    run_rows("segment", make, settings, output, n_jobs=n_jobs, data_home=data_home)
