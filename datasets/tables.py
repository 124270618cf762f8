"""Tables in a user's .csv files: the header, columns by name or number, and numbers of rows."""

import csv
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from .files import naming

_UNNAMED = re.compile(r"|Unnamed: \d+(\.\d+)*")  # what pandas calls a column without a name
_IDENTIFIER = re.compile(r"(.*[ _.-])?(id|index|idx|key|row|number|no|nr)", re.IGNORECASE)


@dataclass(frozen=True, eq=False)
class Table:
    """Fields of a .csv file, in rows of one width; `lines` are the numbers of their lines."""

    path: Path
    header: list[str] | None
    rows: list[list[str]]
    lines: list[int]

    @property
    def width(self) -> int:
        return len(self.header or self.rows[0])

    @property
    def names(self) -> list[str]:
        """Names of the columns, without spaces around them; empty without a header."""
        return [name.strip() for name in self.header or []]

    def call(self, column: int) -> str:
        """Return what messages call a column: its name or else its number, from 0."""
        named = self.names[column] if self.header else ""
        return repr(named or column)

    def read_column(self, column: int) -> np.ndarray:
        """Return the entries of a column as whole numbers, other numbers or else strings."""
        fields = [row[column] for row in self.rows]
        if not all(map(is_number, fields)):
            return np.array(fields)
        numbers = np.array(fields, dtype=np.float64)
        return numbers.astype(np.int64) if _are_whole(numbers) else numbers

    def find_column(self, key: str | int, argument: str) -> int:
        """Return the number of a column from its name or its number, negative from the end.

        Raises
        ------
        ValueError
            If there is no such column; the message names the `argument`.
        """
        if str(key).strip() in self.names:
            return self.names.index(str(key).strip())
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


def read_table(path: Path, keys: Iterable[str | int] = ()) -> Table:
    """Read the fields of a .csv file.

    The first line is the header if none of its fields is a number, if one of them is among `keys`,
    or if its first field names a column of row numbers.

    Raises
    ------
    ValueError
        If the file is empty, damaged, or its rows have different numbers of fields.
    """
    with naming(path, "csv"), open(path, newline="", encoding="utf-8-sig") as file:
        read = [(reader.line_num, row) for reader in [csv.reader(file)] for row in reader if row]
    if not read:
        raise ValueError(f"{path}: is empty")
    lines, rows = [line for line, _ in read], [row for _, row in read]
    for line, row in read:
        if len(row) != len(rows[0]):
            raise ValueError(
                f"{path}: line {line} has {len(row)} fields, the first has {len(rows[0])}"
            )
    headed = Table(path, rows[0], rows[1:], lines[1:])
    known = {str(key).strip() for key in keys if isinstance(key, str)} & set(headed.names)
    if known or not any(map(is_number, rows[0])) or 0 in headed.find_row_numbers():
        return headed
    return Table(path, None, rows, lines)


def is_number(field: str) -> bool:
    """Whether a field can be read as a number."""
    try:
        float(field)
    except ValueError:
        return False
    return True


def _are_whole(numbers: np.ndarray) -> bool:
    """Whether all numbers are whole, and small enough for floats to hold exactly."""
    return bool((np.abs(numbers) < 2**53).all() and (numbers == np.rint(numbers)).all())


def _number_rows(values: np.ndarray, *, ordered: bool = False) -> bool:
    """Whether these are the whole numbers 0 to n - 1 or 1 to n."""
    if values.dtype.kind != "i" or not len(values) or values.min() not in (0, 1):
        return False
    counted = np.arange(len(values)) + values.min()
    return bool((counted == (values if ordered else np.sort(values))).all())
