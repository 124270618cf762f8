"""How the lines of a text table are split, and how it writes its numbers."""

import csv
import gzip
import io
import re
from collections import Counter
from pathlib import Path

from .files import Unsupported, naming

SEPARATORS = {"tab": "\t", "semicolon": ";", "comma": ",", "space": " "}
DECIMALS = ("point", "comma")
_SAMPLE = 50_000  # characters
_WITH_COMMA = re.compile(r"\s*[+-]?\d*,\d+([eE][+-]?\d+)?\s*")
_WITH_POINT = re.compile(r"\s*[+-]?(\d*\.\d+|\d+\.)([eE][+-]?\d+)?\s*")
_THOUSANDS = re.compile(r"\s*[+-]?[1-9]\d{0,2},\d{3}\s*")
Lines = list[tuple[int, list[str]]]  # the fields of each line with its number, from 1


def read_lines(path: Path, sep: str | None, decimal: str | None) -> tuple[Lines, str, str]:
    """Return the fields of a text table, the name of its separator, and that of its decimal sign.

    Decimal commas become points. Empty lines are left out.

    Raises
    ------
    ValueError
        If the file is damaged or not in UTF-8, `sep` or `decimal` is no such name, or commas may be
        decimal commas or group thousands.
    """
    for argument, name, known in (("sep", sep, SEPARATORS), ("decimal", decimal, DECIMALS)):
        if name is not None and name not in known:
            raise ValueError(f"{argument}: must be among {', '.join(known)}; got {name!r}")
    text = _read_text(path)
    with naming(path, "text table"):
        sep = sep or _guess_separator(text)
        lines = _split(text, sep)
    decimal = decimal or _guess_decimal(path, [field for _, row in lines for field in row])
    if decimal == "comma":
        lines = [(n, [_with_point(path, n, field) for field in row]) for n, row in lines]
    return lines, sep, decimal


def looks_like_number(field: str) -> bool:
    """Whether a field is a number with a decimal point or comma."""
    return is_number(field) or looks_like_decimal_comma(field)


def looks_like_decimal_comma(field: str) -> bool:
    """Whether a field is a number with a decimal comma."""
    return bool(_WITH_COMMA.fullmatch(field))


def _read_text(path: Path) -> str:
    with naming(path, "text table"):
        content = path.read_bytes()
        content = gzip.decompress(content) if path.suffix == ".gz" else content
        try:
            return content.decode("utf-8-sig")
        except UnicodeDecodeError as error:
            raise Unsupported(f"is no text in UTF-8: save it as UTF-8 ({error})") from error


def _split(text: str, sep: str) -> Lines:
    file = io.StringIO(text, newline="")
    if sep == "space":  # any run of spaces and tabs
        spaced = (line.strip().replace("\t", " ") for line in file)
        reader = csv.reader(spaced, delimiter=" ", skipinitialspace=True)
    else:
        reader = csv.reader(file, delimiter=SEPARATORS[sep], skipinitialspace=True)
    return [(reader.line_num, row) for row in reader if len(row) > 1 or "".join(row).strip()]


def _guess_separator(text: str) -> str:
    """Return the separator by which most lines have as many fields, and most fields are numbers."""
    sample = text[:_SAMPLE]
    if len(text) > _SAMPLE:
        sample = sample[: sample.rfind("\n") + 1] or sample

    def merit(sep: str) -> tuple[float, float]:
        rows = [row for _, row in _split(sample, sep)]
        width, count = Counter(map(len, rows)).most_common(1)[0] if rows else (0, 0)
        if width < 2:
            return 0.0, 0.0
        fields = [field for row in rows for field in row]
        numbers = sum(looks_like_number(field) for field in fields)
        return count / len(rows) * numbers / len(fields), count / len(rows)

    merits = {sep: merit(sep) for sep in SEPARATORS}
    best = max(merits, key=merits.__getitem__)
    return best if any(merits[best]) else "comma"


def is_number(field: str) -> bool:
    """Whether a field can be read as a number."""
    try:
        float(field)
    except ValueError:
        return False
    return "_" not in field


def _guess_decimal(path: Path, fields: list[str]) -> str:
    commas = [field for field in fields if "," in field and looks_like_decimal_comma(field)]
    if not commas or any("." in field and _WITH_POINT.fullmatch(field) for field in fields):
        return "point"
    if all(map(_THOUSANDS.fullmatch, commas)):
        raise ValueError(
            f"decimal: {commas[0]!r} in {path} may have a decimal comma, or one that groups "
            "thousands. Say decimal=comma if it is a decimal comma, else remove the commas"
        )
    return "comma"


def _with_point(path: Path, line: int, field: str) -> str:
    if "." in field and _WITH_POINT.fullmatch(field):
        raise ValueError(f"decimal: is comma, but line {line} of {path} holds {field!r}")
    return field.replace(",", ".") if looks_like_decimal_comma(field) else field
