"""Slips in public code of layers that learn at test time."""

import numpy as np
import pytest

from twinsolve.solvers.online_regression import (
    delta_rule,
    mesa,
    mini_batch_rule,
    proximal_point_rule,
)

from .test_recurrences import BETA, LAM, S0, D, K, N, Q, V, close


def test_erratum_e10_a_the_newest_factor_stands_left():
    factors = np.eye(D) - BETA[0, :, None, None] * K[0, :, :, None] * K[0, :, None, :]
    _, S = delta_rule(Q[0], K[0], 0 * V[0], beta=BETA[0], state=S0[0])
    close(np.linalg.multi_dot(factors[::-1]) @ S0[0], S)
    assert np.abs(np.linalg.multi_dot(factors) @ S0[0] - S).max() > 0.01


def test_erratum_e10_b_the_diagonal_step_is_no_proximal_point():
    q, k, v, delta, before = Q[0, :1], K[0, :1], V[0, :1], 2.0, S0[0]

    def gradient(S):
        return k.T @ (k @ S - v) + (S - before) / delta

    _, S = proximal_point_rule(q, k, v, delta=delta, state=before)
    close(gradient(S), 0)
    step = delta / (1 + delta * (k**2).sum())
    assert np.abs(gradient((1 - step * k.T**2) * before + step * k.T @ v)).max() > 0.05


@pytest.mark.parametrize(("added", "smallest", "largest"), [(0.0, 0, 1e-10), (1e-5, 1e-6, 1)])
def test_erratum_e10_c_a_constant_in_both_denominators_stalls_the_residual(
    added, smallest, largest
):
    """Keys of which few are told apart, as of one topic."""
    k = K[0, 0] + 0.01 * np.random.default_rng(0).standard_normal((200, D))
    H, _ = mesa(k, k, k, beta=1.0, lam=0.25)[1]
    A, x, r = H + 0.25 * np.eye(D), np.zeros(D), Q[0, 0]
    p, rho = r, r @ r
    for _ in range(30):
        alpha = rho / (p @ A @ p + added)
        x, r = x + alpha * p, r - alpha * A @ p
        before, rho = rho, r @ r
        p = r + rho / (before + added) * p
        if rho == 0:
            break
    assert smallest <= np.linalg.norm(Q[0, 0] - A @ x) < largest


def test_erratum_e10_e_each_gradient_has_its_own_rate():
    """With one rate for all tokens the reading row's rate is the same."""
    for eta, same in ((BETA[0], False), (np.full(N, 0.4), True)):
        right, _ = mini_batch_rule(Q[0], K[0], V[0], eta=eta, batch_size=N, state=S0[0])
        errors = V[0] - K[0] @ S0[0]
        of_reader = Q[0] @ S0[0] + eta[:, None] * (np.tril(Q[0] @ K[0].T) @ errors)
        assert (np.abs(of_reader - right).max() < 1e-12) == same


def test_erratum_e10_f_a_learned_metric_is_never_the_inverse_of_the_diagonal():
    """Of PGDN it is 1.5 to a power in (-1, 1); the diagonal of H grows with the tokens."""
    H, _ = mesa(K[0], K[0], V[0], beta=1.0, lam=LAM[0])[1]
    assert (1 / np.diag(H) < 2 / 3).any()


def test_erratum_e10_l_convex_up_to_the_smallest_eigenvalue_and_not_to_its_root():
    """1/2 |H u - y|^2 + lam psi(u) with H = 1/2 and psi = cos, whose curvature is down to -1."""

    def objective(u, lam):
        return 0.5 * (0.5 * u - 0.3) ** 2 + lam * np.cos(u)

    for lam, convex in ((0.2, True), (0.25, True), (0.4, False)):
        between = (objective(0.5, lam) + objective(-0.5, lam)) / 2
        assert (objective(0.0, lam) <= between) == convex
