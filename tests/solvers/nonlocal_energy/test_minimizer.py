import warnings

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy.sparse import csr_array, diags_array
from scipy.sparse.linalg import spsolve
from sklearn.exceptions import ConvergenceWarning
from sklearn.neighbors import kneighbors_graph

from twinsolve.solvers import minimize_energy, regularized_energy
from twinsolve.solvers.nonlocal_energy import energy_gradient, minimizer

FIDELITIES = ("constant", "degree")


def exact(f, K, lam, fidelity):
    """Dense normal equations; the answer is in the first factor's units."""
    d = np.asarray(K.sum(axis=1)).ravel()
    w = lam * (d if fidelity == "degree" else np.ones_like(d))
    return np.linalg.solve(np.diag(d + w) - K, w[:, None] * f)


def graph(n=3000, seed=0):
    rng = np.random.default_rng(seed)
    G = csr_array(kneighbors_graph(rng.standard_normal((n, 3)), 10, mode="distance"))
    G.data = np.exp(-(G.data**2) / np.median(G.data) ** 2)
    return G + G.T, rng.standard_normal((n, 2))


@pytest.mark.parametrize("fidelity", FIDELITIES)
def test_every_kind_of_weights_every_form(K, fidelity, tokens_of):
    f = tokens_of()
    expected = exact(f, K, 0.3, fidelity)
    for form in (K, csr_array(K), lambda u: K @ u):
        found = minimize_energy(f, form, lam=0.3, fidelity=fidelity, tol=1e-10)
        # Loops of 2e6 cost the reference, and a function, as many digits.
        assert_allclose(found.coef, expected, atol=1e-9)
        assert found.converged.all()
        assert found.objective.shape == found.gap.shape == found.n_iter.shape == (3,)


@pytest.mark.parametrize("fidelity", FIDELITIES)
def test_certificate_bounds_the_error_and_the_energy(K, fidelity, tokens_of):
    """From the definitions, on an answer that two iterations leave rough."""
    f, lam = tokens_of(), 0.3
    d = K.sum(axis=1, keepdims=True)
    w = lam * (d if fidelity == "degree" else np.ones_like(d))
    best = exact(f, K, lam, fidelity)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        rough = minimize_energy(f, csr_array(K), lam=lam, fidelity=fidelity, max_iter=2)
    size = np.ptp(f, axis=0) / 2
    gradient = energy_gradient(rough.coef, f, K, lam, fidelity=fidelity)
    expected = np.abs(gradient / w).max(axis=0) / size
    assert_allclose(rough.gap, expected, rtol=1e-6, atol=1e-12)
    assert (np.abs(rough.coef - best).max(axis=0) <= rough.gap * size + 1e-9).all()
    for c in range(3):
        values = [
            regularized_energy(u[:, [c]], f[:, [c]], K, lam, fidelity=fidelity)
            for u in (rough.coef, best)
        ]
        assert rough.objective[c] == pytest.approx(values[0], rel=1e-9)
        # The gap of Fenchel duality at y = L u, and weak duality, up to rounding errors of E.
        u, y = rough.coef[:, c], rough.dual[:, c]
        dual = -u @ y / 2 + y @ f[:, c] - (y**2 / w[:, 0]).sum() / 2
        duality_gap = (gradient[:, c] ** 2 / w[:, 0]).sum() / 2
        rounding = 1e-14 * ((d + w)[:, 0] * (u**2 + f[:, c] ** 2) + y**2 / w[:, 0]).sum()
        assert_allclose(values[0] - dual, duality_gap, atol=rounding)
        assert values[0] - values[1] <= duality_gap + rounding
        assert duality_gap <= (rough.gap[c] * size[c]) ** 2 * w.sum() / 2 * (1 + 1e-6)


def test_minimiser_is_constant_iff_the_input_is_nt_p1_proposition_1(K):
    rng = np.random.default_rng(0)
    for fidelity in FIDELITIES:
        for form in (K, csr_array(K)):
            flat = minimize_energy(np.full((9, 2), 0.3), form, lam=0.5, fidelity=fidelity)
            assert_allclose(flat.coef, 0.3, rtol=1e-14)
            for scale in (1.0, 1e-3):
                f = 1 + scale * rng.standard_normal((9, 2))
                u = minimize_energy(f, form, lam=0.5, fidelity=fidelity).coef
                assert (np.ptp(u, axis=0) > 1e-4 * scale * np.ptp(f, axis=0)).all()


@pytest.mark.parametrize("fidelity", FIDELITIES)
def test_tokens_without_neighbours_stay(fidelity):
    K = np.zeros((5, 5))
    K[0, 1] = K[1, 0] = 2
    K[4, 4] = 3  # only itself
    f = np.arange(5.0)[:, None] + 1
    for form in (K, csr_array(K), lambda u: K @ u):
        found = minimize_energy(f, form, lam=0.5, fidelity=fidelity)
        assert_allclose(found.coef[2:], f[2:], rtol=1e-14)
        weight = 0.5 * (2 if fidelity == "degree" else 1)
        assert_allclose(found.coef[1] - found.coef[0], weight / (weight + 4), rtol=1e-7)
    for nothing in (np.zeros((5, 5)), csr_array((5, 5))):
        found = minimize_energy(f, nothing, lam=0.5, fidelity=fidelity)
        assert_allclose(found.coef, f)
        assert found.converged.all()


