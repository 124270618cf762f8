"""The identities of the sheet, for every recurrence."""

import numpy as np
import pytest
from numpy.testing import assert_allclose

from twinsolve.solvers import local_linear_regression
from twinsolve.solvers.online_regression import (
    delta_rule,
    kaczmarz_passes,
    local_linear_probe,
    mesa,
    mesa_by_cg,
    mesa_error_bound,
    parallax,
    proximal_point_rule,
    recurrent_linear_attention,
    titans_memory,
)

N, D, E = 9, 4, 3
rng = np.random.default_rng(0)
Q, K, V = (rng.standard_normal((2, N, width)) for width in (D, D, E))
K /= np.linalg.norm(K, axis=-1, keepdims=True) * rng.uniform(0.8, 1.2, (2, N, 1))
NORMS = (K**2).sum(axis=-1)
BETA, A, M = rng.uniform(0.2, 1.2, (2, N)), rng.uniform(0.5, 1, (2, N, D)), rng.random((2, N, D))
LAM = rng.uniform(0.5, 2, (2, D))
S0, H0 = rng.standard_normal((2, D, E)), 0.3 * np.eye(D) + 0.1
ONE = A[..., 0]
RUNS = {
    "TR-1": (recurrent_linear_attention, {"forget": A}, S0),
    "TR-2": (delta_rule, {"beta": BETA}, S0),
    "TR-2p": (proximal_point_rule, {"delta": BETA, "forget": A}, S0),
    "TR-3": (delta_rule, {"beta": BETA, "forget": A}, S0),
    "TR-6": (delta_rule, {"beta": BETA, "forget": A, "metric": M}, S0),
    "TR-5": (mesa, {"beta": BETA, "forget": ONE, "lam": LAM}, (H0, S0)),
    "TR-5c": (mesa_by_cg, {"beta": BETA, "forget": ONE, "lam": LAM, "n_iter": 2}, (H0, S0)),
    "TR-8": (titans_memory, {"step": BETA / 2, "momentum": ONE, "decay": 1 - ONE}, (S0, -S0)),
    "TR-9": (parallax, {"probe": A, "scale": 0.5}, (K[:, :2], V[:, :2])),
}
OF_TOKENS = {"beta", "delta", "forget", "metric", "step", "momentum", "decay", "probe"}


def close(found, expected, tolerance=1e-12):
    assert_allclose(found, expected, rtol=0, atol=tolerance)


@pytest.mark.parametrize("name", RUNS)
def test_two_halves_are_the_whole_and_the_last_state_is_what_the_next_token_needs(name):
    function, gates, state = RUNS[name]

    def run(part, state):
        cut = {x: y[:, part] if x in OF_TOKENS else y for x, y in gates.items()}
        return function(Q[:, part], K[:, part], V[:, part], **cut, state=state)

    whole, last = run(slice(None), state)
    first, middle = run(slice(4), state)
    second, end = run(slice(4, None), middle)
    close(np.concatenate([first, second], axis=1), whole)
    for found, expected in zip(end, last, strict=True):
        close(found, expected)


@pytest.mark.parametrize("name", RUNS)
def test_an_element_of_the_batch_is_as_it_would_be_alone(name):
    function, gates, state = RUNS[name]
    alone = {x: y[1] if np.ndim(y) else y for x, y in gates.items()}
    states = [x[1] if x.ndim == 3 else x for x in (state if isinstance(state, tuple) else [state])]
    own = tuple(states) if isinstance(state, tuple) else states[0]
    out, _ = function(Q[1], K[1], V[1], **alone, state=own)
    close(out, function(Q, K, V, **gates, state=state)[0][1])


def test_linear_attention_is_the_sum_over_tokens_tr_1():
    out, _ = recurrent_linear_attention(Q, K, V, forget=ONE[..., None])
    for t in range(N):
        w = np.array([ONE[:, i + 1 : t + 1].prod(axis=1) for i in range(t + 1)]).T
        scores = (K[:, : t + 1] @ Q[:, t, :, None])[..., 0] * w
        close(out[:, t], (scores[:, None] @ V[:, : t + 1])[:, 0])


