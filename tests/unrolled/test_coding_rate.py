"""The exact step on the coding rate: its formula, masks, gradients, and what it does in a block."""

import numpy as np
import pytest
import torch
from torch.testing import assert_close

from twinsolve.solvers.coding_rate import coding_rate_step, subspace_rate
from twinsolve.unrolled import Attention, Ridge, VisionTransformer
from twinsolve.unrolled.coding_rate import CodingRate

from .draws import tokens

HEADS, N, P = 3, 9, 2
CLOSE = {"atol": 1e-12, "rtol": 0}  # a condition number under 100, times N P eps


def test_it_is_ridge_on_equal_tokens_whatever_queries_and_keys_hold():
    v = tokens(HEADS, N, P)
    q = torch.full_like(v, torch.nan)
    for settings in ({}, {"relative": True}):
        found = CodingRate(0.7, **settings)(q, q, v)
        assert_close(found, Ridge(0.7, **settings)(v, v, v), atol=0, rtol=0)


@pytest.mark.parametrize("n", [1, P - 1, N, 40])
def test_a_step_towards_the_output_is_the_solvers_step(n):
    X = tokens(1, n, 6)[0]
    eps = 0.4
    lam = n * eps**2 / 6
    after, _ = coding_rate_step(X.numpy(), np.eye(6), 1, eps=eps, step=lam)
    assert_close(CodingRate(lam)(X, X, X), torch.from_numpy(after), **CLOSE)


def test_hidden_tokens_are_as_if_absent_and_have_no_gradient():
    layer, v = CodingRate(0.5), tokens(HEADS, N, P)
    seen = torch.arange(N) % 3 != 1
    held = v.masked_fill(~seen[:, None], torch.nan).requires_grad_()
    out = layer(v, v, held, mask=seen[None])
    alone = v[:, seen].clone().requires_grad_()
    expected = layer(alone, alone, alone)
    assert_close(out[:, seen], expected, **CLOSE)
    assert not out[:, ~seen].any()
    gradients = [torch.autograd.grad(x.square().sum(), y)[0] for x, y in
                 ((out, held), (expected, alone))]  # fmt: skip
    assert_close(gradients[0][:, seen], gradients[1], **CLOSE)
    assert not gradients[0][:, ~seen].any()


@pytest.mark.parametrize("masks", [{}, {"mask": torch.arange(5)[None] != 1}])
def test_gradients_are_those_of_finite_differences(masks):
    v, lam = tokens(HEADS, 5, P).requires_grad_(), torch.tensor(0.3, dtype=torch.float64)
    layer = CodingRate(0.3, learnable=True, dtype=torch.float64)
    names = [name for name, _ in layer.named_parameters()]

    def call(v, raw):
        return torch.func.functional_call(layer, {names[0]: raw}, (v, v, v), masks)

    assert torch.autograd.gradcheck(call, (v, lam.log().reshape(()).requires_grad_()))
    assert torch.autograd.gradgradcheck(call, (v, lam.log().reshape(()).requires_grad_()))


def test_it_refuses_causal_masks_more_queries_and_penalties_out_of_range():
    v = tokens(HEADS, N, P)
    with pytest.raises(ValueError, match="causal"):
        CodingRate(1.0)(v, v, v, is_causal=True)
    with pytest.raises(ValueError, match="at most as many queries as keys"):
        CodingRate(1.0)(v, v[:, 1:], v[:, 1:])
    with pytest.raises(ValueError, match="lam: must be"):
        CodingRate(0.0)


def test_a_network_takes_it_by_name_and_projects_values_alone():
    assert Attention(6, HEADS, operator=CodingRate(1.0)).in_proj_weight.shape == (6, 6)
    image = VisionTransformer(12, 2, 1, 5, 12, 2, 3, operator="coding_rate")
    image(torch.rand(2, 1, 12, 12)).sum().backward()
    assert all(p.grad is None or p.grad.isfinite().all() for p in image.parameters())


@pytest.mark.parametrize("seed", range(10))
def test_the_output_has_a_lower_rate_and_the_sum_with_the_tokens_a_higher_one(seed):
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((32, 24))
    X /= np.linalg.norm(X, axis=1, keepdims=True)
    U, eps = np.linalg.qr(rng.standard_normal((24, 24)))[0], 0.3
    w = torch.tensor(np.stack(np.hsplit(X @ U, 4)))
    after = np.hstack(list(CodingRate(32 * eps**2 / 6)(w, w, w).numpy())) @ U.T
    lower, before, higher = (subspace_rate(x, U, 4, eps=eps) for x in (after, X, X + after))
    assert lower < before < higher
