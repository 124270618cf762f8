"""The command line from end to end, on few and small data sets."""

import json

import numpy as np
import pandas as pd
import pytest
from PIL import Image
from typer.testing import CliRunner

from twinsolve.bench import check_twins, samples
from twinsolve.bench.check_figure import draw_deviations
from twinsolve.bench.cli import app
from twinsolve.bench.results import write_table
from twinsolve.unrolled import Gaussian, SparseCoding
from twinsolve.unrolled.sparse_coding import safe_step
from twinsolve.unrolled.sparse_coding.code_blocks import _restrict_, _shrink_
from twinsolve.unrolled.twins import catalogue, unregister

KEYS = {
    "twin", "family", "relation", "equation", "data", "task", "dtype", "deviation", "tolerance",
    "task_number_solver", "task_number_layer", "passed",
}  # fmt: skip


def shrink(monkeypatch):
    """Fewer tokens and a smaller crop, packaged data only."""
    monkeypatch.setattr(samples, "_N_TOKENS", 64)
    monkeypatch.setattr(samples, "_CROP", 12)
    monkeypatch.delenv("TWINSOLVE_DATA", raising=False)


_SOME = {
    "gaussian-attention", "locally-linear", "sparse-coding-iterates", "self-expression-iterates",
    "nonlocal-means",
}  # fmt: skip


@pytest.fixture
def small(monkeypatch):
    shrink(monkeypatch)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """Result and folder of one run of all twins, with seed 1."""
    folder = tmp_path_factory.mktemp("whole") / "out"
    with pytest.MonkeyPatch.context() as monkeypatch:
        shrink(monkeypatch)
        return run("--output", str(folder), "--seed", "1"), folder


@pytest.fixture
def few(small, monkeypatch):
    """Some twins of several families, for what does not depend on which they are."""
    twins = [twin for twin in catalogue() if twin.name in _SOME]
    monkeypatch.setattr("twinsolve.bench.checks.catalogue", lambda: twins)
    return twins


def run(*arguments):
    return CliRunner().invoke(app, ["check", *arguments])


def test_check_passes_and_writes_its_results(whole):
    result, folder = whole
    assert result.exit_code == 0, result.output
    rows = json.loads((folder / "table.json").read_text())
    assert all(row.keys() == KEYS for row in rows)
    assert all(row["passed"] for row in rows)
    for task in ("clustering", "vision"):
        assert len({row["twin"] for row in rows if row["task"] == task}) >= 5
    assert {row["twin"] for row in rows} == {twin.name for twin in catalogue()}
    assert {row["dtype"] for row in rows} == {"float64", "float32"}
    for row in rows:
        if row["dtype"] == "float64":
            assert abs(row["task_number_solver"] - row["task_number_layer"]) <= 0.01
        limit = {"limit": 1.0}.get(row["relation"], 1e-8)
        assert row["dtype"] == "float32" or row["tolerance"] <= limit
    settings = json.loads((folder / "settings.json").read_text())
    assert settings["settings"] == {"seed": 1, "load": []}
    assert "torch" in settings["versions"]
    summary = (folder / "summary.md").read_text()
    assert all(f"| {twin.name} |" in summary for twin in catalogue())
    assert Image.open(folder / "deviations.png").size[0] > 800
    assert f"{len(rows)} of {len(rows)} rows passed" in result.output
    for line in result.output.splitlines():
        assert len(line.rstrip()) <= 120
    for twin in catalogue():  # a line each, nothing cut off
        (line,) = (x for x in result.output.splitlines() if x.split()[:1] == [twin.name])
        assert line.split()[-1] == "yes"
        assert twin.relation.name in line
        assert twin.equation in line


