"""Write what a command leaves on disk beside figures: tables, settings and a summary."""

import gzip
import json
from collections.abc import Iterable, Sequence
from itertools import groupby
from pathlib import Path
from textwrap import wrap
from typing import Any

import numpy as np
import pandas as pd
from rich.table import Column, Table

from ..datasets.files import write_whole
from .provenance import provenance
from .terminal import console

_MOST_ROWS = 540  # most rows of a table in summary.md
Lines = tuple[tuple[str, ...], list[tuple[str, ...]]]  # headings, and the cells of each line


def number(value: Any, form: str, missing: str = "-") -> str:
    """A value in a format, as a cell of a table; `missing` stands for None and NaN."""
    return missing if value is None or pd.isna(value) else format(value, form)


def markdown(headings: Iterable[str], lines: Iterable[Iterable[str]]) -> list[str]:
    """A table in Markdown, line by line."""
    top = "| " + " | ".join(headings) + " |"
    rule = "|" + "---|" * len(tuple(headings))
    cells = ([cell.replace("|", r"\|") for cell in line] for line in lines)
    return [top, rule, *("| " + " | ".join(line) + " |" for line in cells)]


def write_table(table: pd.DataFrame, directory: Path, name: str = "table.json") -> None:
    """Write the rows as JSON objects, one per line; numbers that are not finite become null.

    A `name` that ends with .gz is compressed.
    """
    finite = table.replace([np.inf, -np.inf], np.nan).astype(object)
    rows = finite.where(finite.notna(), None).to_dict(orient="records")
    lines = ",\n".join(json.dumps(row, allow_nan=False) for row in rows)
    text = f"[\n{lines}\n]\n"
    packed = name.endswith(".gz")
    write_whole(directory / name, gzip.compress(text.encode(), mtime=0) if packed else text)


def read_table(path: Path) -> pd.DataFrame:
    """The rows that `write_table` wrote; columns without any value are NaN."""
    content = path.read_bytes()
    rows = json.loads(gzip.decompress(content) if path.suffix == ".gz" else content)
    table = pd.DataFrame(rows)
    return table.astype({name: float for name in table if table[name].isna().all()})


def write_lines(lines: Lines, path: Path) -> None:
    """Write headings and cells to `path` with suffix ``.csv``, and as LaTeX with ``.tex``."""
    headings, rows = lines
    table = pd.DataFrame(rows, columns=list(headings))
    write_whole(path.with_suffix(".csv"), table.to_csv(index=False))
    columns = "l" * len(headings)
    body = [" & ".join(map(_in_latex, row)) + r" \\" for row in (headings, *rows)]
    text = [rf"\begin{{tabular}}{{{columns}}}", r"\hline", body[0], r"\hline", *body[1:], r"\hline"]
    write_whole(path.with_suffix(".tex"), "\n".join([*text, r"\end{tabular}"]) + "\n")


def _in_latex(cell: str) -> str:
    for sign, written in _LATEX.items():
        cell = cell.replace(sign, written)
    return cell


_LATEX = {
    "\\": r"\textbackslash ", "&": r"\&", "%": r"\%", "_": r"\_", "#": r"\#", "$": r"\$",
    "^": r"\^{}", "|": r"$|$", "±": r"$\pm$",
}  # fmt: skip


def write_summary(title: str, lines: list[str], settings: dict[str, Any], directory: Path) -> None:
    """Write ``settings.json``, with versions and machine, and the Markdown ``summary.md``."""
    run = provenance(settings)
    write_whole(directory / "settings.json", json.dumps(run, indent=1) + "\n")
    numbers = ", ".join(f"{name} {number}" for name, number in run["versions"].items())
    given = {k: v for k, v in settings.items() if v is not None and v is not False}
    words = ", ".join(f"{name}={value}" for name, value in given.items())
    machine = f"Run with {numbers}, on {run['machine']}."
    vectors = f"Instruction sets: {run['instructions']}."
    text = [f"# {title}", "", *lines, "", f"Settings: {words}.", "", machine, "", vectors]
    write_whole(directory / "summary.md", "\n".join(text) + "\n")


