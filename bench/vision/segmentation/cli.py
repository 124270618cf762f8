"""Command `twinsolve segment`."""

from functools import partial
from typing import Annotated

import typer

from ...options import DataHome
from ...row_command import Asked, trains_rows


@trains_rows(seeds=3)
def segment(
    data: Annotated[
        str, typer.Argument(metavar="DATA", help="camvid, or a folder of pictures with labels.")
    ] = "camvid",
    data_home: DataHome = None,
) -> Asked:
    """Train segmenters of scenes that differ in one part, and compare them.

    ```
    twinsolve segment --list
    twinsolve segment --row Segmenter:operator=sparse_coding,residual=boosting
    twinsolve segment my_scenes:size=96x128,ignore=255 --row twicing --seeds 1
    ```

    **DATA** is camvid (road scenes, from --data-home) or a folder. There, images/NAME is a picture
    and labels/NAME its label picture, with any suffix; labels may also be called masks or
    annotations. Folders train, val and test may lie above or below these two; of a part that is
    missing, a fifth of the training pictures is drawn. The values or colours of the label pictures
    are the classes; ignore=255 names a value without a class. Pictures and labels are scaled until
    they cover the smallest height and width, in multiples of 8, and their middle is cut out;
    size=96x128 (height first) names another size.

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

    return Asked(SCENES, partial(scenes_study, data, data_home), {})
