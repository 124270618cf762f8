"""Held-out points, the self-expressive network, phase transitions, scaling and coefficients."""

from functools import partial

import numpy as np
import pytest
from shared import phase
from shared.coefficients import coefficient_study
from shared.out_of_sample import (
    METHODS,
    REFERENCE,
    held_out_gap,
    out_of_sample_study,
)
from shared.phase import phase_study
from shared.points import NOISY, run_seeded, shuffled_points
from shared.scaling import scaling_study
from shared.self_expressive import (
    NETWORK,
    SOLVED,
    self_expressive_study,
)

from twinsolve.bench.clustering.data import find_data
from twinsolve.bench.jobs import Options
from twinsolve.bench.tables import read_table, write_table
from twinsolve.solvers import SparseSubspaceClustering
from twinsolve.unrolled.clustering import (
    SelfExpressiveSubspaceClustering,
    UnrolledSubspaceClustering,
)


def check_outputs(study, table, folder):
    """Lines fit their headings, figures are written, and the table can be kept."""
    headings, lines = study.lines(table)
    assert lines
    assert {len(line) for line in lines} == {len(headings)}
    assert all(isinstance(cell, str) for line in lines for cell in line)
    for name, draw in study.figures.items():
        draw(table, folder / name)
        assert (folder / name).read_bytes().startswith(b"\x89PNG")
    write_table(table, folder)
    assert len(read_table(folder / "table.json")) == len(table)


def test_held_out_points(tmp_path, monkeypatch):
    quick = partial(SelfExpressiveSubspaceClustering, hidden_features=(32,), width=32, max_iter=30)
    monkeypatch.setitem(METHODS, "SENet", quick)
    quick = partial(UnrolledSubspaceClustering, max_iter=5)
    monkeypatch.setitem(METHODS, "unrolled, K = 10", quick)
    study = out_of_sample_study((NOISY, "yaleb-10"), n_splits=2, n_points=100, rounds=1, batch=20)
    table = study.run(Options(data_home=str(tmp_path)))  # no faces there
    assert set(table.data) == {NOISY}
    assert len(table) == 2 * len(METHODS)
    assert table[["accuracy_fit", "accuracy_new"]].stack().between(0, 100).all()
    first = table[table.method == REFERENCE]
    assert (first[["ratio_single", "ratio_batch"]] == 1).all(axis=None)
    gap = table.groupby("method").gap.max()
    assert (gap[["SSC", "EnSC"]] <= 1e-6).all()
    assert (gap[["unrolled, K = 10", "SENet"]] > 1e-6).all()
    assert gap[["OMP", "LSR", "LRSC", "TSC"]].isna().all()
    assert study.lines(table)[1][0][-3:] == ("1.00", "1.00", "1.00")
    by_split = table.pivot(index="seed", columns="method", values="fit_s")
    ratio = (by_split.TSC / by_split[REFERENCE]).median()
    line = next(line for line in study.lines(table)[1] if line[1] == "TSC")
    assert line[-3] == f"{ratio:.2f}"
    check_outputs(study, table, tmp_path)


def test_gaps_of_held_out_points_grow_as_the_solver_is_stopped_early():
    X, _ = shuffled_points(find_data(NOISY), seed=0)
    assert np.allclose(np.linalg.norm(X, axis=1), 1)
    X, new = X[:100], X[100:150]
    loose, tight = (
        held_out_gap(SparseSubspaceClustering(8, tol=tol, random_state=0).fit(X), X, new)
        for tol in (0.5, 1e-8)
    )
    assert 1e-8 < loose <= 0.5
    assert 0 <= tight <= 1e-8


def test_a_forward_pass_is_held_against_the_problem_of_the_new_points():
    """At K layers, untrained, the gap falls as K grows: the penalty is that of the layers."""
    X, _ = shuffled_points(find_data(NOISY), seed=0)
    X, new = X[:100], X[100:150]
    few, many = (
        held_out_gap(UnrolledSubspaceClustering(8, n_layers=k, max_iter=0).fit(X), X, new)
        for k in (5, 1000)
    )
    assert many < 0.01 * few


