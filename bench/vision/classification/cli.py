"""Command `twinsolve classify`."""

from functools import partial
from typing import Annotated

import typer

from ...row_command import Asked, trains_rows


@trains_rows(seeds=5)
def classify(
    data: Annotated[
        str,
        typer.Argument(
            metavar="DATA", help="digits, cifar10, cifar10:n_train=10000, or a folder of classes."
        ),
    ] = "digits",
    attack: Annotated[
        bool, typer.Option("--attack", help="Also test images attacked by FGSM and PGD.")
    ] = False,
    corruptions: Annotated[
        bool, typer.Option("--corruptions", help="Also test noisy, blurred and faint images.")
    ] = False,
) -> Asked:
    """Train classifiers that differ in one part, and compare them over paired seeds.

    ```
    twinsolve classify --list
    twinsolve classify digits --row twicing --row ViT:operator=Local:radius=1
    twinsolve classify my_pictures --row my_module:MyNet:width=8
    ```

    **DATA** is digits (of scikit-learn), cifar10 (from --data-home), or a folder with a folder of
    pictures for each class. digits:n_train=300 or cifar10:n_train=10000 train on fewer images.
    Pictures that differ in size are scaled until they cover the smallest height and width, in
    multiples of 8, and their middle is cut out; my_pictures:size=64 (or size=64x96, height first)
    names another size. The folders of classes may lie in folders train, val and test, or in train
    and one of the others. Parts that are not given are drawn from the training pictures, a fifth
    each.

    **--row** names a network with its settings: a name of --list; an architecture with settings
    after a colon, ViT:correction=twicing,residual=boosting; or a class of yours,
    package.module:Class:NAME=VALUE,..., installed or in the current folder. Architectures are ViT,
    Swin, CaiT, ConvMixer and SelfExpression. Their settings include operator, correction, residual,
    scale, attention_skip and token_graying. A value may have settings too:
    token_graying=dct:eps=0.9, correction=neutreno:lam=0.4. Your class gets those of in_channels,
    num_classes and image_size that its constructor names, and returns a score for each class.

    With one seed, all rows see the same batches and share the initial weights of common parts.
    Learning rate, number of steps and scale of positions of each row are chosen on validation
    images, among the same candidates. --recipe changes other settings of the data set: patch_size,
    dim, depth, num_heads, mlp_ratio, batch_size, weight_decay, warm_up, ema_decay, label_smoothing,
    drop_path, shift (pixels), flip, precision (float32 or bfloat16) and erasing, mixup, cutmix
    (shares of the images, and of the batches); learning_rate and position_scale are then the same
    for all. To share each batch between processes, type torchrun --no-python twinsolve classify.

    The command prints means over seeds, and the difference of each row to its backbone (the same
    network without the part that is tested: softmax for a ViT, CaiT for a CaiT, symmetric for
    "symmetric + NeuTRENO"), or to --against. Differences have 95 % intervals over seeds and test
    images, verdicts corrected for the number of rows, the difference that such a run would find
    with 80 % power, and the claims of papers. Differences of the cosine and the condition number of
    the last tokens follow, where rate, steps and scale of positions are the same. DIR gets
    table.json (a line per row and seed), means.csv and .tex, settings.json, summary.md and figures
    as .png and .pdf. DIR/runs keeps finished and interrupted runs.
    """
    from .report import images_study
    from .study import IMAGES

    tests = {"attack": attack, "corruptions": corruptions}
    return Asked(IMAGES, partial(images_study, data, **tests), {})
