"""The command `twinsolve cluster` from end to end, on small problems."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from functools import partial
from importlib.metadata import version

import joblib
import numpy as np
import pandas as pd
import pytest
from scipy.io import savemat
from sklearn.preprocessing import normalize

from twinsolve.bench import cluster, provenance
from twinsolve.bench.clustering import features
from twinsolve.bench.clustering.clusters import clusters_study
from twinsolve.bench.clustering.data import find_data
from twinsolve.bench.clustering.methods import METHODS, STEPS
from twinsolve.bench.clustering.summary import GROUP
from twinsolve.bench.tables import read_table
from twinsolve.solvers import ThresholdingSubspaceClustering, clustering_accuracy
from twinsolve.solvers.clustering.spectral import embed_graph

from ..command import run as command

run = partial(command, "cluster")

SUBSPACES = "synthetic:n_samples=12,n_subspaces=2,n_features=12,dimension=2,noise=0.1"
TIMINGS = ["fit_seconds", "memory_mib", "steps_seconds", "eigen_seconds", "cut_seconds"]
OWN = """
import os, time
from dataclasses import dataclass
import numpy as np
from sklearn.base import BaseEstimator, ClusterMixin
from twinsolve.solvers import ThresholdingSubspaceClustering

@dataclass(eq=False, repr=False)
class Near(ThresholdingSubspaceClustering):
    n_neighbors: int = 5  # one fit, where "auto" takes one for each value

class Slow(Near):
    def fit(self, X, y=None):
        time.sleep(0.3)
        with open("fits.log", "a") as log:
            log.write(f"{float(abs(X).sum())!r}\\n")
        self.objective_ = os.getpid()
        return super().fit(X)

class Seeded(ClusterMixin, BaseEstimator):
    def __init__(self, n_clusters=2, random_state=None):
        self.n_clusters, self.random_state = n_clusters, random_state
    def fit(self, X, y=None):
        with open("seeds.log", "a") as log:
            log.write(f"{self.random_state}\\n")
        rng = np.random.default_rng(self.random_state)
        self.labels_ = rng.integers(self.n_clusters, size=len(X))
        return self

class Graph(ClusterMixin, BaseEstimator):
    def fit(self, X, y=None):
        self.affinity_matrix_ = np.abs(X @ X.T)
        self.labels_ = np.zeros(len(X), dtype=int)
        return self

class Broken(Near):
    def fit(self, X, y=None):
        with open("tries.log", "a") as log:
            log.write("x")
        if not os.path.exists("mended"):
            raise RuntimeError("no such luck")
        return super().fit(X)

class Misshapen:
    def fit_predict(self, X):
        return np.zeros(len(X) - 1, dtype=int)

class Plain:
    def fit_predict(self, X):
        return (X[:, 0] > 0).astype(int)
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A present folder with a module of the user's methods and a file of points."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "own_methods.py").write_text(OWN)
    rng = np.random.default_rng(0)
    X = np.kron(np.eye(2), np.ones((10, 3))) + 0.1 * rng.standard_normal((20, 6))
    np.savez(tmp_path / "own.npz", X=X, y=np.repeat([4, 9], 10))
    yield tmp_path
    sys.modules.pop("own_methods", None)


def numbers(table):
    """All that does not depend on the time it took, nor on the process."""
    return table.drop(columns=[*TIMINGS, "objective"], errors="ignore")


