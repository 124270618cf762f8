"""What a problem does not depend on, its answer does not depend on either.

Units of length, origins, rotations and the order of the samples, for every solver. The tolerances
are those of rounding: 1e-16 times the size of what is cancelled, times the condition of the data.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from twinsolve import solvers
from twinsolve.datasets import make_union_of_subspaces
from twinsolve.solvers import clustering_accuracy

from .solution_cases import CASES, dense

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
every_case = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
UNITS = [1e-8, 1e4]


def points(seed=0, n=12, p=4):
    return np.random.default_rng(seed).standard_normal((n, p))


def rotation(p, seed=1):
    return np.linalg.qr(np.random.default_rng(seed).standard_normal((p, p)))[0]


def assert_same(found, expected, moved, rounding, unit=1.0):
    """Coefficients in the unit up to rounding, and the same relative gaps."""
    assert_allclose(dense(found.coef), moved, atol=unit * rounding)
    assert_array_equal(found.converged, expected.converged)
    assert_allclose(found.gap, expected.gap, rtol=1e-3, atol=10 * rounding)


@every_case
def test_units_of_length_change_nothing(case):
    X = points()
    still = case.solve(X)
    for unit in (1e-8, 1e8):
        scaled = case.solve(unit * X, unit)
        if case.name == "ADMM low rank":  # with one penalty for what has a unit and what has none
            assert (scaled.gap >= case.gap(unit * X, unit, scaled) - 1e-12).all()
            continue
        moved = unit if case.tokens else 1
        assert_same(scaled, still, dense(still.coef) * moved, 1e-9, moved)


@pytest.mark.parametrize("case", [c for c in CASES if c.affine], ids=lambda c: c.name)
@pytest.mark.parametrize(("shift", "unit"), [(1.0, 1e-6), (1e5, 1.0)])
def test_the_origin_changes_nothing(case, shift, unit):
    """A shift s rounds data to ``1e-16 s``; codes of few neighbours to 1,000 times that."""
    X = points() * unit
    offset = shift * unit * np.array([1.0, -0.5, 2.0, 0.3])
    still, moved = case.solve(X, unit), case.solve(X + offset, unit)
    if not case.translates:
        # An iteration of the literature: where it then stands is certified on the same scale.
        norm = ((X - X.mean(axis=0)) ** 2).sum(axis=1) + 0.3 * unit**2
        best = solvers.sparse_self_expression(X, lam=0.3 * unit**2, affine=True, tol=1e-9)
        excess = (moved.objective - best.objective) / norm
        assert (moved.gap >= excess - 1e-6).all()
        return
    expected = dense(still.coef) + (offset if case.tokens else 0)
    assert_same(moved, still, expected, 1e-12 * (shift + 1), unit if case.tokens else 1)


@pytest.mark.parametrize("case", [c for c in CASES if c.rotates], ids=lambda c: c.name)
def test_rotations_change_nothing(case):
    X, R = points(), rotation(4)
    still, turned = case.solve(X), case.solve(X @ R)
    if case.tokens:
        assert_allclose(dense(turned.coef), dense(still.coef) @ R, atol=1e-7)
        return
    if turned.gap.ndim and "ADMM" not in case.name and case.steps == "max_iter":
        # Working sets may differ by rounding: what the gaps allow the objectives.
        norm = (X**2).sum(axis=1)
        allowed = 1e-12 + (still.gap + turned.gap) * np.maximum(norm, still.objective)
        assert (np.abs(turned.objective - still.objective) <= allowed).all()
        assert_array_equal(turned.converged, still.converged)
        return
    assert_same(turned, still, dense(still.coef), 1e-9)


@pytest.mark.parametrize("case", [c for c in CASES if not c.ordered], ids=lambda c: c.name)
def test_the_order_of_samples_changes_nothing(case):
    X, order = points(), np.random.default_rng(2).permutation(12)
    still, mixed = case.solve(X), case.solve(X[order])
    expected = dense(still.coef)[order]
    expected = expected if case.tokens else expected[:, order]
    if case.tokens:
        assert_allclose(dense(mixed.coef), expected, atol=1e-7)
        return
    assert_allclose(dense(mixed.coef), expected, atol=1e-9)
    of_rows = order if still.gap.ndim else ()
    assert_allclose(mixed.gap, still.gap[of_rows], rtol=1e-3, atol=1e-9)
    assert_array_equal(mixed.converged, still.converged[of_rows])


# What returns arrays, as f(X, unit), and whether it knows no origin.
CODES: dict[str, tuple[Callable[..., Any], bool]] = {
    "ridge": (lambda X, u: solvers.least_squares_self_expression(X, lam=0.3 * u**2), False),
    "ridge, zero diagonal": (
        lambda X, u: solvers.least_squares_self_expression(X, lam=0.3 * u**2, zero_diagonal=True),
        False,
    ),
    "low rank": (lambda X, u: solvers.low_rank_self_expression(X, lam=0.3 * u**2), False),
    "low rank, noiseless": (lambda X, u: solvers.low_rank_self_expression(X, lam=0), False),
    "OMP": (lambda X, u: solvers.omp_self_expression(X, n_nonzero=3), False),
    "OMP to a tolerance": (
        lambda X, u: solvers.omp_self_expression(X, n_nonzero=9, tol=0.5 * u),
        False,
    ),
    "LLE": (lambda X, u: solvers.locally_linear_weights(X, n_neighbors=6), True),
    "Gaussian weights": (lambda X, u: solvers.smoother_matrix(X, X, bandwidth=u), True),
}


def _smoothed(run: Callable[..., Any], **options: Any) -> Callable[..., Any]:
    return lambda X, u: run(X, X, X, bandwidth=u, **options)


TOKENS: dict[str, Callable[..., Any]] = {
    "Nadaraya-Watson": _smoothed(solvers.nadaraya_watson),
    "Laplace kernel": _smoothed(solvers.nadaraya_watson, kernel="laplace"),
    "local linear regression": _smoothed(solvers.local_linear_regression, reg=1e-3),
    "anisotropic non-local means": lambda X, u: solvers.anisotropic_nonlocal_means(
        X, X, metric=np.ones(X.shape), h=u
    ),
}


def test_codes_in_closed_form_depend_on_nothing_else():
    for name in CODES:
        solve, no_origin = CODES[name]
        X = points()
        expected, order = dense(solve(X, 1.0)), np.random.default_rng(2).permutation(12)
        for unit in UNITS:
            assert_allclose(dense(solve(unit * X, unit)), expected, atol=1e-11)
        if no_origin:
            for shift in (1.0, 1e3, 1e6):
                assert_allclose(dense(solve(X + shift, 1.0)), expected, atol=1e-11 * (1 + shift))
        assert_allclose(dense(solve(X @ rotation(4), 1.0)), expected, atol=1e-11)
        mixed = dense(solve(X[order], 1.0))
        assert_allclose(mixed, expected[np.ix_(order, order)], atol=1e-11)


def test_smoothed_tokens_move_with_the_tokens():
    for name in TOKENS:
        solve, X = TOKENS[name], points()
        expected, order, R = solve(X, 1.0), np.random.default_rng(2).permutation(12), rotation(4)
        for unit in (*UNITS, 1e-150, 1e150):
            assert_allclose(solve(unit * X, unit) / unit, expected, atol=1e-11)
        for shift in (1.0, 1e3, 1e6):
            assert_allclose(solve(X + shift, 1.0), expected + shift, atol=1e-11 * (1 + shift))
        assert_allclose(solve(X @ R, 1.0), expected @ R, atol=1e-11)
        assert_allclose(solve(X[order], 1.0), expected[order], atol=1e-11)


def test_dictionaries_depend_on_no_unit_and_turn_with_the_signals():
    X, R = points(n=40, p=5), rotation(5)
    options = {"n_atoms": 8, "n_nonzero": 2, "n_iter": 5, "random_state": 0}
    D, C, objective = solvers.ksvd(X, **options)
    for unit in UNITS:
        scaled, codes, value = solvers.ksvd(unit * X, **options)
        assert_allclose(scaled, D, atol=1e-9)
        assert_allclose(dense(codes) / unit, dense(C), atol=1e-9)
        assert_allclose(value / unit**2, objective, rtol=1e-9)
    turned = solvers.ksvd(X @ R, **options)[0]
    signs = np.sign((turned * (D @ R)).sum(axis=1))  # of an atom and its coefficients
    assert_allclose(signs[:, None] * turned, D @ R, atol=1e-9)


def test_filters_depend_on_no_unit_and_no_black_level():
    image = np.random.default_rng(0).random((16, 16))
    filters = {
        "non-local means": lambda y, u: solvers.nonlocal_means(
            y, patch_size=3, patch_distance=3, h=0.5 * u
        ),
        "bilateral": lambda y, u: solvers.bilateral_filter(
            y, sigma_spatial=1.5, sigma_color=0.3 * u, win_size=7
        ),
    }
    for run in filters.values():
        expected = run(image, 1.0)
        for unit in UNITS:
            assert_allclose(run(unit * image, unit) / unit, expected, atol=1e-11)
        for level in (1.0, 1e3):
            assert_allclose(run(image + level, 1.0), expected + level, atol=1e-11 * (1 + level))
        assert_allclose(run(image.T, 1.0), expected.T, atol=1e-11)


def test_energies_are_squares_of_the_unit_and_know_no_origin():
    X, K = points(), np.abs(points(3, 12, 12))
    K = K + K.T
    expected = solvers.smoothness(X, K), solvers.regularized_energy(X, X[::-1], K, 0.3)
    for unit in UNITS:
        u, f = unit * X, unit * X[::-1]
        found = solvers.smoothness(u, K), solvers.regularized_energy(u, f, K, 0.3)
        assert_allclose(np.divide(found, unit**2), expected, rtol=1e-12)
        assert_allclose(solvers.smoothness(X, unit * K) / unit, expected[0], rtol=1e-12)
    assert_allclose(solvers.smoothness(X + 1e6, K), expected[0], rtol=1e-8)
    assert_allclose(
        solvers.regularized_energy(X + 1e6, X[::-1] + 1e6, K, 0.3), expected[1], rtol=1e-8
    )


CLUSTERERS = {
    "SSC": (lambda: solvers.SparseSubspaceClustering(3, random_state=0), False),
    "affine SSC": (lambda: solvers.SparseSubspaceClustering(3, affine=True, random_state=0), True),
    "EnSC": (lambda: solvers.ElasticNetSubspaceClustering(3, random_state=0), False),
    "LRR": (lambda: solvers.LowRankRepresentationClustering(3, random_state=0), False),
    "LRSSC": (lambda: solvers.LowRankSparseSubspaceClustering(3, random_state=0), False),
    "LRSC": (lambda: solvers.LowRankSubspaceClustering(3, random_state=0), False),
    "LSR": (lambda: solvers.LeastSquaresSubspaceClustering(3, random_state=0), False),
    "OMP": (lambda: solvers.OMPSubspaceClustering(3, random_state=0), False),
    "LLE": (lambda: solvers.LocallyLinearSubspaceClustering(3, random_state=0), True),
    "thresholding": (lambda: solvers.ThresholdingSubspaceClustering(3, random_state=0), False),
    "motion": (lambda: solvers.MotionSegmentation(3, random_state=0), True),
    "neighbours": (lambda: solvers.NearestNeighborClustering(3, random_state=0), True),
}


@pytest.mark.filterwarnings("ignore:no candidate has a score above 0")
@pytest.mark.parametrize("name", CLUSTERERS)
def test_clusters_depend_on_no_unit_no_rotation_and_the_affine_on_no_origin(name):
    make, affine = CLUSTERERS[name]
    X, _ = make_union_of_subspaces(
        15, n_subspaces=3, n_features=9, dimension=2, affine=affine, random_state=0
    )
    expected = make().fit_predict(X)
    moved = [unit * X for unit in UNITS] + [X @ rotation(9)] + [X + 100.0] * affine
    for Z in moved:
        assert clustering_accuracy(expected, make().fit_predict(Z)) == 1


def test_k_subspaces_depend_on_no_unit():
    """Their random start is not turned with the points."""
    X, _ = make_union_of_subspaces(15, n_features=9, dimension=2, random_state=0)
    model = solvers.KSubspaces(3, dimension=2, random_state=0)
    expected, inertia = model.fit_predict(X), model.inertia_
    for unit in UNITS:
        assert_array_equal(model.fit_predict(unit * X), expected)
        assert_allclose(model.inertia_ / unit**2, inertia, rtol=1e-9)


def test_affine_clusters_of_new_points_know_no_origin():
    for name in ["affine SSC", "LLE"]:
        X, _ = make_union_of_subspaces(
            20, n_subspaces=3, n_features=6, dimension=2, affine=True, noise=0.1, random_state=0
        )
        new, model = np.random.default_rng(0).permutation(X) + 0.05, CLUSTERERS[name][0]()
        expected = model.fit(X).predict(new)
        for offset in (10.0, 1e4):
            assert_array_equal(model.fit(X + offset).predict(new + offset), expected)


CHOOSING = [name for name in CLUSTERERS if getattr(CLUSTERERS[name][0](), "_choices", None)]


def test_what_auto_chooses_depends_on_no_unit_and_for_the_affine_on_no_origin():
    for name in CHOOSING:
        make, affine = CLUSTERERS[name]
        X, _ = make_union_of_subspaces(
            20, n_subspaces=3, n_features=9, dimension=2, affine=affine, noise=0.3, random_state=0
        )
        still = make().fit(X)
        for unit, Z in [(1e5, 1e5 * X)] + [(1.0, X + 100.0)] * affine:
            model = make().fit(Z)
            assert clustering_accuracy(still.labels_, model.labels_) == 1
            for parameter in still._choices:
                power = 2 if parameter == "lam" else 0
                chosen, again = (getattr(fit, f"{parameter}_") for fit in (still, model))
                assert_allclose(again, chosen * unit**power, rtol=1e-9)