def test_a_step_of_the_delta_rule_shrinks_its_error_by_its_factor_tr_2():
    k, v, beta = K[:, :1], V[:, :1], BETA[:, :1]
    _, S = delta_rule(k, k, v, beta=beta, forget=A[:, :1], state=S0)
    before = v - k @ (A[:, 0, :, None] * S0)
    close(v - k @ S, (1 - beta * NORMS[:, :1])[..., None] * before)


def test_the_distance_to_a_solution_falls_by_exactly_what_the_sheet_says_tr_2():
    target = rng.standard_normal((2, D, E))
    k, beta = K[:, :1], BETA[:, :1]
    _, S = delta_rule(k, k, k @ target, beta=beta, state=S0)
    e, rate = k @ (target - S0), (beta * (2 - beta * NORMS[:, :1]))[..., None]
    fall = ((S0 - target) ** 2).sum(axis=(1, 2)) - ((S - target) ** 2).sum(axis=(1, 2))
    close(fall, (rate * e**2).sum(axis=(1, 2)))


def test_the_proximal_point_is_a_delta_rule_with_a_shorter_step_tr_2p():
    beta = 0.7 / NORMS
    found = proximal_point_rule(Q, K, V, delta=beta / (1 - beta * NORMS), forget=A, state=S0)
    for x, y in zip(found, delta_rule(Q, K, V, beta=beta, forget=A, state=S0), strict=True):
        close(x, y)


@pytest.mark.parametrize("size", range(1, N + 1))
def test_every_chunk_length_gives_the_loop_tr_4(size):
    S, out = S0, []
    for start in range(0, N, size):
        q, k, v, a, beta = (x[:, start : start + size] for x in (Q, K, V, A, BETA))
        g = np.cumprod(a, axis=1)
        M_ = np.tril((k * g) @ (k / g).swapaxes(1, 2), -1)
        P = np.tril((q * g) @ (k / g).swapaxes(1, 2))
        step = beta[:, :, None] * np.eye(q.shape[1])
        T = np.linalg.solve(np.eye(q.shape[1]) + step @ M_, step)
        U = T @ (v - (k * g) @ S)
        out.append((q * g) @ S + P @ U)
        S = g[:, -1, :, None] * S + (k * g[:, -1:] / g).swapaxes(1, 2) @ U
    expected, last = delta_rule(Q, K, V, beta=BETA, forget=A, state=S0)
    close(np.concatenate(out, axis=1), expected, 1e-10)
    close(S, last, 1e-10)


def test_mesa_is_recursive_least_squares_without_forgetting_alone_tr_5r():
    P, gains = np.linalg.inv(LAM[:, None] * np.eye(D)), np.empty((2, N, D))
    S = np.zeros((2, D, E))
    for t in range(N):
        k, beta = K[:, t, :, None], BETA[:, t, None, None]
        gain = beta * P @ k / (1 + beta * k.swapaxes(1, 2) @ P @ k)
        S = S + gain @ (V[:, t, None] - k.swapaxes(1, 2) @ S)
        P, gains[:, t] = P - gain @ k.swapaxes(1, 2) @ P, gain[..., 0]
        close(mesa(Q[:, : t + 1], K[:, : t + 1], V[:, : t + 1], beta=BETA[:, : t + 1], lam=LAM)[0]
              [:, t], (Q[:, t, None] @ S)[:, 0], 1e-9)  # fmt: skip
    forgetting = mesa(Q, K, V, beta=BETA, lam=LAM, forget=0.9)[0]
    assert np.abs(forgetting[:, -1] - (Q[:, -1, None] @ S)[:, 0]).max() > 1e-3


def test_conjugate_gradients_are_exact_after_more_steps_than_tokens_tr_5c():
    few, exact = (
        f(Q, K, V, beta=BETA, lam=0.7, forget=ONE, **more)[0]
        for f, more in ((mesa_by_cg, {"n_iter": 3}), (mesa, {}))
    )
    close(few[:, :2], exact[:, :2], 1e-9)
    assert np.abs(few[:, 2:] - exact[:, 2:]).max() > 1e-5
    close(
        mesa_by_cg(Q, K, V, beta=BETA, lam=LAM, n_iter=8)[0],
        mesa(Q, K, V, beta=BETA, lam=LAM)[0],
        1e-9,
    )


def test_one_step_of_conjugate_gradients_is_scaled_linear_attention_tr_5c():
    found, (H, G) = mesa_by_cg(Q, K, V, beta=BETA, lam=LAM, n_iter=1)
    q = Q[:, -1, None]
    curvature = q @ (H + LAM[:, None] * np.eye(D)) @ q.swapaxes(1, 2)
    close(found[:, -1:], (q * q).sum(axis=-1, keepdims=True) / curvature * (q @ G))


