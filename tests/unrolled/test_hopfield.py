"""Hopfield attention: retrieval in NumPy, masks, large keys, cost and what it refuses."""

import numpy as np
import pytest
import torch
from torch.testing import assert_close

from twinsolve.solvers.associative_memory import retrieval_step
from twinsolve.unrolled import Hopfield, LanguageModel, Softmax

from .draws import tokens
from .recording import FUSED, dispatched_attention, saved_sizes

N, D = 9, 4


def qkv(*shape):
    return tuple(tokens(*shape, seed=seed) for seed in range(3))


@pytest.mark.parametrize("n_iter", [1, 2, 5])
@pytest.mark.parametrize("beta", [None, 0.3, 2.0])
def test_its_steps_are_those_of_the_memory(n_iter, beta):
    q, k, _ = qkv(2, N, D)
    found = Hopfield(n_iter, beta)(q, k, k)
    for head in range(2):
        states = q[head].numpy()
        for _ in range(n_iter):
            scale = D**-0.5 if beta is None else beta
            states, _ = retrieval_step(states, k[head].numpy(), beta=scale)
        # Each step rounds sums of N keys.
        atol = 3 * n_iter * N * D * np.finfo(float).eps
        assert_close(found[head].numpy(), states, atol=atol, rtol=0)


def test_one_step_is_softmax_attention_and_the_last_step_reads_the_values():
    q, k, v = qkv(2, 3, N, D)
    assert_close(Hopfield(1)(q, k, v), Softmax()(q, k, v), atol=0, rtol=0)
    assert_close(Hopfield(1, 0.7)(q, k, v), Softmax(0.7)(q, k, v), atol=0, rtol=0)
    states = Softmax(0.7)(q, k, k)
    assert_close(Hopfield(2, 0.7)(q, k, v), Softmax(0.7)(states, k, v), atol=0, rtol=0)
    assert_close(Hopfield(2, 0.7).matrix(q, k), Softmax(0.7).matrix(states, k))


def test_many_steps_retrieve_the_value_of_the_nearest_separated_key():
    k, v = 3 * torch.eye(D, dtype=torch.float64), tokens(D, 2)
    q = k.flip(0) + 0.2 * tokens(D, D, seed=1)
    # D - 1 other keys have the weights exp(-9 beta) after the last step.
    assert_close(Hopfield(4, 3.0)(q, k, v), v.flip(0), atol=3 * D * np.exp(-27) * 3, rtol=0)


@pytest.mark.parametrize("n_queries", [1, N])
def test_hidden_keys_are_as_if_absent_in_every_step(n_queries):
    layer, (_, k, v), q = Hopfield(3, 0.8), qkv(2, N, D), tokens(2, n_queries, D, seed=9)
    seen = torch.arange(N) % 3 != 1
    held = [x.masked_fill(~seen[:, None], value) for x, value in ((k, torch.nan), (v, torch.inf))]
    expected = layer(q, k[:, seen], v[:, seen])
    assert_close(layer(q, *held, mask=seen[None]), expected)
    whole = layer(q, k, v, is_causal=True)
    for i in range(n_queries):
        last = N - n_queries + i + 1
        alone = layer(q[:, i : i + 1], k[:, :last], v[:, :last])
        assert_close(whole[:, i : i + 1], alone)
    assert not layer(q, k, v, mask=torch.zeros(1, N, dtype=torch.bool)).any()


def test_a_bias_counts_in_every_step():
    q, k, v = qkv(2, N, D)
    bias = tokens(N, N, seed=5)
    states = Softmax(0.8)(q, k, k, mask=bias)
    expected = Softmax(0.8)(states, k, v, mask=bias)
    assert_close(Hopfield(2, 0.8)(q, k, v, mask=bias), expected, atol=0, rtol=0)


@pytest.mark.parametrize("masks", [{}, {"is_causal": True}])
def test_gradients_are_those_of_finite_differences(masks):
    inputs = [x.requires_grad_() for x in qkv(1, 6, 3)]
    assert torch.autograd.gradcheck(lambda *x: Hopfield(3, 0.8)(*x, **masks), inputs)


@pytest.mark.parametrize("n_iter", [2, 4])
def test_large_keys_have_finite_gradients_by_weights_that_are_kept(n_iter):
    """Logits of 1e13: the fused kernel's would overflow, and its forward pass agrees."""
    q, k, v = (x.float() for x in qkv(2, N, D))
    layer, large = Hopfield(n_iter), (1e6 * k).requires_grad_()
    assert dispatched_attention(lambda: layer(q, k, v)) == {FUSED}
    assert dispatched_attention(lambda: layer(q, large, v)) == set()
    out = layer(q, large, v)
    out.square().sum().backward()
    assert large.grad.isfinite().all()
    exact = Hopfield(n_iter)(q.double(), large.detach().double(), v.double())
    assert_close(out, exact.float())


def test_memory_is_linear_in_the_number_of_tokens():
    sizes = []
    for n in (512, 2048):
        q = torch.randn(1, n, 4, requires_grad=True)
        sizes.append(sum(saved_sizes(lambda q=q: Hopfield(3)(q, q, q))))
    assert sizes[1] < 4.2 * sizes[0]


@pytest.mark.parametrize(
    ("given", "message"),
    [((0,), "n_iter: must be"), ((1.5,), "n_iter: must be"), ((2, 0.0), "beta: must be")],
)
def test_numbers_out_of_range_are_refused(given, message):
    with pytest.raises(ValueError, match=message):
        Hopfield(*given)


def test_a_language_model_takes_it_by_name():
    model = LanguageModel(7, 12, 1, 3, 9, operator="hopfield")
    model(torch.arange(6)[None] % 7).sum().backward()
    assert all(p.grad is None or p.grad.isfinite().all() for p in model.parameters())
