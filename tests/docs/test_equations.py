"""The equation sheet and the errata: ids, what an entry says, and the tests that it names."""

import ast
import re
from collections import Counter
from pathlib import Path

import pytest

from twinsolve.twins import catalogue

ROOT = Path(__file__).parents[2]
ERRATA = ROOT / "docs" / "errata.md"
PAGES = [*sorted((ROOT / "docs" / "equations").glob("*.md")), ERRATA]
TARGET = re.compile(r"^\((.+)\)=$", re.MULTILINE)
ENTRY = re.compile(r"^#{2,3} ([A-Z][A-Z0-9]-.+?): .*\n([\s\S]*?)(?=^\(|^#|\Z)", re.MULTILINE)
TESTS = re.compile(r"^- \*\*Test:\*\* ([\s\S]+?)(?=\n\n|\Z)", re.MULTILINE)
TWINS = {twin.name for twin in catalogue()}


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


def test_targets_are_unique_and_in_lower_case():
    targets = [target for page in PAGES for target in TARGET.findall(page.read_text())]
    assert len(targets) > 200
    assert [target for target, count in Counter(targets).items() if count > 1] == []
    assert [target for target in targets if target != target.lower()] == []


@pytest.mark.parametrize("page", PAGES, ids=by_name)
def test_an_entry_stands_behind_its_target_and_says_what_it_must(page):
    text = page.read_text()
    fields = ["Printed", "True", "Why it matters"] if page == ERRATA else ["Status", "Source"]
    for label, body in ENTRY.findall(text):
        for word in re.split(", | to ", label):
            assert f"({word.lower().replace(' ', '-')})=" in text, word
        for field in [*fields, "Test"]:
            assert body.count(f"- **{field}:** ") == 1, f"{label}: {field}"


@pytest.mark.parametrize("page", PAGES, ids=by_name)
def test_the_tests_that_entries_name_exist(page):
    lists = TESTS.findall(page.read_text())
    assert len(lists) >= len(ENTRY.findall(page.read_text()))
    assert [name for text in lists for name in missing(text)] == []


def test_what_does_not_exist_is_missed():
    here = "`tests/docs/test_equations.py`: `test_what_does_not_exist_is_missed`"
    assert missing(f"{here}; twin `softmax-attention`") == []
    assert missing("`tests/docs/test_nothing.py`: `test_a`") == [
        "tests/docs/test_nothing.py",
        "test_a",
    ]
    assert missing(f"{here}, `test_nothing`; twin `nothing`") == ["test_nothing", "nothing"]