def test_zero_columns_one_token_and_extreme_scales():
    K = np.ones((4, 4))
    f = np.zeros((4, 2))
    f[0, 1] = 1
    found = minimize_energy(f, K, lam=1.0)
    assert_allclose(found.coef[:, 0], 0)
    assert found.gap[0] == 0
    assert_allclose(minimize_energy([[7.0]], [[2.0]], lam=1.0).coef, [[7.0]])
    expected = minimize_energy(f, K, lam=0.5, fidelity="degree").coef
    for scale in (1e-200, 1e200):
        for form in (scale * K, csr_array(scale * K)):
            tiny = minimize_energy(f, form, lam=0.5, fidelity="degree")
            assert_allclose(tiny.coef, expected, atol=1e-7)
            assert tiny.converged.all()


def test_sparse_graph_against_a_sparse_factor():
    for fidelity in FIDELITIES:
        K, f = graph(1000)
        d = K.sum(axis=1)
        w = 0.6 * (d if fidelity == "degree" else np.ones_like(d))
        expected = spsolve((diags_array(d + w) - K).tocsc(), w[:, None] * f)
        found = minimize_energy(f, K, lam=0.6, fidelity=fidelity, tol=1e-12)
        assert_allclose(found.coef, expected, atol=1e-10)
        assert found.n_iter.max() < 100
        dense = minimize_energy(f, K.toarray(), lam=0.6, fidelity=fidelity, tol=1e-12)
        assert_allclose(dense.coef, expected, atol=1e-10)


@pytest.mark.parametrize(("n", "lam"), [(60, 1.0), (60, 1e-4), (600, 1.0)])
def test_dense_weights_take_either_way_to_one_answer(n, lam, monkeypatch):
    rng = np.random.default_rng(0)
    X, f = rng.standard_normal((n, 2)), rng.standard_normal((n, 1))
    K = np.exp(-((X[:, None] - X) ** 2).sum(axis=-1))
    answers = []
    for budget in (0, 10, 5000):
        monkeypatch.setattr(minimizer, "_count_worthwhile", lambda *_, budget=budget: budget)
        found = minimize_energy(f, K, lam=lam, max_iter=5000)
        assert found.converged.all()
        answers.append(found.coef)
    assert_allclose(answers[1], answers[0], atol=1e-7)
    assert_allclose(answers[2], answers[0], atol=1e-7)


def swallowed(power, n=6):
    """Two tokens tied by a weight of 10^power, the rest of size 1; tied tokens start equal."""
    rng = np.random.default_rng(0)
    K, f = np.triu(rng.random((n, n)), 1), rng.standard_normal((n, 1))
    K[0, 1], f[1] = 10.0**power, f[0]
    return K + K.T, f


def tied(K, f, lam, fidelity):
    """Minimiser with tokens 0 and 1 made one: an error of the order of 1 over their weight."""
    merge = np.eye(len(K))[:, 1:]
    merge[0, 0] = 1
    off = K - np.diag(np.diag(K))
    off[0, 1] = off[1, 0] = 0
    w = lam * (K.sum(axis=1) if fidelity == "degree" else np.ones(len(K)))
    hessian = merge.T @ (np.diag(off.sum(axis=1) + w) - off) @ merge
    return merge @ np.linalg.solve(hessian, merge.T @ (w[:, None] * f))


@pytest.mark.parametrize("fidelity", FIDELITIES)
@pytest.mark.parametrize("power", [9, 15, 16, 20])
def test_no_false_certificate_where_degrees_swallow_weights(power, fidelity):
    K, f = swallowed(power)
    expected = tied(K, f, 1.0, fidelity)
    largest = np.abs(f).max()
    for form in (K, csr_array(K), lambda u: K @ u):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            found = minimize_energy(f, form, lam=1.0, fidelity=fidelity)
        error = np.abs(found.coef - expected).max() / largest
        assert error <= found.gap[0] + 100 * 10.0**-power + 1e-14


def test_an_answer_that_only_rounding_errors_make_stationary_is_not_certified():
    K = np.array([[0, 1e20, 1], [1e20, 0, 1], [1, 1, 0.0]])
    for form in (K, csr_array(K), lambda u: K @ u):
        with pytest.warns(ConvergenceWarning, match="rounding errors limit it: increase lam or"):
            found = minimize_energy([[1.0], [1.0], [0.0]], form, lam=1.0)
        assert found.gap[0] >= np.abs(found.coef[:, 0] - [0.75, 0.75, 0.5]).max()


