import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from numpy.testing import assert_allclose
from scipy.special import softmax

from twinsolve.solvers import sparsemax
from twinsolve.solvers.kernel_smoothing import (
    entmax,
    entmax_gap,
    entropic_gap,
    simplex_projection_residual,
)
from twinsolve.solvers.oracles import kernel_smoothing as oracle

RNG = np.random.default_rng(0)
LOGITS = {
    "random": RNG.standard_normal((6, 7)),
    "wide": 20 * RNG.standard_normal((4, 30)),
    "entries all over the edge": RNG.random((6, 40)) / 3,
    "ties": np.repeat(RNG.standard_normal((3, 3)), 3, axis=1),
    "all equal": np.full((2, 5), -3.0),
    "equal rows": np.repeat(RNG.standard_normal((1, 5)), 4, axis=0),
    "single entry": RNG.standard_normal((4, 1)),
    "huge gaps": np.array([[1e4, 0, 0, -1e4], [1e3, 1e3, 0, -1e5], [0, 0, 0, -1e4]]),
    "edge of the support": np.array([[0, -1, -1, -1], [0, -0.5, -0.75, -1], [0, 0, -0.5, -0.5]]),
    "far from zero": 1e5 + RNG.standard_normal((3, 5)),
}


@pytest.fixture(params=LOGITS)
def logits(request):
    return LOGITS[request.param]


def literal(z):
    """The support is the longest head of the sorted entries that keeps its last one positive."""
    ordered = sorted(z, reverse=True)
    size = max(k for k in range(1, len(z) + 1) if 1 + k * ordered[k - 1] > sum(ordered[:k]))
    tau = (sum(ordered[:size]) - 1) / size
    return [max(entry - tau, 0) for entry in z]


def test_sparsemax_is_the_projection_of_the_oracle_se_spm(logits):
    # The oracle works at the size of the logits, so it is given them less the largest.
    near = np.maximum(logits - logits.max(axis=1, keepdims=True), -20)
    p = sparsemax(logits)
    assert_allclose(p, oracle.simplex_projection(near), atol=1e-6)
    # The loop adds up to N logits of size |z|: N |z| half ulps.
    n_keys = logits.shape[1]
    atol = 1e-15 * n_keys * (1 + np.abs(logits).max())
    assert_allclose(p, [literal(row) for row in logits], atol=atol)
    assert (p >= 0).all()
    assert_allclose(p.sum(axis=1), 1, atol=1e-15 * n_keys)
    assert simplex_projection_residual(logits, p).max() < 1e-15 * n_keys


def test_sparsemax_has_zeros_where_softmax_has_none_se_2_4():
    """Of 20 normal logits most weights are zero."""
    z = np.random.default_rng(0).standard_normal((200, 20))
    assert np.count_nonzero(sparsemax(z) == 0, axis=1).min() > 10
    assert (entmax(z, alpha=1) > 0).all()


@pytest.mark.parametrize("alpha", [1, 1 + 1e-9, 1.01, 1.3, 1.5, 1.9, 2])
def test_entmax_lies_between_softmax_and_sparsemax_en_1(logits, alpha):
    p = entmax(logits, alpha=alpha)
    if alpha in (1, 1 + 1e-9):
        assert_allclose(p, softmax(logits, axis=1), atol=1e-8 if alpha > 1 else 1e-15)
    if alpha == 2:
        assert_allclose(p, sparsemax(logits), atol=1e-15 * logits.shape[1])
    if alpha == 1.5:
        near = np.maximum(logits - logits.max(axis=1, keepdims=True), -20)
        assert_allclose(p, oracle.entmax(near, alpha=alpha), atol=1e-5)
    assert_allclose(p.sum(axis=1), 1, atol=1e-15)
    assert entmax_gap(logits, p, alpha=alpha).max() < 1e-15 * logits.shape[1]


