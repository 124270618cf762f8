"""`twinsolve cluster --dask`: one file of points, on the workers of a Dask cluster."""

import os
import signal

import numpy as np
import pandas as pd
import pytest
from sklearn.preprocessing import normalize

from twinsolve.bench.clustering.filed_points import (
    FiledPoints,
    Watch,
    dask_workers,
    step_lines,
)
from twinsolve.datasets import make_union_of_subspaces
from twinsolve.solvers import SparseSubspaceClustering, clustering_accuracy

from ..command import run


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    X, y = make_union_of_subspaces(100, n_subspaces=3, noise=0.1, random_state=0)
    np.save("points.npy", 5 * X)
    (tmp_path / "labelled").mkdir()
    np.save("labelled/points.npy", 5 * X)
    np.save("labelled/y.npy", np.array(["a", "b", "c"])[y])
    return tmp_path


def test_an_interrupt_in_a_terminal_stops_the_caller_alone(tmp_path):
    pytest.importorskip("distributed")
    with dask_workers("local:1", tmp_path) as client:
        assert set(client.run(signal.getsignal, signal.SIGINT).values()) == {signal.SIG_IGN}


def test_a_command_clusters_a_file_on_processes(folder):
    pytest.importorskip("distributed")
    said = run("cluster labelled/points.npy", "--dask", "local:2", "--output", "out")
    assert "error, % 0.00" in said
    X = np.load("points.npy")
    labels = np.load("out/labels.npy")
    model = SparseSubspaceClustering(3, gamma=50.0, random_state=0).fit(normalize(X))
    assert clustering_accuracy(model.labels_, labels) == 1
    steps = pd.read_csv("out/steps.csv", thousands=",")
    names = ["points", "cells", "lam_max", "codes", "graph", "embedding", "labels"]
    assert steps.step.tolist() == names
    assert (steps[["MiB of a worker", "MiB here"]] > 0).all(axis=None)
    assert steps["processor s"].sum() > 0
    assert (folder / "out/summary.md").is_file()
    assert not list((folder / "out").glob("*.part"))


def test_costs_of_an_interrupted_step_count(tmp_path):
    class Workers:
        spent = 0.0

        def run(self, *_, **__):
            self.spent += 1.0
            return {"tcp://one": (self.spent, 7.0)}

    for costs in ("costs.json", "of other codes.json"):
        watch = Watch(Workers())
        watch.go_on(tmp_path / costs)
        with pytest.raises(KeyboardInterrupt), watch.step("codes"):
            raise KeyboardInterrupt
    watch = Watch(Workers())
    watch.go_on(tmp_path / "costs.json")
    with watch.step("codes"):
        pass
    assert 2 <= watch.costs["codes"]["processor_seconds"] < 3
    assert watch.costs["codes"]["worker_mib"] == 7
    assert 0 < watch.costs["codes"]["seconds"] < 1
    known, again = dict(watch.costs["codes"]), Watch(Workers())
    again.go_on(tmp_path / "costs.json")
    with again.step("codes"):
        pass
    assert again.costs["codes"] == known, "a finished step costs what its first run did"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["points.npy"], "n_clusters: say how many clusters to look for, by --n-clusters"),
        (["points.npy", "--n-clusters", "400"], "n_clusters: must be at most n_samples=300"),
        (["digits", "--n-clusters", "3"], "data: --dask takes the path of one .npy file of points"),
        (["a.npy", "b.npy"], "needs one file of points, and at most one --method"),
        (["points.npy", "--seeds", "3"], "cannot be combined with --seeds"),
        (["points.npy", "--n-clusters", "3", "--method", "LSR"], "model: must be a SparseSubspace"),
        (["points.npy", "--n-clusters", "3", "--method", "SSC affine"], "model: in files needs"),
    ],
)
def test_what_the_command_refuses(folder, monkeypatch, arguments, words):
    class Nothing:
        def __init__(self, *_, **__):
            pass

        def __enter__(self):
            return self

        def __exit__(self, *_):
            pass

    monkeypatch.setattr("twinsolve.bench.clustering.filed_points.dask_workers", Nothing)
    monkeypatch.setattr("twinsolve.bench.clustering.filed_points.Watch", Nothing)
    assert words in run("cluster", *arguments, "--dask", "local:2", "--output", "out", code=2)


@pytest.mark.parametrize(
    ("address", "words"),
    [
        ("local", r"^dask: must be local:N for N processes, or the address .* got 'local'"),
        ("local:0", "^dask: must be local:N"),
        ("host", "^dask: must be local:N"),
        ("tcp://127.0.0.1:9", "^dask: no scheduler answers at tcp://127.0.0.1:9"),
    ],
)
def test_addresses_that_nobody_answers(folder, monkeypatch, address, words):
    pytest.importorskip("distributed")
    monkeypatch.setattr("twinsolve.bench.clustering.filed_points._PATIENCE", 1)
    with pytest.raises(ValueError, match=words), dask_workers(address, folder):
        pass


def test_a_worker_that_does_not_see_the_folder_is_named(folder):
    from twinsolve.bench.clustering.filed_points import _use

    class Blind:
        def wait_for_workers(self, *_, **__):
            pass

        def run(self, sees):
            return {"tcp://one": sees(), "tcp://two": False}

    with pytest.raises(ValueError, match=r"^dask: the worker at tcp://two does not see .*/runs"):
        next(_use(Blind(), folder / "runs"))
    assert not list((folder / "runs").iterdir())


def test_labels_must_fit_the_points(folder):
    points = FiledPoints.open("labelled/points.npy")
    assert points.y.tolist() == [ord(word) - ord("a") for word in np.load("labelled/y.npy")]
    np.testing.assert_allclose(np.linalg.norm(points[5:9], axis=1), 1)
    np.save("labelled/y.npy", np.zeros(7))
    with pytest.raises(ValueError, match=r"y\.npy: must hold a label for each of the 300 points"):
        FiledPoints.open("labelled/points.npy")
    np.save("labelled/mine.npy", np.arange(300) % 2)
    named = FiledPoints.open("labelled/points.npy:target_key=mine.npy")
    assert named.y.tolist() == [0, 1] * 150
    assert FiledPoints.open("labelled/points.npy:target_key=False").y is None
    np.save("labelled/target.npy", np.zeros(300))
    for words, message in (
        (
            "labelled/points.npy",
            r"target\.npy and y\.npy may hold the labels; name one by target_key",
        ),
        ("labelled/points.npy:target_key=no.npy", r"target_key: no \.npy file labelled/no\.npy"),
        ("labelled/points.npy:transpose=True", "knows the setting target_key alone"),
    ):
        with pytest.raises(ValueError, match=message):
            FiledPoints.open(words)
    (folder / "broken.npy").write_bytes(os.urandom(100))
    with pytest.raises(ValueError, match=r"^broken\.npy: truncated, corrupted or no NumPy file"):
        FiledPoints.open("broken.npy")


def test_cells_of_the_table():
    table = pd.DataFrame(
        [
            {"step": "codes", "seconds": 1.0, "processor_seconds": 2.0, "worker_mib": 3.0,
             "caller_mib": 4.0, "gap": 1e-4, "looked": 5000.0},
            {"step": "labels", "seconds": 1.0, "processor_seconds": 2.0, "worker_mib": 3.0,
             "caller_mib": 4.0, "error": 2.5},
        ]
    )  # fmt: skip
    assert [line[-1] for line in step_lines(table)[1]] == [
        "largest gap 1.0e-04; atoms a pass 5,000", "error, % 2.50",
    ]  # fmt: skip
