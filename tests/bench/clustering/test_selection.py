"""Settings are chosen without labels, and the summary says what was chosen."""

import numpy as np
import pandas as pd
import pytest
from scipy.sparse import csr_array

from twinsolve.bench.clustering.selection import select_settings, selection_score
from twinsolve.bench.clustering.summary import cluster_lines, distance_lines, quality_lines


def test_score_by_hand():
    """Two edges of weight 1 joined by one of weight e: the Laplacian's eigenvalues are known."""
    e = 0.1
    A = np.array([[0, 1, e, 0], [1, 0, 0, e], [e, 0, 0, 1], [0, e, 1, 0]], dtype=float)
    # 1 - mu for mu = (1 + e, 1 - e, e - 1, -e - 1) / (1 + e).
    second, third = 2 * e / (1 + e), 2 / (1 + e)
    labels = np.array([0, 0, 1, 1])
    expected = (third - second) / third
    assert selection_score(A, labels, 2) == pytest.approx(expected, abs=1e-12)
    assert selection_score(csr_array(A), labels, 2) == pytest.approx(expected, abs=1e-12)
    A[np.isclose(A, e)] = 0
    assert selection_score(A, labels, 2) == pytest.approx(1)
    assert selection_score(A, labels, 1) == 0  # falls apart into more than one
    assert selection_score(np.zeros((4, 4)), labels, 2) == 0


@pytest.fixture
def table():
    """Two settings of A: `x` has the better score, `y` the better accuracy; B has no score."""
    rows = [
        {"method": "SSC", "settings": "x", "selection_score": 0.9, "accuracy": 0.5},
        {"method": "SSC", "settings": "y", "selection_score": 0.1, "accuracy": 0.8},
        {"method": "B", "settings": "x", "selection_score": np.nan, "accuracy": 0.1},
        {"method": "B", "settings": "y", "selection_score": np.nan, "accuracy": 0.9},
    ]
    common = {"data": "d", "features": "unit", "steps": "PP-2a", "fit_seed": 0}
    costs = {
        "objective": 1.0, "gap_mean": 0.0, "gap_max": 0.0, "nonzeros": 3.0, "subspace_error": 0.1,
        "memory_mib": 1.0, "nmi": 0.5, "ari": 0.5,
    }  # fmt: skip
    return pd.DataFrame(
        common | costs | row | {"trial": trial, "seed": seed, "fit_seconds": 1.0 + trial}
        for row in rows
        for trial in (0, 1)
        for seed in (0, 1)
    )


def test_one_setting_for_all_trials_without_labels(table):
    # In trial 1 alone, y has the better score; the mean decides.
    table.loc[(table.trial == 1) & (table.method == "SSC"), "selection_score"] = [0.5] * 2 + [
        0.6
    ] * 2
    marked = select_settings(table)
    chosen = marked[marked.selection == "label-free"]
    assert set(zip(chosen.method, chosen.settings, strict=True)) == {("SSC", "x"), ("B", "x")}
    assert len(chosen) == 8
    assert set(marked.selection) == {"", "label-free"}
    shuffled = table.assign(accuracy=table.accuracy.to_numpy()[::-1])
    assert (select_settings(shuffled).selection == marked.selection).all()


def test_label_tuned_rows_are_added_and_marked(table):
    marked = select_settings(table, label_tuned=True)
    tuned = marked[marked.selection == "labels"]
    assert set(zip(tuned.method, tuned.settings, strict=True)) == {("SSC", "y"), ("B", "y")}
    assert len(marked) == len(table) + len(tuned)
    names = [line[2] for line in cluster_lines(marked)[1]]
    assert sorted(names) == ["B", "B (labels)", "SSC", "SSC (labels)"]


def test_summary_by_hand(table):
    table.loc[(table.method == "SSC") & (table.seed == 1), "accuracy"] += 0.1
    headings, lines = cluster_lines(select_settings(table))
    assert len(lines) == 2
    assert all(len(line) == len(headings) for line in lines)
    # Errors of the seeds 50 % and 40 %.
    assert lines[0][5:8] == ("45.00", "5.00", "40.00 to 50.00")
    headings, lines = quality_lines(select_settings(table))
    assert all(len(line) == len(headings) for line in lines)
    assert [line[4] for line in lines] == ["1.00", "1.00"]
    ours = table.method == "SSC"
    found = {"distance": 0.25, "cosine": 0.5, "support_f1": 0.75, "objective_gap": 0.01}
    for column, value in found.items():
        table[column] = np.where(ours, value, np.nan)
    headings, lines = distance_lines(select_settings(table))
    assert [line[2:] for line in lines] == [("SSC", "x", "0.250", "0.500", "0.750", "1.0e-02")]
    assert len(headings) == len(lines[0])
