"""What every command shares: tables on stdout, progress on stderr, a folder for the results."""

import os
from collections.abc import Callable, Iterable
from pathlib import Path

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
    """Return `folder` if a command can write below it; nothing is made yet.

    Raises
    ------
    BadParameter
        If it, or what lies on the way to it, is no folder or may not be written to.
    """
    if folder is None:
        return None
    way = (folder.absolute(), *folder.absolute().parents)
    there = next(place for place in way if os.path.lexists(place))
    reason = "" if os.access(there, os.W_OK | os.X_OK) else "may not be written to"
    if not there.is_dir():
        reason = "is no folder"
    if reason:
        raise typer.BadParameter(f"{folder}: {there} {reason}", param_hint="--output")
    return folder