def reading(data, seed):
    return [{"data": data.name, "seed": seed, "home": data.home}]


def test_points_are_shuffled_by_seed_and_sets_without_files_are_not_at_hand(tmp_path):
    first, again, other = (shuffled_points(find_data("digits"), seed=s) for s in (0, 0, 1))
    assert (first[0] == again[0]).all()
    assert (first[1] != other[1]).any()
    assert sorted(first[1]) == sorted(other[1])
    names = ["digits", "coil20", NOISY]
    study = run_seeded(reading, [{"data": name} for name in names], names, n_splits=2)
    table = study(Options(seed=5, data_home=str(tmp_path)))
    expected = [(name, seed) for name in ("digits", NOISY) for seed in (5, 6)]
    assert list(zip(table.data, table.seed, strict=True)) == expected
    (tmp_path / "hopkins155" / "a").mkdir(parents=True)
    (tmp_path / "hopkins155" / "a" / "a_truth.mat").write_bytes(b"a")
    assert find_data("hopkins", str(tmp_path)).content  # of the files in a folder


def test_the_network_beside_its_problem(tmp_path):
    study = self_expressive_study((NOISY,), n_splits=2, n_points=160, max_iter=20)
    table = study.run(Options())
    by_method = table.groupby("method")
    for name in ("objective_fit", "objective_new"):
        # Both stand over the solver's objective, whose gap is at most 1e-6 of |x|^2 = 1.
        assert by_method[name].max()[SOLVED] == pytest.approx(1, abs=1e-12)
        assert by_method[name].min()[NETWORK] > 1
    assert set(table.seed) == {0, 1}
    headings, lines = study.lines(table)
    assert headings[-1] == "time / solved"
    assert {line[-1] for line in lines if line[1] == SOLVED} == {"1.00"}
    check_outputs(study, table, tmp_path)


def test_phase_transitions_are_drawn(tmp_path, monkeypatch):
    tiny = (("noise", (0.0, 2.0)), ("angle", (30, 90)), phase.GRIDS["noise-angle"][2])
    monkeypatch.setitem(phase.GRIDS, "noise-angle", tiny)
    monkeypatch.setattr(
        phase, "METHODS", {name: phase.METHODS[name] for name in ("SSC, gamma 50", "TSC")}
    )
    study = phase_study(("noise-angle",), n_draws=1)
    table = study.run(Options())
    assert len(table) == 2 * 2 * 2
    error = table.groupby("down").error
    assert error.min()[2.0] > 40
    assert table[(table.down == 0) & (table.right == 90)].error.max() < 2
    check_outputs(study, table, tmp_path)


def test_time_against_the_number_of_points(tmp_path):
    study = scaling_study((50, 100), rounds=1)
    table = study.run(Options())
    assert (table[table.method == "SSC, certified"].ratio == 1).all()
    assert (table.seconds > 0).all()
    assert table.groupby("method").n_points.nunique().eq(2).all()
    by_hand = table.assign(seconds=table.n_points / 25.0, ratio=2.0)
    assert {line[1:] for line in study.lines(by_hand)[1]} == {("2", "2", "2")}
    assert study.lines(by_hand)[0][1:] == ("time / SSC at 50", "time / SSC at 100", "growth")
    check_outputs(study, table, tmp_path)


def test_coefficients_are_drawn_solved_beside_learned(tmp_path):
    study = coefficient_study((NOISY,), max_iter=20)
    table = study.run(Options())
    matrices = table.groupby("method").coefficients.apply(lambda rows: np.array(rows.tolist()))
    assert {C.shape for C in matrices} == {(120, 120)}
    assert all((C.diagonal() == 0).all() for C in matrices)
    ratio = table.groupby("method").objective_ratio.first()
    assert (ratio[["Lasso, solved", "elastic net, solved"]] == 1).all()
    assert (ratio[["unrolled, K = 10, learned", "SENet, learned"]] > 1).all()
    assert (np.diff(table[table.method == "Lasso, solved"].label) >= 0).all()
    check_outputs(study, table, tmp_path)
