"""`twinsolve cluster --auto`: points without labels, and nothing to choose."""

import json
import re
import signal
import subprocess
import sys
import time

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

from twinsolve.bench import choose_clusters
from twinsolve.bench.cli import app
from twinsolve.bench.clustering import auto
from twinsolve.bench.clustering.choice import POOL
from twinsolve.bench.clustering.methods import METHODS
from twinsolve.datasets import make_union_of_subspaces
from twinsolve.solvers import clustering_accuracy

OWN = """
import time
from dataclasses import dataclass
from twinsolve.solvers import ThresholdingSubspaceClustering

@dataclass(eq=False, repr=False)
class Slow(ThresholdingSubspaceClustering):
    n_neighbors: int = 5

    def fit(self, X, y=None):
        time.sleep(0.3)
        with open("fits.log", "a") as log:
            log.write(f"{self.n_neighbors}\\n")
        return super().fit(X)

class Broken(Slow):
    def fit(self, X, y=None):
        raise RuntimeError("no such luck")
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A present folder with points on two subspaces, with and without labels, and methods."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "slow_methods.py").write_text(OWN)
    X, y = make_union_of_subspaces(
        n_samples=12, n_subspaces=2, n_features=12, dimension=2, noise=0.1, random_state=0
    )
    np.savez(tmp_path / "own.npz", X=X, y=y)
    np.savez(tmp_path / "bare.npz", X=X)
    yield tmp_path
    sys.modules.pop("slow_methods", None)
    METHODS.pop("slow", None)


def run(*arguments):
    return CliRunner().invoke(app, ["cluster", *arguments])


def words(result):
    """What was printed, without the frame and its line breaks."""
    return re.sub(r"[\s│╭╮╰╯─]+", "", result.output)


def _again(chosen):
    """The name of what was chosen, which the command takes."""
    words = ",".join(f"{name}={value}" for name, value in chosen.settings.items())
    return f"{chosen.method.partition(':')[0]}:{words}"


def test_points_without_labels_and_their_number_are_enough(folder):
    result = run("bare.npz", "--auto", "--n-clusters", "2", "--output", "out")
    assert result.exit_code == 0, result.output
    labels = pd.read_csv("out/labels.csv")
    assert labels.shape == (24, 1)
    assert clustering_accuracy(np.load("own.npz")["y"], labels.cluster) == 1
    choice = json.loads((folder / "out" / "choice.json").read_text())
    assert choice["method"] in POOL
    assert choice["n_clusters"] == 2
    assert set(choice) >= {"settings", "steps", "score", "agreement", "rule"}
    assert not any("labels_in" in key for key in choice)
    candidates = pd.read_csv("out/candidates.csv")
    assert set(candidates.method) == set(POOL)
    assert candidates["rank"].tolist() == list(range(1, len(candidates) + 1))
    assert choice["candidates"] == len(candidates) > 100
    best = candidates.iloc[0]
    assert (best.method, best.steps) == (choice["method"], choice["steps"])
    assert best.selection_score == pytest.approx(choice["score"])
    assert "For information only" not in result.output
    assert "mean adjusted Rand index" in result.output


def test_labels_tell_the_error_and_do_not_choose(folder):
    methods = ("--method", "OMP", "--method", "EnSC")
    printed = run("own.npz", "--auto", *methods, "--output", "known")
    assert printed.exit_code == 0, printed.output
    assert run("bare.npz", "--auto", "--n-clusters", "2", *methods, "--output", "un").exit_code == 0
    known, unknown = (json.loads((folder / n / "choice.json").read_text()) for n in ("known", "un"))
    told = known.pop("for_information_only_by_labels_in_percent")
    assert told == {"error": 0, "smallest_error": 0, "regret": 0}
    same = ("method", "settings", "steps", "score", "agreement", "candidates")
    assert [known[name] for name in same] == [unknown[name] for name in same]
    assert "Forinformationonly,aslabelstellit:thechoicehasanerrorof0.00%" in words(printed)
    wrong = np.load("own.npz")["y"][::-1].copy()
    wrong[::2] = 0
    np.savez("own.npz", X=np.load("own.npz")["X"], y=wrong)
    assert run("own.npz", "--auto", *methods, "--output", "wrong").exit_code == 0
    other = json.loads((folder / "wrong" / "choice.json").read_text())
    assert [other[name] for name in same] == [known[name] for name in same]
    assert other["for_information_only_by_labels_in_percent"]["error"] > 10


def test_the_function_says_what_the_command_writes(folder):
    chosen = choose_clusters(
        "own.npz", methods=["OMP", "TSC:n_neighbors=4"], steps=["symmetrize", "unit-rows"], seed=3
    )
    assert chosen.method in ("OMP", "TSC:n_neighbors=4")
    assert chosen.steps in ("symmetrize", "unit-rows")
    assert len(chosen.candidates) == 8
    again = choose_clusters("own.npz", methods=[_again(chosen)], steps=[chosen.steps], seed=3)
    assert clustering_accuracy(again.labels, chosen.labels) == 1
    name, value = next(iter(chosen.settings.items()))
    assert f"{name}={value}" == chosen.candidates.settings.iloc[0]


def test_what_fails_or_cannot_be_judged_is_left_out_with_its_reason(folder):
    methods = [word for name in ("Slow", "Broken") for word in ("--method", f"slow_methods:{name}")]
    result = run("own.npz", "--auto", *methods, "--method", "k-means", "--output", "out")
    assert result.exit_code == 0, result.output
    choice = json.loads((folder / "out" / "choice.json").read_text())
    assert choice["method"] == "slow_methods:Slow"
    assert len(choice["left_out"]) == 2
    assert "Broken : failed: RuntimeError: no such luck" in choice["left_out"][0]
    assert "k-means : makes no affinity" in choice["left_out"][1]
    assert "nosuchluck" in words(result)
    refused = run("own.npz", "--auto", "--method", "slow_methods:Broken", "--output", "none")
    assert refused.exit_code == 2
    assert "noneofslow_methods:Brokencanbejudgedwithoutlabels;failed:RuntimeError" in words(refused)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["bare.npz"], "sayhowmanyclusterstolookforby--n-clusters"),
        ([], "needsDATA"),
        (["own.npz", "--preset", "quick"], "leavesnochoiceof--preset"),
        (["own.npz", "--label-tuned"], "leavesnochoiceof--label-tuned"),
        (["own.npz", "--n-seeds", "2", "--n-trials", "2"], "choiceof--n-trials,--n-seeds"),
        (["own.npz", "bare.npz"], "leavesnochoiceofasecondDATA"),
        (["own.npz", "--features", "raw", "--features", "unit"], "ofasecond--features"),
        (["own.npz", "--method", "SSD"], "method:mustbepackage.module:Class"),
        (["own.npz", "--steps", "symetrize"], "steps:mustbeamong"),
        (["digits", "--n-clusters", "3"], "areforfilesofpoints"),
        (["own.npz", "--method", "k-means"], "noneofk-meanscanbejudgedwithoutlabels"),
    ],
)
def test_bad_input_is_refused_in_words(folder, arguments, message):
    result = run("--auto", *arguments)
    assert result.exit_code == 2
    assert message in words(result)
    assert not (folder / "results" / "cluster" / "labels.csv").exists()


def test_many_points_leave_out_what_needs_dense_matrices(folder, monkeypatch):
    monkeypatch.setattr(auto, "_MOST_DENSE", 20)
    chosen = choose_clusters("own.npz")
    assert set(chosen.candidates.method) == set(POOL) - {"LRSC"}
    dense = {"low-rank", "svd-power", "softmax-rows"}
    assert not dense & set(chosen.candidates.steps)
    assert chosen.notes[0].startswith("Above 20 points without what needs dense matrices: LRSC, ")
    assert all(name in chosen.notes[0] for name in dense)
    asked = choose_clusters("own.npz", methods=["LRSC"])
    assert set(asked.candidates.steps) >= dense


def test_a_killed_run_goes_on_where_it_stopped(folder):
    grids = (
        "from slow_methods import Slow\n"
        "from twinsolve.bench import Method, register_method\n"
        "def make(n_clusters, random_state, n_jobs, n_neighbors):\n"
        "    return Slow(n_clusters, n_neighbors=n_neighbors)\n"
        "register_method(Method('slow', 'user', make, {'n_neighbors': (3, 4, 5, 6)}))\n"
    )
    (folder / "grids.py").write_text(grids)
    arguments = [
        "own.npz", "--auto", "--load", "grids.py", "--method", "slow", "--output", "killed",
    ]  # fmt: skip
    code = "from twinsolve.bench.cli import main; main()"
    command = [sys.executable, "-c", code, "cluster", *arguments]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as child:
        deadline = time.monotonic() + 300
        while len(list((folder / "killed" / "runs").glob("*.npz"))) < 2:
            assert child.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.02)
        child.send_signal(signal.SIGKILL)
    assert child.returncode == -signal.SIGKILL
    assert not (folder / "killed" / "choice.json").exists()
    before = (folder / "fits.log").read_text().split()
    assert before[:2] == ["3", "4"]
    assert run(*arguments).exit_code == 0
    after = (folder / "fits.log").read_text().split()
    assert after.count("3") == after.count("4") == 1
    assert set(after) == {"3", "4", "5", "6"}
    killed = pd.read_csv(folder / "killed" / "labels.csv").cluster
    assert killed.tolist() == choose_clusters("own.npz", methods=["slow"]).labels.tolist()
