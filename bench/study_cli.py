"""Command-line options that the studies share."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .names import split_settings
from .terminal import console
from .training_display import TrainingDisplay

if TYPE_CHECKING:
    from .task import Task

DataHome = Annotated[str | None, typer.Option(metavar="DIR", help="Data root [$TWINSOLVE_DATA].")]
Processes = Annotated[int, typer.Option(help="Processes; -1 is all cores.")]
ListAll = Annotated[bool, typer.Option("--list", help="List all names and end.")]
RowNames = Annotated[
    list[str] | None,
    typer.Option(metavar="NAME", help="Run this row beside softmax; may be given again."),
]
Device = Annotated[str, typer.Option(help="Train and test there; auto is a GPU if there is one.")]
Seeds = Annotated[int, typer.Option(min=1, help="Number of paired seeds.")]
Steps = Annotated[
    int | None, typer.Option(min=1, help="Training steps, in place of the candidates' own.")
]
RecipeWords = Annotated[
    str | None,
    typer.Option(metavar="NAME=VALUE,...", help="Settings in place of the data set's own."),
]
Against = Annotated[
    str | None,
    typer.Option(metavar="NAME", help="Compare with this row [each row's own backbone]."),
]


@contextmanager
def report_mistakes(*others: type[Exception]) -> Iterator[None]:
    """End the command with a message where the user asked for something impossible."""
    mistakes: tuple[type[Exception], ...] = (FileNotFoundError, ImportError, ValueError, *others)
    try:
        yield
    except mistakes as error:
        raise typer.BadParameter(str(error)) from error


def list_rows(task: "Task") -> None:
    """Print every row as a user may type it."""
    from .task import write_row

    for name, options in task.rows.items():
        console().print(f"{name:22} {write_row(task, options)}", highlight=False)


def choose_data(
    data: str | None, steps: int | None, default: str, quick: tuple[str, int] | None
) -> tuple[str, int | None]:
    """The data and steps that were typed, or those of a `quick` run."""
    if quick is None:
        return data or default, steps
    if data is not None:
        raise typer.BadParameter(f"--quick has data of its own: leave out {data}")
    return quick[0], steps or quick[1]


def study_options(settings: dict[str, Any], output: Path, n_jobs: int) -> dict[str, Any]:
    """Arguments of `train_rows` from what was typed.

    Steps are shown where networks are trained in this process.
    """
    names = ("seeds", "steps", "against", "device")
    display = TrainingDisplay(["choosing settings", "all seeds"])
    return {
        "rows": settings["row"], **{name: settings[name] for name in names}, "n_jobs": n_jobs,
        "recipe": split_settings(f":{settings['recipe'] or ''}", "recipe")[1],
        "directory": output / "runs", "progress": display,
        "on_step": display.on_step if n_jobs == 1 else None,
    }  # fmt: skip
