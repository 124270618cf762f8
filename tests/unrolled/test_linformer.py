"""Linformer: its definition, masks, lengths, cost and what it refuses."""

import numpy as np
import pytest
import torch
from scipy.special import softmax
from torch.testing import assert_close

from twinsolve.unrolled import LanguageModel, Linformer, Softmax, VisionTransformer

from .draws import moved, tokens
from .recording import FUSED, dispatched_attention

N, D = 7, 4


def drawn(max_length=N + 2, n_projected=3):
    return moved(Linformer(max_length, n_projected, dtype=torch.float64))


def qkv(*shape):
    return tuple(tokens(*shape, seed=seed) for seed in range(3))


def defined(layer, q, k, v, seen):
    """Sums over visible tokens, of arrays of one head."""
    E, F = (w.detach().numpy() for w in (layer.project_keys, layer.project_values))
    keys, values = (
        np.stack([sum((w[p, j] * x[j] for j in seen), 0 * x[0]) for p in range(len(w))])
        for w, x in ((E, k), (F, v))
    )
    return softmax(q @ keys.T / np.sqrt(q.shape[1]), axis=1) @ values


@pytest.mark.parametrize("hidden", [[], [6], [0, 3], list(range(N))])
@pytest.mark.parametrize("n_queries", [1, N, N + 3])
def test_is_its_definition_in_numpy(hidden, n_queries):
    layer, (_, k, v), q = drawn(), qkv(2, N, D), tokens(2, n_queries, D, seed=9)
    seen = [j for j in range(N) if j not in hidden]
    mask = torch.tensor([[j in seen for j in range(N)]])
    held = [x.masked_fill(~mask.mT, value) for x, value in ((k, torch.nan), (v, torch.inf))]
    found, matrix = layer(q, *held, mask=mask), layer.matrix(q, held[0], mask=mask)
    assert_close(found, matrix @ v)
    assert not matrix[..., ~mask[0]].any()
    for head in range(2):
        expected = defined(layer, *(x[head].numpy() for x in (q, k, v)), seen)
        assert_close(found[head].detach().numpy(), expected)


def test_starts_as_softmax_attention_to_means_of_segments():
    q, k, v = qkv(2, N, D)
    means = torch.zeros(3, N, dtype=torch.float64)
    for row, segment in enumerate(([0, 1, 2], [3, 4], [5, 6])):
        means[row, segment] = 1 / len(segment)
    layer = Linformer(N, 3, dtype=torch.float64)
    assert_close(layer(q, k, v), Softmax()(q, means @ k, means @ v))
    moved(layer).reset_parameters()
    assert_close(layer(q, k, v), Softmax()(q, means @ k, means @ v))
    assert_close(Linformer(N, N, dtype=torch.float64)(q, k, v), Softmax()(q, k, v))


def test_shorter_sequences_use_the_first_columns():
    layer, (q, k, v) = drawn(), qkv(2, N, D)
    seen = torch.arange(N)[None] < 5
    short = (x[:, :5] for x in (q, k, v))
    assert_close(layer(q, k, v, mask=seen)[:, :5], layer(*short))


def test_gradients_are_those_of_finite_differences():
    layer, mask = drawn(), torch.arange(N)[None] != 2

    def attend(q, k, v, E, F):
        parameters = {"project_keys": E, "project_values": F}
        return torch.func.functional_call(layer, parameters, (q, k, v), {"mask": mask})

    inputs = [x.requires_grad_() for x in qkv(2, N, 3)]
    projections = [p.detach().clone().requires_grad_() for p in layer.parameters()]
    assert torch.autograd.gradcheck(attend, (*inputs, *projections))


def test_reaches_the_fused_kernel_and_keeps_the_dtype():
    q = torch.randn(1, 2, 64, 8)
    layer = Linformer(64, 16)
    assert dispatched_attention(lambda: layer(q, q, q)) == {FUSED}
    narrow = q.bfloat16()
    found = layer.bfloat16()(narrow, narrow, narrow)
    assert found.dtype == torch.bfloat16
    expected = layer.double()(*(narrow.double(),) * 3)
    assert_close(found.double(), expected, atol=2e-2, rtol=0)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda q: Linformer(N - 1, 3)(q, q, q), "max_length: Linformer has 6, but there are 7"),
        (lambda q: Linformer(N, 3)(q, q, q, is_causal=True), "does not support is_causal=True"),
        (lambda q: Linformer(N, 3)(q, q, q, mask=torch.ones(N, N).tril().bool()), "whole keys"),
        (lambda q: Linformer(N, N + 1), r"n_projected: must be a whole number in \[1, 7\]"),
        (lambda q: Linformer(0, 1), "max_length: must be a whole number >= 1"),
        (lambda q: LanguageModel(7, 12, 1, 3, 9, operator=Linformer(9, 3)), "causal masks"),
    ],
)
def test_what_it_cannot_serve_is_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call(tokens(2, N, D, dtype=torch.float32))


def test_a_vision_transformer_takes_it():
    model = VisionTransformer(8, 2, 1, 5, 12, 2, 3, operator=Linformer(17, 4))
    model(torch.rand(2, 1, 8, 8)).sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())
