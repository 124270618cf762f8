"""The equation sheet and the errata: what an entry says, the tests that it names, who cites it."""

import ast
import re
from pathlib import Path

import pytest

pytest.importorskip("sphinx")
from equation_links import target_of, targets

from twinsolve.twins import catalogue

ROOT = Path(__file__).parents[2]
PLACES = ("solvers", "unrolled", "twins", "datasets", "bench", "tests", "examples", "docs")
ERRATA = ROOT / "docs" / "errata.md"
PAGES = [*sorted((ROOT / "docs" / "equations").glob("*.md")), ERRATA]
TARGETS = targets(ROOT / "docs")
ENTRY = re.compile(r"^#{2,3} ([A-Z][A-Z0-9]-.+?): .*\n([\s\S]*?)(?=^\(|^#|\Z)", re.MULTILINE)
TESTS = re.compile(r"^- \*\*Test:\*\* ([\s\S]+?)(?=\n\n|\Z)", re.MULTILINE)
TWINS = {twin.name: twin for twin in catalogue()}
PREFIXES = "|".join(sorted({target.split("-")[0].upper() for target in TARGETS}))
ID = re.compile(rf"(?<![\w-])(?:{PREFIXES})-[A-Za-z0-9]+(?:\.\d+)?(?![\w-])")
CITED = re.compile(r"EQUATIONS\s+(\S+)")


def by_name(page):
    return page.stem


def functions(path):
    tree = ast.parse(path.read_text())
    return {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}


def missing(text):
    """What a list of tests names and there is not: files, functions of them, twins."""
    found, absent = set(), []
    for name in re.findall(r"`([^`]+)`", text):
        if name.startswith("tests/"):
            there = (ROOT / name).is_file()
            found = functions(ROOT / name) if there else set()
        else:
            there = name in (found if name.startswith("test_") else TWINS)
        if not there:
            absent.append(name)
    return absent


def unresolved(text):
    """Ids on no sheet, and what a docstring cites from the sheet without an id."""
    cited = [word.rstrip(".,;:()") for word in CITED.findall(text)]
    ids = {*ID.findall(text), *(word for word in cited if not word.startswith("`"))}
    return sorted(id_ for id_ in ids if id_.lower() not in TARGETS)


@pytest.mark.parametrize("page", PAGES, ids=by_name)
def test_an_entry_stands_behind_its_target_and_names_tests_that_exist(page):
    text = page.read_text()
    fields = ["Printed", "True", "Why it matters"] if page == ERRATA else ["Status", "Source"]
    for label, body in ENTRY.findall(text):
        for word in re.split(", | to ", label):
            assert f"({target_of(word)})=" in text, word
        for field in [*fields, "Test"]:
            assert body.count(f"- **{field}:** ") == 1, f"{label}: {field}"
    lists = TESTS.findall(text)
    assert len(lists) >= len(ENTRY.findall(text))
    assert [name for tests in lists for name in missing(tests)] == []


def test_what_does_not_exist_is_missed():
    here = "`tests/docs/test_equations.py`: `test_what_does_not_exist_is_missed`"
    assert missing(f"{here}; twin `softmax-attention`") == []
    assert missing("`tests/docs/test_nothing.py`: `test_a`") == [
        "tests/docs/test_nothing.py",
        "test_a",
    ]
    assert missing(f"{here}, `test_nothing`; twin `nothing`") == ["test_nothing", "nothing"]


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
    files = [file for place in PLACES for file in (ROOT / place).rglob("*.*")]
    built = (ROOT / "docs/_build", ROOT / "docs/examples", Path(__file__))
    found = {
        str(file): ids
        for file in files
        if file.suffix in {".py", ".md", ".toml"} and not any(map(file.is_relative_to, built))
        if (ids := unresolved(file.read_text()))
    }
    assert len(TARGETS) > 200
    assert found == {}
    for twin in TWINS.values():
        assert {*map(target_of, re.split(", | to ", twin.equation))} <= TARGETS, twin.name
