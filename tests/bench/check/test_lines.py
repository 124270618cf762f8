"""The words of the check."""

from dataclasses import replace

import numpy as np
import pandas as pd

from twinsolve.bench.check.checks import _cache_results
from twinsolve.bench.check.lines import coverage, law_lines, share, twin_lines
from twinsolve.twins import HeadCall
from twinsolve.twins.laws import LAWS

from ..command import run


def test_shares_of_tolerances():
    rows = pd.DataFrame({"deviation": [0.0, 1.0, np.nan, None], "tolerance": [0.0, 4.0, 1.0, None]})
    assert share(rows).tolist() == [0.0, 0.25, np.inf, np.inf]


def test_cases_are_counted_by_law():
    cases = [
        "scale: output, no mask", "scale: blocks, no mask", "refused, is_causal",
        "gradient, q, pairs", "output, causal", "output, causal, padding", "sizes, large, masked",
    ]  # fmt: skip
    table = pd.DataFrame({"case": cases, "data": "drawn", "twin": "a", "evidence": "solver"})
    laws = next(line for line in coverage(table.assign(verdict="holds")) if line.startswith("Laws"))
    assert laws == "Laws: options 2, refused 1, gradient 1, output 2, sizes 1 (rows)."


def test_failures_are_said_in_words():
    rows = pd.DataFrame(
        {
            "case": ["refused, finite bias", "output, causal", "output, pairs"],
            "deviation": [np.inf, np.nan, 0.5],
            "tolerance": [0.0, 1e-10, 1e-10],
            "verdict": "broken",
            "why": None,
            "task_number_solver": None,
            "relation": "identity",
            "evidence": "formula",
        }
    ).assign(twin="mine", data="drawn", dtype="float64")
    _, refused, causal, pairs = twin_lines(rows)
    assert refused.endswith(
        ": the layer takes it, though its laws exclude it; it must raise a ValueError"
    )
    assert causal.endswith(": deviation nan, tolerance 1.0e-10")
    assert pairs.endswith(": deviation 5.0e-01, tolerance 1.0e-10")


def test_every_law_is_told():
    head, rows = law_lines(LAWS)
    assert len(head) == 2
    names = [name for name, _ in rows]
    assert {"jump", "reads", "absent", "blocks", "nothing", "second derivative"} < {*names}
    assert len({*names}) == len(names) == len(LAWS)
    assert all(words.endswith(".") for _, words in rows)


def test_cases_are_told_whole():
    cases = ["default-penalty: gradient, q, no mask", "orthonormal: output, causal, padding"]
    for case in cases:
        rows = pd.DataFrame({"case": [case], "deviation": [0.1], "tolerance": [1.0]}).assign(
            twin="mine", data="drawn", dtype="float64", verdict="holds", relation="iterate",
            evidence="certificate",
        )  # fmt: skip
        (line,) = twin_lines(rows)
        assert line.endswith(f" holds      {case}")


def test_solutions_are_remembered_but_for_a_choice_of_the_layer():
    calls = []
    solve = _cache_results(lambda layer, call: calls.append(call.head))
    free = HeadCall(*np.ones((3, 3, 3)))
    chosen = replace(free, chosen=np.eye(3, dtype=bool))
    for call in (free, free, chosen, chosen, replace(free, head=1)):
        solve(None, call)
    assert calls == [0, 0, 0, 1]


def test_a_twin_without_rows_is_left_out(tmp_path):
    """A bound on small drawn inputs, where no law applies to it."""
    words = "check --data drawn --twin softmax-stability --twin layer-scale"
    said = run(words, "--output", tmp_path)
    assert "layer-scale" in said
    assert "softmax-stability" not in said