def test_a_query_of_zero_divides_nothing_by_zero_tr_5c():
    found, _ = mesa_by_cg(0 * Q, K, V, beta=BETA, lam=LAM, n_iter=3)
    assert (found == 0).all()


def test_a_constant_metric_is_a_longer_step_tr_6():
    found, _ = delta_rule(Q, K, V, beta=BETA, metric=0.5, forget=A)
    close(found, delta_rule(Q, K, V, beta=BETA / 2, forget=A)[0])


def test_titans_without_momentum_and_decay_is_the_delta_rule_tr_8():
    found, (M_, _) = titans_memory(Q, K, V, step=BETA / 2, momentum=0, decay=0, state=(S0, 0))
    expected, S = delta_rule(Q, K, V, beta=BETA, state=S0)
    close(found, expected)
    close(M_, S)


def test_titans_on_one_pair_again_and_again_tends_to_ridge_tr_8():
    k, v = (np.repeat(x[0, :1], 4000, axis=0) for x in (K, V))
    _, (M_, _) = titans_memory(k, k, v, step=0.1, momentum=0.5, decay=0.2)
    lam = 0.2 * (1 - 0.5) / (2 * 0.1)
    expected = np.linalg.solve(np.outer(k[0], k[0]) + lam * np.eye(D), np.outer(k[0], v[0]))
    close(M_, expected, 1e-9)


def test_parallax_without_a_probe_is_attention_tr_9():
    logits = np.where(np.tri(N, dtype=bool), 0.5 * Q @ K.swapaxes(1, 2), -np.inf)
    p = np.exp(logits)
    close(parallax(Q, K, V, probe=0, scale=0.5)[0], p / p.sum(axis=-1, keepdims=True) @ V)


def test_parallax_with_the_exact_probe_is_local_linear_regression_tr_9():
    k = K / np.linalg.norm(K, axis=-1, keepdims=True)
    for reg in (0.0, 0.1):
        probe = local_linear_probe(Q, k, scale=2.0, reg=reg)
        out, _ = parallax(Q, k, V, probe=probe, scale=2.0)
        for t in range(N):
            expected = local_linear_regression(
                Q[0, t : t + 1], k[0, : t + 1], V[0, : t + 1], bandwidth=0.5**0.5, reg=reg
            )
            close(out[0, t : t + 1], expected, 1e-8)


@pytest.mark.parametrize("name", RUNS)
def test_what_is_wrong_is_refused_by_name(name):
    function, gates, state = RUNS[name]
    for argument, good in ({"q": Q, "k": K, "v": V} | gates).items():
        broken = [np.full_like(good, np.nan), 1j * np.ones_like(good)] if np.ndim(good) else [0]
        if np.ndim(good) and argument != "q":  # the shape of q is that of k
            broken += [good[:, :, None, None, None], np.full(good.shape, "x")]
        if argument in ("forget", "lam", "delta"):
            broken.append(good - 3)
        for bad in broken:
            given = {"q": Q, "k": K, "v": V} | gates | {argument: bad}
            with pytest.raises(ValueError, match=f"^{argument}: "):
                function(**given, state=state)
    for tokens in ((0, D), (N, 0)):
        with pytest.raises(ValueError, match=r"^q: must have at least one token and one feature, "):
            function(np.ones(tokens), np.ones(tokens), V[0], **gates)
    wrong = np.ones((7, 5, 5))
    with pytest.raises(ValueError, match=r"^state: must broadcast"):
        function(Q, K, V, **gates, state=(wrong, wrong) if isinstance(state, tuple) else wrong)


def test_sequences_of_other_names_are_refused_by_these():
    for shape in ((0, D), (N, 0), (N,)):
        with pytest.raises(ValueError, match=r"^k: must have"):
            kaczmarz_passes(np.ones(shape), V[0, :4], n_passes=1)
    for shape in ((0, D), (N, 0), (N,), (2, N, D), (N, D + 1)):
        with pytest.raises(ValueError, match=r"^x: must have"):
            mesa_error_bound(K[0], np.ones(shape), np.eye(D), np.ones((D, E)), 1.0)