def test_own_methods_on_own_data(folder):
    names = [f"own_methods:{name}" for name in ("Slow", "Seeded", "Graph", "Plain")]
    run(
        "own.npz", *(word for name in names for word in ("--method", name)),
        "--seeds", "3", "--affinity", "symmetrize", "--affinity", "keep-largest 2",
        "--output", "out",
    )  # fmt: skip
    table = read_table(folder / "out" / "clusters.json.gz")
    assert set(table.family) == {"user"}
    steps = {name: set(rows.steps) for name, rows in table.groupby("method")}
    chains = ({"symmetrize", "keep-largest 2"}, {"none"}, {"own affinity"}, {"none"})
    assert steps == dict(zip(names, chains, strict=True))
    by_method = dict(list(table.groupby("method")))
    assert (by_method[names[2]].accuracy == 1).all()
    assert by_method[names[1]].accuracy.nunique() > 1  # a fit for each seed
    assert by_method[names[3]].accuracy.nunique() == 1
    summary = (folder / "out" / "summary.md").read_text()
    for text in (*names, "# twinsolve cluster\n", "\n\n## clusters", "\n\n### Solver quality"):
        assert text in summary
    assert "chosen without labels" not in summary  # there is one setting of each
    assert "None" not in summary
    assert "False" not in summary
    assert "Settings: data=['own.npz'], " in summary
    assert f"time / {names[0]}" in summary
    settings = json.loads((folder / "out" / "settings.json").read_text())["settings"]
    assert settings["data"] == ["own.npz"]

    before = (folder / "fits.log").read_text()
    again = cluster(
        ["own.npz"], methods=names[:1], affinity=["symmetrize", "keep-largest 2"], seeds=3,
        directory=folder / "out" / "runs",
    )  # fmt: skip
    assert (folder / "fits.log").read_text() == before
    np.savez(folder / "own.npz", X=np.load("own.npz")["X"][::-1], y=np.repeat([9, 4], 10))
    cluster(["own.npz"], methods=names[:1], seeds=3, directory=folder / "out" / "runs")
    assert (folder / "fits.log").read_text() != before  # another file under the same name
    assert len(again) == 6


def test_a_killed_run_goes_on_where_it_stopped(folder):
    arguments = (
        SUBSPACES, "--method", "own_methods:Slow", "--method", "k-means", "--seeds", "2",
        "--affinity", "symmetrize",
    )  # fmt: skip
    code = "from twinsolve.bench.cli import main; main()"
    command = [sys.executable, "-c", code, "cluster", *arguments, "--output", "killed"]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as child:
        deadline = time.monotonic() + 300
        while len(list((folder / "killed" / "runs").glob("*.npz"))) < 3:
            assert child.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.02)
        child.send_signal(signal.SIGKILL)
    assert child.returncode == -signal.SIGKILL
    assert not (folder / "killed" / "clusters.json.gz").exists()
    finished = {path: path.read_bytes() for path in (folder / "killed" / "runs").glob("*.npz")}
    assert 3 <= len(finished) < 10  # five trials of two methods
    methods = [json.loads(str(np.load(path)["rows"]))[0]["method"] for path in finished]
    kept = sum(method != "k-means" for method in methods)
    fits = (folder / "fits.log").read_text().splitlines()
    assert kept <= len(fits) <= kept + 1  # the last was perhaps under way

    run(*arguments, "--output", "killed")
    after = (folder / "fits.log").read_text().splitlines()
    # A fit that was finished is kept, even if its job was not; one more is for a picture.
    assert len(after) - len(fits) <= 5 - kept + 1
    assert 6 <= len(after) <= 7
    run(*arguments, "--output", "killed")
    assert (folder / "fits.log").read_text().splitlines() == after
    assert {path: path.read_bytes() for path in finished} == finished
    run(*arguments, "--output", "whole")
    resumed, whole = (
        read_table(folder / name / "clusters.json.gz") for name in ("killed", "whole")
    )
    pd.testing.assert_frame_equal(numbers(resumed), numbers(whole))


