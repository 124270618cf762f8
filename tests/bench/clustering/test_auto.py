"""`twinsolve cluster --auto`: points without labels, and nothing to choose."""

import json
import re
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_array_equal
from sklearn.datasets import load_digits

from twinsolve.bench import choose_clusters, cluster
from twinsolve.bench.clustering import auto
from twinsolve.bench.clustering.auto import write_choice
from twinsolve.bench.clustering.cli import cluster as cluster_command
from twinsolve.bench.clustering.data import find_data
from twinsolve.bench.clustering.methods import find_method
from twinsolve.bench.clustering.steps import cut_of, is_dense
from twinsolve.bench.clustering.summary import POOL
from twinsolve.datasets import make_union_of_subspaces
from twinsolve.solvers import clustering_accuracy

from .test_cluster_command import OWN, run


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A present folder with points on two subspaces, with and without labels, and methods."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "own_methods.py").write_text(OWN)
    X, y = make_union_of_subspaces(
        n_samples=12, n_subspaces=2, n_features=12, dimension=2, noise=0.1, random_state=0
    )
    np.savez(tmp_path / "own.npz", X=X, y=y)
    np.savez(tmp_path / "bare.npz", X=X)
    yield tmp_path
    sys.modules.pop("own_methods", None)


def test_points_without_labels_and_their_number_are_enough(folder):
    result = run("bare.npz", "--auto", "--n-clusters", "2", "--output", "out")
    labels = pd.read_csv("out/labels.csv")
    assert labels.point.tolist() == list(range(24))
    assert clustering_accuracy(np.load("own.npz")["y"], labels.cluster) == 1
    choice = json.loads((folder / "out" / "choice.json").read_text())
    assert choice["method"] in POOL
    assert choice["n_clusters"] == 2
    assert set(choice) >= {"settings", "affinity", "score", "agreement", "rule"}
    assert not any("labels_in" in key for key in choice)
    candidates = pd.read_csv("out/candidates.csv")
    assert set(candidates.method) == set(POOL)
    assert candidates["rank"].tolist() == list(range(1, len(candidates) + 1))
    assert choice["candidates"] == len(candidates) > 100
    best = candidates.iloc[0]
    assert (best.method, best.steps) == (choice["method"], choice["affinity"])
    assert best.selection_score == pytest.approx(choice["score"])
    assert "For information only" not in result
    assert "by the mean adjusted Rand index" in result


def test_labels_tell_the_error_and_do_not_choose(folder):
    methods = ("--method", "OMP", "--method", "EnSC")
    (folder / "known").mkdir()
    (folder / "known" / "labels-2.csv").touch()  # of an earlier run
    printed = run("own.npz", "--auto", *methods, "--output", "known")
    written = {path.name for path in (folder / "known").glob("*.*")}
    assert written >= {"labels.csv", "matrices.png", "matrices.pdf"}
    assert "labels-2.csv" not in written
    run("bare.npz", "--auto", "--n-clusters", "2", *methods, "--output", "un")
    known, unknown = (json.loads((folder / n / "choice.json").read_text()) for n in ("known", "un"))
    told = known.pop("for_information_only_by_labels_in_percent")
    assert told == {"error": 0, "smallest_error": 0, "regret": 0}
    same = ("method", "settings", "affinity", "score", "agreement", "candidates")
    assert [known[name] for name in same] == [unknown[name] for name in same]
    assert "For information only, as labels tell it: the choice has an error of 0.00 %" in printed
    wrong = np.load("own.npz")["y"][::-1].copy()
    wrong[::2] = 0
    np.savez("own.npz", X=np.load("own.npz")["X"], y=wrong)
    run("own.npz", "--auto", *methods, "--output", "wrong")
    other = json.loads((folder / "wrong" / "choice.json").read_text())
    assert [other[name] for name in same] == [known[name] for name in same]
    assert other["for_information_only_by_labels_in_percent"]["error"] > 10


