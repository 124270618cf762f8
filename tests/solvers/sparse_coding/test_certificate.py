"""Reported gaps against exact arithmetic and at the ends of the range of numbers."""

import warnings
from fractions import Fraction

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.exceptions import ConvergenceWarning

from twinsolve.solvers.sparse_coding import duality_gap, lam_max, row_blocks, sparse_code


@pytest.fixture(params=["stored", "not stored", "cells"])
def search(request, monkeypatch):
    """How atoms that violate optimality are found."""
    kind = request.param
    monkeypatch.setattr(row_blocks, "MOST_STORED", 15_000 if kind == "stored" else 0)
    monkeypatch.setattr(row_blocks, "FEWEST_IN_CELLS", 2 if kind == "cells" else 10**6)
    monkeypatch.setattr(row_blocks, "_LEFT_BY_CELLS", 1.0)
    return kind


def proved_gap(y, D, code, nu, lam):
    """What a dual point proves, once it is divided to be feasible: in rational numbers."""
    y, code, nu = ([Fraction(x) for x in v.tolist()] for v in (y, code, nu))
    D = [[Fraction(x) for x in row] for row in D.tolist()]
    lam = Fraction(lam)

    def dot(a, b):
        return sum(s * t for s, t in zip(a, b, strict=True))

    nu = [x / max(1, *(abs(dot(d, nu)) / lam for d in D)) for x in nu]
    residual = [x - dot(code, column) for x, column in zip(y, zip(*D, strict=True), strict=True)]
    objective = dot(residual, residual) + lam * sum(map(abs, code))
    return float((objective - dot(nu, y) + dot(nu, nu) / 4) / dot(y, y))


@pytest.mark.parametrize("angle", [1e-2, 4e-6])
def test_gap_of_large_coefficients_that_cancel_is_what_their_dual_point_proves(search, angle):
    """Where the rounding of residuals is much beside the penalty."""
    tol = 1e-6
    D = np.array([[1, 0, 0], [1, angle, 0], [1, 0.3 * angle, angle], [1, -angle, 0.5 * angle]])
    D *= np.array([[0.3], [1.1], [0.7], [0.9]])
    Y = np.random.default_rng(0).standard_normal((20, 3))
    for lam in (1e-2 * angle, 1e-4 * angle):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)  # so near to each other are atoms
            solution = sparse_code(Y, D, lam=lam, tol=tol)
        found = zip(Y, solution.coef.toarray(), solution.dual, strict=True)
        proved = [proved_gap(y, D, code, nu, lam) for y, code, nu in found]
        assert (np.array(proved) <= solution.gap + 0.02 * tol).all()


@pytest.mark.parametrize(("up", "down"), [(60, -60), (-400, 400), (400, 400)])
def test_powers_of_two_scale_the_answer_and_nothing_else(search, up, down):
    rng = np.random.default_rng(0)
    Y, D = rng.standard_normal((80, 12)), rng.standard_normal((300, 12))
    lam = lam_max(Y, D) / 1000
    plain = sparse_code(Y, D, lam=lam)
    assert plain.converged.all()
    y, d = 2.0**up, 2.0**down
    assert_array_equal(lam_max(y * Y, d * D), lam_max(Y, D) * y * d)
    scaled = sparse_code(y * Y, d * D, lam=lam * y * d)
    assert_array_equal(scaled.coef.toarray() * d / y, plain.coef.toarray())
    assert_array_equal(scaled.gap, plain.gap)
    assert_array_equal(scaled.n_passes, plain.n_passes)
    assert_array_equal(scaled.n_looked, plain.n_looked)


@pytest.mark.parametrize(("size", "share"), [(2e-45, 0.3), (1.3e-42, 0.9), (1e-39, 0.7)])
def test_a_violation_that_float32_does_not_tell_from_the_penalty_is_found(search, size, share):
    Y, D = np.array([[1.0, size]]), np.array([[0.0, 1.0], [0.0, 0.5]])
    lam = share * 2 * size
    solution = sparse_code(Y, D, lam=lam)
    assert_allclose(solution.coef.toarray(), [[(1 - share) * size, 0]])
    assert_allclose(solution.gap, duality_gap(Y, D, solution.coef, lam=lam), atol=1e-15)


def test_a_dictionary_of_zeros_has_codes_of_zeros(search):
    solution = sparse_code(np.ones((40, 3)), np.zeros((40, 3)), lam=0.1)
    assert solution.coef.nnz == 0
    assert not solution.gap.any()


def test_correlations_at_the_level_of_rounding_prove_nothing(search):
    """Penalties as small as the products of rows that are orthogonal but for rounding."""
    for seed in range(3):
        D = np.linalg.qr(np.random.default_rng(seed).standard_normal((6, 6)))[0]
        assert_array_equal(lam_max(D, D, zero_diagonal=True), 0)
        for lam in (1e-17, 1e-16, 1e-15, 1e-12, 1e-3):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", ConvergenceWarning)
                solution = sparse_code(D, np.roll(D, 1, axis=0)[:3], lam=lam)
            found = zip(D, solution.coef.toarray(), solution.dual, strict=True)
            proved = [proved_gap(y, np.roll(D, 1, axis=0)[:3], c, nu, lam) for y, c, nu in found]
            assert (np.array(proved) <= solution.gap + 1e-12).all()
            assert solution.converged.all() or lam < 1e-12
    assert_array_equal(lam_max(np.eye(2), np.array([[1.0, 1e-20]]))[:, None], [[2.0], [2e-20]])


def test_the_message_tells_rounding_from_too_few_steps():
    """Atoms far from the origin: their Gram matrix has lost ten digits."""
    rng = np.random.default_rng(5)
    D, Y = rng.standard_normal((500, 30)) + 1e5, rng.standard_normal((50, 30))
    lam = 1e-4 * lam_max(Y, D)
    with pytest.warns(ConvergenceWarning, match="rounding errors limit it: increase lam or tol$"):
        sparse_code(Y, D, lam=lam)
    with pytest.warns(ConvergenceWarning, match="increase max_iter, lam or tol$"):
        sparse_code(Y, D, lam=lam, max_iter=2)
