"""What all commands do on a terminal: errors, progress, modules of the current folder."""

import errno
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event, Timer
from time import monotonic
from typing import Any

import typer
from rich.console import Console
from rich.progress import track
from typer.core import TyperGroup

_WIDTH = 120
LONG = 30.0  # seconds: what takes longer is estimated first
_PATIENCE, _BETWEEN_LINES = 5.0, 10.0  # seconds
_COMPILING = "Solvers are compiled before their first use, for about a minute."
_compiling_told = Event()


class Commands(TyperGroup):
    """Commands that end in words, as `end_in_words` says."""

    def invoke(self, ctx: Any) -> Any:
        with end_in_words():
            return super().invoke(ctx)


@contextmanager
def end_in_words() -> Iterator[None]:
    """End with a sentence and code 1 if a file cannot be read or written.

    If the user stops the command, it says what is kept, by the notes of the interrupt; the code is
    130.
    """
    screen = Console(stderr=True)
    try:
        yield
    except KeyboardInterrupt as stop:
        words = "\n".join(["Stopped.", *getattr(stop, "__notes__", ())])
        screen.print(words, soft_wrap=True, style="red", markup=False)
        raise typer.Exit(code=130) from stop
    except OSError as error:
        if error.errno == errno.EPIPE:  # the reader has closed, such as `| head`
            raise
        screen.print(explain(error), soft_wrap=True, style="red", markup=False)
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


def console() -> Console:
    """Standard output, as wide as the terminal; a file is wide enough for most tables.

    It shows brackets as they are, which names of files and settings may hold.
    """
    screen = Console(markup=False)
    if screen.is_terminal:
        return screen
    return Console(width=max(screen.width, _WIDTH), markup=False)


def progress(description: str) -> Callable[[Iterable[Any], int], Iterable[Any]]:
    """Wrapper of jobs that shows how many are done: a bar on a terminal, lines in a file."""

    def wrap(jobs: Iterable[Any], total: int) -> Iterable[Any]:
        screen = Console(stderr=True)
        jobs = _explain_wait(jobs, screen)
        if screen.is_terminal:
            return track(jobs, total=total, description=description, console=screen)
        return _print_lines(jobs, total, description, screen)

    return wrap


def progress_in_lines(description: str) -> Callable[[Iterable[Any], int], Iterable[Any]]:
    """As `progress`, for parts of a job: lines alone, also where a bar shows the jobs."""
    screen = Console(stderr=True, markup=False)
    return lambda parts, total: _print_lines(parts, total, description, screen)


def tell(words: str) -> None:
    """Print a line on standard error."""
    Console(stderr=True, markup=False).print(words, soft_wrap=True, highlight=False)


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
        left = (now - start) / done * (total - done)
        is_first_of_many = done == 1 and left >= LONG
        if done == total or is_first_of_many or now - said >= _BETWEEN_LINES:
            ahead = "" if done == total else f", about {write_time(left)} left"
            words = f"{description}: {done} of {total} done in {write_time(now - start)}{ahead}"
            screen.print(words, soft_wrap=True, highlight=False)
            said = now


def write_time(seconds: float) -> str:
    """Write a time in words: seconds up to two minutes, then minutes, then hours.

    Examples
    --------
    >>> from twinsolve.bench.terminal import write_time
    >>> write_time(90), write_time(700), write_time(8000)
    ('90 s', '12 min', '2 h 13 min')
    """
    if seconds < 120:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes // 60} h {minutes % 60} min" if minutes >= 60 else f"{minutes} min"


@contextmanager
def present_folder() -> Iterator[None]:
    """Let modules in the current folder be imported."""
    here = str(Path.cwd())
    sys.path.insert(0, here)
    try:
        yield
    finally:
        sys.path.remove(here)
