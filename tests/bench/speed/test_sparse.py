"""The commands `twinsolve speed ...` on small problems, with the peers that are installed."""

import json
import os
import re
import subprocess
import sys
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from llvmlite.binding import get_host_cpu_features
from numpy.testing import assert_allclose
from PIL import Image
from scipy.sparse import csr_array
from sklearn.preprocessing import normalize
from typer.testing import CliRunner

from twinsolve.bench import time_self_expression, time_sparse_coding, timing
from twinsolve.bench.cli import app
from twinsolve.bench.speed import contest, sparse
from twinsolve.bench.speed.contest import _AVX2, hold_to
from twinsolve.bench.speed.figures import draw_scaling
from twinsolve.bench.speed.peers import SELF_EXPRESSION_PEERS, SPARSE_CODING_PEERS
from twinsolve.bench.speed.sparse import (
    SELF_EXPRESSION,
    SparseCase,
    SparseProblem,
    _mnist,
    _subspaces,
)
from twinsolve.solvers import sparse_code
from twinsolve.solvers.sparse_coding import duality_gap, lam_max, lasso_objective

from ...datasets.test_mnist import write

KINDS = {"self-expression": SELF_EXPRESSION_PEERS, "sparse-coding": SPARSE_CODING_PEERS}
EVERY_PEER = [(kind, name) for kind, found in KINDS.items() for name in found]


def problem_of(kind):
    if kind == "self-expression":
        return _subspaces(0, 60, 20)
    rng = np.random.default_rng(0)
    D, Y = (normalize(rng.standard_normal((n, 16))) for n in (40, 30))
    return SparseProblem(Y, D, np.full(30, lam_max(Y, D).mean() / 10))


@pytest.fixture
def small(monkeypatch):
    """Few rows, and memory that is measured only where the test asks for it."""
    cases = {
        f"synthetic-{n}": SparseCase(
            "lam_max / 50", partial(_subspaces, n_samples=n, n_features=20)
        )
        for n in (60, 100)
    }
    make = partial(_subspaces, n_samples=80, n_features=20)
    large = {"large": SparseCase("lam_max / 50", make, tol=1e-4, alone=True)}
    monkeypatch.setattr(sparse, "SELF_EXPRESSION", cases | large)
    monkeypatch.setattr(sparse, "_SECONDS", 0.01)
    monkeypatch.setattr(contest, "alone", lambda entrant: {"memory_mib": 1.0})


def run(*arguments):
    return CliRunner().invoke(app, ["speed", *arguments])


@pytest.mark.parametrize("kind", KINDS)
def test_certificate_is_the_duality_gap(kind):
    problem = problem_of(kind)
    own = problem.self_expression
    rows = np.array([5, 3, 29])
    for tol in (1e-2, 1e-6):
        solution = sparse_code(
            problem.Y, problem.D, lam=problem.lam, tol=tol, zero_diagonal=own, max_iter=100
        )
        expected = duality_gap(
            problem.Y, problem.D, solution.coef, lam=problem.lam, zero_diagonal=own
        )
        assert_allclose(problem.gap(solution.coef[rows], rows), expected[rows], atol=1e-12)
        assert_allclose(
            problem.gap(solution.coef.toarray()[rows], rows), expected[rows], atol=1e-12
        )
    for codes in (np.zeros((3, len(problem.D))), np.full((3, len(problem.D)), 0.1)):
        if own:
            codes[np.arange(3), rows] = 0
        whole = np.zeros((len(problem.Y), len(problem.D)))
        whole[rows] = codes
        expected = duality_gap(problem.Y, problem.D, whole, lam=problem.lam, zero_diagonal=own)
        assert problem.gap(codes, rows).min() > 1e-3
        assert_allclose(problem.gap(codes, rows), expected[rows], rtol=1e-9)


def test_certificate_of_degenerate_rows():
    X = np.array([[1.0, 0.0], [0.0, 0.0], [0.6, 0.8]])
    problem = SparseProblem(X, X, np.full(3, 0.1))
    codes = np.zeros((3, 3))
    codes[0, 0] = 1
    gap = problem.gap(codes, np.arange(3))
    assert gap[0] == np.inf  # takes part in its own code
    assert gap[1] == 0
    assert 0 < gap[2] < np.inf


def test_certificate_goes_in_blocks(monkeypatch):
    problem = problem_of("self-expression")
    codes, rows = problem.solve(tol=1e-3, n_jobs=1).coef, np.arange(60)
    whole = problem.gap(codes, rows)
    monkeypatch.setattr("twinsolve.bench.speed.peers._BLOCK_ROWS", 7)
    assert_allclose(problem.gap(codes, rows), whole, atol=1e-12)


