"""The penalty of sparse codes: laws of its value, proximal map, dual norm and lam_max."""

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy.sparse import csr_array

from twinsolve.solvers import sparse_code
from twinsolve.solvers.sparse_coding import duality_gap, lam_max, lasso_objective
from twinsolve.solvers.sparse_coding.penalty import Penalty
from twinsolve.solvers.sparse_coding.problem import certify

N_ROWS, N_ATOMS = 6, 7
OWN = np.array([0, -1, 2, 6, 4, -1])
LAM = np.linspace(0.4, 2.0, N_ROWS)
PENALTIES = {
    "lasso": {},
    "elastic net": {"l1_ratio": 0.3},
    "nonnegative": {"nonnegative": True},
    "own atom": {"own": OWN},
    "all": {"l1_ratio": 0.6, "nonnegative": True, "own": OWN},
}


@pytest.fixture(params=PENALTIES)
def penalty(request):
    return Penalty(LAM, **PENALTIES[request.param])


def draw(seed, size=2.0):
    return size * np.random.default_rng(seed).standard_normal((N_ROWS, N_ATOMS))


def feasible(C, penalty):
    C = np.abs(C) if penalty.nonnegative else C.copy()
    C[penalty.excluded] = 0
    return C


STEPS = np.linspace(0.1, 2, N_ROWS)[:, None]


@pytest.mark.parametrize("step", [0.3, STEPS])
def test_prox_minimises_on_a_fine_grid(penalty, step):
    """Entries are apart: each is tried at all values of a grid, with the others as they are."""
    Z = draw(0)
    C = penalty.prox(Z, step)

    def objective(codes):
        return ((codes - Z) ** 2 / step).sum(axis=1) + penalty.value(codes)

    best, nearest = objective(C), np.full(Z.shape, np.inf)
    assert np.isfinite(best).all()
    for j in range(N_ATOMS):
        lowest = np.full(N_ROWS, np.inf)
        for value in np.arange(-800, 800) / 100:
            moved = C.copy()
            moved[:, j] = value
            found = objective(moved)
            assert (found >= best - 1e-12).all()
            nearest[:, j] = np.where(found < lowest, np.abs(value - C[:, j]), nearest[:, j])
            lowest = np.minimum(lowest, found)
    assert (nearest <= 0.01).all()


def test_largest_is_the_dual_norm(penalty):
    """The supremum of ``<q, c>`` over codes of l1 norm 1, which an atom attains."""
    Q = draw(2)
    before = Q.copy()
    over = np.stack(
        [
            (Q * feasible(sign * np.eye(N_ATOMS)[[j] * N_ROWS], penalty)).sum(axis=1)
            for j in range(N_ATOMS)
            for sign in (1, -1)
        ]
    ).max(axis=0)
    assert_allclose(penalty.largest(Q), over)
    assert_array_equal(Q, before)


def test_value_is_that_of_the_formula_for_dense_and_sparse_codes(penalty):
    C = feasible(draw(3), penalty)
    r = penalty.l1_ratio
    expected = LAM * (r * np.abs(C).sum(axis=1) + (1 - r) / 2 * (C**2).sum(axis=1))
    assert_allclose(penalty.value(C), expected)
    assert_allclose(penalty.value(csr_array(C)), expected)


def test_value_is_infinite_where_a_constraint_is_violated():
    for form in [np.asarray, csr_array]:
        C = np.abs(draw(4))
        C[3] = [1, 2, 3, 4, 5, 6, 0]
        C[1, 1] = -1e-300
        of_own = Penalty(LAM, own=OWN).value(form(C))
        assert_array_equal(np.isinf(of_own), [True, False, True, False, True, False])
        of_sign = Penalty(LAM, nonnegative=True).value(form(C))
        assert_array_equal(np.isinf(of_sign), [False, True, False, False, False, False])