def test_what_fails_or_cannot_be_judged_is_left_out_with_its_reason(folder):
    methods = [word for name in ("Slow", "Broken") for word in ("--method", f"own_methods:{name}")]
    result = run("own.npz", "--auto", *methods, "--method", "k-means", "--output", "out")
    choice = json.loads((folder / "out" / "choice.json").read_text())
    assert choice["method"] == "own_methods:Slow"
    assert len(choice["left_out"]) == 2
    assert "Broken : failed: RuntimeError: no such luck" in choice["left_out"][0]
    assert "k-means : cannot be judged, as it makes no affinity" in choice["left_out"][1]
    assert "no such luck" in result
    refused = run("own.npz", "--auto", "--method", "own_methods:Broken", "--output", "none", code=2)
    assert "own_methods:Broken can be judged without labels; failed: RuntimeError" in refused


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["bare.npz"], "say how many clusters to look for by n_clusters"),
        ([], "needs one DATA"),
        (["own.npz", "--preset", "quick"], "cannot be combined with --preset"),
        (["own.npz", "--seeds", "2"], "cannot be combined with --seeds"),
        (["own.npz", "bare.npz"], "needs one DATA"),
        (["own.npz", "--features", "raw", "--features", "unit"], "at most one of --features"),
        (["digits", "--n-clusters", "3"], "is for files of points"),
        (["own.npz", "--method", "k-means"], "none of k-means can be judged without labels"),
    ],
)
def test_bad_input_is_refused_in_words(folder, arguments, message):
    assert message in run("--auto", *arguments, code=2)
    assert not (folder / "results" / "cluster" / "labels.csv").exists()


def test_labels_say_of_which_points_they_are(folder):
    name = "digits:classes=2-4,n_points=40"
    result = run(
        name, "--auto", "--method", "OMP:n_nonzero=3", "--affinity", "unit-rows", "--output", "out"
    )
    written = pd.read_csv("out/labels.csv")
    assert list(written) == ["point", "cluster"]
    digits = load_digits()
    assert_array_equal(digits.data[written.point], find_data(name).problem().X)
    assert set(digits.target[written.point]) == {1, 2, 3}
    error = 1 - clustering_accuracy(digits.target[written.point], written.cluster)
    assert f"an error of {100 * error:.2f} %" in result


@pytest.mark.parametrize("auto", [["--auto"], []])
def test_points_that_cannot_be_told_apart_are_refused(folder, auto):
    """The same point 20 times; with --auto points that are multiples of one, alike as features."""
    np.savez("same.npz", X=np.outer(np.arange(1, 21), [1.0, 2, 3]) if auto else np.ones((20, 4)))
    result = run("same.npz", "--n-clusters", "2", *auto, code=2)
    assert "has 1 distinct point, fewer than n_clusters=2" in result


@pytest.mark.parametrize(
    ("n_clusters", "reason"),
    [
        (1, "n_clusters=1: all points are one cluster"),
        (24, "n_clusters=24 is the number of points"),
    ],
)
def test_a_choice_that_says_nothing_warns(folder, n_clusters, reason):
    with pytest.warns(UserWarning, match=reason):
        chosen = choose_clusters(f"bare.npz:n_clusters={n_clusters}", methods=["OMP"])
    assert reason in chosen.warning
    result = run("bare.npz", "--auto", "--n-clusters", str(n_clusters), "--method", "OMP")
    assert f"Warning: {reason}" in result
    choice = json.loads((folder / "results" / "cluster-auto" / "choice.json").read_text())
    assert reason in choice["warning"]


