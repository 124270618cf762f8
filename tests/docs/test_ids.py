"""Every id of an equation or erratum that the repository cites stands on the sheet."""

import re
from pathlib import Path

import pytest

from twinsolve.twins import catalogue

ROOT = Path(__file__).parents[2]
PLACES = ("solvers", "unrolled", "twins", "datasets", "bench", "tests", "examples", "docs")
SHEETS = [*(ROOT / "docs/equations").glob("*.md"), ROOT / "docs/errata.md"]
TARGETS = {
    target
    for sheet in SHEETS
    for target in re.findall(r"^\(((?:[a-z]{2}|e\d)-.+)\)=$", sheet.read_text(), re.MULTILINE)
}
PREFIXES = "|".join(sorted({target.split("-")[0].upper() for target in TARGETS}))
ID = re.compile(rf"(?<![\w-])(?:{PREFIXES})-[A-Za-z0-9]+(?:\.\d+)?(?![\w-])")
CITED = re.compile(r"EQUATIONS\s+(\S+)")


def texts():
    for place in PLACES:
        for file in sorted((ROOT / place).rglob("*")):
            built = "_build" in file.parts or file.is_relative_to(ROOT / "docs/examples")
            if file.suffix in {".py", ".md", ".toml"} and not built and file != Path(__file__):
                yield file.relative_to(ROOT), file.read_text()


def unresolved(text):
    """Ids on no sheet, and what a docstring cites from the sheet without an id."""
    cited = [word.rstrip(".,;:()") for word in CITED.findall(text)]
    ids = {*ID.findall(text), *(word for word in cited if not word.startswith("`"))}
    return sorted(id_ for id_ in ids if id_.lower() not in TARGETS)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("EQUATIONS SE-12 and E3-d, QK-low\nrank, SE-15 to SE-18.", []),
        ("EQUATIONS SE-99; erratum E3-z", ["E3-z", "SE-99"]),
        ("EQUATIONS section 9.5", ["section"]),
        ("EQUATIONS XY-1", ["XY-1"]),
    ],
)
def test_what_does_not_resolve_is_found(text, expected):
    assert unresolved(text) == expected


def test_every_id_resolves():
    found = {str(file): ids for file, text in texts() if (ids := unresolved(text))}
    assert found == {}


def test_every_twin_names_equations_of_the_sheet():
    cited = {twin.name: re.split(r", | to ", twin.equation) for twin in catalogue()}
    found = {
        name: ids
        for name, ids in cited.items()
        if not {id_.lower().replace(" ", "-") for id_ in ids} <= TARGETS
    }
    assert found == {}
