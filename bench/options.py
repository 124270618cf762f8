"""Options of the commands: each is defined once, and has one meaning wherever it stands."""

import importlib
import os
import runpy
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from inspect import Signature, signature
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import typer

from .terminal import present_folder


def results_folder(folder: Path | None) -> Path | None:
    """Return `folder` if a command can write below it; no file is left there.

    Raises
    ------
    BadParameter
        If the folder, or its closest existing parent, is not a folder or is not writable.
    """
    if folder is None:
        return None
    way = (folder.absolute(), *folder.absolute().parents)
    there = next(place for place in way if os.path.lexists(place))
    if reason := _find_refusal(there):
        raise typer.BadParameter(f"{folder}: {there} {reason}", param_hint="--output")
    return folder


def _find_refusal(folder: Path) -> str:
    if not folder.is_dir():
        return "is not a folder"
    try:
        if os.access(folder, os.W_OK | os.X_OK):
            TemporaryDirectory(dir=folder).cleanup()  # system folders refuse even root
            return ""
    except OSError:
        pass
    return "may not be written to"


def count_cores(n_jobs: int) -> int:
    """A number of cores that was typed; -1 counts them.

    Raises
    ------
    BadParameter
        If it is neither -1 nor at least 1.
    """
    if n_jobs == -1:
        from joblib import cpu_count

        return int(cpu_count())
    if n_jobs < 1:
        raise typer.BadParameter(f"must be -1 or at least 1, got {n_jobs}")
    return n_jobs


Rows = Annotated[
    list[str] | None,
    typer.Option(
        "--row",
        metavar="NAME",
        help="Train this row, a network, beside softmax; may be given again.",
    ),
]
Methods = Annotated[
    list[str] | None,
    typer.Option("--method", metavar="NAME", help="Run this method only; may be given again."),
]
SEEDS = typer.Option(min=1, help="Number of seeds.")
Seeds = Annotated[int, SEEDS]
Seed = Annotated[int, typer.Option(min=0, help="Seed of all that is random, or the first seed.")]
Steps = Annotated[
    int | None, typer.Option(min=1, help="Training steps, in place of the command's own.")
]
RecipeWords = Annotated[
    str | None,
    typer.Option(
        "--recipe",
        metavar="NAME=VALUE,...",
        help="Sizes and training, in place of the data set's own.",
    ),
]
Against = Annotated[
    str | None,
    typer.Option(metavar="NAME", help="Compare all rows with this one [each with its backbone]."),
]
Quick = Annotated[bool, typer.Option("--quick", help="Run a small version, to see that it works.")]
Jobs = Annotated[
    int, typer.Option(help="Processor cores to use; -1 is all of them.", callback=count_cores)
]
DASK = typer.Option(
    metavar="ADDRESS",
    help="Cluster one large file on the workers of a Dask scheduler, or on local:N.",
    show_default=False,
)
Rounds = Annotated[int, typer.Option(min=1, help="Rounds; in each one all take turns.")]
DTYPE = "float32, float64 or bfloat16."
DATA = "Use this data set instead of the command's own."
SIGMA = "Standard deviation of the noise, in grey levels of 255."
Device = Annotated[str, typer.Option(help="cpu, cuda, or auto: a GPU if there is one.")]
Colour = Annotated[bool, typer.Option("--colour", help="Keep pictures in colour.")]
DataHome = Annotated[
    str | None, typer.Option(metavar="DIR", help="Folder of the data sets [$TWINSOLVE_DATA].")
]
Output = Annotated[
    Path, typer.Option(metavar="DIR", help="Folder for the results.", callback=results_folder)
]
Load = Annotated[
    list[str] | None,
    typer.Option(
        metavar="MODULE", help="Import a module, or run a file, that registers your own parts."
    ),
]
ListAll = Annotated[bool, typer.Option("--list", help="List all names and exit.")]


def load_modules(sources: list[str] | None) -> None:
    """Import modules, and run files.

    Raises
    ------
    BadParameter
        If there is no such file or module, or the user's code raises an exception.
    """
    for source in sources or []:
        with present_folder():
            if not _exists(source):
                raise typer.BadParameter(
                    f"{source!r} is neither a Python file nor a module, seen from {Path.cwd()}; "
                    "must be one of these, such as my_operator.py or my_operator",
                    param_hint="--load",
                )
            try:
                if source.endswith(".py"):
                    runpy.run_path(source, run_name=Path(source).stem)
                else:
                    importlib.import_module(source)
            except (Exception, SystemExit) as error:
                reason = f"{source!r}: {type(error).__name__}: {error}"
                raise typer.BadParameter(reason, param_hint="--load") from error


def _exists(source: str) -> bool:
    if source.endswith(".py"):
        return Path(source).is_file()
    words = source.split(".")
    return all(word.isidentifier() for word in words) and find_spec(words[0]) is not None


def given_names(context: typer.Context) -> list[str]:
    """Parameters that stand on the command line."""
    return [
        name for name in context.params
        if getattr(context.get_parameter_source(name), "name", "") == "COMMANDLINE"
    ]  # fmt: skip


def refuse_others(context: typer.Context, option: str, others: Collection[str]) -> None:
    """Refuse `others` on the command line, as they make no sense together with `option`.

    Raises
    ------
    BadParameter
        If one is there.
    """
    if more := [name for name in given_names(context) if name in others]:
        arguments = {p.name for p in context.command.params if p.param_type_name == "argument"}
        words = (
            name.upper() if name in arguments else f"--{name.replace('_', '-')}" for name in more
        )
        raise typer.BadParameter(f"cannot be combined with {', '.join(words)}", param_hint=option)


@contextmanager
def report_mistakes(*others: type[Exception]) -> Iterator[None]:
    """End the command with a message where the user asked for something impossible."""
    mistakes: tuple[type[Exception], ...] = (FileNotFoundError, ImportError, ValueError, *others)
    try:
        yield
    except mistakes as error:
        raise typer.BadParameter(str(error)) from error


def take_options(
    command: Callable[..., None], *sources: Callable[..., Any], **defaults: Any
) -> Callable[..., None]:
    """Let a command, which takes words by name, have the options of these functions in turn.

    Of a name that several have, the first counts; `defaults` replace theirs.
    """
    found = {
        name: each.replace(default=defaults.get(name, each.default))
        for source in reversed(sources)
        for name, each in signature(source).parameters.items()
    }
    order = dict.fromkeys(name for source in sources for name in signature(source).parameters)
    parameters = [found[name] for name in order]
    command.__annotations__ = {each.name: each.annotation for each in parameters}
    setattr(command, "__signature__", Signature(parameters))  # noqa: B010
    return command