FLAGS = pytest.mark.parametrize(
    ("l1_ratio", "nonnegative", "zero_diagonal"),
    [(1.0, False, False), (1.0, True, True), (0.4, False, True), (0.4, True, False)],
)


@FLAGS
def test_codes_are_zero_just_above_lam_max_and_not_just_below(l1_ratio, nonnegative, zero_diagonal):
    D = np.random.default_rng(5).standard_normal((N_ATOMS, 4))
    Y = D if zero_diagonal else D[:-1] + 0.3
    flags = {"l1_ratio": l1_ratio, "nonnegative": nonnegative, "zero_diagonal": zero_diagonal}
    largest = Penalty.checked(1.0, len(Y), **flags).lam_max(Y @ D.T)
    assert (largest > 0).all()
    for factor, zero in ((1 + 1e-9, True), (1 - 1e-5, False)):
        coef = sparse_code(Y, D, lam=factor * largest, tol=1e-15, **flags).coef
        assert_array_equal(np.asarray(abs(coef).sum(axis=1) == 0), zero)


def test_lam_max_is_that_of_products_in_float64():
    """Of atoms that float32 cannot tell apart, of atoms of all lengths, and of none that helps."""
    for zero_diagonal in [False, True]:
        rng = np.random.default_rng(8)
        D = rng.standard_normal((300, 9)) * 10.0 ** rng.uniform(-6, 1, (300, 1))
        D[:200, 0] = 100 * (1 + 1e-10 * rng.permutation(200))
        D[:20, 1:] = 0
        D[-1] = 0
        Y = D if zero_diagonal else np.concatenate([D, rng.standard_normal((9, 9))])
        sizes = np.abs(Y @ D.T)
        if zero_diagonal:
            np.fill_diagonal(sizes, 0)
        expected = 2 * sizes.max(axis=1)
        assert_allclose(lam_max(Y, D, zero_diagonal=zero_diagonal), expected, rtol=1e-13)
        assert expected[299] == 0


@FLAGS
def test_certificate_is_the_gap_of_the_lasso_in_the_extended_dictionary(
    l1_ratio, nonnegative, zero_diagonal
):
    """Row by row from the definition: ``P - D`` at the best multiple of the residual."""
    rng = np.random.default_rng(7)
    D = rng.standard_normal((N_ATOMS, 4))
    Y = D if zero_diagonal else rng.standard_normal((N_ROWS, 4))
    C = 0.2 * rng.standard_normal((len(Y), N_ATOMS))
    C = np.maximum(C, 0) if nonnegative else C
    if zero_diagonal:
        np.fill_diagonal(C, 0)
    lam = np.linspace(0.5, 3, len(Y))
    flags = {"l1_ratio": l1_ratio, "nonnegative": nonnegative, "zero_diagonal": zero_diagonal}
    objective, gap, _ = certify(Y, D, C, Penalty.checked(lam, len(Y), **flags))
    for i, (y, c) in enumerate(zip(Y, C, strict=True)):
        ridge = lam[i] * (1 - l1_ratio) / 2
        atoms = np.hstack([D, np.sqrt(ridge) * np.eye(N_ATOMS)])
        y, h = np.append(y, np.zeros(N_ATOMS)), lam[i] * l1_ratio
        r = y - c @ atoms
        at = 2 * np.delete(atoms, i, axis=0) @ r if zero_diagonal else 2 * atoms @ r
        largest = at.max() if nonnegative else np.abs(at).max()
        a = np.clip(y @ r / (r @ r), 0, h / largest if largest > 0 else np.inf)
        primal, dual = r @ r + h * np.abs(c).sum(), 2 * a * r @ y - a**2 * r @ r
        assert_allclose(objective[i], primal)
        assert_allclose(gap[i], (primal - dual) / (y @ y))
    assert_allclose(objective, lasso_objective(Y, D, C, lam=lam, l1_ratio=l1_ratio))
    assert_allclose(gap, duality_gap(Y, D, C, lam=lam, **flags))
