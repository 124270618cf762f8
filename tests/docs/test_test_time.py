"""The page on layers that learn at test time: its code, its constructors and its twins."""

import doctest
import re
from pathlib import Path

import pytest

from twinsolve import unrolled
from twinsolve.twins import Twin, catalogue
from twinsolve.unrolled import coding_rate, online_regression, sparse_coding

PAGE = (Path(__file__).parents[2] / "docs" / "test_time.md").read_text()
TWINS: dict[str, Twin] = {twin.name: twin for twin in catalogue()}
NAMES = {
    name: thing
    for module in (unrolled, online_regression, coding_rate, sparse_coding)
    for name, thing in vars(module).items()
}
CELLS = [[cell.strip() for cell in line[1:-1].split("|")] for line in PAGE.splitlines()
         if line.startswith("| ") and not line.startswith("| in the paper")]  # fmt: skip


def test_its_code_prints_what_is_printed():
    code = "".join(re.findall(r"```pycon\n(.*?)```", PAGE, re.DOTALL))
    test = doctest.DocTestParser().get_doctest(code, {}, "test_time", None, 0)
    assert len(test.examples) >= 15
    assert doctest.DocTestRunner().run(test).failed == 0


@pytest.mark.parametrize("cells", CELLS, ids=[cells[0] for cells in CELLS])
def test_a_row_names_a_layer_and_twins_that_are_about_it(cells):
    assert len(cells) == 8
    named, twins = (re.findall(r"`([^`{}<>]+)`", cells[i]) for i in (1, 6))
    layers = {type(eval(code, dict(NAMES))) for code in named}
    assert layers == {TWINS[name].layer for name in twins}
    assert twins


def test_the_table_has_the_twins_of_these_families():
    named = set(re.findall(r"`([a-z-]+)`", " ".join(cells[6] for cells in CELLS)))
    families = {"online_regression", "associative_memory", "coding_rate"}
    there = {name for name, twin in TWINS.items() if twin.family in families}
    # Linear attention has other twins too, and a plain decay is gated linear attention.
    assert there - named == {"decaying-linear-attention", "linear-attention-rate-ascent"}