@pytest.mark.parametrize(
    ("steps", "rule"),
    [
        (["symmetrize"], "There was one candidate"),
        (["symmetrize", "unit-rows"], "of 2 candidates, the one whose clusters agree best"),
    ],
)
def test_the_rule_that_is_said_is_the_one_that_chose(folder, steps, rule):
    chosen = choose_clusters("own.npz", methods=["TSC:n_neighbors=6"], affinity=steps)
    assert rule in chosen.rule
    assert chosen.agreement == chosen.candidates.agreement.max()
    shown = chosen._repr_html_()
    sizes = ", ".join(map(str, np.unique(chosen.labels, return_counts=True)[1]))
    for text in ("TSC:n_neighbors=6", chosen.affinity, rule, f"<td>{sizes}</td>"):
        assert text in shown
    write_choice(chosen, "own.npz", "unit", 0, folder / "said")
    assert json.loads((folder / "said" / "choice.json").read_text())["rule"] == chosen.rule


def test_who_is_named_twice_has_one_voice(folder):
    twice = ["OMP", "OMP:n_nonzero=3", "EnSC:gamma=50", "EnSC:gamma=50.0,l1_ratio=0.9", "OMP"]
    chains = ["unit-rows", "unit-rows, symmetrize", "keep-largest", "keep-largest 3", "unit-rows"]
    chosen = choose_clusters("own.npz", methods=twice, affinity=chains)
    names = ["OMP"] * 6 + ["EnSC:gamma=50"] * 2
    assert sorted(chosen.candidates.method) == sorted(names)
    assert set(chosen.candidates.steps) == {"unit-rows", "keep-largest"}
    own = choose_clusters(
        "own.npz", methods=["own_methods:Slow", "own_methods:Slow"], affinity=["symmetrize"]
    )
    assert len(own.candidates) == 1


def test_the_help_says_what_is_a_candidate(folder):
    help_text = " ".join(cluster_command.__doc__.split())
    chains = dict.fromkeys(chain for name in POOL for chain in find_method(name).affinity)
    dense = [chain for chain in chains if is_dense(chain)]
    said = re.search(
        r"Above ([\d,]+) points, the methods (.*?) and the steps (.*?) are left out", help_text
    )
    assert said[1] == f"{auto._MOST_DENSE:,}"
    assert said[2] == " and ".join(auto._DENSE)
    assert set(re.split(", | and ", said[3])) == set(dense)
    assert ", ".join(POOL[:-1]) + f" and {POOL[-1]}" in help_text
    assert "not by cluster-qr" in help_text
    assert {cut_of(chain) for chain in chains} == {"k-means"}


WRONG = [
    ({"data": np.ones((9, 3))}, TypeError, "data: must be a name or a path, got ndarray"),
    ({"methods": "OMP"}, TypeError, "methods: must be a sequence of names, got 'OMP'"),
    ({"methods": []}, ValueError, "methods: must name at least one"),
    ({"methods": [3]}, TypeError, r"methods\[0\]: must be a name or a path, got int"),
    ({"affinity": 3}, TypeError, "affinity: must be a sequence of names, got 3"),
    ({"affinity": []}, ValueError, "affinity: must name at least one"),
    ({"features": 3}, TypeError, "features: must be a name"),
    ({"seed": "a"}, ValueError, "seed: must be a whole number"),
    ({"n_jobs": 0}, ValueError, "n_jobs: must be a whole number other than 0"),
    ({"directory": 3}, TypeError, "directory: must be the path of a folder or None, got 3"),
    ({"data_home": 3}, TypeError, "data_home: must be the path of a folder or None, got 3"),
]


@pytest.mark.parametrize(("given", "error", "message"), WRONG, ids=lambda case: str(case)[:20])
def test_arguments_of_the_wrong_kind_are_refused_by_name(folder, given, error, message):
    data = given.get("data", "own.npz")
    other = {name: value for name, value in given.items() if name != "data"}
    with pytest.raises(error, match=message):
        choose_clusters(data, **{"methods": ["TSC:n_neighbors=4"]} | other)
    if "features" not in given:
        of_several = other if "data" not in given else {"data": 3}
        with pytest.raises((TypeError, ValueError), match="^(data|" + "|".join(given) + ")"):
            cluster(**{"data": ["own.npz"], "methods": ["TSC"]} | of_several)


