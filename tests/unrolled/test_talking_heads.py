"""Talking heads: their definition, masks, cost, and what refuses them."""

import numpy as np
import pytest
import torch
from scipy.special import softmax
from torch.testing import assert_close
from torch.utils.flop_counter import FlopCounterMode

from twinsolve.unrolled import (
    Attention,
    AttnScale,
    ClassAttentionTransformer,
    ReAttention,
    Sinkhorn,
    Softmax,
    Solved,
    Twicing,
)
from twinsolve.unrolled.kernel_smoothing import TalkingHeads

from .draws import moved, tokens
from .recording import saved_sizes

H, N, D = 3, 7, 4


def talking(scale=0.7):
    return moved(TalkingHeads(H, dtype=torch.float64), scale)


def defined(layer, q, k, v, hidden=None, bias=None):
    """Loops over heads and pairs, of arrays (heads, tokens, width)."""
    P, W = (weights.detach().numpy() for weights in (layer.mix_logits, layer.mix_weights))
    hidden = np.zeros((H, len(q[0]), len(k[0])), bool) if hidden is None else hidden
    maps, out = np.zeros(hidden.shape), np.zeros((H, len(q[0]), v.shape[-1]))
    for g in range(H):
        for i in range(len(q[0])):
            near = [j for j in range(len(k[0])) if not hidden[g, i, j]]
            logits = [
                sum(
                    P[f, g] * (q[f, i] @ k[f, j]) / np.sqrt(q.shape[-1])
                    for f in range(H) if not hidden[f, i, j]
                )
                + (0 if bias is None else bias[g, i, j])
                for j in near
            ]  # fmt: skip
            if near:
                maps[g, i, near] = softmax(logits)
    for h in range(H):
        mixed = sum(W[g, h] * maps[g] for g in range(H))
        out[h] = np.where(hidden[h], 0, mixed) @ v[h]
    return out


def test_is_its_definition_in_numpy():
    layer, (q, k, v) = talking(), (tokens(H, n, D, seed=s) for s, n in ((0, 5), (1, N), (2, N)))
    expected = defined(layer, *(x.numpy() for x in (q, k, v)))
    assert_close(layer(q, k, v).detach().numpy(), expected)
    assert_close(layer.matrix(q, k).detach() @ v, torch.from_numpy(expected))


@pytest.mark.parametrize("n_heads", [1, H], ids=["shared", "of each head"])
@pytest.mark.parametrize("is_causal", [False, True])
def test_hidden_pairs_speak_in_no_head(n_heads, is_causal):
    layer, q = talking(), tokens(H, N, D)
    hidden = (tokens(n_heads, N, N, seed=1) > 0.3).numpy()
    hidden[..., 2, :] = True  # a query without keys
    bias = tokens(n_heads, N, N, seed=2).numpy()
    mask = torch.from_numpy(np.where(hidden, -np.inf, bias))
    everything = hidden | np.triu(np.ones((N, N), bool), 1) if is_causal else hidden
    everything, bias = (np.tile(x, (H // n_heads, 1, 1)) for x in (everything, bias))
    expected = defined(layer, *(q.numpy(),) * 3, everything, bias)
    found = layer(q, q, q, mask=mask, is_causal=is_causal)
    assert_close(found.detach().numpy(), expected)
    assert not found[:, 2].any()
    matrix = layer.matrix(q, q, mask=mask, is_causal=is_causal)
    assert not matrix[torch.from_numpy(everything)].any()


def test_starts_as_softmax_attention_and_returns_to_it():
    q, k, v = (tokens(2, H, N, D, seed=seed) for seed in range(3))
    layer = talking()
    assert (layer(q, k, v) - Softmax()(q, k, v)).abs().max() > 0.1
    layer.reset_parameters()
    assert_close(layer(q, k, v), Softmax()(q, k, v))


def test_gradients_are_those_of_finite_differences():
    layer, mask = talking(), tokens(1, 4, 5, seed=4) < 0.8

    def attend(q, k, v, P, W):
        parameters = {"mix_logits": P, "mix_weights": W}
        return torch.func.functional_call(layer, parameters, (q, k, v), {"mask": mask})

    inputs = [tokens(2, H, n, 3, seed=n).requires_grad_() for n in (4, 5, 5)]
    mixes = [p.detach().clone().requires_grad_() for p in layer.parameters()]
    assert torch.autograd.gradcheck(attend, (*inputs, *mixes))
    assert torch.autograd.gradgradcheck(attend, (*inputs, *mixes), fast_mode=True)


def test_two_mixes_of_maps_are_counted():
    q = torch.rand(1, H, N, D)
    with FlopCounterMode(display=False) as counter:
        TalkingHeads(H)(q, q, q)
    assert counter.get_total_flops() == 2 * (2 * H * N * N * D + 2 * H * H * N * N)


def test_takes_blocks_of_queries():
    x = torch.randn(1, H, 2048, 4, requires_grad=True)
    assert max(saved_sizes(lambda: TalkingHeads(H)(x, x, x))) <= x.numel()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_narrow_tokens_are_mixed_in_float32_at_least(dtype):
    q, k, v = (tokens(H, N, D, seed=seed).to(dtype) for seed in range(3))
    layer = talking()
    expected = layer(*(x.double() for x in (q, k, v)))
    found = layer.to(dtype)(q, k, v)
    assert found.dtype == dtype
    assert_close(found.double(), expected, atol=16 * torch.finfo(dtype).eps, rtol=0)


def test_a_shell_and_a_cait_take_them():
    x = torch.randn(2, N, 12)
    plain, shell = (Attention(12, H, operator=o) for o in (Softmax(), TalkingHeads(H)))
    shell.load_state_dict(plain.state_dict(), strict=False)
    assert_close(shell(x, x, x)[0], plain(x, x, x)[0])
    with torch.random.fork_rng():
        torch.manual_seed(0)
        cait = ClassAttentionTransformer(8, 2, 1, 5, 12, 2, H, operator="talking_heads")
    assert {type(b.attention.operator) for b in cait.blocks} == {TalkingHeads}
    assert {type(b.attention.operator) for b in cait.class_blocks} == {Softmax}


@pytest.mark.parametrize("name", ["AttnScale", "Twicing"])
def test_a_correction_that_needs_row_sums_of_one_says_what_is_left(name):
    wrap = {"AttnScale": AttnScale, "Twicing": Twicing}[name]
    with pytest.warns(UserWarning, match=f"{name}: TalkingHeads is not row stochastic"):
        layer = wrap(talking())
    q = tokens(H, N, D)
    assert_close(layer(q, q, q), layer.matrix(q, q) @ q)


@pytest.mark.parametrize(
    ("wrap", "message"),
    [
        (Sinkhorn, "base: must have a nonnegative matrix"),
        (lambda base: ReAttention(base, H), r"base: must be Softmax\(\) or Gaussian\(\)"),
        (Solved, "base: must be iterative"),
    ],
)
def test_what_cannot_take_them_says_so(wrap, message):
    with pytest.raises(ValueError, match=message):
        wrap(TalkingHeads(H))


@pytest.mark.parametrize(("n_heads", "q"), [(2, tokens(H, N, D)), (1, tokens(N, D))])
def test_other_heads_than_its_own_are_refused(n_heads, q):
    for call in (lambda layer: layer(q, q, q), lambda layer: layer.matrix(q, q)):
        with pytest.raises(ValueError, match=f"num_heads: TalkingHeads has {n_heads}, but q has"):
            call(TalkingHeads(n_heads, dtype=torch.float64))
    with pytest.raises(ValueError, match="num_heads: must be"):
        TalkingHeads(0)
