"""The entries of the sheet on batches, passes, recursion, bounds and recall."""

import numpy as np
import pytest

from twinsolve.solvers.online_regression import (
    delta_rule,
    kaczmarz_passes,
    mesa,
    mesa_by_cg,
    mesa_error_bound,
    mini_batch_rule,
    recurrent_linear_attention,
    recursive_least_squares,
)

from .test_recurrences import BETA, LAM, NORMS, ONE, S0, A, D, K, N, Q, V, close


@pytest.mark.parametrize("size", [1, 3, 4, N])
def test_batches_are_the_chunk_form_with_a_diagonal_system_tr_7(size):
    """In a batch that begins with S: O = Q S + tril(Q K^T) diag(eta) (V - K S)."""
    out, last = mini_batch_rule(Q, K, V, eta=BETA, batch_size=size, state=S0)
    S = S0
    for first in range(0, N, size):
        q, k, v, eta = (x[:, first : first + size] for x in (Q, K, V, BETA))
        u = eta[..., None] * (v - k @ S)
        close(out[:, first : first + size], q @ S + np.tril(q @ k.swapaxes(1, 2)) @ u)
        S = S + k.swapaxes(1, 2) @ u
    close(last, S)


def test_batches_of_one_are_the_delta_rule_and_one_batch_is_linear_attention_tr_7():
    pairs = (
        (mini_batch_rule(Q, K, V, eta=BETA, batch_size=1), delta_rule(Q, K, V, beta=BETA)),
        (mini_batch_rule(Q, K, V, eta=1.0, batch_size=N), recurrent_linear_attention(Q, K, V)),
    )
    for found, expected in pairs:
        for one, other in zip(found, expected, strict=True):
            close(one, other)


def test_a_batch_does_not_enlarge_errors_up_to_its_longest_step_tr_7():
    """From the direction in which the keys are largest, with values of zero."""
    worst = np.linalg.svd(K)[2][:, :1].swapaxes(1, 2)
    for factor, size in ((1.9, 0.9), (2.0, 1.0), (2.2, 1.2)):
        eta = factor / np.linalg.norm(K, ord=2, axis=(1, 2))[:, None] ** 2
        _, S = mini_batch_rule(K, K, 0 * V[..., :1], eta=eta, batch_size=N, state=worst)
        close(np.linalg.norm(S, axis=(1, 2)), size)


def sor_sweeps(G, V, relaxation, n_sweeps):
    """Successive over-relaxation on G y = V, entry by entry."""
    y = np.zeros_like(V)
    for _ in range(n_sweeps):
        for i in range(len(G)):
            y[i] = y[i] + relaxation / G[i, i] * (V[i] - G[i] @ y)
    return y


@pytest.mark.parametrize("relaxation", [0.5, 1.0, 1.7])
def test_passes_of_kaczmarz_are_sweeps_of_sor_tr_2s(relaxation):
    k, v = K[0, :3], V[0, :3]
    for n_passes in (1, 2, 5):
        S, residuals = kaczmarz_passes(k, v, n_passes=n_passes, relaxation=relaxation)
        close(S, k.T @ sor_sweeps(k @ k.T, v, relaxation, n_passes), 1e-9)
        close(residuals[-1], np.linalg.norm(k @ S - v))


def test_passes_tend_to_the_nearest_solution_at_their_rate_tr_2s():
    k, v, s = K[:, :3], V[:, :3], S0
    S, residuals = kaczmarz_passes(k, v, n_passes=3000, relaxation=1.2, state=s)
    close(S, s + np.linalg.pinv(k) @ (v - k @ s), 1e-9)
    for b in range(2):
        beta, L = 1.2 / NORMS[b, :3], np.tril(k[b] @ k[b].T, -1)
        T = np.linalg.inv(np.eye(3) + np.diag(beta) @ L) @ np.diag(beta)
        rate = np.abs(np.linalg.eigvals((L.T - np.diag(1 / beta - NORMS[b, :3])) @ T)).max()
        far = residuals[:, b] > 1e-9
        seen = (residuals[far, b][-1] / residuals[20, b]) ** (1 / (far.sum() - 21))
        assert abs(seen - rate) < 0.05


def test_zero_keys_and_systems_without_solution_tr_2s():
    S, residuals = kaczmarz_passes([[0.0], [1.0], [1.0]], [[5.0], [1.0], [3.0]], n_passes=9)
    close(S, 3.0)  # the last equation, and not their mean 2
    close(residuals, np.hypot(5, 2))


