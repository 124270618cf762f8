"""The command `twinsolve segment`."""

from pathlib import Path
from typing import Annotated

import typer

from ...tables import Report
from ...terminal import Load, Output, load_modules, progress


def segment(
    model: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Train this model only; may be given again."),
    ] = None,
    n_seeds: Annotated[int, typer.Option(min=1, help="Runs of each model.")] = 3,
    seed: Annotated[int, typer.Option(min=0, help="The first seed.")] = 0,
    steps: Annotated[int, typer.Option(min=1, help="Steps of training.")] = 800,
    n_jobs: Annotated[int, typer.Option(help="Processes, a run each; -1 is all cores.")] = 1,
    data_home: Annotated[
        str | None, typer.Option(metavar="DIR", help="Data root [$TWINSOLVE_DATA].")
    ] = None,
    output: Output = Path("results/segment"),
    load: Load = None,
) -> None:
    """Segment road scenes (CamVid) by small transformers with several attentions, and compare.

    Models are plain, NeuTRENO, bilateral, GRC, twicing, or the name of an operator of
    twinsolve.unrolled. With a seed all see the same pictures in the same order, and differences to
    plain are those of pairs, with 95 % intervals over seeds and test pictures, and a verdict that
    is corrected for their number. Pixels without a label count nowhere.

    Prints the mean intersection over union (IoU) of the test pictures, at one scale and over three,
    pixels that are right, parameters and processor time. Writes to DIR table.json, models.csv and
    .tex, settings.json, summary.md, scenes and quality as .png and .pdf, and a folder for each run
    (settings, metrics, weights), from which an interrupted command goes on.
    """
    from .report import write_report
    from .study import segment as run

    load_modules(load)
    try:
        table = run(
            model, n_seeds=n_seeds, seed=seed, n_steps=steps, n_jobs=n_jobs, data_home=data_home,
            directory=output, progress=progress("Training"),
        )  # fmt: skip
    except (FileNotFoundError, ImportError, ValueError) as error:
        raise typer.BadParameter(str(error)) from error
    settings = {"models": model, "n_seeds": n_seeds, "seed": seed, "steps": steps}
    write_report(table, Report("twinsolve segment", settings, output), data_home=data_home)