def test_each_row_may_have_its_own_alpha_and_hidden_entries():
    z, alpha = LOGITS["random"].copy(), np.linspace(1, 3, 6)[:, None]
    z[0, 2] = z[3, :4] = z[5] = -np.inf
    rows = [entmax(row, alpha=a) for row, a in zip(z, alpha[:, 0], strict=True)]
    assert_allclose(entmax(z, alpha=alpha), rows, atol=1e-15)
    assert not entmax(z, alpha=alpha)[z == -np.inf].any()
    assert_allclose(rows[3][4:], entmax(z[3, 4:], alpha=alpha[3]), atol=1e-15)
    assert (entmax_gap(z, np.full((6, 7), 1 / 7), alpha=alpha)[[0, 3, 5]] == np.inf).all()
    assert_allclose(entmax_gap(z, entmax(z, alpha=alpha), alpha=alpha), 0, atol=1e-15)


@pytest.mark.parametrize("alpha", [3.0, 4.0])
def test_entmax_beyond_sparsemax_is_that_of_the_oracle_en_1(logits, alpha):
    p = entmax(logits, alpha=alpha)
    near = np.maximum(logits - logits.max(axis=1, keepdims=True), -20)
    # A gap of 1e-8 leaves |p - s|^alpha / (alpha (alpha - 1)) up to that.
    atol = (1e-8 * alpha * (alpha - 1)) ** (1 / alpha)
    assert_allclose(p, oracle.entmax(near, alpha=alpha), atol=atol)
    assert_allclose(p.sum(axis=1), 1, atol=1e-15)
    assert entmax_gap(logits, p, alpha=alpha).max() < 1e-15 * logits.shape[1]


def test_entmax_of_a_large_order_tells_equal_logits_apart_from_others():
    """1 - (alpha - 1) c is 1000^-19 there, far below a rounding of 1."""
    assert_allclose(entmax(np.zeros(1000), alpha=20), 1e-3, rtol=1e-12)
    assert_allclose(entmax([3.0, 3.0, 2.9], alpha=20), [0.5, 0.5, 0], rtol=1e-12)


@pytest.mark.parametrize("alpha", [0.5, np.inf, np.nan, [1.5, 1.5]])
def test_an_alpha_that_does_not_fit_is_refused(alpha):
    with pytest.raises(ValueError, match=r"alpha: must be (finite and >= 1|broadcastable)"):
        entmax(LOGITS["random"], alpha=alpha)


def test_softmax_is_the_entropic_program_of_the_oracle(logits):
    near = np.maximum(logits - logits.max(axis=1, keepdims=True), -1e3)
    p = softmax(logits, axis=1)
    assert_allclose(p, oracle.entropic_linear_program(near), atol=1e-6)
    # Both sides round log s, which is as large as the gaps, times probabilities of sum 1.
    assert (entropic_gap(logits, p) <= 1e-15 * (1 + np.ptp(logits, axis=1))).all()


Z = arrays(float, st.tuples(st.integers(1, 4), st.integers(1, 8)), elements=st.floats(-5, 5))


def feasible(shape, seed):
    """Points of the simplex, inside and on its faces."""
    rng = np.random.default_rng(seed)
    weights = rng.exponential(size=shape) * (rng.random(shape) < 0.7)
    weights[:, 0] += 1e-3
    return weights / weights.sum(axis=1, keepdims=True)


@given(z=Z, seed=st.integers(0, 10**6), alpha=st.floats(1, 4))
def test_the_gap_of_entmax_bounds_the_distance_en_2(z, seed, alpha):
    p, s = feasible(z.shape, seed), entmax(z, alpha=alpha)
    gap = entmax_gap(z, p, alpha=alpha)
    least = np.abs(p - s) ** max(alpha, 2) / max(2, alpha * (alpha - 1))
    assert (least.sum(axis=1) <= gap + 1e-14).all()
    if alpha > 1.01:
        value = (z * p).sum(axis=1) + (p - p**alpha).sum(axis=1) / (alpha * (alpha - 1))
        best = (z * s).sum(axis=1) + (s - s**alpha).sum(axis=1) / (alpha * (alpha - 1))
        assert_allclose(gap, best - value, atol=1e-11)