@pytest.mark.peers
@pytest.mark.parametrize(("kind", "name"), EVERY_PEER)
def test_peers_agree_with_ours(kind, name):
    peer = KINDS[kind][name]
    pytest.importorskip(peer.module)
    problem = problem_of(kind)
    rows = np.array([7, 0, len(problem.D) - 1]) % len(problem.Y)
    gram = problem.gram.copy()
    solve = peer.prepare(problem, 1)
    tol = 1e-9 if peer.tolerances != (None,) else None
    codes = solve(rows, tol)
    assert codes.shape == (3, len(problem.D))
    assert problem.gap(codes, rows).max() < 1e-5
    ours = problem.solve(tol=1e-8, n_jobs=1)
    whole = np.zeros(ours.coef.shape)
    whole[rows] = codes
    objective = lasso_objective(problem.Y, problem.D, whole, lam=problem.lam)[rows]
    assert_allclose(objective, ours.objective[rows], rtol=0, atol=2e-7)
    # What is lent to a peer comes back unchanged.
    assert (problem.gram == gram).all()
    assert (solve(rows, tol) == codes).all()


def test_tolerance_is_the_loosest_that_reaches_the_gap():
    problem = problem_of("self-expression")
    peer = SELF_EXPRESSION_PEERS["scikit-learn"]
    racer = sparse._PeerSolver("scikit-learn", peer, problem, 1, np.arange(60))
    racer.prepare()
    solve = peer.prepare(problem, 1)
    chosen = peer.tolerances.index(racer.tol)
    assert 0 < chosen < len(peer.tolerances) - 1
    assert len(racer.rows) == 60
    assert problem.gap(solve(racer.rows, racer.tol), racer.rows).max() <= 1e-6
    assert problem.gap(solve(racer.rows, peer.tolerances[chosen - 1]), racer.rows).max() > 1e-6


def test_table_of_every_peer(small):
    table = time_self_expression(cases=["synthetic-60"], rounds=2)
    assert table.solver.tolist() == ["twinsolve", *SELF_EXPRESSION_PEERS]
    for row in table.itertuples():
        if row.note:
            assert "is not installed" in row.note
            continue
        assert row.gap <= 1e-6
        assert row.ms_lowest <= row.ms_per_row <= row.ms_highest
        assert row.ratio_lowest <= row.ratio <= row.ratio_highest
        assert 1 < row.nonzeros < 59
        assert 16 <= row.rows_timed <= 60
        assert_allclose(row.ms_per_row, 1000 * row.seconds / row.rows_timed)
    ours = table.iloc[0]
    assert ours.ratio == 1
    assert ours.rows_timed == ours.n_rows == 60
    assert ours.memory_mib == 1.0


def test_sparse_coding_and_what_is_not_installed(small, monkeypatch):
    case = SparseCase("-", lambda seed: problem_of("sparse-coding"))
    monkeypatch.setattr(sparse, "SPARSE_CODING", {"tiny": case})
    monkeypatch.setattr(
        contest, "find_spec", lambda name: None if name in ("celer", "spams") else find_spec(name)
    )
    table = time_sparse_coding(rounds=1).set_index("solver")
    assert set(table.index) == {"twinsolve", *SPARSE_CODING_PEERS}
    assert table.note["celer"] == "celer is not installed"
    assert table.note["spams"] == "spams is not installed"
    assert np.isnan(table.ms_per_row["spams"])
    assert (table.gap[["twinsolve", "scikit-learn-cd", "scikit-learn-lars"]] <= 1e-6).all()


def test_a_gap_that_is_missed_is_said(small, monkeypatch):
    monkeypatch.setattr(sparse, "_TARGET", 1e-30)
    table = time_self_expression(cases=["synthetic-60"], peers=["scikit-learn"], rounds=1)
    theirs = table.iloc[1]
    assert theirs.note == "gap above 1e-30"
    assert theirs.tol == SELF_EXPRESSION_PEERS["scikit-learn"].tolerances[-1]
    assert theirs.ms_per_row > 0


def test_gram_matrices_that_do_not_fit_are_left_out(small, monkeypatch):
    monkeypatch.setattr(sparse, "_LARGEST_GRAM", 8 * 59**2)
    table = time_self_expression(cases=["synthetic-60"], peers=["scikit-learn-gram"], rounds=1)
    assert table.note[1].startswith("the Gram matrix would take")


def test_two_threads_join_one_and_leave_out_the_rest(small):
    table = time_self_expression(cases=["synthetic-60"], peers=["scikit-learn"], n_jobs=2)
    assert table.solver.tolist() == ["twinsolve, n_jobs=2", "twinsolve", "scikit-learn"]
    assert table.note.tolist() == ["", "", "works on one thread only"]
    both = table[:2]
    assert both.n_jobs.tolist() == [2, 1]
    assert_allclose(both.nonzeros[0], both.nonzeros[1])
    assert both.ratio[1] > 0