def test_more_seeds_of_kmeans_take_the_fits_and_eigenvectors_that_are_there(folder, monkeypatch):
    decomposed = []

    def counted(affinity, n_clusters):
        decomposed.append(n_clusters)
        return embed_graph(affinity, n_clusters)

    monkeypatch.setattr("twinsolve.bench.clustering.clusters.embed_graph", counted)
    names = [f"own_methods:{name}" for name in ("Slow", "Seeded", "Graph")]
    about = {
        "data": ["own.npz"],
        "methods": names,
        "affinity": ["symmetrize", "svd-power 1, cluster-qr"],
    }
    tables = []
    for seeds, drawn in ((2, "0 1"), (4, "0 1 2 3"), (3, "0 1 2 3")):
        tables.append(cluster(**about, seeds=seeds, directory=folder / "runs"))
        assert len((folder / "fits.log").read_text().splitlines()) == 1
        assert (folder / "seeds.log").read_text().split() == drawn.split()
        assert len(decomposed) == 3  # two affinities of the first method, and the last one's own
    for grown in tables:
        whole = cluster(**about, seeds=grown.seed.nunique())
        pd.testing.assert_frame_equal(numbers(grown), numbers(whole))


def test_results_of_other_versions_are_not_mixed_in(folder, monkeypatch):
    about = {"data": ["own.npz"], "methods": ["own_methods:Slow"], "affinity": ["symmetrize"]}
    for runs in (1, 1, 2, 2):
        if runs == 2:
            monkeypatch.setattr(
                provenance, "version", lambda name: "0" if name == "numba" else version(name)
            )
        cluster(**about, seeds=1, directory=folder / "runs")
        assert len((folder / "fits.log").read_text().splitlines()) == runs
        assert len(list((folder / "runs").glob("*.npz"))) == runs


def test_pivoted_qr_instead_of_kmeans_under_its_own_name(folder, monkeypatch):
    calls = []

    def counted(affinity, n_clusters):
        calls.append(n_clusters)
        return embed_graph(affinity, n_clusters)

    monkeypatch.setattr("twinsolve.bench.clustering.clusters.embed_graph", counted)
    chains = ["symmetrize", "symmetrize, cluster-qr", "svd-power 2, cluster-qr"]
    table = cluster(
        ["digits:n_points=80"], methods=["TSC"], affinity=chains, seeds=3, features=["unit"]
    )
    table = table[table.settings == table.settings.iloc[0]]
    assert table.steps.unique().tolist() == chains
    assert len(calls) == 3 * 2  # settings, affinities
    problem = find_data("digits:n_points=80").problem()
    own = cluster(["own.npz"], methods=["own_methods:Graph", "own_methods:Slow"], seeds=2)
    cuts = {name: set(rows.steps) for name, rows in own.groupby("method")}
    assert cuts["own_methods:Graph"] == {"own affinity", "own affinity, cluster-qr"}
    assert cuts["own_methods:Slow"] == {f"{c}{end}" for c in STEPS for end in ("", ", cluster-qr")}
    model = ThresholdingSubspaceClustering(10, n_neighbors=5, assign_labels="cluster_qr")
    labels = model.fit_predict(normalize(problem.X))
    found = table[table.steps == chains[1]].accuracy.tolist()
    assert found == [clustering_accuracy(problem.labels, labels)] * 3
    assert table[table.steps == chains[0]].accuracy.tolist() != found
    with pytest.raises(ValueError, match=r"affinity: must be among .*, and k-means or cluster-qr"):
        cluster(["digits"], methods=["TSC"], affinity=["cluster-qr, symmetrize"])


@pytest.mark.slow
def test_a_dask_cluster_gives_the_serial_table(folder):
    distributed = pytest.importorskip("distributed")
    arguments = {
        "data": [SUBSPACES, "own.npz"],
        "methods": ["own_methods:Slow", "k-means"],
        "affinity": ["symmetrize"],
        "n_trials": 2,
        "seeds": 2,
    }
    serial = cluster(**arguments)
    with (
        distributed.LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as them,
        distributed.Client(them),
        joblib.parallel_config("dask"),
    ):
        spread = cluster(**arguments)
    pd.testing.assert_frame_equal(numbers(serial), numbers(spread))
    workers = spread[spread.method == "own_methods:Slow"].objective
    assert (workers != os.getpid()).all()


