import numpy as np
import pytest
from numpy.testing import assert_allclose

from twinsolve.solvers import fista, ista, sparse_code
from twinsolve.solvers.sparse_coding import coordinate_descent, duality_gap, lasso_objective


def atoms():
    return np.random.default_rng(0).standard_normal((12, 6))


FLAGS = [{}, {"zero_diagonal": True}, {"nonnegative": True}]


def test_fista_stays_within_its_rate(X):
    best = sparse_code(X, X, lam=0.5, tol=1e-12, max_iter=1000)
    step = 1 / np.linalg.norm(X, 2) ** 2
    run = fista(X, X, lam=0.5, n_iter=150, step=step, history=True)
    distance = abs(best.coef).power(2).sum()
    values = run.history["objective"].sum(axis=1)
    for k in range(1, 151):
        bound = 4 * distance / (step * (k + 1) ** 2)
        assert values[k] - best.objective.sum() <= bound + 1e-10


def test_fista_is_the_printed_momentum():
    X = atoms()
    eps, lam = 0.01, 0.5
    C = B = np.zeros((12, 12))
    t = 1.0
    for _ in range(7):
        Z = B + eps * (X - B @ X) @ X.T
        new = np.sign(Z) * np.maximum(np.abs(Z) - eps * lam / 2, 0)
        np.fill_diagonal(new, 0)
        t_new = (1 + np.sqrt(1 + 4 * t * t)) / 2
        B = new + (t - 1) / t_new * (new - C)
        C, t = new, t_new
    found = fista(X, X, lam=lam, n_iter=7, step=eps, zero_diagonal=True).coef
    assert_allclose(found, C, atol=1e-14)


def test_support_adaptive_steps_and_coordinate_descent_never_increase_the_objective(X):
    for solve, options in [(ista, {"step": "support"}), (coordinate_descent, {})]:
        run = solve(X, X, lam=0.5, n_iter=60, zero_diagonal=True, history=True, **options)
        assert (np.diff(run.history["objective"], axis=0) <= 1e-12).all()


def test_support_adaptive_step_is_the_literal_rule():
    X = atoms()
    C, lam = np.zeros((12, 12)), 0.5
    L = np.linalg.norm(X, 2) ** 2

    def step(c, x, length):
        z = c + (x - c @ X) @ X.T / length
        return np.sign(z) * np.maximum(np.abs(z) - lam / (2 * length), 0)

    for _ in range(12):
        for i, x in enumerate(X):
            S = np.flatnonzero(C[i])
            tried = step(C[i], x, np.linalg.norm(X[S], 2) ** 2) if len(S) else None
            inside = tried is not None and set(np.flatnonzero(tried)) <= set(S)
            C[i] = tried if inside else step(C[i], x, L)
    assert_allclose(ista(X, X, lam=lam, n_iter=12, step="support").coef, C, atol=1e-12)


@pytest.mark.parametrize(
    ("solve", "flags"), list(zip([ista, fista, coordinate_descent], FLAGS, strict=True))
)
def test_history_and_callback_see_every_iterate(solve, flags):
    X = atoms()
    problem = {"lam": 0.5, **flags}
    seen = []
    run = solve(
        X, X, n_iter=4, history=True, callback=lambda k, C: seen.append((k, C.copy())), **problem
    )
    assert [k for k, _ in seen] == [0, 1, 2, 3, 4]
    for k, C in seen:
        at = solve(X, X, n_iter=k, **problem)
        assert_allclose(C, at.coef, atol=1e-14)
        assert_allclose(run.history["objective"][k], lasso_objective(X, X, C, lam=0.5))
        gap = duality_gap(X, X, C, **problem)
        assert_allclose(run.history["gap"][k], gap, atol=1e-14)
        assert_allclose(at.gap, gap, atol=1e-14)
    assert solve(X, X, n_iter=1, **problem).history is None


def test_ista_starts_from_given_codes_and_refuses_others():
    rng = np.random.default_rng(0)
    Y, D, lam = rng.standard_normal((5, 4)), rng.standard_normal((6, 4)), 0.3
    first = ista(Y, D, lam=lam, n_iter=3, nonnegative=True).coef
    found = ista(Y, D, lam=lam, n_iter=2, nonnegative=True, start=first).coef
    assert_allclose(found, ista(Y, D, lam=lam, n_iter=5, nonnegative=True).coef, rtol=0, atol=0)
    assert ista(Y, D, lam=lam, n_iter=1, nonnegative=True, start=-np.ones((5, 6))).coef.min() >= 0
    with pytest.raises(ValueError, match=r"start: must have shape \(5, 6\), got \(6, 5\)"):
        ista(Y, D, lam=lam, n_iter=1, start=first.T)
