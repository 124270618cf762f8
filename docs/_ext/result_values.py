"""Reads numbers and tables of `docs/results`.

A number is named by a folder, cells of its row, and a column: ``denoise > BM3D > dB``. One in a
sentence is the group of a pattern: ``check > ([0-9]+) twins``.

Tables are those of `summary.md`, as the commands wrote them. Behind its cells a row has the names
of its `folder`, of its `section` and, in that, of its `part`. The second column of one heading is
``error %.1``, the third one ``error %.2``.
"""

import re
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pandas as pd

from twinsolve.bench.clustering.figures import describe_data, describe_features
from twinsolve.bench.tables import markdown

RESULTS = Path(__file__).parents[1] / "results"
_TABLE = re.compile(r"^\|.*\n\|---.*\n(?:\|.*\n)*", re.M)
_IN_WORDS: dict[str, Callable[..., str]] = {"data": describe_data, "features": describe_features}


@cache
def read_summary(folder: str) -> str:
    """What a command wrote."""
    path = RESULTS / folder / "summary.md"
    if not path.is_file():
        raise ValueError(f"{folder}: must be a folder of docs/results with a summary")
    return path.read_text() + "\n"


@cache
def read_tables(folder: str) -> list[pd.DataFrame]:
    """The tables of a summary, in their order; all cells are text."""
    text, found = read_summary(folder), []
    for match in _TABLE.finditer(text):
        head, _, *rows = map(_split, match[0].splitlines())
        twice = [head[:i].count(name) for i, name in enumerate(head)]
        names = [f"{name}.{n}" if n else name for name, n in zip(head, twice, strict=True)]
        above = re.split(r"^##? ", text[: match.start()], flags=re.M)
        parts = re.findall(r"^### (.*)$", above[-1], re.M) or [""]
        table = pd.DataFrame(rows, columns=names)
        section = above[-1].partition("\n")[0]
        found.append(table.assign(folder=folder, section=section, part=parts[-1]))
    return found


def _split(line: str) -> list[str]:
    return [cell.strip().replace(r"\|", "|") for cell in re.split(r"(?<!\\)\|", line)[1:-1]]


def find_table(folders: list[str], columns: list[str]) -> pd.DataFrame:
    """All rows of summaries whose tables have these columns."""
    tables = [table for folder in folders for table in read_tables(folder)]
    fit = [table for table in tables if {*columns} <= {*table}]
    if not fit:
        known = "; ".join(" | ".join(table) for table in tables)
        raise ValueError(f"no table of {folders} has {' | '.join(columns)}; there are {known}")
    return pd.concat(fit, ignore_index=True)


def find_rows(table: pd.DataFrame, cells: list[str]) -> pd.DataFrame:
    """The rows that have these cells; each is looked for in the first column that has it."""
    for cell in cells:
        columns = [name for name in table if table[name].eq(cell).any()]
        if not columns:
            known = ", ".join(table.iloc[:, 0].unique())
            raise ValueError(f"no row has {cell!r}; there are {known}")
        table = table[table[columns[0]] == cell]
    return table


def number_of(name: str) -> str:
    """The one cell or group that a name has, such as ``FOLDER > CELL > ... > COLUMN``."""
    folder, *cells, last = name.split(" > ")
    if cells:
        values = {*find_rows(find_table([folder], [last]), cells)[last]}
    else:
        values = {*re.findall(last, read_summary(folder), re.M)}
    if len(values) != 1:
        raise ValueError(f"must name one number, got {', '.join(sorted(values)) or 'none'}")
    return str(values.pop())


def table_of(
    folders: list[str], columns: list[str], rows: list[str], pivot: str = "", mean: bool = False
) -> str:
    """A table in Markdown."""
    needed = [*columns, pivot] if pivot else columns
    table = find_table(folders, needed)
    if rows:
        table = pd.concat([find_rows(table, row.split(" > ")) for row in rows])
    table = table[needed].drop_duplicates()
    headings = [re.sub(r"\.\d$", "", name) for name in columns]
    if pivot:
        *index, value = columns
        table = table[table[value] != ""].set_index([*index, pivot])[value]
        table = table.unstack(sort=False, fill_value="-").reset_index()
        columns = headings = [*table]
    found = [[_say(name, cell) for cell in table[name]] for name in columns]
    if mean:
        means = table.apply(pd.to_numeric, errors="coerce").mean()
        last = ["mean", *("" if pd.isna(x) else f"{x:.2f}" for x in means[1:])]
        found = [[*cells, cell] for cells, cell in zip(found, last, strict=True)]
    return "\n".join(markdown(headings, zip(*found, strict=True))) + "\n"


def _say(column: str, cell: str) -> str:
    return " ".join(_IN_WORDS.get(column, str)(cell).split())
