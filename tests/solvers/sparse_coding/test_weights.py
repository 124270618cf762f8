"""Weights of atoms, zero included: against the oracle, and against plain least squares."""

import numpy as np
import pytest
from numpy.testing import assert_allclose

from twinsolve.solvers.oracles import sparse_coding as oracle
from twinsolve.solvers.sparse_coding import sparse_code

RNG = np.random.default_rng(0)
Y, D = RNG.standard_normal((6, 8)), RNG.standard_normal((14, 8))
LAM = np.linspace(0.5, 3, 6)
WEIGHTS = {
    "positive": np.linspace(0.2, 2, 14),
    "one free": np.where(np.arange(14) == 5, 0, 1.0),
    "three free": np.where(np.arange(14) % 5 == 0, 0, np.linspace(0.2, 2, 14)),
}


def value(C, D, weights):
    return ((Y - C @ D) ** 2).sum(axis=1) + LAM * (np.abs(C) @ weights)


@pytest.mark.parametrize("name", WEIGHTS)
def test_codes_are_those_of_the_oracle(name):
    weights = WEIGHTS[name]
    solution = sparse_code(Y, D, lam=LAM, weights=weights, tol=1e-12)
    C = solution.coef.toarray()
    expected = oracle.sparse_code(Y, D, lam=LAM, weights=weights)
    assert solution.converged.all()
    assert_allclose(C, expected, atol=1e-5)
    assert_allclose(solution.objective, value(C, D, weights), rtol=1e-12)
    assert (np.count_nonzero(C, axis=1) < 14).all()


@pytest.mark.parametrize("name", WEIGHTS)
def test_the_dual_point_proves_the_gap(name):
    """Feasible: |d_j . nu| <= lam w_j, which is an equality for atoms without a penalty."""
    weights = WEIGHTS[name]
    solution = sparse_code(Y, D, lam=LAM, weights=weights, tol=1e-3)
    nu = solution.dual
    assert (np.abs(nu @ D.T) <= LAM[:, None] * weights * (1 + 1e-12) + 1e-12).all()
    best = (nu * Y).sum(axis=1) - (nu**2).sum(axis=1) / 4
    assert_allclose(solution.gap, (solution.objective - best) / (Y**2).sum(axis=1), atol=1e-12)
    optimum = value(oracle.sparse_code(Y, D, lam=LAM, weights=weights), D, weights)
    assert (best <= optimum + 1e-7).all()


def test_a_large_penalty_leaves_least_squares_on_the_free_atoms():
    weights = WEIGHTS["three free"]
    solution = sparse_code(Y, D, lam=1e3, weights=weights)
    expected = np.zeros((6, 14))
    expected[:, weights == 0] = np.linalg.lstsq(D[weights == 0].T, Y.T, rcond=None)[0].T
    assert_allclose(solution.coef.toarray(), expected, atol=1e-12)
    assert solution.gap.max() < 1e-12


def test_free_atoms_that_depend_on_each_other_share_the_code_of_least_norm():
    atoms = np.vstack([D, D[:1]])
    weights = np.ones(15)
    weights[[0, 14]] = 0
    solution = sparse_code(Y, atoms, lam=LAM, weights=weights, tol=1e-10)
    C = solution.coef.toarray()
    assert solution.converged.all()
    assert_allclose(C[:, 0], C[:, 14], atol=1e-12)
    once = sparse_code(Y, D, lam=LAM, weights=weights[:14], tol=1e-10).coef.toarray()
    assert_allclose(2 * C[:, 0], once[:, 0], atol=1e-4)


def test_signals_and_atoms_in_the_span_of_free_atoms_need_no_others():
    free = D[:2]
    signals = RNG.standard_normal((3, 2)) @ free
    atoms = np.vstack([free, free.sum(axis=0), D[2:5]])
    solution = sparse_code(signals, atoms, lam=1.0, weights=[0, 0, 1, 1, 1, 1])
    assert not solution.coef.toarray()[:, 2:].any()
    assert solution.gap.max() < 1e-25
    assert_allclose(solution.coef @ atoms, signals, atol=1e-13)


@pytest.mark.parametrize("options", [{"nonnegative": True}, {"zero_diagonal": True}])
def test_constraints_go_with_positive_weights(options):
    signals = D if "zero_diagonal" in options else Y
    weights = WEIGHTS["positive"]
    found = sparse_code(signals, D, lam=0.7, weights=weights, tol=1e-12, **options)
    expected = oracle.sparse_code(signals, D, lam=0.7, weights=weights, **options)
    assert_allclose(found.coef.toarray(), expected, atol=1e-5)


def test_equal_weights_scale_the_penalty():
    found = sparse_code(Y, D, lam=LAM, weights=np.full(14, 0.5), tol=1e-12)
    plain = sparse_code(Y, D, lam=LAM / 2, tol=1e-12)
    assert_allclose(found.coef.toarray(), plain.coef.toarray(), atol=1e-5)
    assert_allclose(found.objective, plain.objective, rtol=1e-10)


def test_single_precision_is_certified_after_rounding():
    single = sparse_code(*(x.astype(np.float32) for x in (Y, D)), lam=LAM,
                         weights=WEIGHTS["three free"])  # fmt: skip
    assert single.coef.dtype == np.float32
    assert single.converged.all()


@pytest.mark.parametrize(
    ("weights", "options", "message"),
    [
        (np.ones(13), {}, r"weights: must have shape \(14,\)"),
        (-np.ones(14), {}, "weights: must be finite, >= 0 and not all 0"),
        (np.zeros(14), {}, "weights: must be finite, >= 0 and not all 0"),
        (np.full(14, np.nan), {}, "weights: "),
        (np.ones(14), {"l1_ratio": 0.5}, "weights: .* l1_ratio must be 1"),
        (WEIGHTS["one free"], {"nonnegative": True}, "weights: must be > 0 with nonnegative"),
    ],
)
def test_weights_that_do_not_fit_are_refused(weights, options, message):
    with pytest.raises(ValueError, match=message):
        sparse_code(Y, D, lam=1.0, weights=weights, **options)
