"""Subspace self-attention: its formula, masks, decoding, and what it does to the coding rate."""

import numpy as np
import pytest
import torch
from scipy.special import softmax
from torch.testing import assert_close

from twinsolve.solvers.coding_rate import coding_rate_step, subspace_rate
from twinsolve.unrolled import Attention, LanguageModel, Ridge, Softmax, VisionTransformer
from twinsolve.unrolled.coding_rate import SubspaceSelfAttention

from .draws import tokens
from .recording import FUSED, dispatched_attention

HEADS, N, P = 3, 9, 2
EPS = np.finfo(float).eps
CLOSE = {"atol": 3 * N * P * EPS * 10, "rtol": 0}  # logits of up to 10, sums of N tokens


def test_is_the_softmax_of_products_of_values():
    v = tokens(HEADS, N, P)
    q = torch.full_like(v, torch.nan)
    for scale in (None, 0.3):
        found = SubspaceSelfAttention(scale)(q, q, v)
        for w, out in zip(v.numpy(), found.numpy(), strict=True):
            weights = softmax((P**-0.5 if scale is None else scale) * w @ w.T, axis=1)
            assert_close(out, weights @ w, **CLOSE)


def test_the_default_scale_is_that_of_the_values_width():
    v = tokens(HEADS, N, 3)
    q = tokens(HEADS, N, 7)
    assert_close(SubspaceSelfAttention()(q, q, v), Softmax(3**-0.5)(v, v, v), atol=0, rtol=0)


def test_causal_rows_are_the_last_rows_of_their_prefixes_and_decoding_gives_them():
    layer, v = SubspaceSelfAttention(0.6), tokens(HEADS, N, P)
    found = layer(v, v, v, is_causal=True)
    for t in range(1, N + 1):
        prefix = v[:, :t]
        expected = Softmax(0.6)(prefix[:, -1:], prefix, prefix)
        assert_close(found[:, t - 1 : t], expected, **CLOSE)
        for masks in ({}, {"is_causal": True}):
            assert_close(layer(prefix[:, -1:], prefix, prefix, **masks), expected, **CLOSE)
    fewer = layer(v[:, -4:], v, v, is_causal=True)
    assert_close(fewer, found[:, -4:], **CLOSE)


@pytest.mark.parametrize("is_causal", [False, True])
def test_hidden_tokens_are_as_if_absent_and_have_no_gradient(is_causal):
    layer, v = SubspaceSelfAttention(), tokens(HEADS, N, P)
    seen = torch.arange(N) % 3 != 1
    held = v.masked_fill(~seen[:, None], torch.nan).requires_grad_()
    out = layer(v, v, held, mask=seen[None], is_causal=is_causal)[:, seen]
    alone = v[:, seen].clone().requires_grad_()
    expected = layer(alone, alone, alone, is_causal=is_causal)
    assert_close(out, expected, **CLOSE)
    gradients = [torch.autograd.grad(x.square().sum(), y)[0] for x, y in
                 ((out, held), (expected, alone))]  # fmt: skip
    assert_close(gradients[0][:, seen], gradients[1], atol=10 * CLOSE["atol"], rtol=0)
    assert not gradients[0][:, ~seen].any()


@pytest.mark.parametrize("masks", [{}, {"is_causal": True}, {"mask": torch.arange(5)[None] != 1}])
def test_gradients_are_those_of_finite_differences(masks):
    v = tokens(HEADS, 5, P).requires_grad_()
    assert torch.autograd.gradcheck(lambda v: SubspaceSelfAttention(0.8)(v, v, v, **masks), v)


@pytest.mark.parametrize("n", [0, 1])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_no_token_and_one(n, dtype):
    v = tokens(HEADS, n, P).to(dtype)
    assert_close(SubspaceSelfAttention()(v, v, v), v)


def test_it_reaches_the_fused_kernel():
    v = tokens(1, HEADS, N, P).float()
    for masks in ({}, {"is_causal": True}):
        found = dispatched_attention(lambda m=masks: SubspaceSelfAttention()(v, v, v, **m))
        assert found == {FUSED}


