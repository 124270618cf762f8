"""What every command shares: tables on stdout, progress on stderr, a folder for the results."""

import os
from collections.abc import Callable, Iterable
from pathlib import Path
from tempfile import TemporaryDirectory

import typer
from rich.console import Console
from rich.progress import track

_WIDTH = 120


def console() -> Console:
    """Standard output, wide enough for the tables even where it is no terminal."""
    return Console(width=max(Console().width, _WIDTH))


def progress(description: str) -> Callable[[Iterable, int], Iterable]:
    def wrap(jobs: Iterable, total: int) -> Iterable:
        return track(jobs, total=total, description=description, console=Console(stderr=True))

    return wrap


def markdown(headings: Iterable[str], lines: Iterable[Iterable[str]]) -> list[str]:
    top = "| " + " | ".join(headings) + " |"
    rule = "|" + "---|" * len(tuple(headings))
    cells = ([cell.replace("|", r"\|") for cell in line] for line in lines)
    return [top, rule, *("| " + " | ".join(line) + " |" for line in cells)]


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