def test_forgetting_the_penalty_is_recursive_least_squares_tr_5r():
    out, (P, G) = recursive_least_squares(Q, K, V, beta=BETA, lam=LAM, forget=ONE)
    _, (H, expected) = mesa(Q, K, V, beta=BETA, lam=LAM, forget=ONE)
    left = ONE.prod(axis=1)[:, None, None] * LAM[..., None] * np.eye(D)
    close(P, np.linalg.inv(H + left), 1e-9)
    close(G, expected)
    close(out[:, -1], (Q[:, -1:] @ P @ G)[:, 0], 1e-9)
    plain = recursive_least_squares(Q, K, V, beta=BETA, lam=LAM)[0]
    close(plain, mesa(Q, K, V, beta=BETA, lam=LAM)[0], 1e-9)


@pytest.mark.parametrize("n_iter", [1, 2, 3, 4])
def test_the_residual_bounds_the_error_of_few_steps_tr_5b(n_iter):
    """For the last token, and by the condition number for the iterates."""
    given = {"beta": BETA, "lam": LAM}
    _, (H, G) = mesa(Q, K, V, **given)
    A = H + LAM[..., None] * np.eye(D)
    unchanged = {"beta": 0.0, "lam": LAM, "state": (H, np.eye(D))}
    x, _ = mesa_by_cg(Q, K, np.zeros((2, N, D)), n_iter=n_iter, **unchanged)
    exact = np.linalg.solve(A, Q.swapaxes(1, 2)).swapaxes(1, 2)
    error = np.linalg.norm((x - exact) @ G, axis=2)
    bound = mesa_error_bound(Q, x, H, G, LAM)
    assert (error <= bound + 1e-12).all()
    assert n_iter == D or (error > 1e-6 * bound).any()
    root = np.sqrt(np.linalg.cond(A))
    rate = 2 * ((root - 1) / (root + 1)) ** n_iter

    def size(y):
        return np.sqrt(np.einsum("btd,bde,bte->bt", y, A, y))

    assert (size(x - exact) <= rate[:, None] * size(exact) + 1e-12).all()


def test_forgetting_never_enlarges_a_state_tr_3():
    for t in range(N):
        k, a = K[0, t], A[0, t]
        step = (np.eye(D) - np.outer(k, k) / (k @ k)) @ np.diag(a)
        assert np.linalg.norm(step, 2) <= a.max() + 1e-12


@pytest.mark.parametrize("beta", [0.5, 1.0, 2.0])
def test_rows_of_the_chunk_system_are_bounded_for_unit_keys_tr_4(beta):
    k = np.random.default_rng(1).standard_normal((64, 3))
    for keys in (k, np.ones_like(k)):
        unit = keys / np.linalg.norm(keys, axis=1, keepdims=True)
        T = beta * np.linalg.inv(np.eye(64) + beta * np.tril(unit @ unit.T, -1))
        rows = np.linalg.norm(T, axis=1)
        assert (rows <= beta * np.sqrt(1 + beta**2 * np.arange(64)) + 1e-9).all()


def test_recall_of_what_is_stored_tr_r():
    """K S - V in closed form, for one pass of the delta rule, linear attention and ridge."""
    k, v, beta = K[0], V[0], BETA[0]
    gram, eye = k @ k.T, np.eye(N)
    close(k @ recurrent_linear_attention(k, k, v)[1] - v, (gram - eye) @ v)
    L = np.tril(gram, -1)
    T = np.linalg.inv(eye + np.diag(beta) @ L) @ np.diag(beta)
    expected = (L.T - np.diag(1 / beta - NORMS[0])) @ T @ v
    close(k @ delta_rule(k, k, v, beta=beta)[1] - v, expected)
    H, G = mesa(k, k, v, beta=1.0, lam=0.3)[1]
    solution = np.linalg.solve(H + 0.3 * np.eye(D), G)
    close(k @ solution - v, -0.3 * np.linalg.solve(gram + 0.3 * eye, v))


def test_recall_of_random_keys_on_average_tr_r():
    """Mean squared errors of 4,000 draws; the standard error of an item is about 0.003."""
    n, d = 24, 16
    draws = np.random.default_rng(2)
    k, v = draws.standard_normal((2, 4000, n, d))
    k /= np.linalg.norm(k, axis=2, keepdims=True)

    def errors(S):
        return ((v - k @ S) ** 2).sum(axis=2).mean(axis=0) / d

    close(errors(recurrent_linear_attention(k, k, v)[1]).mean(), (n - 1) / d, 0.02)
    close(errors(np.linalg.pinv(k) @ v).mean(), (n - d) / n, 0.02)
    expected = [overwritten(n - i, i, d) for i in range(1, n + 1)]
    found = errors(delta_rule(k, k, v, beta=1.0)[1])
    close(found, expected, 0.02)
    close(found.mean(), np.mean(expected), 0.004)


def overwritten(later, i, d):
    """Error of an item after so many later ones, in units of its size, if it came as the `i`-th."""
    q = 1 - 1 / d
    x, b = 1.0, d - d * q**i
    for _ in range(later):
        x = x * (1 - 2 / d + 2 / (d * (d + 2))) + b / (d * (d + 2)) + 1 / d
        b = q * b + 1
    return x - 2 * q**later + 1
