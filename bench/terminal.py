"""What every command shares: stdout and progress, a folder for the results, modules to load."""

import importlib
import os
import runpy
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import track

_WIDTH = 120

Load = Annotated[
    list[str] | None,
    typer.Option(
        metavar="MODULE", help="Import a module, or run a file, that registers what is your own."
    ),
]


def console() -> Console:
    """Standard output, wide enough for the tables even where it is no terminal."""
    return Console(width=max(Console().width, _WIDTH))


def progress(description: str) -> Callable[[Iterable[Any], int], Iterable[Any]]:
    def wrap(jobs: Iterable[Any], total: int) -> Iterable[Any]:
        return track(jobs, total=total, description=description, console=Console(stderr=True))

    return wrap


@contextmanager
def present_folder() -> Iterator[None]:
    """Modules in the present folder can be imported too."""
    here = str(Path.cwd())
    sys.path.insert(0, here)
    try:
        yield
    finally:
        sys.path.remove(here)


def load_modules(sources: list[str] | None) -> None:
    """Import modules, and run files.

    Raises
    ------
    BadParameter
        Whatever the user's code raises.
    """
    for source in sources or []:
        try:
            with present_folder():
                if source.endswith(".py"):
                    runpy.run_path(source, run_name=Path(source).stem)
                elif all(word.isidentifier() for word in source.split(".")):
                    importlib.import_module(source)
                else:
                    raise ImportError("must be a module, such as my_twins, or a file my_twins.py")
        except Exception as error:
            reason = f"{source!r}: {type(error).__name__}: {error}"
            raise typer.BadParameter(reason, param_hint="--load") from error


def results_folder(folder: Path | None) -> Path | None:
    """Return `folder` if a command can write below it; nothing is left there yet.

    Raises
    ------
    BadParameter
        If it, or what lies on the way to it, is no folder or may not be written to.
    """
    if folder is None:
        return None
    way = (folder.absolute(), *folder.absolute().parents)
    there = next(place for place in way if os.path.lexists(place))
    if reason := _refusal(there):
        raise typer.BadParameter(f"{folder}: {there} {reason}", param_hint="--output")
    return folder


Output = Annotated[
    Path, typer.Option(metavar="DIR", help="Folder for the results.", callback=results_folder)
]


def _refusal(folder: Path) -> str:
    if not folder.is_dir():
        return "is no folder"
    try:
        if os.access(folder, os.W_OK | os.X_OK):
            TemporaryDirectory(dir=folder).cleanup()  # which a system folder refuses even root
            return ""
    except OSError:
        pass
    return "may not be written to"