def test_labels_do_not_decide_which_settings_are_chosen(folder):
    points = np.load("own.npz")
    order = np.random.default_rng(0).permutation(20)
    np.savez("permuted.npz", X=points["X"], y=points["y"][order])
    tables = [
        cluster(
            [name], methods=["TSC", "OMP"], affinity=["symmetrize", "svd-power 1"], seeds=2,
            label_tuned=tuned,
        )
        for name, tuned in (("own.npz", False), ("permuted.npz", True))
    ]  # fmt: skip
    assert ["labels" in set(table.selection) for table in tables] == [False, True]
    chosen = [
        table[table.selection == "label-free"][[*GROUP[1:], "settings", "selection_score"]]
        for table in tables
    ]
    assert tables[0].accuracy.mean() > tables[1].accuracy.mean()
    assert set(chosen[0].settings) < set(tables[0].settings)
    pd.testing.assert_frame_equal(*chosen)


def test_a_failing_method_is_told_and_loses_nobody_elses_results(folder):
    arguments = (
        "own.npz", "--method", "own_methods:Broken", "--method", "own_methods:Misshapen",
        "--method", "k-means", "--seeds", "2", "--affinity", "symmetrize", "--output", "out",
    )  # fmt: skip
    result = run(*arguments, code=1)
    assert "own_methods.py" in result  # where it was raised
    table = read_table(folder / "out" / "clusters.json.gz")
    assert (table[table.method == "k-means"].accuracy == 1).all()
    failed = table[table.method == "own_methods:Broken"]
    assert len(failed) == 2
    assert failed.accuracy.isna().all()
    assert set(failed.note) == {"failed: RuntimeError: no such luck"}
    assert table[table.method == "own_methods:Misshapen"].note.str.startswith("failed").all()
    summary = (folder / "out" / "summary.md").read_text()
    assert "own_methods:Broken | - | symmetrize | failed: RuntimeError: no such luck |" in summary
    assert len(list((folder / "out" / "runs").glob("*.npz"))) == 1  # failures are tried again

    run("own.npz", "--method", "own_methods:Broken", "--output", "alone", code=1)
    assert "no such luck" in (folder / "alone" / "summary.md").read_text()

    (folder / "mended").touch()
    run(*arguments, code=1)
    assert (folder / "tries.log").read_text() == "xxxx"  # the last for a picture of its matrices
    table = read_table(folder / "out" / "clusters.json.gz")
    assert table[table.method == "own_methods:Broken"].accuracy.notna().all()


def test_data_of_another_content_are_clustered_anew(folder):
    rng = np.random.default_rng(0)
    for data in range(2):
        content = {"fea": rng.integers(0, 255, (12, 1024)), "gnd": np.arange(12)[:, None] % 2 + 1}
        (folder / "data").mkdir(exist_ok=True)
        savemat(folder / "data" / "Yale_32x32.mat", content)
        for _ in range(2):
            features.load_features.cache_clear()
            cluster(
                ["yale"], methods=["own_methods:Slow"], affinity=["symmetrize"], seeds=1,
                data_home="data", directory=folder / "runs",
            )  # fmt: skip
        assert len((folder / "fits.log").read_text().splitlines()) == data + 1


