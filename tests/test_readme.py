"""The README stays true: its examples print what it says, its numbers stand in the results."""

import re
from pathlib import Path

import numpy as np
import pandas as pd

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
NUMBER = r"-?\d+\.?\d*(?:e-?\d+)?"


def test_examples_print_what_is_printed(capsys):
    names: dict = {}
    for block in re.findall(r"```python\n(.*?)```", README, re.DOTALL):
        exec(compile(block, "README.md", "exec"), names)
    (expected,) = re.findall(r"```text\n(.*?)```", README, re.DOTALL)
    found = capsys.readouterr().out
    assert re.sub(NUMBER, "#", found) == re.sub(NUMBER, "#", expected)
    for line, printed in zip(found.splitlines(), expected.splitlines(), strict=True):
        if "error" not in line:  # rounding, different from machine to machine
            numbers = [[float(x) for x in re.findall(NUMBER, text)] for text in (line, printed)]
            np.testing.assert_allclose(*numbers, rtol=1e-3)


ROWS = {
    "12120 of 12120": r"^{figure} rows hold",
    "0.97": r"^\| motion segmentation \|.*\| all \| {figure} \|",
    "24.1": r"^\| synthetic-5000 \| celer \|.*\| {figure} \(",
    "1.24": r"^\| tokens-1024 \| gaussian \| fused \| float32 \| 1 \| [^|]+ \| {figure} \(",
    "2.57": r"^\| mnist:subset=all \| .*\| EnSC \| .*\| nearest-rows 3 \| {figure} \|",
}


def test_figures_stand_in_the_committed_results():
    quoted = re.findall(r"^\| .* \| ([\d. of]+) \| \[.*\]\((docs/results/.*)\) \|$", README, re.M)
    assert [figure for figure, _ in quoted] == list(ROWS)
    for figure, file in quoted:
        row = ROWS[figure].format(figure=re.escape(figure))
        assert re.search(row, (ROOT / file).read_text(), re.M), figure


def test_faults_are_those_of_the_list():
    table = pd.read_csv(ROOT / "tests/faults/listed.csv")
    assert f"| {(table.caught_by == 'check').sum()} of {len(table)} |" in README


def test_the_lines_of_the_check_are_those_of_the_committed_run():
    printed = (ROOT / "docs/results/check/summary.md").read_text().splitlines()
    (lines,) = re.findall(r"^```\n(Laws: .*?)```", README, re.M | re.S)
    for line in lines.splitlines():
        head, _, tail = line.partition("..., ")
        assert any(p.startswith(head) and p.endswith(tail) for p in printed), line
