"""The ISTA block: one proximal step from the token, its bounds, and its place in models."""

import numpy as np
import pytest
import torch
from torch.testing import assert_close

from twinsolve.solvers import ista
from twinsolve.solvers.sparse_coding import lasso_objective
from twinsolve.unrolled import LanguageModel, VisionTransformer
from twinsolve.unrolled.models import Block
from twinsolve.unrolled.sparse_coding import ISTABlock

from .draws import tokens

N, D, LAM = 11, 6, 0.3
EPS = np.finfo(float).eps


def drawn(seed=0, *, share=0.9, lam=LAM):
    """Tokens, and a layer whose step is a share of the longest one that is proved."""
    layer = ISTABlock(D, lam=lam, dtype=torch.float64)
    with torch.no_grad():
        layer.dictionary.copy_(tokens(D, D, seed=seed))
    layer.step = share / float(torch.linalg.matrix_norm(layer.dictionary.detach(), 2)) ** 2
    return tokens(N, D, seed=seed + 100), layer


def objective(X, layer, codes):
    return lasso_objective(X, layer.dictionary.detach(), codes, lam=layer.lam)


def test_is_one_step_of_nonnegative_ista_from_the_tokens_cr_6():
    for seed in range(5):
        X, layer = drawn(seed)
        dictionary = layer.dictionary.detach().numpy()
        found = ista(X, dictionary, lam=LAM, n_iter=1, step=layer.step, start=X, nonnegative=True)
        assert_close(layer(X).detach().numpy(), found.coef, atol=3 * D * D * EPS, rtol=0)


def test_is_crates_block_at_half_of_the_penalty_and_the_transposed_weight_cr_6():
    X, layer = drawn()
    W, eta, lambd = layer.dictionary.detach().mT, layer.step, layer.lam / 2
    expected = torch.relu(X + eta * (X - X @ W.mT) @ W - eta * lambd)
    assert_close(layer(X).detach(), expected, atol=3 * D * D * EPS, rtol=0)


def test_the_step_is_below_every_code_by_what_is_proved_cr_6():
    rng = np.random.default_rng(0)
    for seed in range(20):
        X, layer = drawn(seed, share=1.0)
        z = layer(X).detach().numpy()
        solved = ista(X, layer.dictionary.detach(), lam=LAM, n_iter=400, nonnegative=True).coef
        for u in (solved, X.clamp(min=0).numpy(), rng.random((N, D))):
            rate = ((u - X.numpy()) ** 2).sum(axis=1) - ((u - z) ** 2).sum(axis=1)
            assert (objective(X, layer, z) - objective(X, layer, u) <= rate / layer.step).all()


def test_from_nonnegative_tokens_the_objective_falls_by_what_is_proved_cr_6():
    for seed in range(20):
        X, layer = drawn(seed, share=1.0)
        X = X.abs()
        z = layer(X).detach().numpy()
        proved = ((z - X.numpy()) ** 2).sum(axis=1) / layer.step
        fallen = objective(X, layer, X) - objective(X, layer, z)
        # Objectives are sums of D squares and round by some EPS of themselves.
        assert (fallen >= proved - 3 * D * EPS * objective(X, layer, X)).all()


@pytest.mark.parametrize(("share", "raises"), [(1.9, False), (2.1, True)])
def test_from_twice_the_proved_step_on_the_objective_can_rise_cr_6(share, raises):
    """Of tokens that stay positive, for a multiple of a permutation: proofs have equality."""
    X, layer = torch.ones(1, D, dtype=torch.float64), ISTABlock(D, lam=1e-3, dtype=torch.float64)
    with torch.no_grad():
        layer.dictionary.copy_(1.5 * torch.eye(D).roll(1, dims=0))
    layer.step = share / 1.5**2
    z = layer(X).detach()
    assert (z > 0).all()
    assert (objective(X, layer, z) > objective(X, layer, X)).all() == raises


@pytest.mark.parametrize("dim", [192, 768])
def test_crates_step_is_short_enough_at_its_start_and_need_not_stay_so_cr_6(dim):
    """The largest eigenvalue is near ``4 * 2``: entries have the variance 2 / dim."""
    torch.manual_seed(0)
    layer = ISTABlock(dim)
    square = float(torch.linalg.matrix_norm(layer.dictionary.detach().double(), 2)) ** 2
    # Edges of random spectra spread by dim^(-2/3) of themselves.
    assert abs(square - 8) < 3 * 8 * dim ** (-2 / 3)
    assert layer.step == 0.1 <= 1 / square
    with torch.no_grad():
        layer.dictionary.mul_(1.2)
    assert layer.step * 1.2**2 * square > 1


def test_blocks_and_models_take_it_for_their_feed_forward_part():
    block = Block(6, 2, feed_forward=ISTABlock, feed_forward_skip=False, dtype=torch.float64)
    x = tokens(2, 5, 6)
    between = x + block.attention(
        *[block.attention_norm(x)] * 3, need_weights=False)[0]  # fmt: skip
    assert_close(block(x), block.feed_forward(block.feed_forward_norm(between)))
    parts = {"feed_forward": ISTABlock, "feed_forward_skip": False}
    image = VisionTransformer(12, 2, 1, 5, 12, 2, 3, **parts)
    image(torch.rand(2, 1, 12, 12)).sum().backward()
    text = LanguageModel(7, 12, 1, 3, 9, **parts)
    text(torch.arange(6)[None] % 7).sum().backward()
    for model in (image, text):
        assert all(p.grad is None or p.grad.isfinite().all() for p in model.parameters())
        assert any(isinstance(part, ISTABlock) for part in model.modules())


def test_gradients_are_those_of_finite_differences():
    X, layer = drawn()

    def code(x, dictionary):
        return torch.func.functional_call(layer, {"dictionary": dictionary}, (x,))

    inputs = (X.requires_grad_(), layer.dictionary.detach().clone().requires_grad_())
    assert torch.autograd.gradcheck(code, inputs)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", [(D,), (0, D), (2, 3, D)])
def test_all_shapes_and_dtypes_of_tokens(shape, dtype):
    _, layer = drawn()
    x, layer = tokens(*shape).to(dtype), layer.to(dtype)
    out = layer(x)
    assert out.shape == x.shape
    assert out.dtype == dtype
    exact = layer.double()(x.double())
    # Two products of D terms, of entries up to 3 each.
    assert_close(out.double(), exact, atol=3 * D * torch.finfo(dtype).eps, rtol=0)


def test_numbers_out_of_range_and_tokens_of_another_width_are_refused():
    for given, message in (
        ((0,), "dim: must be"), ((3, -1.0), "step: must be"), ((3, 1.0, 0.0), "lam: must be"),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=message):
            ISTABlock(*given)
    with pytest.raises(ValueError, match=r"x: must have shape \(..., 6\)"):
        ISTABlock(6)(torch.zeros(2, 5))