def test_large_runs_ours_once_and_alone(small, monkeypatch):
    assert "large" not in set(time_self_expression(peers=[], rounds=1).case)
    table = time_self_expression(cases=["large"], n_jobs=2)
    (row,) = table.itertuples()
    assert row.solver == "twinsolve, n_jobs=2"
    assert (row.tol, row.rows_timed) == (1e-4, 80)
    assert row.gap <= 1e-4
    assert row.seconds > 0
    assert_allclose(row.ms_per_row, 1000 * row.seconds / 80)
    assert 1 < row.nonzeros < 79
    if sys.platform == "linux":
        assert 0 < row.memory_mib < 100


def test_command_writes_its_results_and_resumes(small, tmp_path, monkeypatch):
    out = tmp_path / "out"
    arguments = ("self-expression", "--output", str(out), "--peer", "scikit-learn", "--rounds", "2")
    result = run(*arguments)
    assert result.exit_code == 0, result.output
    for word in ("synthetic-60", "synthetic-100", "twinsolve", "scikit-learn"):
        assert word in result.output
    rows = json.loads((out / "table.json").read_text())
    assert len(rows) == 4
    settings = json.loads((out / "settings.json").read_text())["settings"]
    assert settings == {
        "cases": None, "peers": ["scikit-learn"], "rounds": 2, "n_jobs": 1, "seed": 0,
    }  # fmt: skip
    assert "| synthetic-100 | twinsolve | float64 | 1 | 100 |" in (out / "summary.md").read_text()
    with Image.open(out / "scaling.png") as figure:
        assert figure.size[0] > 800

    monkeypatch.setattr(sparse, "race", lambda: None)  # nothing is left to compute
    assert run(*arguments).exit_code == 0
    assert json.loads((out / "table.json").read_text()) == rows
    for changed in (("--seed", "1"), ("--rounds", "1"), ("--n-jobs", "2"), ("--peer", "celer")):
        assert isinstance(run(*arguments, *changed).exception, TypeError)
    monkeypatch.setattr("twinsolve.bench.sources.source_hash", lambda *folders: "another source")
    assert isinstance(run(*arguments).exception, TypeError)


def test_missing_data_and_peers_are_said_and_not_fatal(small, tmp_path, monkeypatch):
    monkeypatch.setenv("TWINSOLVE_DATA", str(tmp_path))
    monkeypatch.setattr(contest, "find_spec", lambda name: None)
    tiny = {"coil-20": SELF_EXPRESSION["coil-20"]}
    tiny["tiny"] = SparseCase("-", partial(_subspaces, n_samples=40, n_features=20))
    monkeypatch.setattr(sparse, "SELF_EXPRESSION", tiny)
    out = tmp_path / "out"
    result = run("self-expression", "--output", str(out), "--rounds", "1")
    assert result.exit_code == 0, result.output
    text = " ".join(result.output.split())
    assert "coil-20: COIL20.mat is not in" in text
    assert "skglm: skglm is not installed (tiny)" in text
    assert "COIL20.mat is not in" in (out / "summary.md").read_text()
    assert not (out / "scaling.png").exists()
    assert len(list((out / "runs").iterdir())) == 1  # to be tried again when the file is there


def test_ratio_by_hand(monkeypatch):
    seconds = iter([1.0, 2.0, 0.4, 2.0, 4.0, 2.4])  # the second round begins with theirs
    monkeypatch.setattr(contest, "seconds_of", lambda run: next(seconds))
    monkeypatch.setattr(contest.Entrant, "run", lambda self: None)
    ours, theirs, out = contest.Entrant(), contest.Entrant(), contest.Entrant()
    ours.count, theirs.count, out.note = 10, 2, "too slow"
    _, row, none = contest.compete([ours, theirs, out], 3)
    assert none == {"note": "too slow"}
    assert_allclose([row["ms_lowest"], row["ms"], row["ms_highest"]], [200, 1000, 1200])
    assert_allclose([row["ratio_lowest"], row["ratio"], row["ratio_highest"]], [1, 3, 10])


@pytest.mark.skipif(sys.platform != "linux", reason="reads the status that Linux keeps")
def test_peak_memory_sees_what_is_freed_again():
    code = (
        "import numpy as np; from twinsolve.bench.timing import measured\n"
        "big = np.ones(4 * 2**20); del big\n"
        "print(measured(lambda: None)[1])\n"
        "print(measured(lambda: len(np.ones(8 * 2**20)))[1])\n"
    )
    run = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True)
    none, peak = map(float, run.stdout.split())
    assert abs(none) < 4
    assert 60 < peak < 72


