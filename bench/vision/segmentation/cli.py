"""Command `twinsolve segment`."""

from pathlib import Path
from typing import Annotated

import typer

from ...study_cli import (
    DataHome,
    Device,
    Processes,
    report_mistakes,
)
from ...terminal import Load, Output, load_modules
from ...training_display import TrainingDisplay


def segment(
    model: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Train this model only; may be given again."),
    ] = None,
    n_seeds: Annotated[int, typer.Option(min=1, help="Runs of each model.")] = 3,
    seed: Annotated[int, typer.Option(min=0, help="The first seed.")] = 0,
    steps: Annotated[int, typer.Option(min=1, help="Steps of training.")] = 800,
    n_jobs: Processes = 1,
    device: Device = "auto",
    data_home: DataHome = None,
    output: Output = Path("results/segment"),
    load: Load = None,
) -> None:
    """Segment road scenes (CamVid) by small transformers with several attentions, and compare.

    Models are plain, NeuTRENO, bilateral, GRC, twicing, bilateral + GRC, symmetric, symmetric +
    NeuTRENO, or the name of an operator of twinsolve.unrolled. With one seed, all models see the
    same pictures in the same order. Paired differences to plain have 95 % intervals over seeds and
    test pictures, and verdicts that are corrected for their number. Pixels without a label are not
    counted.

    Prints the mean intersection over union (IoU) of the test pictures at one scale and over three,
    the share of correct pixels, parameters and processor time. Writes to DIR table.json, models.csv
    and .tex, settings.json, summary.md, scenes and quality as .png and .pdf, and a folder for each
    run (settings, metrics, weights), from which an interrupted command continues.
    """
    from ...devices import find_device
    from ...tables import Results
    from .report import write_report
    from .study import segment as run

    load_modules(load)
    display = TrainingDisplay(["all seeds"])
    with report_mistakes():
        table = run(
            model, n_seeds=n_seeds, seed=seed, n_steps=steps, n_jobs=n_jobs, data_home=data_home,
            device=device, directory=output, progress=display,
            on_step=display.on_step if n_jobs == 1 else None,
        )  # fmt: skip
    settings = {
        "models": model, "n_seeds": n_seeds, "seed": seed, "steps": steps,
        "device": str(find_device(device)),
    }  # fmt: skip
    write_report(table, Results("twinsolve segment", settings, output), data_home=data_home)
