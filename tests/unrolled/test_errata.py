"""Slips in public code beside layers of ours, and what half precision does to a ridge problem."""

import numpy as np
import pytest
import torch
from torch.testing import assert_close

from twinsolve.solvers.associative_memory import retrieval_step, retrieve
from twinsolve.solvers.online_regression import titans_memory
from twinsolve.unrolled import Hopfield
from twinsolve.unrolled.online_regression import chunked_mesa

from .draws import tokens, uniform

EPS = np.finfo(float).eps


@pytest.mark.parametrize("update_steps_max", [0, 1, 3])
def test_erratum_e10_i_so_many_updates_are_one_softmax_more(update_steps_max):
    """Weights once, then new ones after each update of the state, and the values at last."""
    q, k, v = (tokens(2, 6, 4, seed=seed) for seed in range(3))
    weights = torch.softmax(0.7 * q @ k.mT, dim=-1)
    for _ in range(update_steps_max):
        weights = torch.softmax(0.7 * weights @ k @ k.mT, dim=-1)
    close = {"atol": 3 * 6 * 4 * EPS, "rtol": 0}
    assert_close(weights @ v, Hopfield(update_steps_max + 1, 0.7)(q, k, v), **close)
    if update_steps_max > 0:
        assert (weights @ v - Hopfield(update_steps_max, 0.7)(q, k, v)).abs().max() > 1e-3


def stopped_together(states, patterns, tol):
    """Steps of all states until the change of all of them together is small."""
    while True:
        after, _ = retrieval_step(states, patterns, beta=0.4)
        moved, states = np.linalg.norm(after - states), after
        if moved <= tol:
            return states


def test_erratum_e10_i_samples_that_stop_together_depend_on_each_other():
    rng = np.random.default_rng(0)
    patterns, states = rng.standard_normal((6, 4)), rng.standard_normal((5, 4))
    states[0] = retrieve(states[:1], patterns, beta=0.4, tol=0.01).states[0]
    alone = stopped_together(states[:1], patterns, 0.01)
    assert np.abs(stopped_together(states, patterns, 0.01)[:1] - alone).max() > 1e-4
    # Ours to its tolerance: sums of rows differ by rounding alone, which steps do not enlarge here.
    together, single = (retrieve(x, patterns, beta=0.4, tol=0.01).states for x in
                        (states, states[:1]))  # fmt: skip
    assert np.abs(together[:1] - single).max() < 3 * 6 * 4 * EPS


def test_erratum_e10_d_the_gradient_through_a_layer_norm():
    d, eps = 5, 1e-6
    u, w, b, target = (tokens(d, seed=seed) for seed in range(4))
    u.requires_grad_()
    loss = (torch.nn.functional.layer_norm(u, (d,), w, b, eps) - target).square().sum() / 2
    expected = torch.autograd.grad(loss, u)[0]
    x = u.detach()
    sd = (x.var(unbiased=False) + eps).sqrt()
    z = (x - x.mean()) / sd
    g = w * (w * z + b - target)
    right = (d * g - g.sum() - z * (g * z).sum()) / (d * sd)
    assert_close(right, expected, atol=3 * d * d * EPS * float(g.abs().max() / sd), rtol=0)
    printed = d * g - g.sum() / (d * sd) - z * (g * z).sum() / (d * sd)
    assert (printed - expected).abs().max() > expected.abs().max()


def frozen_titans(q, k, v, step, momentum, decay, chunk):
    """Heavy ball with decay, whose gradients are taken at the first state of a chunk."""
    M = Z = first = np.zeros((k.shape[1], v.shape[1]))
    out = []
    for t in range(len(k)):
        first = M if t % chunk == 0 else first
        Z = momentum * Z - 2 * step * np.outer(k[t], k[t] @ first - v[t])
        M = (1 - decay) * M + Z
        out.append(q[t] @ M)
    return np.array(out)


def test_erratum_e10_d_gradients_at_the_first_state_of_a_chunk_are_another_memory():
    q, k, v = (tokens(12, 4, seed=seed).numpy() for seed in range(3))
    k /= np.linalg.norm(k, axis=1, keepdims=True)
    given = {"step": 0.3, "momentum": 0.5, "decay": 0.1}
    expected, _ = titans_memory(q, k, v, **given)
    assert np.abs(frozen_titans(q, k, v, **given, chunk=1) - expected).max() < 1e-12
    assert np.abs(frozen_titans(q, k, v, **given, chunk=4) - expected).max() > 0.1


ROUNDING = {torch.float16: 2.0**-11, torch.bfloat16: 2.0**-8}
AT = {torch.float16: 4096, torch.bfloat16: 512}


@pytest.mark.parametrize("dtype", ROUNDING)
def test_a_rounded_gram_matrix_is_definite_while_its_size_is_small_tr_5h(dtype):
    """Of aligned unit keys, whose Gram matrix has the norm of their number."""
    u, lam, n_indefinite = ROUNDING[dtype], 0.25, 0
    for seed in range(5):
        k = uniform(16, seed=seed)
        k = k / k.norm()
        for n in (int(0.9 * lam / u), AT[dtype]):
            H = n * torch.outer(k, k)
            rounded = H.to(dtype).double()
            assert torch.linalg.matrix_norm(rounded - H, 2) <= u * H.norm()
            least = torch.linalg.eigvalsh(rounded)[0] + lam
            if u * H.norm() < lam:
                assert least > 0
            else:
                n_indefinite += int(least < 0)
    assert n_indefinite == 5


@pytest.mark.parametrize("dtype", ROUNDING)
@pytest.mark.parametrize("n_iter", [None, 5])
def test_our_layers_keep_float32_and_stay_definite_tr_5h(dtype, n_iter):
    k = uniform(16)
    k = (k / k.norm()).to(dtype).expand(AT[dtype], 16)
    v, one = torch.ones(AT[dtype], 1, dtype=dtype), torch.ones(AT[dtype], dtype=dtype)
    out, (H, G) = chunked_mesa(k, k, v, beta=one, lam=torch.tensor(0.25), n_iter=n_iter)
    assert H.dtype == G.dtype == torch.float32
    assert torch.linalg.eigvalsh(H.double())[0] + 0.25 > 0.24
    n, square = AT[dtype], k[0].double().square().sum()
    # Of the last token: 1 up to the penalty, and to one rounding of the output.
    expected = float(n * square / (n * square + 0.25))
    assert abs(float(out[-1]) - expected) < 3 * ROUNDING[dtype]