def test_without_linux_the_memory_is_unknown(monkeypatch):
    def refuse(*args):
        raise FileNotFoundError

    monkeypatch.setattr(timing.Path, "read_text", refuse)
    monkeypatch.setattr(timing.Path, "write_text", refuse)
    assert np.isnan(timing.resident("VmHWM"))
    assert not timing.reset_peak()


def test_figure_without_peers_and_without_memory(tmp_path):
    rows = pd.DataFrame(
        {"case": ["synthetic-60", "coil-20"], "solver": "twinsolve", "n_rows": [60, 1440]}
        | {"ms_per_row": 1.0, "ms_lowest": 0.5, "ms_highest": 2.0, "memory_mib": np.nan, "note": ""}
    )
    (tmp_path / "none").mkdir()
    draw_scaling(rows, tmp_path / "scaling.png")
    with Image.open(tmp_path / "scaling.png") as figure:
        assert figure.size[0] > 800
    assert (tmp_path / "scaling.pdf").exists()
    draw_scaling(rows[1:], tmp_path / "none" / "scaling.png")
    assert not list((tmp_path / "none").iterdir())


def test_real_data_as_they_are_timed(real_data):
    problem = SELF_EXPRESSION["coil-20"].make(0)
    assert problem.Y.shape == (1440, 300)
    assert_allclose(np.linalg.norm(problem.Y, axis=1), 1)
    assert isinstance(problem.solve(tol=1e-2, n_jobs=1).coef, csr_array)


def test_digits_are_timed_by_the_features_of_the_preset(tmp_path, monkeypatch):
    """A part of the 50 images of both files, as unit rows in at most as many coordinates."""
    monkeypatch.setenv("TWINSOLVE_DATA", str(tmp_path))
    for part in ("train", "t10k"):
        write(tmp_path, part, np.arange(25) % 10)
    problem = _mnist(0, n_points=40)
    assert problem.self_expression
    assert problem.Y.shape == (40, 40)
    assert_allclose(np.linalg.norm(problem.Y, axis=1), 1)
    assert_allclose(200 * problem.lam, lam_max(problem.Y, problem.Y, zero_diagonal=True))


RESULTS = Path(__file__).parents[3] / "docs" / "results"
SNAPSHOTS = sorted(path.name for path in RESULTS.glob("speed-*"))


@pytest.mark.parametrize("name", SNAPSHOTS)
def test_committed_times_say_what_they_were_measured_on(name):
    table = pd.DataFrame(json.loads((RESULTS / name / "table.json").read_text()))
    assert table.loc[table.note == "", ["dtype", "n_jobs"]].notna().all(axis=None)
    summary = (RESULTS / name / "summary.md").read_text()
    assert re.search(r"^Instruction sets: numba: .*, openblas: .*\.$", summary, re.M)
    assert re.search(r"^Run with python .*, on .*\.$", summary, re.M)
    (headings,) = re.findall(r"^\| case \| .*", summary, re.M)
    assert "| dtype | threads |" in headings


def test_instruction_sets_are_those_in_use():
    """A process held to AVX2 compiles nothing wider, and says so."""
    if not get_host_cpu_features().get("avx2"):
        pytest.skip("the processor has no AVX2")
    code = (
        "import numpy, numba\n"
        "from twinsolve.bench.provenance import instructions\n"
        "f = numba.njit(lambda x: x * x)\n"
        "f(numpy.ones(3))\n"
        "print('zmm' in ''.join(f.inspect_asm().values()), instructions())"
    )
    for held in (False, True):
        run = subprocess.run(
            [sys.executable, "-c", code],
            env=os.environ | (_AVX2 if held else {}),
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        )
        wide, words = run.stdout.split(maxsplit=1)
        assert ("numba: AVX2 (haswell)" in words) == held
        assert not (held and wide == "True")
        assert not held or "openblas" not in words or "openblas: Haswell" in words


def test_a_command_is_held_to_avx2_by_starting_anew(monkeypatch):
    started = []
    monkeypatch.setattr(os, "execve", lambda *call: started.append(call))
    features = "twinsolve.bench.speed.contest.get_host_cpu_features"
    monkeypatch.setattr(features, lambda: {"avx2": True})
    hold_to("avx2")
    ((program, arguments, environment),) = started
    assert program == arguments[0] == sys.executable
    assert environment["OPENBLAS_CORETYPE"] == "Haswell"
    monkeypatch.setattr(os, "environ", environment)
    hold_to("avx2")
    hold_to(None)
    assert len(started) == 1
    monkeypatch.setattr(features, dict)
    with pytest.raises(ValueError, match="this processor has no AVX2"):
        hold_to("avx2")
    result = run("filters", "--instructions", "sse")
    assert result.exit_code == 2
    assert "must be avx2" in result.output
