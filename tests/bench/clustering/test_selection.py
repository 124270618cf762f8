"""Settings are chosen without labels, and the summary says what was chosen."""

import coil20
import numpy as np
import pandas as pd
import pytest

from twinsolve.bench.clustering.clusters import clusters_study
from twinsolve.bench.clustering.summary import (
    RULE,
    cluster_lines,
    distance_lines,
    quality_lines,
    select_settings,
)
from twinsolve.bench.jobs import Options
from twinsolve.datasets import make_union_of_subspaces
from twinsolve.solvers import SparseSubspaceClustering, clustering_accuracy
from twinsolve.solvers.clustering import selection_score


def test_chooses_a_penalty_nearly_as_good_as_labels_would():
    chosen, best, worst = [], [], []
    for seed in range(3):
        X, y = make_union_of_subspaces(
            n_samples=40, n_subspaces=4, n_features=12, dimension=4, noise=0.4, random_state=seed
        )
        scores, accuracies = [], []
        for gamma in (2, 5, 20, 100, 500):
            model = SparseSubspaceClustering(4, gamma=gamma, random_state=0).fit(X)
            scores.append(selection_score(model.affinity_matrix_, model.labels_, 4))
            accuracies.append(clustering_accuracy(y, model.labels_))
        chosen.append(accuracies[int(np.argmax(scores))])
        best.append(max(accuracies))
        worst.append(min(accuracies))
    assert np.mean(best) - np.mean(worst) > 0.1
    assert np.mean(chosen) > np.mean(best) - 0.05


@pytest.fixture
def table():
    """Two settings of A: `x` has the better score, `y` the better accuracy; B has no score."""
    rows = [
        {"method": "SSC", "settings": "x", "selection_score": 0.9, "accuracy": 0.5},
        {"method": "SSC", "settings": "y", "selection_score": 0.1, "accuracy": 0.8},
        {"method": "B", "settings": "x", "selection_score": np.nan, "accuracy": 0.1},
        {"method": "B", "settings": "y", "selection_score": np.nan, "accuracy": 0.9},
    ]
    common = {"data": "d", "features": "unit", "steps": "symmetrize", "fit_seed": 0}
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


def test_a_setting_that_failed_on_a_trial_is_not_chosen(table):
    failed = (table.method == "SSC") & (table.settings == "x") & (table.trial == 1)
    table.loc[failed, ["selection_score", "accuracy"]] = np.nan
    table["note"] = np.where(failed, "failed: ValueError: no", None)
    marked = select_settings(table)
    chosen = marked[(marked.selection != "") & (marked.method == "SSC")]
    assert set(chosen.settings) == {"y"}
    only = select_settings(table[(table.method != "SSC") | (table.settings == "x")])
    line = cluster_lines(only)[1][0]
    assert line[5] == "failed: ValueError: no (1 of 2 trials)"
    assert set(line[6:]) == {"-"}


@pytest.mark.filterwarnings("ignore:no candidate has a score above 0")
def test_settings_that_others_chose_with_labels_are_marked():
    name = "synthetic:n_samples=10,n_subspaces=2"
    study = clusters_study(
        [name], ["TSC"], settings={"TSC": [{}]}, steps=["symmetrize"], n_trials=1, tuned=True
    )
    table = study.run(Options(n_seeds=1))
    for lines in (study.lines, study.more["Solver quality"]):
        assert lines(table)[1][0][2] == "TSC (labels)"
    assert coil20.studies()[1].rule == ""
    assert coil20.studies()[0].rule == RULE


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
    table.loc[table.method == "B", "fit_seconds"] *= 3
    table.loc[table.settings == "y", "fit_seconds"] *= 2
    for tuned, ratios in ((False, ["1.00", "3.00"]), (True, ["1.00", "3.00", "2.00", "6.00"])):
        _, lines = quality_lines(select_settings(table, label_tuned=tuned))
        assert [line[4] for line in lines] == ratios
    ours = table.method == "SSC"
    found = {"distance": 0.25, "cosine": 0.5, "support_f1": 0.75, "objective_gap": 0.01}
    for column, value in found.items():
        table[column] = np.where(ours, value, np.nan)
    headings, lines = distance_lines(select_settings(table))
    assert [line[2:] for line in lines] == [("SSC", "x", "0.250", "0.500", "0.750", "1.0e-02")]
    assert len(headings) == len(lines[0])
