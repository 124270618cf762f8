"""Tables in a user's files: the header, columns by name or number, and numbers of rows."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from .files import naming
from .separators import SEPARATORS, is_number, looks_like_number, read_lines

TEXT = (".csv", ".tsv", ".txt", ".dat", ".data")
_PARQUET = (".parquet", ".pq")
_UNNAMED = re.compile(r"|Unnamed: \d+(\.\d+)*")  # what pandas calls a column without a name
_WHOLE = re.compile(r"\s*[+-]?\d+\s*")
_IDENTIFIER = re.compile(r"(.*[ _.-])?(id|index|idx|key|row|number|no|nr)", re.IGNORECASE)


@dataclass(frozen=True, eq=False)
class Table:
    """Fields of a table, in rows of one width.

    `lines` are the numbers of their lines in a text file, from 1. `form` says in words how fields
    are separated, if it is not by commas with decimal points.
    """

    path: Path
    header: list[str] | None
    rows: list[list[str]]
    lines: list[int] | None = None
    form: str = ""

    @property
    def width(self) -> int:
        return len(self.header or self.rows[0])

    @property
    def names(self) -> list[str]:
        """Names of the columns, without spaces around them; empty without a header."""
        return [name.strip() for name in self.header or []]

    def key(self, column: int) -> str | int:
        """Return the name of a column, or its number from 0 if it has no name of its own."""
        name = self.names[column] if self.header else ""
        return name if name and self.names.count(name) == 1 else column

    def call(self, column: int) -> str:
        """Return what messages call a column."""
        return repr(self.key(column))

    def place(self, row: int, column: int) -> str:
        """Return the words for a field of the table: its line or row, and its column."""
        line = f"line {self.lines[row]} (row {row})" if self.lines else f"row {row}"
        return f"{self.path}: {line}, column {self.call(column)}"

    def read_column(self, column: int) -> np.ndarray:
        """Return the entries of a column as whole numbers, other numbers or else strings.

        Whole numbers beyond 64 bits stay strings, as floats would merge them.
        """
        fields = [row[column] for row in self.rows]
        if not all(map(is_number, fields)):
            return np.array(fields)
        if all(map(_WHOLE.fullmatch, fields)):
            whole = [int(field) for field in fields]
            return np.array(whole if max(map(abs, whole), default=0) < 2**63 else fields)
        numbers = np.array(fields, dtype=np.float64)
        return numbers.astype(np.int64) if _are_whole(numbers) else numbers

    def find_column(self, key: str | int, argument: str) -> int:
        """Return the number of a column from its name or its number, negative from the end.

        Raises
        ------
        ValueError
            If there is no such column, or several have the name; the message names the `argument`.
        """
        if alike := [i for i, name in enumerate(self.names) if name == str(key).strip()]:
            if len(alike) > 1:
                raise ValueError(
                    f"{argument}: {self.path} has several columns {key!r}; say the number of one, "
                    f"from 0: {', '.join(map(str, alike))}"
                )
            return alike[0]
        try:
            number = int(key)
        except ValueError as error:
            columns = f"which has {self.width} columns and no header"
            contents = f"whose header is {self.header}" if self.header else columns
            raise ValueError(f"{argument}: no column {key!r} in {self.path}, {contents}") from error
        if not -self.width <= number < self.width:
            raise ValueError(
                f"{argument}: must be a column of {self.path}, {-self.width} to {self.width - 1}, "
                f"got {number}"
            )
        return number % self.width

    def find_row_numbers(self) -> list[int]:
        """Return the columns without a name that number the rows, as pandas and R write them.

        Their entries are 0 to n - 1 or 1 to n, in the order of the rows or, under a header, in any
        order. Without a header only the first column, of three rows or more, is tried.
        """
        if self.header is None:
            large_enough = len(self.rows) > 2 and self.width > 1
            return [0] if large_enough and _number_rows(self.read_column(0), ordered=True) else []
        unnamed = [column for column, name in enumerate(self.names) if _UNNAMED.fullmatch(name)]
        return [column for column in unnamed if _number_rows(self.read_column(column))]

    def like_identifiers(self, columns: Sequence[int], data: np.ndarray) -> list[int]:
        """Return those of the columns, with the entries `data`, that may number the points.

        They hold whole numbers, no two of them equal, that are successive or have such a name.
        """
        names = self.names or ["0"] * self.width
        identifiers = []
        for column, values in zip(columns, data.T, strict=True):
            if len(values) > 2 and _are_whole(values) and len(np.unique(values)) == len(values):
                name = names[column]
                named = _UNNAMED.fullmatch(name) or _IDENTIFIER.fullmatch(name)
                if named or np.ptp(values) == len(values) - 1:
                    identifiers.append(column)
        return identifiers


def is_table(path: Path) -> bool:
    """Whether the name is that of a table: of text, plain or with .gz, or a Parquet file."""
    return is_text(path) or path.suffix in _PARQUET


def is_text(path: Path) -> bool:
    """Whether the name is that of a text table, plain or with .gz."""
    return Path(path.name.removesuffix(".gz")).suffix in TEXT


def read_table(
    path: Path, keys: Iterable[str | int] = (), sep: str | None = None, decimal: str | None = None
) -> Table:
    """Read the fields of a text table or a Parquet file.

    The first line of a text is the header if none of its fields is a number, if it counts columns
    from 0, as `_counts_columns` says, if one of its fields is among `keys`, or if its first field
    names a column of row numbers. It may lack the name of a first column of row names or numbers,
    as R writes it.

    Raises
    ------
    ValueError
        If the file is empty or damaged, its rows have different numbers of fields, or its separator
        or decimal sign is unknown.
    ImportError
        If a Parquet file needs pandas or its engine.
    """
    if path.suffix in _PARQUET:
        return _read_parquet(path)
    read, sep, decimal = read_lines(path, sep, decimal)
    if not read:
        raise ValueError(f"{path}: is empty")
    form = "" if (sep, decimal) == ("comma", "point") else f"separator {sep}, decimal {decimal}"
    lines, rows = [line for line, _ in read], [row for _, row in read]
    if _lacks_first_name(rows):
        rows[0] = ["", *rows[0]]
    for line, row in zip(lines, rows, strict=True):
        if len(row) != len(rows[0]):
            raise ValueError(
                f"{path}: line {line} has {len(row)} fields, the first has {len(rows[0])}, by the "
                f"separator {sep}; sep= takes another: {', '.join(SEPARATORS)}"
            )
    headed = Table(path, rows[0], rows[1:], lines[1:], form)
    known = {str(key).strip() for key in keys if isinstance(key, str)} & set(headed.names)
    named = _counts_columns(rows) or not any(map(looks_like_number, rows[0]))
    if known or named or 0 in headed.find_row_numbers():
        return headed
    return Table(path, None, rows, lines, form)


def _counts_columns(rows: list[list[str]]) -> bool:
    """Whether the first row counts columns from 0, as pandas does.

    They are three or more, or two beside columns with names. A name is no entry of its column.
    """
    first = [field.strip() for field in rows[0]]
    counts = [field for field in first if looks_like_number(field)]
    named = [i for i, field in enumerate(first) if not looks_like_number(field)]
    if len(counts) + bool(named) <= 2 or counts != list(map(str, range(len(counts)))):
        return False
    return not any(first[i] in ("", *(row[i].strip() for row in rows[1:])) for i in named)


def _lacks_first_name(rows: list[list[str]]) -> bool:
    """Whether the first row names all columns but the first, which holds names of rows."""
    others = [row for row in rows[1:] if len(row) == len(rows[0]) + 1]
    if not others or len(others) < len(rows) - 1 or any(map(looks_like_number, rows[0])):
        return False
    first = np.array([row[0] for row in others])
    if not any(map(is_number, first)):
        return True
    return all(map(is_number, first)) and _number_rows(first.astype(np.float64).astype(np.int64))


def _read_parquet(path: Path) -> Table:
    """Read the columns of a Parquet file; an index is left out."""
    with naming(path, "Parquet"):
        try:
            import pandas as pd

            frame = pd.read_parquet(path)
        except ImportError as error:
            reason = f"{path}: Parquet needs pandas and pyarrow: pip install pandas pyarrow"
            raise ImportError(reason) from error
        columns = [_fields(frame.iloc[:, number]) for number in range(frame.shape[1])]
    return Table(
        path, [str(name) for name in frame.columns], list(map(list, zip(*columns, strict=True)))
    )


def _fields(column: Any) -> list[str]:
    """Return the entries of a column of pandas as words that give the same numbers back."""
    missing = column.isna()
    if column.dtype.kind in "bf":  # the words of 32 bits are other numbers in 64 bits
        column = column.to_numpy(dtype=np.float64, na_value=np.nan)
    return ["" if gap else str(entry) for entry, gap in zip(column, missing, strict=True)]


def _are_whole(numbers: np.ndarray) -> bool:
    """Whether all numbers are whole, and small enough for floats to hold exactly."""
    return bool((np.abs(numbers) < 2**53).all() and (numbers == np.rint(numbers)).all())


def _number_rows(values: np.ndarray, *, ordered: bool = False) -> bool:
    """Whether these are the whole numbers 0 to n - 1 or 1 to n."""
    if values.dtype.kind != "i" or not len(values) or values.min() not in (0, 1):
        return False
    counted = np.arange(len(values)) + values.min()
    return bool((counted == (values if ordered else np.sort(values))).all())
