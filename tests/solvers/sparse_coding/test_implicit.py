"""Codes with confirmed supports: certificates, margins, and the error of gradients."""

import joblib
import numpy as np
import pytest
from numpy.testing import assert_allclose

from twinsolve.solvers import sparse_code
from twinsolve.solvers.sparse_coding import duality_gap, implicit
from twinsolve.solvers.sparse_coding.implicit import implicit_codes
from twinsolve.solvers.sparse_coding.penalty import Penalty

RNG = np.random.default_rng(0)
Y, D = RNG.standard_normal((300, 12)), RNG.standard_normal((40, 12))
LAM = np.full(300, 1.5)


@pytest.mark.parametrize("ratio", [1.0, 0.6])
@pytest.mark.parametrize("nonnegative", [False, True])
def test_codes_are_those_of_the_solver_to_rounding(ratio, nonnegative):
    codes = implicit_codes(Y, D, Penalty(LAM, ratio, nonnegative), n_jobs=2)
    settings = {"lam": 1.5, "l1_ratio": ratio, "nonnegative": nonnegative}
    expected = sparse_code(Y, D, tol=1e-13, **settings)
    assert_allclose(codes.coef.toarray(), expected.coef.toarray(), atol=1e-10)
    assert_allclose(codes.gap, duality_gap(Y, D, codes.coef, **settings), atol=1e-15)
    assert codes.gap.max() < 1e-14


def test_the_margin_says_how_far_the_support_stays():
    """Along the penalty, whose change of 1 moves no correlation or code by more than its share."""
    codes = implicit_codes(np.array([[3.0, 0.5]]), np.eye(2), Penalty(np.array([2.0])))
    assert_allclose(codes.margin, 0.5)  # the second atom enters at |2 * 0.5| = lam = 1
    on = implicit_codes(np.array([[1.1, 0.0]]), np.eye(2), Penalty(np.array([2.0])))
    assert_allclose(on.margin, 0.1)  # the first atom leaves at lam = 2.2


def test_codes_that_are_not_stationary_or_of_dependent_atoms_have_no_margin():
    penalty = Penalty(LAM)
    codes = implicit_codes(Y, D, penalty)
    moved = codes.coef.copy()
    moved.data *= 1.5
    supports = codes._supports._replace(value=moved.data, residual=Y - moved @ D)
    _, margin, violation = implicit._certify(Y, codes._atoms, moved, penalty, supports)
    assert codes.margin.min() > 0
    assert (margin < 0).all()
    assert (violation >= -margin).all()
    singular = codes._supports._replace(inverse=np.full(300, np.inf))
    _, margin, _ = implicit._certify(Y, codes._atoms, codes.coef, penalty, singular)
    assert (margin == -np.inf).all()


def test_gradients_are_those_of_extended_precision():
    """Of atoms within some 18 degrees of four directions, by the formula of IG-1."""
    near = np.repeat(RNG.standard_normal((4, 12)), 10, axis=0) + RNG.standard_normal((40, 12)) / 3
    codes, upstream = implicit_codes(Y, near, Penalty(LAM)), RNG.standard_normal((300, 40))
    found = codes.gradients(upstream)
    X, A, W = (x.astype(np.longdouble) for x in (Y, near, upstream))
    to_X, to_A, to_lam = np.zeros_like(X), np.zeros_like(A), np.zeros(300, np.longdouble)
    for i, S in enumerate(np.split(codes.coef.indices, codes.coef.indptr[1:-1])):
        B, signs = A[S], np.sign(codes.coef[[i]].data)
        c, h = (_solve(B @ B.T, b) for b in (B @ X[i] - LAM[i] / 2 * signs, W[i, S]))
        to_X[i], to_lam[i] = h @ B, -(h @ signs) / 2
        to_A[S] += np.outer(h, X[i] - c @ B) - np.outer(c, h @ B)
    pairs = (found.signals, to_X), (found.dictionary, to_A), (found.lam, to_lam)
    assert max(np.linalg.norm(np.float64(a - b)) / np.linalg.norm(a) for a, b in pairs) < 1e-13


def _solve(M, b):
    inverse, x = np.linalg.inv(M.astype(np.float64)), np.zeros_like(b)
    for _ in range(6):  # of refinement
        x = x + inverse @ np.float64(b - M @ x)
    return x


def test_the_error_bounds_what_a_wrong_factor_leaves():
    codes, upstream = implicit_codes(Y, D, Penalty(LAM)), RNG.standard_normal((300, 40))
    exact = codes.gradients(upstream)
    codes._supports.factor[:] *= 1.01
    wrong = codes.gradients(upstream)
    assert exact.error.max() < 1e-12
    for i, atoms in enumerate(np.split(codes.coef.indices, codes.coef.indptr[1:-1])):
        h, bad = (np.linalg.lstsq(D[atoms].T, x.signals[i])[0] for x in (exact, wrong))
        error = np.linalg.norm(bad - h) / np.linalg.norm(bad)
        assert 1e-7 < error < min(wrong.error[i], 1e-3)  # refined once: 0.02^2 is left


def test_an_atom_that_a_loose_solve_leaves_out_is_found():
    """The correlation of atom 1 with a zero code is above the threshold by a part in 10^8."""
    y, atoms = np.array([[1.0 + 1e-8]]), np.array([[1.0]])
    codes = implicit_codes(y, atoms, Penalty(np.array([2.0])))
    assert_allclose(codes.coef.toarray(), [[1e-8]], rtol=1e-6)
    assert codes.margin >= 0


def test_gradients_are_the_same_whatever_backend_is_named(network):
    upstream = np.ones((len(Y), len(D)))
    serial = implicit_codes(Y, D, Penalty(LAM)).gradients(upstream)
    with joblib.parallel_config(network, n_jobs=2):
        found = implicit_codes(Y, D, Penalty(LAM), n_jobs=2).gradients(upstream)
    for a, b in zip(found, serial, strict=True):
        np.testing.assert_array_equal(a, b)
