"""Lines of a summary: what is said of each group of rows of a table."""

from collections.abc import Callable, Mapping, Sequence

import pandas as pd

from ..tables import Lines, number

Cell = str | Callable[[pd.DataFrame], str]  # the name of a column, or what a group of rows says


def lines_of(table: pd.DataFrame, by: Sequence[str], cells: Mapping[str, Cell]) -> Lines:
    """A line for each group of rows that agree in `by`, with the cells by their headings."""
    groups = [group for _, group in table.groupby(list(by), sort=False)]
    return tuple(cells), [tuple(_text(cell, group) for cell in cells.values()) for group in groups]


def _text(cell: Cell, group: pd.DataFrame) -> str:
    return str(group[cell].iloc[0]) if isinstance(cell, str) else cell(group)


def folded(
    column: str, fold: str | Callable[[pd.Series], float], form: str, missing: str = ""
) -> Cell:
    """A number of the group: the mean of a column, its median or what else `fold` makes of it."""
    return lambda rows: number(rows[column].astype(float).agg(fold), form, missing)


def with_deviation(column: str) -> Cell:
    """Mean and standard deviation."""
    return lambda rows: f"{rows[column].mean():.1f} ± {rows[column].std(ddof=0):.1f}"


def over_seeds(column: str) -> Cell:
    """Range over the seeds of the mean over all else."""

    def cell(rows: pd.DataFrame) -> str:
        means = rows.groupby("seed")[column].mean()
        return f"{means.min():.2f} to {means.max():.2f}"

    return cell