FAULTS = {
    "threshold scaled by 2": (
        "sparse_coding.code_blocks._shrink_",
        lambda z, one_sided: _shrink_(z / 2, one_sided) * 2,
    ),
    "step too long": (
        "sparse_coding.sparse_attention.safe_step",
        lambda *a: 1.5 * safe_step(*a),
    ),
    "diagonal left in": (
        "sparse_coding.code_blocks._restrict_",
        lambda codes, block, hidden, settings: _restrict_(
            codes, block, hidden, settings._replace(zero_diagonal=False)
        ),
    ),
    "bandwidth squared wrongly": (
        "kernel_smoothing.gaussian.Gaussian.bandwidth_for",
        lambda self, q, right=Gaussian.bandwidth_for: right(self, q) ** 2,
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_in_the_layer_alone_fails_the_check(few, tmp_path, monkeypatch, fault):
    target, value = FAULTS[fault]
    monkeypatch.setattr(f"twinsolve.unrolled.{target}", value)
    result = run("--output", str(tmp_path))
    assert result.exit_code == 1, result.output
    failed = {row["twin"] for row in json.loads((tmp_path / "table.json").read_text())
              if not row["passed"]}  # fmt: skip
    assert "on digits (float64): deviation" in result.output
    expected = "gaussian-attention" if "bandwidth" in fault else "self-expression-iterates"
    assert expected in failed
    assert "locally-linear" not in failed


def test_a_layer_that_raises_fails_its_rows_and_hides_no_others(few, tmp_path, monkeypatch):
    def broken(*args, **kwargs):
        raise RuntimeError("out of order")

    monkeypatch.setattr(SparseCoding, "forward", broken)
    result = run("--output", str(tmp_path))
    assert result.exit_code == 1
    assert "RuntimeError: out of order" in result.output
    rows = json.loads((tmp_path / "table.json").read_text())
    broken_twins = {twin.name for twin in few if twin.layer is SparseCoding}
    broken_rows = [row for row in rows if row["twin"] in broken_twins]
    assert not any(row["passed"] for row in broken_rows)
    assert all(row["deviation"] is None for row in broken_rows)
    assert all(row["passed"] for row in rows if row["family"] == "kernel_smoothing")


def test_nothing_but_broken_layers_still_makes_a_table(few, monkeypatch):
    monkeypatch.setattr("twinsolve.bench.checks._measure", lambda *a: 1 / 0)
    table = check_twins()
    assert set(table) >= KEYS
    assert not table.passed.any()
    assert set(table.error) == {"ZeroDivisionError: division by zero"}


def test_numbers_that_are_not_finite_are_null(tmp_path):
    table = pd.DataFrame({"deviation": [np.inf, np.nan, 1e-15], "passed": [False, False, True]})
    write_table(table, tmp_path)
    rows = json.loads((tmp_path / "table.json").read_text())
    assert [row["deviation"] for row in rows] == [None, None, 1e-15]
    draw = table.assign(twin="a", family="b", task="vision", dtype="float64", tolerance=1.0)
    draw_deviations(draw, tmp_path / "figure.png")
    assert Image.open(tmp_path / "figure.png").size[0] > 800


def test_an_incomplete_data_root_is_left_out(tmp_path, monkeypatch):
    (tmp_path / "set12").mkdir()
    monkeypatch.setenv("TWINSOLVE_DATA", str(tmp_path))
    assert len(samples.check_samples(0)) == 4


def test_load_registers_twins_of_the_users_own(few, tmp_path, monkeypatch):
    (tmp_path / "my_twins.py").write_text(
        "from twinsolve.solvers import smoother_matrix\n"
        "from twinsolve.unrolled import Gaussian\n"
        "from twinsolve.unrolled.twins import Identity, Twin, register\n"
        "register(Twin(name='mine', family='mine', relation=Identity(), equation='-', source='-',\n"
        "    layer=Gaussian, build=lambda q, k, v: Gaussian(1.0).double(),\n"
        "    solve=lambda layer, q, k, v, head=0, context=None:\n"
        "        smoother_matrix(q, k, bandwidth=1.0) @ v))\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(
        "twinsolve.bench.checks.catalogue",
        lambda: [*few, *(t for t in catalogue() if t.name == "mine")],
    )
    try:
        result = run("--load", "my_twins", "--output", "out")
        assert result.exit_code == 0, result.output
        rows = json.loads((tmp_path / "out" / "table.json").read_text())
        assert sum(row["twin"] == "mine" for row in rows) == 8
    finally:
        unregister("mine")
    result = run("--load", "no_such_module")
    assert result.exit_code == 2
    assert "no_such_module" in result.output


def test_seed_changes_the_data_and_repeats(few):
    first, again, other = (check_twins(seed=seed) for seed in (0, 0, 1))
    assert first.equals(again)
    assert not np.allclose(first.task_number_solver, other.task_number_solver)
    with pytest.raises(ValueError, match="seed: must be >= 0"):
        check_twins(seed=-1)


@pytest.mark.parametrize("twins", [_SOME, pytest.param(None, marks=pytest.mark.slow)])
def test_real_data_join_when_the_data_root_has_them(real_data, monkeypatch, twins):
    if twins is not None:
        chosen = [twin for twin in catalogue() if twin.name in twins]
        monkeypatch.setattr("twinsolve.bench.checks.catalogue", lambda: chosen)
    found = samples.check_samples(0)
    assert {sample.name for sample in found} == {
        "digits", "subspaces", "china", "flower", "yale-b", "set12-01",
    }  # fmt: skip
    table = check_twins()
    assert table.passed.all()
    assert set(table.data) >= {"yale-b", "set12-01"}


@pytest.mark.parametrize("arguments", [[], ["check"]])
def test_help_explains_itself(arguments):
    result = CliRunner().invoke(app, [*arguments, "--help"])
    assert result.exit_code == 0
    for word in ("check", "--help"):
        assert word in result.output
    if arguments:
        for word in ("--seed", "--output", "--load", "TWINSOLVE_DATA", "status 1"):
            assert word in result.output