@given(z=Z, seed=st.integers(0, 10**6))
def test_certificates_bound_the_distance_from_any_point_of_the_simplex(z, seed):
    p = feasible(z.shape, seed)
    distance = ((p - sparsemax(z)) ** 2).sum(axis=1)
    assert (distance <= simplex_projection_residual(z, p) + 1e-14).all()
    distance = np.abs(p - softmax(z, axis=1)).sum(axis=1)
    assert (distance**2 / 2 <= entropic_gap(z, p) + 1e-14).all()
    value = (z * p).sum(axis=1) - (p * np.log(np.where(p > 0, p, 1))).sum(axis=1)
    gap = np.log(np.exp(z).sum(axis=1)) - value
    assert_allclose(entropic_gap(z, p), gap, atol=1e-13)


def test_certificates_see_what_is_not_optimal():
    z = LOGITS["random"]
    p, s = sparsemax(z), softmax(z, axis=1)
    assert simplex_projection_residual(z, s).min() > 1e-2
    assert entropic_gap(z, p).min() > 1e-2
    assert simplex_projection_residual(z, 1.1 * p).min() > 0.09
    for c in (0.9, 1.1):
        assert_allclose(entropic_gap(z, c * s), c * np.log(c) - c + 1, rtol=1e-12)
    assert_allclose(simplex_projection_residual([1.0, -1.0], [1.1, -0.1]), 0.1)
    assert entropic_gap([1.0, -1.0], [1.1, -0.1]) == np.inf


@pytest.mark.parametrize("hidden", [[2], [0, 1, 4], [0, 1, 2, 3, 4]])
def test_masked_entries_are_zero_and_otherwise_as_if_absent(hidden):
    z = RNG.standard_normal((3, 5))
    visible = np.setdiff1d(np.arange(5), hidden)
    masked = z.copy()
    masked[:, hidden] = -np.inf
    p = sparsemax(masked)
    assert (p[:, hidden] == 0).all()
    if len(visible):
        assert_allclose(p[:, visible], sparsemax(z[:, visible]), atol=1e-15)
    assert simplex_projection_residual(masked, p).max() < 1e-15
    assert (simplex_projection_residual(masked, np.full((3, 5), 0.2)) == np.inf).all()
    assert (entropic_gap(masked, np.full((3, 5), 0.2)) == np.inf).all()


def test_logits_of_any_size_are_stable():
    for size in [1e-300, 1e17, 1.7e308]:
        z = size * np.array([[1.0, 1.0, -1.0], [1.0, 0.5, 0.0]])
        expected = [[0.5, 0.5, 0.0], [1.0, 0.0, 0.0]] if size > 1 else np.full((2, 3), 1 / 3)
        assert_allclose(sparsemax(z), expected, atol=1e-15)
        assert simplex_projection_residual(z, sparsemax(z)).max() < 1e-15


def test_a_row_without_visible_entries_is_zero():
    z = np.array([[0.0, 1.0], [-np.inf, -np.inf]])
    assert (sparsemax(z)[1] == 0).all()
    for certificate in (simplex_projection_residual, entropic_gap):
        assert certificate(z, [[0.0, 1.0], [0.0, 0.0]])[1] == 0


def test_long_supports_sum_to_one():
    """A cumulative sum of 1e5 entries alone would be off by 6e-8 in the sum."""
    n = 10**5
    z = np.r_[0, np.full(n - 1, -1 + 0.9 / n)]
    p = sparsemax(z)
    # The rounding of tau, half an ulp of 1, counts n times.
    assert abs(p.sum() - 1) < n * np.finfo(float).eps / 2
    assert simplex_projection_residual(z, p) < n * np.finfo(float).eps / 2


def test_erratum_e10_k_entmax_adds_the_entropy():
    """Less the entropy, the objective is convex in p, and a corner is better than entmax."""
    z = np.array([0.5, 0.2, 0.0])
    p, corner, other = entmax(z, alpha=1.5), np.array([1.0, 0.0, 0.0]), np.full(3, 1 / 3)

    def objective(p, sign):
        return p @ z + sign * (p - p**1.5).sum() / 0.75

    assert objective(p, 1) > max(objective(corner, 1), objective(other, 1))
    assert objective(corner, -1) > objective(p, -1)
