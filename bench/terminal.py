"""How every command prints: tables on stdout, progress on stderr."""

from collections.abc import Callable, Iterable

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