def test_paths_and_their_names_are_the_same(folder):
    asked = {"methods": ["TSC:n_neighbors=4"], "affinity": ["symmetrize"]}
    first = choose_clusters("own.npz", **asked, directory="kept")
    again = choose_clusters(Path("own.npz"), **asked, directory=Path("kept"), data_home=Path("."))
    assert_array_equal(first.labels, again.labels)
    assert len(list((folder / "kept").glob("*.npz"))) == 1
    table = cluster(["own.npz"], **asked, seeds=1, directory="kept")
    assert len(table) == 1


@pytest.mark.parametrize("name", ["digits:n_points=100,n_points=50", "OMP:n_nonzero=2,n_nonzero=3"])
def test_a_setting_that_is_given_twice_is_refused(folder, name):
    arguments = [name] if name.startswith("digits") else ["own.npz", "--method", name]
    assert "is set twice in" in run(*arguments, "--auto", code=2)
    result = run("bare.npz:n_clusters=3", "--n-clusters", "2", "--auto", code=2)
    assert "'n_clusters' is set twice in" in result


def test_many_points_leave_out_what_needs_dense_matrices(folder, monkeypatch):
    monkeypatch.setattr(auto, "_MOST_DENSE", 20)
    chosen = choose_clusters("own.npz")
    assert set(chosen.candidates.method) == set(POOL) - {"LSR", "LRSC"}
    dense = {"low-rank", "svd-power", "softmax-rows"}
    assert not dense & set(chosen.candidates.steps)
    assert chosen.notes[0].startswith(
        "Above 20 points without what needs dense matrices: LSR, LRSC, "
    )
    assert all(name in chosen.notes[0] for name in dense)
    asked = choose_clusters("own.npz", methods=["LRSC"])
    assert set(asked.candidates.steps) >= dense


def test_permuted_points_get_permuted_clusters(folder):
    X, _ = make_union_of_subspaces(12, n_subspaces=3, n_features=40, noise=0.5, random_state=0)
    order = np.random.default_rng(0).permutation(len(X))
    found = []
    for name, points in (("still", X), ("moved", X[order])):
        np.savez(folder / f"{name}.npz", X=points)
        data = f"{folder / name}.npz:n_clusters=3"
        found.append(choose_clusters(data, methods=["OMP", "LSR"], affinity=["symmetrize"]))
    still, moved = found
    assert (moved.method, moved.settings, moved.affinity) == (
        still.method,
        still.settings,
        still.affinity,
    )
    assert_array_equal(moved.labels, still.labels[order])


def test_candidates_that_represent_themselves_come_last(folder):
    rng = np.random.default_rng(0)
    np.savez(folder / "wide.npz", X=rng.standard_normal((40, 300)))
    chosen = choose_clusters(
        f"{folder / 'wide.npz'}:n_clusters=3", methods=["LRSC", "OMP"], affinity=["symmetrize"]
    )
    rows = chosen.candidates
    trivial = (rows.method == "LRSC").to_numpy()
    assert chosen.method == "OMP"
    assert (rows.selection_score[trivial] < -0.5).all()
    assert (rows.selection_score[~trivial] >= 0).all()
    assert trivial[-3:].all()


def test_labels_of_one_class_are_refused(folder):
    X = np.random.default_rng(0).standard_normal((20, 4))
    np.savez(folder / "one.npz", X=X, y=np.full(20, 7))
    data = f"{folder / 'one.npz'}"
    for call in (lambda: choose_clusters(data), lambda: find_data(data).problem()):
        with pytest.raises(ValueError, match=r"data: all labels of .* are of one class"):
            call()
    with pytest.raises(ValueError, match=r"of one class\. Take points of two"):
        find_data("digits:classes=3").problem()
    assert find_data(f"{data}:n_clusters=2").problem().n_clusters == 2