def test_more_queries_than_tokens_and_scales_out_of_range_are_refused():
    v = tokens(HEADS, N, P)
    with pytest.raises(ValueError, match="at most as many queries as keys"):
        SubspaceSelfAttention()(v, v[:, 1:], v[:, 1:])
    with pytest.raises(ValueError, match="scale: must be"):
        SubspaceSelfAttention(0.0)


def test_models_take_it_by_name_and_a_shell_projects_values_alone():
    shell = Attention(6, HEADS, operator=SubspaceSelfAttention())
    assert shell.in_proj_weight.shape == (6, 6)
    image = VisionTransformer(12, 2, 1, 5, 12, 2, 3, operator="subspace_self_attention")
    image(torch.rand(2, 1, 12, 12)).sum().backward()
    text = LanguageModel(7, 12, 1, 3, 9, operator="subspace_self_attention")
    text(torch.arange(6)[None] % 7).sum().backward()
    for model in (image, text):
        assert all(p.grad is None or p.grad.isfinite().all() for p in model.parameters())


def drawn(seed, n=32, dim=24, heads=4, size=1.0):
    """Tokens of equal norm, an orthonormal basis of all heads, and the tokens of each."""
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, dim))
    X *= size / np.linalg.norm(X, axis=1, keepdims=True)
    U = np.linalg.qr(rng.standard_normal((dim, dim)))[0]
    return X, U, torch.tensor(np.stack(np.hsplit(X @ U, heads)))


def joined(out, U):
    return np.hstack(list(out.numpy())) @ U.T


@pytest.mark.parametrize(("size", "least", "most"), [(1.0, 0.9, 1.0), (20.0, 0.0, 0.5)])
def test_the_sum_with_the_output_raises_the_rate_and_a_mean_of_both_mostly_lowers_it_cr_3(
    size, least, most
):
    """Tendencies, in 80 draws. For large tokens, each attending to few, the mean raises it too."""
    raised, lowered = [], []
    for seed in range(20):
        for heads in (2, 3, 4, 6):
            X, U, w = drawn(seed, heads=heads, size=size)
            out = joined(SubspaceSelfAttention()(w, w, w), U)
            before, summed, mixed = (
                subspace_rate(x, U, heads, eps=0.5) for x in (X, X + out, 0.6 * X + 0.4 * out)
            )
            raised.append(summed > before)
            lowered.append(mixed < before)
    assert sum(raised) == len(raised) == 80
    assert least <= np.mean(lowered) <= most


def test_erratum_e10_g_the_sum_lacks_the_factor_of_the_tokens():
    """Also with the exact coefficients: they lower the rate by a step, and raise it if added."""
    heads, eps = 4, 0.5
    for seed in range(5):
        X, U, w = drawn(seed, heads=heads)
        be = w.shape[-1] / (len(X) * eps**2)
        expressed = joined(Ridge(1 / be)(w, w, w), U)
        before = subspace_rate(X, U, heads, eps=eps)
        for share in (0.1, 0.5, 1.0):
            step = (1 - share) * X + share * expressed
            expected, decrease = coding_rate_step(X, U, heads, eps=eps, step=share / be)
            # A system of the condition 1 + be |W|^2, for tokens of norm one.
            condition = 1 + be * np.linalg.norm(X, 2) ** 2
            assert_close(step, expected, atol=3 * len(X) * EPS * condition, rtol=0)
            assert before - subspace_rate(step, U, heads, eps=eps) >= decrease > 0
            assert subspace_rate(X + share * expressed, U, heads, eps=eps) > before


def test_erratum_e10_g_a_precision_of_eps_in_the_code_is_a_squared_one():
    X, _, _ = drawn(0)
    in_code = 0.5 * np.linalg.slogdet(np.eye(24) + 24 / (len(X) * 0.3) * X.T @ X)[1]
    # Logarithms of determinants of this size round by some digits of their largest terms.
    tolerance = 3 * 24 * EPS * in_code
    assert abs(subspace_rate(X, np.eye(24), 1, eps=0.3**0.5) - in_code) < tolerance
    assert subspace_rate(X, np.eye(24), 1, eps=0.3) > 1.2 * in_code
