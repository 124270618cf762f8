"""Points and labels in the columns of a user's own table."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from .labels import TARGET_NAMES, pick_labels
from .separators import is_number, looks_like_decimal_comma
from .tables import Table, read_table

Drop = str | int | Sequence[str | int] | None
_MOST_NAMED = 8  # columns
_WORD = "is not a number"
_GAPS = ("", "na", "n/a", "nan", "null", "none", "?", "-")


def read_table_points(
    path: Path,
    target_key: str | int | None,
    drop: Drop,
    sep: str | None,
    decimal: str | None,
) -> tuple[np.ndarray, np.ndarray | None, list[str] | None, str]:
    """Return points, labels, names of the features, and sources in words."""
    left_out = [drop] if isinstance(drop, str | int) else list(drop or [])
    keys = [] if target_key is None or target_key is False else [target_key]
    table = read_table(path, [*keys, *left_out], sep, decimal)
    dropped = [table.find_column(key, "drop") for key in left_out]
    column, labelled = _label_column(table, target_key, dropped)
    if column in dropped:
        raise ValueError(f"drop: column {table.call(column)} of {path} holds the labels")
    numbering = [] if drop is not None and not left_out else table.find_row_numbers()
    numbering = [number for number in numbering if number not in (*dropped, column)]
    excluded = (*dropped, *numbering, column)
    kept = [number for number in range(table.width) if number not in excluded]
    data = _read_numbers(table, kept, labelled=column is not None or target_key is False)
    notes = [f"points in {_say_columns(table, kept)}, {labelled}", *filter(None, [table.form])]
    notes += [f"column {table.call(n)} left out, as it numbers the rows" for n in numbering]
    notes += [f"column {table.call(n)} left out by drop" for n in dropped]
    notes += [
        f"column {table.call(n)} may number the points: drop={table.call(n)} leaves it out"
        for n in table.like_identifiers(kept, data)
    ]
    names = table.header and [table.header[number] for number in kept]
    labels = None if column is None else table.read_column(column)
    return data, labels, names, "; ".join(notes)


def _read_numbers(table: Table, columns: list[int], labelled: bool) -> np.ndarray:
    """Return the entries of these columns as float64, if all are finite numbers."""
    if not columns or not table.rows:
        raise ValueError(
            f"{table.path}: the table must hold numbers in shape (n_samples, n_features), got "
            f"{len(table.rows)} rows and {len(columns)} columns of features"
        )
    for number, row in enumerate(table.rows):
        for column in columns:
            if reason := _why_no_number(row[column]):
                called = table.call(column)
                cure = f"drop={called} leaves the column out"
                if reason == _WORD and not labelled:
                    cure = f"target_key={called} takes the column for the labels, {cure}"
                field = repr(row[column])
                if reason == _WORD and table.header is None and not number:
                    cure += f"; if the line is a header, name one of its words, as in drop={field}"
                raise ValueError(f"{table.place(number, column)}: {field} {reason}; {cure}")
    data = np.array([[row[column] for column in columns] for row in table.rows], dtype=np.float64)
    for number, place in np.argwhere(~np.isfinite(data))[:1]:
        raise ValueError(f"{table.place(number, columns[place])}: is not finite")
    return data


def _why_no_number(field: str) -> str:
    """Return why a field is no number, or an empty string."""
    if field.strip().lower() in _GAPS:
        return "is a gap: fill it, or remove the row"
    if is_number(field):
        return ""
    if looks_like_decimal_comma(field):
        return "has a decimal comma, which decimal=comma reads"
    return _WORD


def _say_columns(table: Table, columns: list[int]) -> str:
    """Return the columns in words: the first ones and the last if there are many."""
    called = [table.call(column) for column in columns]
    if len(called) > _MOST_NAMED:
        called = [*called[: _MOST_NAMED - 2], "...", called[-1]]
    return f"{len(columns)} column{'s' * (len(columns) > 1)} ({', '.join(called)})"


def _label_column(
    table: Table, target_key: str | int | None, dropped: list[int]
) -> tuple[int | None, str]:
    """Return the number of the column of labels, and where it was found, in words.

    Raises
    ------
    ValueError
        If there is no such column, or without `target_key` several could be it, or its only name
        may be that of a coordinate.
    """
    if target_key is False:
        return None, "no labels"
    if target_key is not None:
        column = table.find_column(target_key, "target_key")
        return column, f"labels in column {table.call(column)}"
    if table.header is None:
        return None, "no labels (no header; target_key=-1 takes the last column for labels)"
    names = [name.lower() for name in table.names]
    columns = [i for i, name in enumerate(names) if name in TARGET_NAMES and i not in dropped]
    named = [(str(table.key(i)), table.read_column(i)) for i in columns]
    chosen, why = pick_labels(table.path, named, (len(table.rows),))
    if chosen is None:
        return None, f"no labels{why}"
    values = named[chosen][1]
    beside = [i for i, other in enumerate(names) if other == "x" and i not in dropped]
    all_whole = values.dtype.kind == "i" and all(
        table.read_column(i).dtype.kind == "i" for i in beside
    )
    if names[columns[chosen]] == "y" and beside and all_whole:
        name = table.key(columns[chosen])
        raise ValueError(
            f"target_key: column {name!r} of {table.path} may hold labels, or a coordinate beside "
            f"{table.names[beside[0]]!r}; say target_key={name} if it holds labels, name the "
            "column that does, or say target_key=False if none does"
        )
    return columns[chosen], f"labels in column {table.call(columns[chosen])}"
