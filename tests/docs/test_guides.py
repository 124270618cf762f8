"""The pages that users read are true: their code runs, and prints what they say it prints."""

import re
import runpy
from pathlib import Path

import numpy as np
import pytest

DOCS = Path(__file__).parents[2] / "docs"
MAKE = runpy.run_path(str(DOCS / "figures/make.py"))
HOURS = [*sorted((DOCS / "first_hour").glob("*.md")), DOCS / "motions.md"]
FAMILIES = sorted((DOCS / "families").glob("*.md"))
NUMBER = r"-?\d+\.?\d*(?:e[+-]?\d+)?"
BLOCK = re.compile(r"```python\n.*?```(?:\n\n```text\n(.*?)```)?", re.DOTALL)


@pytest.mark.parametrize("page", HOURS, ids=lambda page: page.stem)
def test_first_hour_prints_what_is_printed(page, tmp_path, monkeypatch):
    if page.stem == "model":
        pytest.importorskip("transformers")
    monkeypatch.chdir(tmp_path)
    _, outputs = MAKE["run_page"](page)
    stated = BLOCK.findall(page.read_text())
    assert len(stated) == len(outputs) >= 2
    for found, expected in zip(outputs, stated, strict=True):
        _assert_same(found, expected)
    shown = re.findall(r"figures/out/images/([\w./-]+)", page.read_text())
    assert len(shown) >= 7 * (page == MAKE["IMAGES"])
    assert [picture for picture in shown if not (tmp_path / picture).is_file()] == []


def _assert_same(found: str, expected: str) -> None:
    """The same words, and nearly the same numbers."""
    assert re.sub(NUMBER, "#", found) == re.sub(NUMBER, "#", expected)
    for line, printed in zip(found.splitlines(), expected.splitlines(), strict=True):
        numbers = [[float(x) for x in re.findall(NUMBER, text)] for text in (line, printed)]
        np.testing.assert_allclose(*numbers, rtol=0.05, atol=0.011, err_msg=line)


def test_index_lists_every_family():
    index = (DOCS / "families.md").read_text()
    listed = re.findall(r"^\| \[\]\(families/(\w+)\.md\)", index, re.M)
    assert listed == re.findall(r"^families/(\w+)$", index, re.M)
    assert sorted(listed) == [page.stem for page in FAMILIES]
