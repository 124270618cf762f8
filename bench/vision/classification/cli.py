"""The command `twinsolve classify`."""

import os
from pathlib import Path
from typing import Annotated

import typer

from ...names import split_settings
from ...tables import Report
from ...terminal import Load, Output, console, load_modules, progress


def classify(
    data: Annotated[
        str,
        typer.Argument(
            metavar="DATA", help="digits, cifar10, cifar10:n_train=10000, or a folder of classes."
        ),
    ] = "digits",
    row: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Run this row beside softmax; may be given again."),
    ] = None,
    seeds: Annotated[int, typer.Option(min=1, help="Number of paired seeds.")] = 5,
    steps: Annotated[
        int | None, typer.Option(min=1, help="Training steps, in place of the candidates' own.")
    ] = None,
    recipe: Annotated[
        str | None,
        typer.Option(metavar="NAME=VALUE,...", help="Settings in place of the data set's own."),
    ] = None,
    attack: Annotated[
        bool, typer.Option("--attack", help="Also on images attacked by FGSM and PGD.")
    ] = False,
    corruptions: Annotated[
        bool, typer.Option("--corruptions", help="Also on noisy, blurred and faint images.")
    ] = False,
    n_jobs: Annotated[int, typer.Option(help="Processes; -1 is all cores.")] = 1,
    data_home: Annotated[
        str | None, typer.Option(metavar="DIR", help="Data root [$TWINSOLVE_DATA].")
    ] = None,
    output: Output = Path("results/classify"),
    load: Load = None,
    list_all: Annotated[bool, typer.Option("--list", help="List all rows and end.")] = False,
) -> None:
    """Train classifiers that differ in one part, and compare them over paired seeds.

    DATA are the digits of scikit-learn; cifar10, from the data root; or a folder that holds a
    folder of pictures for each class, all of one size.

    A row is a name of --list, or an architecture with settings after a colon, such as
    ViT:operator=NAME,correction=twicing,residual=boosting,scale=FeatScale,token_graying=dct,
    attention_skip=False. Architectures are ViT, Swin, CaiT, ConvMixer and SelfExpression; an
    operator is a name, also one that --load registers.

    A seed gives all rows the same batches, and the same first weights wherever they have them in
    common. Learning rate, number of steps and scale of positions of each row are chosen on
    validation images, with the same effort. Other settings are those of the data set, or of
    --recipe: patch_size, dim, depth, num_heads, mlp_ratio, batch_size, weight_decay, warm_up,
    ema_decay, label_smoothing, drop_path, shift (pixels), flip, precision (float32 or bfloat16) and
    erasing, mixup, cutmix (shares of the images, and of the batches; they need kornia). torchrun
    --no-python twinsolve classify shares each batch between processes.

    Prints means over seeds and differences to softmax: 95 % intervals over seeds and test images,
    verdicts that are corrected for the number of rows, and the difference that such a run would
    find with 80 % power, beside what papers claim. Writes table.json (a line for each row and
    seed), means.csv and .tex, settings.json, summary.md and figures as .png and .pdf.
    Finished and interrupted runs are kept in DIR/runs.
    """
    from ..training import processes
    from .report import write_report
    from .study import ROWS
    from .study import classify as run

    load_modules(load)
    if list_all:
        for name, options in ROWS.items():
            words = ", ".join(f"{key}={value}" for key, value in options.items())
            console().print(f"{name:22} {words}", highlight=False)
        return
    if n_jobs != 1 and "TORCHELASTIC_RUN_ID" in os.environ:
        raise typer.BadParameter("torchrun has its own processes: leave --n-jobs at 1")
    first = os.environ.get("RANK", "0") == "0"
    settings = {
        "data": data, "row": row, "seeds": seeds, "steps": steps, "recipe": recipe,
        "attack": attack, "corruptions": corruptions,
    }  # fmt: skip
    try:
        with processes():
            table = run(
                data, rows=row, seeds=seeds, steps=steps,
                recipe=split_settings(f":{recipe or ''}", "recipe")[1], attack=attack,
                corruptions=corruptions, n_jobs=n_jobs, data_home=data_home,
                directory=output / "runs", progress=progress("Training") if first else None,
            )  # fmt: skip
    except (FileNotFoundError, ImportError, ValueError) as error:
        raise typer.BadParameter(str(error)) from error
    if first:
        write_report(table, Report("twinsolve classify", settings, output))
