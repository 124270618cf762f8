"""The command `twinsolve speed scale` on few rows."""

import json
from dataclasses import replace

import numpy as np
from numpy.testing import assert_allclose
from PIL import Image
from typer.testing import CliRunner

from twinsolve.bench import time_scale
from twinsolve.bench.cli import app
from twinsolve.bench.speed import scale
from twinsolve.bench.speed.figures import draw_scale
from twinsolve.datasets import mnist


def run(*arguments):
    return CliRunner().invoke(app, ["speed", "scale", *map(str, arguments)])


def test_command_writes_its_results_and_resumes_size_by_size(tmp_path, monkeypatch):
    sizes = ("--size", 1000, "--size", 500)
    arguments = ("--case", "subspaces-50", *sizes, "--output", tmp_path)
    result = run(*arguments)
    assert result.exit_code == 0, result.output
    rows = json.loads((tmp_path / "table.json").read_text())
    assert [row["n_rows"] for row in rows] == [500, 1000]
    assert [row["case"] for row in rows] == ["subspaces-50-500", "subspaces-50-1000"]
    for row in rows:
        assert (row["n_features"], row["n_jobs"], row["tol"], row["lam"]) == (50, 1, 1e-4, 0.1)
        assert 0 < row["gap"] <= 1e-4
        assert row["certified"] == 1
        assert 1 < row["nonzeros"] < 30
        assert row["skipped"] == 0, "the Gram matrix is stored"
        assert row["seconds"] > 0
    first, second = rows
    assert first["growth"] is None
    spent = second["processor_seconds"] / first["processor_seconds"]
    assert_allclose(second["growth"], np.log(spent) / np.log(2))
    assert "| subspaces-50 | 1,000 | 50 | float64 | 1 |" in (tmp_path / "summary.md").read_text()
    with Image.open(tmp_path / "scale.png") as figure:
        assert figure.size[0] > 800

    class Again(Exception):
        pass

    def refuse(entrant):
        raise Again

    monkeypatch.setattr(scale, "alone", refuse)  # nothing is left to compute
    assert run(*arguments).exit_code == 0
    assert json.loads((tmp_path / "table.json").read_text()) == rows
    assert isinstance(run(*arguments, "--size", 600).exception, Again)


def test_share_skipped_is_that_of_the_solver():
    """Where each pass looks at 75 products of 300."""
    ours = scale._Ours("subspaces-50", scale.POINTS["subspaces-50"], 300, 1, 0)
    ours.prepare()
    ours.run()
    assert ours.facts()["skipped"] == 0
    looked = ours.solution.n_passes * 75
    ours.solution = replace(ours.solution, n_looked=looked)
    assert_allclose(ours.facts()["skipped"], 0.75)


def test_large_numbers_of_rows_are_left_to_cases_that_afford_them(monkeypatch):
    def told(entrant):
        return {**entrant.labels, "ms": 1.0, "processor_seconds": 1.0, "dtype": "", "n_jobs": 1}

    monkeypatch.setattr(scale, "alone", told)
    found = replace(scale.POINTS["mnist"], files=None)  # as where the digits lie
    monkeypatch.setitem(scale.POINTS, "mnist", found)
    table = time_scale(sizes=(10_000, 300_000))
    counts = table.groupby("points").n_rows.max()
    assert counts.to_dict() == {
        "subspaces-50": 300_000, "subspaces-200": 300_000, "many-50": 10_000,
        "many-200": 10_000, "noisy-50": 10_000, "mnist": 10_000,
    }  # fmt: skip
    assert time_scale(cases=["noisy-50"], sizes=[300_000]).n_rows.tolist() == [300_000]


def test_points_are_those_of_the_seed():
    for noise in (0.0, 0.05):
        X, again, other = (scale._subspaces(990, s, n_features=50, noise=noise) for s in (0, 0, 1))
        assert X.shape == (990, 50)
        assert np.array_equal(X, again)
        assert not np.array_equal(X, other)


def test_missing_images_are_said_and_not_fatal(tmp_path, monkeypatch):
    monkeypatch.setenv("TWINSOLVE_DATA", str(tmp_path / "nothing"))

    def unreachable(*arguments, **settings):
        raise OSError("no network")

    monkeypatch.setattr(mnist, "fetch_openml", unreachable)
    table = time_scale(cases=["mnist"], sizes=[1000])
    assert "train-images-idx3-ubyte" in table.note[0]
    draw_scale(table, tmp_path / "scale.png")
    assert not list(tmp_path.iterdir())
