"""Settings are chosen without labels, and the summary says what was chosen."""

import coil20
import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_allclose
from scipy.linalg import eigh
from scipy.sparse import csr_array
from sklearn.metrics import silhouette_score

from twinsolve.bench.clustering import selection
from twinsolve.bench.clustering.clusters import clusters_study
from twinsolve.bench.clustering.selection import select_settings
from twinsolve.bench.clustering.summary import cluster_lines, distance_lines, quality_lines
from twinsolve.bench.jobs import Options
from twinsolve.datasets import make_union_of_subspaces
from twinsolve.solvers import SparseSubspaceClustering, clustering_accuracy
from twinsolve.solvers.clustering import selection_score, spectral_labels


def blocks(inside, across, sizes=(4, 4, 4)):
    owner = np.repeat(np.arange(len(sizes)), sizes)
    A = np.where(owner[:, None] == owner, inside, across).astype(float)
    np.fill_diagonal(A, 0)
    return A, owner


def test_is_silhouette_times_entropy():
    rng = np.random.default_rng(0)
    A = rng.random((9, 9))
    A += A.T
    labels = np.array([0, 0, 0, 1, 1, 2, 2, 2, 2])
    scale = 1 / np.sqrt(A.sum(axis=1))
    V = eigh(scale[:, None] * A * scale)[1][:, -3:]
    V /= np.linalg.norm(V, axis=1, keepdims=True)
    share = np.array([3, 2, 4]) / 9
    balance = -(share * np.log(share)).sum() / np.log(3)
    expected = balance * (1 + silhouette_score(V, labels)) / 2
    assert_allclose(selection_score(A, labels, 3), expected, rtol=1e-10)
    assert_allclose(selection_score(7 * csr_array(A), labels + 5, 3), expected, rtol=1e-10)


def test_separate_balanced_clusters_score_highest():
    A, owner = blocks(1, 0)
    assert selection_score(A, owner, 3) == pytest.approx(1, abs=1e-14)
    assert selection_score(A, None, 3) == pytest.approx(1, abs=1e-14)
    noise = np.random.default_rng(0).random(A.shape)
    scores = [selection_score(A + across * (noise + noise.T), owner, 3) for across in (0.1, 0.4, 2)]
    assert 1 > scores[0] > scores[1] > scores[2] > 0
    lopsided, labels = blocks(1, 0, (20, 2, 2))
    assert selection_score(lopsided, labels, 3) < 0.6


def test_more_pieces_than_clusters_score_nothing_and_isolated_points_cost():
    pieces, _ = blocks(1, 0, (3, 3, 3, 3))
    assert selection_score(pieces, None, 3) == 0
    A = np.zeros((24, 24))
    A[:12, :12], _ = blocks(1, 0)
    assert 0 < selection_score(A, None, 3) < 0.85


def test_nothing_to_score():
    assert selection_score(np.zeros((3, 3)), None, 2) == 0
    assert selection_score(np.eye(3), [0, 1, 2], 3) == 0
    assert selection_score(np.ones((4, 4)), [0, 0, 0, 0], 2) == 0
    assert selection_score(np.ones((4, 4)), [0, 0, 0, 0], 1) == 0


def test_a_sample_of_many_points_gives_the_silhouette(monkeypatch):
    rng = np.random.default_rng(0)
    A = blocks(1, 0.2, (40, 40))[0] + 0.2 * np.eye(80)
    noise = rng.random(A.shape)
    A += noise + noise.T
    whole = selection_score(A, np.arange(80) // 40, 2)
    monkeypatch.setattr("twinsolve.solvers.clustering.selection._SAMPLE", 40)
    assert selection_score(A, np.arange(80) // 40, 2) == pytest.approx(whole, abs=0.1)
    assert selection_score(A, np.arange(80) // 79, 2) < 0.1


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


def test_labels_none_takes_the_spectral_ones():
    rng = np.random.default_rng(1)
    A = rng.random((20, 20))
    A += A.T
    labels = spectral_labels(A, 3, random_state=0)
    assert selection_score(A, None, 3) == selection_score(A, labels, 3)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (([[0, 1], [2, 0]], None, 2), "affinity: must be symmetric"),
        (([[0, -1], [-1, 0]], None, 2), "affinity: must be nonnegative"),
        ((np.ones((2, 2)), [0], 2), "labels: must be one for each of 2"),
        ((np.ones((2, 2)), None, 3), "n_clusters: must be at most"),
    ],
)
def test_bad_input_is_named(arguments, message):
    with pytest.raises(ValueError, match=message):
        selection_score(*arguments)


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
    assert coil20.studies()[0].rule == selection.RULE


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
