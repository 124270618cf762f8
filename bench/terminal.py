"""Shared parts of all commands: errors, progress, the folder for results, modules to load."""

import errno
import importlib
import os
import runpy
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Event, Timer
from time import monotonic
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import track
from typer.core import TyperGroup

_WIDTH = 120
_PATIENCE, _BETWEEN_LINES = 5.0, 10.0  # seconds
_COMPILING = "Solvers are compiled before their first use, for about a minute."
_compiling_told = Event()


class Commands(TyperGroup):
    """Commands that end with a sentence and code 1 if a file cannot be read or written.

    If the user stops them, they say what is kept, by the notes of the interrupt; the code is 130.
    """

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt as stop:
            words = "\n".join(["Stopped.", *getattr(stop, "__notes__", ())])
            Console(stderr=True).print(words, soft_wrap=True, style="red", markup=False)
            raise typer.Exit(code=130) from stop
        except OSError as error:
            if error.errno == errno.EPIPE:  # the reader has closed, such as `| head`
                raise
            Console(stderr=True).print(explain(error), soft_wrap=True, style="red", markup=False)
            raise typer.Exit(code=1) from error


def explain(error: OSError) -> str:
    """Say which file could not be read or written, why, and what to do."""
    where = f"{error.filename}: " if error.filename else ""
    return f"{where}{error.strerror or error}. {_CURES.get(error.errno or 0, '')}".rstrip()


_ELSEWHERE = "name another folder: --output for results, XDG_CACHE_HOME for caches."
_CURES = {
    **dict.fromkeys((errno.ENOSPC, errno.EDQUOT), f"Free space there, or {_ELSEWHERE}"),
    **dict.fromkeys((errno.EACCES, errno.EPERM, errno.EROFS), f"Allow it, or {_ELSEWHERE}"),
    **dict.fromkeys(
        (errno.EEXIST, errno.EISDIR, errno.ENOTDIR), f"Remove what stands there, or {_ELSEWHERE}"
    ),
}

Load = Annotated[
    list[str] | None,
    typer.Option(
        metavar="MODULE", help="Import a module, or run a file, that registers your own parts."
    ),
]


def console() -> Console:
    """Standard output, as wide as the terminal; a file is wide enough for most tables."""
    screen = Console()
    return screen if screen.is_terminal else Console(width=max(screen.width, _WIDTH))


def progress(description: str) -> Callable[[Iterable[Any], int], Iterable[Any]]:
    """Wrapper of jobs that shows how many are done: a bar on a terminal, lines in a file."""

    def wrap(jobs: Iterable[Any], total: int) -> Iterable[Any]:
        screen = Console(stderr=True)
        jobs = _explain_wait(jobs, screen)
        if screen.is_terminal:
            return track(jobs, total=total, description=description, console=screen)
        return _print_lines(jobs, total, description, screen)

    return wrap


def _explain_wait(jobs: Iterable[Any], screen: Console) -> Iterator[Any]:
    """Say once that solvers are compiled, if they are and the first job takes long."""
    from numba.core.event import install_recorder

    def explain() -> None:
        if compiled.buffer and not _compiling_told.is_set():
            _compiling_told.set()
            screen.print(_COMPILING)

    timer = Timer(_PATIENCE, explain)
    timer.daemon = True
    with install_recorder("numba:compile") as compiled:
        timer.start()
        try:
            for job in jobs:
                timer.cancel()
                yield job
        finally:
            timer.cancel()


def _print_lines(
    jobs: Iterable[Any], total: int, description: str, screen: Console
) -> Iterator[Any]:
    start = said = monotonic()
    for done, job in enumerate(jobs, start=1):
        yield job
        now = monotonic()
        if done == total or now - said >= _BETWEEN_LINES:
            screen.print(f"{description}: {done} of {total} done in {now - start:.0f} s")
            said = now


@contextmanager
def present_folder() -> Iterator[None]:
    """Let modules in the current folder be imported."""
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


def results_folder(folder: Path | None) -> Path | None:
    """Return `folder` if a command can write below it; no file is left there.

    Raises
    ------
    BadParameter
        If the folder, or its closest existing parent, is no folder or is not writable.
    """
    if folder is None:
        return None
    way = (folder.absolute(), *folder.absolute().parents)
    there = next(place for place in way if os.path.lexists(place))
    if reason := _find_refusal(there):
        raise typer.BadParameter(f"{folder}: {there} {reason}", param_hint="--output")
    return folder


Output = Annotated[
    Path, typer.Option(metavar="DIR", help="Folder for the results.", callback=results_folder)
]


def _find_refusal(folder: Path) -> str:
    if not folder.is_dir():
        return "is no folder"
    try:
        if os.access(folder, os.W_OK | os.X_OK):
            TemporaryDirectory(dir=folder).cleanup()  # system folders refuse even root
            return ""
    except OSError:
        pass
    return "may not be written to"
