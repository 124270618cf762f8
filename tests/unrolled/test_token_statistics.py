"""Token statistics: the solver's direction, masks, decoding, cost and what it refuses."""

import numpy as np
import pytest
import torch
from torch.testing import assert_close

from twinsolve.solvers.coding_rate import subspace_memberships, token_statistics
from twinsolve.unrolled import Attention, LanguageModel, TokenStatistics, VisionTransformer

from .draws import moved, tokens
from .recording import saved_sizes

HEADS, N, P, C = 3, 8, 2, 1.7
EPS = np.finfo(float).eps
CLOSE = {"atol": 3 * HEADS * N * EPS * C, "rtol": 0}  # sums of N squares, over heads


def drawn(**settings):
    settings = {"c": C, "num_heads": HEADS, "learnable": True, "dtype": torch.float64} | settings
    return moved(TokenStatistics(0.6, **settings))


def expected_of(v, layer):
    """Of all heads side by side, by the solver."""
    X = np.hstack(list(v.numpy()))
    sharpness = layer.sharpness().detach().numpy().ravel()
    Pi = subspace_memberships(X, np.eye(HEADS * P), HEADS, sharpness=sharpness)
    out = token_statistics(X, np.eye(HEADS * P), Pi, eps=(HEADS * P / layer.c) ** 0.5)
    return np.stack(np.hsplit(out, HEADS))


def test_is_the_direction_of_descent_of_the_solver():
    layer, v = drawn(), tokens(HEADS, N, P)
    q = torch.full_like(v, torch.nan)
    assert_close(layer(q, q, v).detach().numpy(), expected_of(v, layer), **CLOSE)


def test_causal_rows_are_the_last_rows_of_their_prefixes_and_decoding_gives_them():
    layer, v = drawn(), tokens(HEADS, N, P)
    found = layer(v, v, v, is_causal=True)
    for t in range(1, N + 1):
        prefix = v[:, :t]
        expected = expected_of(prefix, layer)[:, -1:]
        assert_close(found[:, t - 1 : t].detach().numpy(), expected, **CLOSE)
        for masks in ({}, {"is_causal": True}):
            decoded = layer(prefix[:, -1:], prefix, prefix, **masks)
            assert_close(decoded.detach().numpy(), expected, **CLOSE)


@pytest.mark.parametrize("is_causal", [False, True])
def test_hidden_tokens_are_members_of_nothing(is_causal):
    layer, v = drawn(), tokens(HEADS, N, P)
    seen = torch.arange(N) % 3 != 1
    held = v.masked_fill(~seen[:, None], torch.nan).requires_grad_()
    out = layer(v, v, held, mask=seen[None], is_causal=is_causal)
    alone = layer(v[:, seen], v[:, seen], v[:, seen], is_causal=is_causal)
    assert_close(out[:, seen], alone, **CLOSE)
    assert not out[:, ~seen].any()
    gradient = torch.autograd.grad(out.square().sum(), held)[0]
    assert gradient.isfinite().all()
    assert not gradient[:, ~seen].any()


def test_a_token_that_one_head_hides_belongs_to_the_others():
    layer, v = drawn(), tokens(HEADS, N, P)
    mask = torch.ones(HEADS, 1, N, dtype=torch.bool)
    mask[0, :, 2] = False
    X = np.hstack(list(v.numpy()))
    sharpness = layer.sharpness().detach().numpy().ravel()
    Pi = subspace_memberships(X, np.eye(HEADS * P), HEADS, sharpness=sharpness)
    Pi[2, 0] = 0
    Pi[2] /= Pi[2].sum()
    out = token_statistics(X, np.eye(HEADS * P), Pi, eps=(HEADS * P / C) ** 0.5)
    found = layer(v, v, v, mask=mask).detach().numpy()
    assert_close(found, np.stack(np.hsplit(out, HEADS)), **CLOSE)


def test_tokens_without_an_axis_of_heads_have_one_head():
    layer, v = TokenStatistics(0.6, c=C), tokens(N, P)
    assert_close(layer(v, v, v), layer(v[None], v[None], v[None])[0], atol=0, rtol=0)
    seen = torch.arange(N)[None] > 2
    found, expected = layer(v, v, v, mask=seen), layer(v[None], v[None], v[None], mask=seen)[0]
    assert_close(found, expected, atol=0, rtol=0)


@pytest.mark.parametrize("is_causal", [False, True])
def test_gradients_are_those_of_finite_differences(is_causal):
    layer, v = drawn(), tokens(HEADS, 5, P).requires_grad_()
    mask = (torch.arange(5) != 1)[None]

    def attend(v, log):
        given = {"mask": mask, "is_causal": is_causal}
        return torch.func.functional_call(layer, {"sharpness.log": log}, (v, v, v), given)

    log = layer.sharpness.log.detach().clone().requires_grad_()
    assert torch.autograd.gradcheck(attend, (v, log))
    assert torch.autograd.gradgradcheck(attend, (v, log), fast_mode=True)


def test_a_head_with_hardly_a_member_stays_finite():
    v = torch.ones(2, N, P)
    v[0] *= 30
    v.requires_grad_()
    for is_causal in (False, True):
        out = TokenStatistics(1.0)(v, v, v, is_causal=is_causal)
        gradient = torch.autograd.grad(out.sum(), v)[0]
        assert out.isfinite().all()
        assert gradient.isfinite().all()
        assert not out[1].any()


def test_memory_is_linear_in_the_number_of_tokens():
    for is_causal in (False, True):
        sizes = []
        for n in (512, 2048):
            v = torch.randn(2, n, 4, requires_grad=True)
            call = {"is_causal": is_causal}
            sizes.append(
                sum(saved_sizes(lambda v=v, call=call: TokenStatistics(1.0)(v, v, v, **call)))
            )
        assert sizes[1] < 4.2 * sizes[0]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"mask": torch.ones(N, N, dtype=torch.bool).tril()}, "may only hide whole keys"),
        ({"mask": torch.full((1, N), 0.5, dtype=torch.float64)}, "masks may only hide keys"),
    ],
)
def test_masks_that_it_cannot_serve_are_refused(given, message):
    v = tokens(HEADS, N, P)
    with pytest.raises(ValueError, match=message):
        TokenStatistics(1.0)(v, v, v, **given)


def test_numbers_out_of_range_and_more_queries_than_tokens_are_refused():
    v = tokens(HEADS, N, P)
    with pytest.raises(ValueError, match="sharpness: must be"):
        TokenStatistics(0.0)
    with pytest.raises(ValueError, match="c: must be"):
        TokenStatistics(1.0, c=-1.0)
    with pytest.raises(ValueError, match="at most as many queries as keys"):
        TokenStatistics(1.0)(v, v[:, 1:], v[:, 1:])


def test_models_take_it_by_name_and_a_shell_projects_values_alone():
    shell = Attention(6, HEADS, operator=TokenStatistics(1.0))
    assert shell.in_proj_weight.shape == (6, 6)
    image = VisionTransformer(12, 2, 1, 5, 12, 2, 3, operator="token_statistics")
    image(torch.rand(2, 1, 12, 12)).sum().backward()
    text = LanguageModel(7, 12, 1, 3, 9, operator="token_statistics")
    text(torch.arange(6)[None] % 7).sum().backward()
    for model in (image, text):
        assert all(p.grad is None or p.grad.isfinite().all() for p in model.parameters())
