"""Points that are not fitted, and features that many jobs share."""

import re
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest
from sklearn.metrics import adjusted_rand_score

from twinsolve import solvers
from twinsolve.bench.clustering import features, fitting
from twinsolve.bench.clustering.clusters import cluster_job, clusters_study
from twinsolve.bench.clustering.data import find_data
from twinsolve.bench.clustering.features import features_of
from twinsolve.bench.clustering.fitting import scores, split_rows, warm_up
from twinsolve.bench.clustering.methods import METHODS
from twinsolve.bench.clustering.steps import with_both_cuts
from twinsolve.bench.jobs import Keep, Options
from twinsolve.solvers import clustering_accuracy, omp_self_expression
from twinsolve.solvers.clustering import spectral_labels, symmetric_affinity, unit_rows
from twinsolve.solvers.sparse_coding import lasso, row_blocks

from .test_names import JOB, SUBSPACES

CLUSTERED = Path(__file__).parents[3] / "docs/clustered.md"


def test_splits_are_seeded_parts_of_all_points():
    fitted, new = split_rows(10, 6, 1)
    assert sorted([*fitted, *new]) == list(range(10))
    assert len(fitted) == 6
    assert (split_rows(10, 6, 1)[0] == fitted).all()
    assert (split_rows(10, 6, 2)[0] != fitted).any()
    for n_fit in (None, 10, 11):
        assert [len(part) for part in split_rows(10, n_fit, 0)] == [10, 0]


def test_points_that_are_not_fitted_are_labelled_by_those_that_are(monkeypatch):
    """With 16 of 24 points on two planes; the same labels as by the estimator itself."""
    monkeypatch.setattr("twinsolve.bench.clustering.fitting._BLOCK", 3)
    job = JOB | {"chains": ["symmetrize", "keep-largest 3"], "seeds": [0, 1], "n_fit_points": 16}
    for name in ("SSC", "SSC outliers", "unrolled (objective)", "kNN graph", "k-means"):
        chosen = METHODS[name].settings[0] | ({"max_iter": 3} if name[0] == "u" else {})
        rows = cluster_job(**job, method=name, settings=chosen)
        for row in rows:
            assert row["new_ms"] > 0
            both = (16 * row["accuracy_fit"] + 8 * row["accuracy_new"]) / 24
            assert row["accuracy"] <= both + 1e-12  # one match for all points
        problem = find_data(SUBSPACES).problem("0")
        X = features_of("unit", problem)
        fitted, new = split_rows(24, 16, 0)
        model = METHODS[name].make(2, 0, 1, **chosen).fit(X[fitted])
        expected = solvers.clustering_accuracy(problem.labels[new], model.predict(X[new]))
        assert rows[0]["accuracy_new"] == expected


@pytest.mark.parametrize("method", ["SSC", "EnSC"])
def test_a_long_fit_that_was_interrupted_goes_on(method, tmp_path, monkeypatch, capfd):
    """Its codes were found, but not yet certified: they are not found again.

    It says how many blocks are done.
    """
    job = JOB | {"method": method, "settings": {"gamma": 20.0}}
    (whole,) = cluster_job(**job)
    monkeypatch.setattr(fitting, "LARGE", 20)
    warm_up(method)
    keep = Keep(job, tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(lasso, "_certify_by", Mock(side_effect=KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            cluster_job(**job, keep=keep)
    assert list(keep.unfinished.rglob("*.block"))
    told = capfd.readouterr().err
    assert told.startswith(f"{method}, 24 points: 1 of 1 done")
    with monkeypatch.context() as patch:
        patch.setattr(row_blocks, "_solve_rows_of", Mock(side_effect=AssertionError))
        (resumed,) = cluster_job(**job, keep=keep)
    assert not keep.unfinished.exists()
    assert np.isnan(resumed["fit_seconds"])
    for name in ("objective", "gap_max", "accuracy", "selection_score"):
        assert resumed[name] == whole[name]


def test_costly_features_are_kept_in_the_run_and_made_once(tmp_path, monkeypatch):
    made, make = [], features.features_of

    def counted(name, problem):
        made.append(name)
        return make(name, problem)

    monkeypatch.setattr(features, "features_of", counted)
    features.load_features.cache_clear()
    for name, count in (("pca-4", 1), ("unit", 2)):
        for seeds in (1, 2):  # other jobs, same features
            study = clusters_study(
                ["digits:n_points=40"], ["TSC"], features=[name], affinity=["symmetrize"]
            )
            table = study.run(Options(seeds=seeds, directory=tmp_path / "runs"))
            features.load_features.cache_clear()
        assert len(list((tmp_path / "runs" / "features").glob("*.npz"))) == 1
        assert made.count(name) == count
    features.keep_features_in(None)
    assert set(table.n_features) == {64}


def test_held_out_points_have_a_table_of_their_own():
    names = ["TSC", "k-means"]
    settings = {name: METHODS[name].settings[:1] for name in names}
    study, plain = (
        clusters_study(
            [SUBSPACES],
            names,
            affinity=["symmetrize"],
            settings=settings,
            n_trials=1,
            n_fit_points=n,
        )
        for n in (12, None)
    )
    table = study.run(Options(seeds=2))
    headings, lines = study.more["Held-out points"](table)
    assert [line[2] for line in lines] == names
    assert all(len(line) == len(headings) for line in lines)
    assert "Held-out points" not in plain.more
    assert "accuracy_new" not in plain.run(Options(seeds=1))


@pytest.mark.filterwarnings("ignore:no candidate has a score above 0")
def test_a_clustering_that_many_seeds_find_is_scored_once(monkeypatch):
    found = []

    def counted(true, labels):
        found.append(labels.copy())
        return scores(true, labels)

    monkeypatch.setattr("twinsolve.bench.clustering.clusters.scores", counted)
    study = clusters_study(
        ["digits:n_points=60"],
        ["TSC"],
        settings={"TSC": [{}]},
        affinity=with_both_cuts(["unit-rows"]),
    )
    table = study.run(Options(seeds=20))
    assert len(table) == 40
    by_rand = [[adjusted_rand_score(one, other) == 1 for one in found] for other in found]
    assert (np.array(by_rand) == np.eye(len(found))).all()  # no two are the same
    assert 2 <= len(found) <= 21
    true = find_data("digits:n_points=60").problem().labels
    assert {tuple(scores(true, labels).values()) for labels in found} == set(
        table[["accuracy", "nmi", "ari"]].itertuples(index=False, name=None)
    )


@pytest.mark.slow
def test_lengths_of_points_decide_what_matching_pursuit_makes_of_digits(real_data):
    problem = find_data("mnist:subset=test").problem()
    X = features_of("relative-scattering-500", problem)
    errors = []
    for points in (X, unit_rows(X)):
        coef = omp_self_expression(points, n_nonzero=5, tol=1e-6)
        labels = spectral_labels(symmetric_affinity(unit_rows(coef)), 10, random_state=0)
        errors.append(100 * (1 - clustering_accuracy(problem.labels, labels)))
    said = r"error\s+of\s+(\S+)\s+%\s+instead\s+of\s+(\S+)\s+%"
    quoted = [float(number) for number in re.search(said, CLUSTERED.read_text()).groups()]
    assert quoted == pytest.approx(errors, abs=1)  # the seeds of k-means matter less
