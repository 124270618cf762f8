"""Rules of choice without labels, and their regret."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from scipy.sparse import csr_array
from selection import (
    DATA,
    RULES,
    association,
    criteria_study,
    left_out,
    relative_eigengap,
    residual_by_own_cluster,
)
from sklearn.linear_model import Ridge

from twinsolve.bench.jobs import Options
from twinsolve.bench.tables import read_table

SCRIPT = """'Rules on small data.'

import sys
sys.path.append({place!r})
from selection import criteria_study
from shared.script import run_script

def studies():
    data = [("synthetic:n_samples=12,n_subspaces=2,n_features=12,dimension=2,noise=0.4", "unit", 1)]
    return (criteria_study(data, methods=["OMP", "EnSC"]),)

if __name__ == "__main__":
    run_script(__file__)
"""
SUBSPACES = "synthetic:n_samples=12,n_subspaces=2,n_features=12,dimension=2,noise=0.4"


def test_eigengap_and_association_by_hand():
    two = np.array([[0, 1, 0, 0], [1, 0, 0, 0], [0, 0, 0, 1], [0, 0, 1, 0]], dtype=float)
    assert relative_eigengap(two, 2) == pytest.approx(1)  # eigenvalues 1, 1, -1, -1
    assert relative_eigengap(csr_array(np.zeros((4, 4))), 2) == 0
    across = two + 0.5 * (1 - np.eye(4) - two)  # each point has 1 inside and 1 across
    assert association(across, np.array([0, 0, 1, 1])) == pytest.approx(1)
    assert association(csr_array(two), np.array([0, 0, 5, 5])) == pytest.approx(2)
    assert association(two, np.zeros(4)) == pytest.approx(1)


def test_each_point_is_left_out_of_its_own_regression():
    X = np.random.default_rng(1).standard_normal((9, 4))
    labels = np.repeat([0, 1], [5, 4])
    squares = []
    for i in range(9):
        others = np.flatnonzero((labels == labels[i]) & (np.arange(9) != i))
        model = Ridge(alpha=1e-2, fit_intercept=False).fit(X[others].T, X[i])
        squares.append(((X[i] - model.predict(X[others].T)) ** 2).sum())
    assert residual_by_own_cluster(X, labels) == pytest.approx(np.mean(squares))


def test_what_is_left_out_does_not_choose():
    rows = [("a", "x", 0.0), ("a", "y", 9.0), ("b", "x", 5.0), ("b", "y", 1.0), ("c", "x", 4.0)]
    rows.append(("c", "y", 2.0))
    table = pd.DataFrame(rows, columns=["data", "rule", "regret"]).assign(among="all", trial="0")
    found = left_out(table).set_index("data").regret
    assert found.to_dict() == {"a": 9.0, "b": 5.0, "c": 4.0}  # x has 0 + 4 without b


def test_every_rule_is_held_against_the_labels():
    study = criteria_study([(SUBSPACES, "unit", 2)], methods=["OMP", "EnSC", "TSC"])
    assert study.name == "criteria"
    table = study.run(Options())
    assert (table.regret >= 0).all()
    assert set(RULES) <= set(table.rule)
    pools = table[table.rule == "score"].groupby("among").trial.nunique()
    assert pools.tolist() == [2, 2]
    assert (table[table.among == "always the same"].groupby("rule").size() == 2).all()
    headings, lines = study.lines(table)
    assert {len(line) for line in lines} == {len(headings)}
    by = {line[:2]: line for line in lines}
    own = table[(table.among == "all") & (table.rule == "score")].regret
    assert by["all", "score"][-2:] == (f"{own.mean():.2f}", f"{own.max():.1f}")


def test_no_data_that_judge_are_named():
    for judging in ("20-38", "11-20", "half=2", "mnist", "cifar", "torus"):
        assert judging not in repr(DATA)


def test_the_script_runs_by_its_file_name(tmp_path):
    """Of its own folder, where the modules beside it are found, with two processes."""
    root = Path(__file__).parents[2]
    (tmp_path / "study.py").write_text(SCRIPT.format(place=str(root / "studies")))
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONSAFEPATH"}
    command = [sys.executable, "study.py", "--n-jobs", "2", "--output", "out"]
    subprocess.run(command, cwd=tmp_path, env=environment, check=True, capture_output=True)
    summary = (tmp_path / "out/summary.md").read_text()
    assert summary.startswith("# python studies/study.py\n\nRules on small data.\n")
    assert "agreement, weighed by the score" in summary
    assert len(read_table(tmp_path / "out/criteria.json.gz")) > 20
