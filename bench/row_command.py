"""Commands that train rows of networks: their common options, and how they run."""

import os
from collections.abc import Callable
from functools import wraps
from inspect import signature
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import typer

from .names import split_settings
from .options import (
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
    load_modules,
    report_mistakes,
    take_options,
)
from .terminal import console
from .training_display import TrainingDisplay

if TYPE_CHECKING:
    from .study import Study
    from .task import Task


class Asked(NamedTuple):
    """A task, ``make(**options)`` that returns the study of its rows, and settings of the run."""

    task: "Task"
    make: Callable[..., "Study"]
    settings: dict[str, Any]


def trains_rows(seeds: int) -> Callable[[Callable[..., Asked]], Callable[..., None]]:
    """Decorator that adds the options of `_common` to a function, which returns what is asked.

    The function gets those options that it names itself.
    """

    def decorate(ask: Callable[..., Asked]) -> Callable[..., None]:
        @wraps(ask)
        def command(**typed: Any) -> None:
            load_modules(typed.pop("load"))
            asked = ask(**{name: typed[name] for name in signature(ask).parameters})
            if typed.pop("list_all"):
                _list_rows(asked.task)
            else:
                settings = {name: typed[name] for name in typed if name not in _NOT_KEPT}
                _run(ask.__name__, asked.make, settings | asked.settings, typed)

        output = Path("results") / ask.__name__
        return take_options(command, ask, _common, seeds=seeds, output=output)

    return decorate


def _common(
    row: Rows = None,
    seeds: Seeds = 1,
    steps: Steps = None,
    recipe: RecipeWords = None,
    against: Against = None,
    n_jobs: Jobs = 1,
    device: Device = "auto",
    data_home: DataHome = None,
    output: Output = Path(),
    load: Load = None,
    list_all: ListAll = False,
) -> None:
    """The options of all commands that train rows."""


_NOT_KEPT = ("quick", "n_jobs", "data_home", "output")


def _list_rows(task: "Task") -> None:
    """Print every row as a user may type it."""
    from .task import write_row

    for name, options in task.rows.items():
        console().print(f"{name:22} {write_row(task, options)}", highlight=False)


def _run(
    command: str, make: Callable[..., "Study"], settings: dict[str, Any], typed: dict[str, Any]
) -> None:
    """Train the rows, and print and write what was found.

    Steps are shown where networks are trained in this process. Only the first of the processes of
    ``torchrun`` shows and writes anything.
    """
    from .devices import processes
    from .jobs import Options
    from .study import run_studies, write_studies

    n_jobs, first = typed["n_jobs"], os.environ.get("RANK", "0") == "0"
    if n_jobs != 1 and "TORCHELASTIC_RUN_ID" in os.environ:
        raise typer.BadParameter("torchrun has its own processes: leave --n-jobs at 1")
    display = TrainingDisplay(["choosing settings", "all seeds"])
    with report_mistakes(), processes(settings["device"]) as place:
        settings["device"] = str(place)
        study = make(
            rows=settings["row"], steps=settings["steps"], against=settings["against"],
            device=settings["device"],
            recipe=split_settings(f":{settings['recipe'] or ''}", "recipe")[1],
            on_step=display.on_step if first and n_jobs == 1 else None,
        )  # fmt: skip
        shown = display if first else lambda jobs, total: jobs
        runs = typed["output"] / "runs"
        options = Options(0, settings["seeds"], n_jobs, typed["data_home"], runs, shown)
        tables = run_studies([study], options)
    if first:
        write_studies(f"twinsolve {command}", [study], tables, settings, typed["output"])


def choose_data(
    data: str | None, steps: int | None, default: str, quick: tuple[str, int] | None
) -> dict[str, Any]:
    """The data and steps that were typed, or those of a `quick` run."""
    if quick is None:
        return {"data": data or default, "steps": steps}
    if data is not None:
        raise typer.BadParameter(f"--quick has data of its own: leave out {data}")
    return {"data": quick[0], "steps": steps or quick[1]}