def test_advice_names_what_would_help():
    K, f = graph(500)
    cases = [
        (K, {"lam": 1e-3, "max_iter": 2}, "2 of 2 columns .* increase max_iter, lam or tol$"),
        (lambda u: K @ u, {"lam": 1e-3, "max_iter": 2}, "increase max_iter, lam or tol$"),
        (K.toarray(), {"lam": 1e-3, "tol": 1e-17, "max_iter": 1}, "errors limit it: increase lam"),
        (K, {"lam": 1e-3, "tol": 1e-17}, "rounding errors limit it: increase lam or tol$"),
        (lambda u: K @ u, {"lam": 1e-3, "tol": 1e-14, "max_iter": 9}, "errors limit it: incr"),
    ]
    for form, settings_, words in cases:
        with pytest.warns(ConvergenceWarning, match=words):
            minimize_energy(f, form, **settings_)


def test_energies_that_overflow_are_refused():
    for f in ([[1e308], [-1e308]], [[1e154], [1.0]]):
        with pytest.raises(ValueError, match=r"^f: entries up to .* overflow"):
            minimize_energy(f, np.ones((2, 2)), lam=1.0)
    with pytest.raises(ValueError, match=r"^K: a row sum overflows"):
        minimize_energy([[1.0], [0.0]], np.full((2, 2), 1e308), lam=1.0)
    largest = minimize_energy([[1e150], [-1e150]], np.ones((2, 2)), lam=1.0)
    assert_allclose(largest.coef, [[1e150 / 3], [-1e150 / 3]], rtol=1e-7)


def masked_exact(f, K, lam, fidelity, mask):
    """Dense normal equations without the fidelity of the holes."""
    d = np.asarray(K.sum(axis=1)).ravel()
    w = mask * lam * (d if fidelity == "degree" else np.ones_like(d))
    return np.linalg.solve(np.diag(d + w) - K, w[:, None] * np.where(mask[:, None], f, 0))


MASK = np.array([True, False, True, False, False, True, True, True, False])


@pytest.mark.parametrize("fidelity", FIDELITIES)
def test_holes_follow_from_their_neighbours(K, fidelity, tokens_of):
    f = tokens_of()
    expected = masked_exact(f, K, 0.3, fidelity, MASK)
    size = np.ptp(f[MASK], axis=0) / 2
    for form in (K, csr_array(K), lambda u: K @ u):
        options = {"lam": 0.3, "fidelity": fidelity, "mask": MASK}
        found = minimize_energy(f, form, tol=1e-9, **options)
        assert_allclose(found.coef, expected, atol=1e-8)  # loops of 2e6 cost the reference digits
        assert found.converged.all()
        for value in (1e6, np.nan, -np.inf):
            filled = np.where(MASK[:, None], f, value)
            assert_array_equal(minimize_energy(filled, form, tol=1e-9, **options).coef, found.coef)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            rough = minimize_energy(f, csr_array(K), max_iter=2, **options)
        apart = np.abs(rough.coef - expected).max(axis=0)
        assert (apart <= rough.gap * size + 1e-9).all()
        u = np.ascontiguousarray(found.coef)
        pairs = np.triu(K, 1)[:, :, None] * (u[:, None] - u) ** 2
        weights = np.ones(9) if fidelity == "constant" else K.sum(axis=1)
        fit = 0.15 * (weights[:, None] * (u - f) ** 2)[MASK].sum(axis=0)
        assert_allclose(found.objective, pairs.sum(axis=(0, 1)) / 2 + fit, rtol=1e-6)


def test_one_valid_token_fills_a_graph_and_the_gap_is_true():
    K, f = graph()
    mask = np.zeros(len(f), bool)
    mask[::100] = True
    found = minimize_energy(f, K, lam=0.5, mask=mask)
    assert found.converged.all()
    w = 0.5 * mask
    hessian = diags_array(np.asarray(K.sum(axis=1)).ravel() + w) - K
    expected = np.column_stack([spsolve(hessian.tocsc(), w * column) for column in f.T])
    assert_allclose(found.coef, expected, atol=1e-7)
    alone = np.arange(len(f)) == 7
    filled = minimize_energy(f, K, lam=0.5, mask=alone)
    assert_allclose(filled.coef, np.broadcast_to(f[7], f.shape), rtol=1e-7)


def test_a_mask_of_all_changes_nothing_and_bad_masks_are_named(K, tokens_of):
    f = tokens_of()
    whole = minimize_energy(f, K, lam=0.3, mask=np.ones(9, bool))
    assert_array_equal(whole.coef, minimize_energy(f, K, lam=0.3).coef)
    for mask, words in [
        (np.ones((9, 1), bool), r"must be an array of bool of shape \(9,\)"),
        (np.ones(9), "must be an array of bool"),
        (np.zeros(9, bool), "must be True at one"),
    ]:
        with pytest.raises(ValueError, match=f"mask: {words}"):
            minimize_energy(f, K, lam=0.3, mask=mask)
    apart = np.kron(np.eye(3), np.ones((3, 3)))
    with pytest.raises(ValueError, match=r"mask: 3 tokens have no path .* first 3"):
        minimize_energy(f, apart, lam=0.3, mask=np.arange(9) // 3 != 1)
    with pytest.raises(ValueError, match="f: must not hold NaN or infinity, but where mask is"):
        minimize_energy(np.where(np.arange(9)[:, None] == 0, np.nan, f), K, lam=0.3, mask=MASK)