@pytest.mark.parametrize("length", [0, 1000])
def test_a_broken_data_file_is_named(folder, length):
    (folder / "data").mkdir()
    (folder / "data" / "COIL20.mat").write_bytes(b"MATLAB 5.0 MAT-file".ljust(length, b"\x07"))
    assert "COIL20.mat" in run("coil20", "--method", "TSC", "--data-home", "data", code=2)
    whole = (folder / "own.npz").read_bytes()
    (folder / "own.npz").write_bytes(whole[: len(whole) // 2])
    assert "own.npz" in run("own.npz", "--method", "TSC", code=2)


def test_columns_of_a_file_are_points_by_keys_of_the_users_own(folder):
    with np.load("own.npz") as own:
        savemat("mine.mat", {"Z": own["X"].T, "s": own["y"], "other": np.eye(2)})
    refused = run("mine.mat", "--method", "TSC", code=2)
    assert "'Z': (6, 20)" in refused
    assert "the names X, x, data, fea, features are tried" in refused
    arguments = ("--method", "TSC", "--seeds", "1")
    refused = run("mine.mat:data_key=Z", *arguments, code=2)
    assert "the points are 6 rows, but there are 20 labels; as many as columns" in refused
    assert "transpose=True" in refused
    arguments += ("--affinity", "unit-rows", "--output", "out")
    result = run("mine.mat:data_key=Z,transpose=True", *arguments)
    assert "20 points (columns) of 6 features, 2 clusters;" in result
    table = read_table(folder / "out" / "clusters.json.gz")
    expected = cluster(["own.npz"], methods=["TSC"], seeds=1, affinity=["unit-rows"])
    assert table.accuracy.tolist() == expected.accuracy.tolist()
    for name in ("errors", "matrices"):
        for end in (".png", ".pdf"):
            assert (folder / "out" / name).with_suffix(end).stat().st_size > 5000
    header, *lines = (folder / "out" / "clusters.csv").read_text().splitlines()
    assert header.startswith("data,features,method,settings,steps,error %")
    assert len(lines) == 1
    assert r"error \% & std" in (folder / "out" / "clusters.tex").read_text()
    result = run("digits", "--method", "TSC", "--n-clusters", "2", code=2)
    assert "--n-clusters is for files" in result


def test_points_without_labels_are_clustered_and_the_clusters_written(folder):
    with np.load("own.npz") as own:
        X, y = own["X"], own["y"]
    np.savez("bare.npz", X=X)
    refused = run("bare.npz", "--method", "TSC", code=2)
    assert "holds no labels: name them by target_key" in refused
    assert "'X': (20, 6)" in refused
    assert "gnd, gt or s" in refused
    methods = ("--method", "TSC", "--method", "k-means", "--seeds", "2", "--n-clusters", "2")
    result = run("bare.npz", *methods, "--affinity", "symmetrize", "--output", "out")
    assert "errors are not known" in result
    table = read_table(folder / "out" / "clusters.json.gz")
    assert table[["accuracy", "nmi", "ari", "connectivity"]].isna().all(axis=None)
    found = pd.read_csv(folder / "out" / "labels.csv")
    assert list(found) == ["point", "cluster"]
    assert found.point.tolist() == list(range(len(y)))
    assert clustering_accuracy(y, found.cluster) == 1
    assert "labels.csv: the clusters by TSC, n_neighbors=" in result
    one = ("--seeds", "1", "--n-clusters", "2", "--method", "k-means", "--output", "two")
    result = run("bare.npz:n_points=15", *one)
    found = pd.read_csv(folder / "two" / "labels.csv")
    assert len(found) == 15
    assert clustering_accuracy(y[found.point], found.cluster) == 1
    assert (folder / "out" / "matrices.png").exists()
    assert not (folder / "out" / "errors.png").exists()
    assert "errors.png" not in (folder / "out" / "summary.md").read_text()


def test_what_an_earlier_run_drew_and_wrote_is_gone(folder):
    with np.load("own.npz") as own:
        np.savez("bare.npz", X=own["X"])
    methods = ("--method", "TSC", "--seeds", "1", "--affinity", "symmetrize", "--output", "out")
    known = ("own.npz", *methods)
    bare = ("bare.npz", *methods, "--n-clusters", "2")
    written = [{"errors.png", "matrices.png"}, {"labels.csv", "matrices.png"}]
    for arguments, expected in ((known, written[0]), (bare, written[1]), (known, written[0])):
        run(*arguments)
        there = {path.name for path in (folder / "out").iterdir()}
        assert there & (written[0] | written[1]) == expected
        summary = (folder / "out" / "summary.md").read_text()
        assert ("errors.png" in summary) == ("errors.png" in expected)


def test_errors_that_are_alike_keep_their_column(folder):
    methods = ("--method", "TSC", "--method", "kNN graph", "--seeds", "1")
    result = run("own.npz", *methods, "--affinity", "symmetrize", "--output", "out")
    above, _ = result.split("┡", maxsplit=1)  # headings, which may wrap
    for column in ("error", "%", "std", "NMI", "ARI", "score"):
        assert re.search(rf"┃ {column} +┃", above)
    assert "One choice of all" not in result  # of methods that did not run


def test_a_loaded_file_registers_methods(folder):
    (folder / "mine.py").write_text(
        "from twinsolve.bench import Method, register_method\n"
        "from twinsolve.solvers import ThresholdingSubspaceClustering\n"
        "def make(n_clusters, random_state, n_jobs):\n"
        "    return ThresholdingSubspaceClustering(n_clusters, n_neighbors=4)\n"
        "register_method(Method('of mine', 'user', make))\n"
    )
    arguments = ("own.npz", "--method", "of mine", "--seeds", "1", "--affinity", "unit-rows")
    assert "'of mine'" in run(*arguments, code=2)
    for runs in (1, 1, 2):  # one more when the file has changed
        if runs == 2:
            (folder / "mine.py").write_text((folder / "mine.py").read_text() + "# changed\n")
        try:
            run(*arguments, "--load", "mine.py", "--output", "out")
        finally:
            METHODS.pop("of mine", None)
        assert len(list((folder / "out" / "runs").glob("*.npz"))) == runs
    assert set(read_table(folder / "out" / "clusters.json.gz").method) == {"of mine"}
    assert "'./none.py' is neither" in run(*arguments, "--load", "./none.py", code=2)


def test_seeds_are_checked():
    with pytest.raises(ValueError, match="seed: must be a whole number >= 0, got -1"):
        cluster([SUBSPACES], seed=-1)
    with pytest.raises(ValueError, match="seeds: must be a whole number >= 1, got 0"):
        cluster([SUBSPACES], seeds=0)


def test_dense_chains_are_left_out_of_large_problems(folder, monkeypatch):
    monkeypatch.setattr("twinsolve.bench.clustering.clusters.DENSE_ROWS", 10)
    run(
        SUBSPACES, "--method", "TSC", "--affinity", "symmetrize", "--affinity", "svd-power",
        "--seeds", "1", "--output", "out",
    )  # fmt: skip
    table = read_table(folder / "out" / "clusters.json.gz")
    table = table[(table.selection != "") & (table.trial == "0")].set_index("steps")
    assert pd.isna(table.note["symmetrize"])
    assert table.note["svd-power"] == "left out above 10 points: needs a dense matrix"
    assert pd.isna(table.accuracy["svd-power"])
    assert "left out above 10 points" in (folder / "out" / "summary.md").read_text()


def test_without_data_and_methods_the_preset_quick_runs(folder, monkeypatch):
    asked = []

    def small(name, methods):
        asked.append(name)
        assert methods is None
        return (
            clusters_study([SUBSPACES], ["TSC"], n_trials=1),
            clusters_study(["own.npz"], ["TSC"], name="second", affinity=["symmetrize"]),
        )

    monkeypatch.setattr("twinsolve.bench.clustering.presets.find_preset", small)
    run("--seeds", "1")
    assert asked == ["quick"]
    for name in ("clusters", "second"):
        assert len(read_table(folder / "results" / "cluster" / f"{name}.json.gz"))
    summary = (folder / "results" / "cluster" / "summary.md").read_text()
    assert summary.startswith("# twinsolve cluster --preset quick\n")
    assert "\n\n## clusters\n\n" in summary
    assert "\n\n![errors.png](errors.png)\n\n## second\n\n" in summary
    assert "largest mean of (1 + s)" in summary
    run("--preset", "mnist", "--seeds", "1")
    assert (folder / "results" / "cluster-mnist" / "settings.json").exists()


def test_help_and_list_explain():
    for option, words in (
        ("--help", ("--method", "--n-clusters", "package.module:Class", "ME-3", "DIR/runs")),
        ("--list", ("digits", "SSC outliers", "learned", "softmax-rows", "quick", "scattering-D")),
    ):
        said = run(option)
        assert not [word for word in words if word not in said]