def print_table(title: str, lines: Lines) -> None:
    """Print a table without empty columns; cells are not cut.

    Columns that do not fit are printed below, with the first column repeated. That column wraps
    where it would take more than half of the width. Each case, data set or noise has a table. The
    title names features, dtype and threads if all rows share them.
    """
    headings, rows = lines
    if headings[0] in ("case", "data", "noise"):
        for first, group in groupby(rows, key=lambda row: row[0]):
            word = "noise " * (headings[0] == "noise")
            print_table(f"{title}: {word}{first}", (headings[1:], [row[1:] for row in group]))
        return
    for name in [x for x in ("features", "dtype", "threads") if x in headings]:
        place = headings.index(name)
        shared = {row[place] for row in rows} - {"-"}
        if len(shared) == 1:
            title += f", {name} {shared.pop()}"
            headings, *rows = (line[:place] + line[place + 1 :] for line in (headings, *rows))
    kept = [i for i in range(len(headings)) if any(row[i] not in ("-", "") for row in rows)]
    widths = {i: max(_narrowest(headings[i]), *(len(row[i]) for row in rows)) for i in kept}
    room = console().width - 1
    widths[kept[0]] = min(widths[kept[0]], room // 2)
    for part in _fit_columns(widths, room):
        columns = (Column(headings[i], width=widths[i], overflow="fold") for i in part)
        shown = Table(*columns, title=title)
        for row in rows:
            shown.add_row(*(row[i] for i in part))
        console().print(shown)


def _narrowest(heading: str) -> int:
    """The smallest width at which a heading fits on two lines."""
    width = max(map(len, heading.split()), default=0)
    while len(wrap(heading, width)) > 2:
        width += 1
    return width


def _fit_columns(widths: dict[int, int], room: int) -> list[list[int]]:
    """Groups of columns that fit the width; each group begins with the first column."""
    around = 3  # a line and two spaces
    first, *others = widths
    parts: list[list[int]] = [[first]]
    left = room - widths[first] - around
    for i in others:
        if widths[i] + around > left and len(parts[-1]) > 1:
            parts.append([first])
            left = room - widths[first] - around
        parts[-1].append(i)
        left -= widths[i] + around
    return parts


class Results:
    """What a command found, printed and written to a folder with a summary."""

    def __init__(self, command: str, settings: dict[str, Any], directory: Path) -> None:
        self.command, self.settings, self.directory = command, settings, directory
        self.text: list[str] = []

    def add_table(
        self, title: str, lines: Lines, *, heading: str | None = None, file: str = "",
        shown: bool = True,
    ) -> None:  # fmt: skip
        """Add a table under a heading, and write it to `file`; a table without rows is skipped.

        It is not printed unless `shown`. The summary names the file of a table that is too long.
        """
        if not lines[1]:
            return
        if shown:
            print_table(title, lines)
        heading = f"## {title}" if heading is None else heading
        self.text += [heading, ""] if heading else []
        if file:
            write_lines(lines, self.directory / file)
        long = file and len(lines[1]) > _MOST_ROWS
        said = [f"All {len(lines[1])} rows: {file}.csv."] if long else markdown(*lines)
        self.text += [*said, ""]

    def add_sentences(self, sentences: Iterable[str]) -> None:
        for sentence in sentences:
            console().print(sentence, soft_wrap=True)
            self.text += [sentence, ""]

    def write(self, pictures: Sequence[str] = ()) -> None:
        """Write the summary with the pictures that exist."""
        drawn = [name for name in pictures if (self.directory / f"{name}.png").is_file()]
        text = [*self.text, *(f"![{name}]({name}.png)" for name in drawn)]
        write_summary(self.command, text, self.settings, self.directory)
        console().print(f"Written to {self.directory}/")
