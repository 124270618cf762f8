"""Bounds on what blocks do to tokens, with random and with trained weights."""

import numpy as np
import pytest
import torch
from torch.testing import assert_close

from twinsolve.unrolled import FeatScale, Gaussian, GeneralizedResidual, VisionTransformer
from twinsolve.unrolled.diagnostics import condition_bounds, high_frequency_bounds
from twinsolve.unrolled.diagnostics.block_bounds import GELU_SLOPE
from twinsolve.unrolled.models import Block
from twinsolve.unrolled.spectral_filtering import LayerScale

PARTS = ["attention", "attention_skip", "feed_forward", "feed_forward_skip"]


def vision_transformer(operator, *, trained, **options):
    torch.manual_seed(0)
    model = VisionTransformer(8, 2, 1, 4, 8, 2, 2, operator=operator, **options).double()
    images = torch.randn(3, 1, 8, 8, dtype=torch.float64)
    if trained:
        optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
        for _ in range(6):
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(model(images), torch.tensor([0, 1, 2])).backward()
            optimizer.step()
    return model.eval(), images


@pytest.mark.parametrize(
    ("operator", "trained", "options"),
    [
        ("softmax", True, {}),
        ("gaussian", True, {"scale": LayerScale}),
        ("twicing", False, {"feed_forward_skip": False}),
        ("symmetric", True, {}),
    ],
)
def test_no_block_breaks_the_bounds(operator, trained, options):
    model, images = vision_transformer(operator, trained=trained, **options)
    skipped = [part for part in PARTS if options.get(part, True)]
    for sides in (high_frequency_bounds(model, images), condition_bounds(model, images)):
        assert len(sides) == 2 * len(skipped)
        assert {side.part for side in sides} == set(skipped)
        for side in sides:
            assert side.measured.shape == side.bound.shape == side.sharp.shape == (3,)
            assert (side.measured > 0).all()
            assert (side.measured <= side.sharp * (1 + 1e-9)).all()
            assert (side.sharp <= side.bound * (1 + 1e-9)).all()
            if trained and side.part.endswith("skip"):
                assert side.sharp.isfinite().all()


def spectral(x):
    return np.linalg.norm(x, 2)


@pytest.mark.parametrize("operator", ["softmax", "gaussian"])
def test_high_frequencies_are_those_of_the_theorems(operator):
    """All four sides by the definitions, of tokens without batch."""
    torch.manual_seed(0)
    block = Block(6, 2, operator=operator, dtype=torch.float64)
    with torch.no_grad():
        for parameter in block.parameters():
            parameter += 0.3 * torch.randn_like(parameter)
    X = torch.randn(9, 6, dtype=torch.float64)
    found = {side.part: side for side in high_frequency_bounds(block, X)}
    with torch.no_grad():
        Y = block.attention_norm(X)
        out, A = block.attention(Y, Y, Y, average_attn_weights=False)
        after = block(X)
    H = np.eye(9) - 1 / 9
    W_v, W_o = block.attention.in_proj_weight[12:], block.attention.out_proj.weight
    values = [w.detach().numpy() for w in W_v.split(3)]
    outs = [w.detach().numpy() for w in W_o.split(3, dim=1)]
    entering = np.linalg.norm(H @ Y.numpy())
    assert_close(found["attention"].measured.item(), np.linalg.norm(H @ out.numpy()))
    sharp = sum(
        spectral(H @ a.numpy() @ H) * spectral(o @ v)
        for a, o, v in zip(A, outs, values, strict=True)
    )
    assert_close(found["attention"].sharp.item(), sharp * entering)
    logits = A.log().numpy()
    alpha = np.ptp(logits, axis=-1).max() / 2
    largest = max(map(spectral, values)) * max(map(spectral, outs))
    grown = np.sqrt(9 * np.exp(2 * alpha) / (np.exp(2 * alpha) + 8))
    assert_close(found["attention"].bound.item(), 2 * largest * grown * entering)
    before = np.linalg.norm(H @ X.numpy())
    assert_close(found["attention_skip"].sharp.item(), sharp * entering + before)
    last = found["feed_forward_skip"]
    assert_close(last.measured.item(), np.linalg.norm(H @ after.numpy()))


def test_the_bound_is_reached():
    """By two opposite tokens that the norm maps to themselves, too far apart to be mixed.

    All branches are parallel to them, and all that is missing is the slope of GELU, which is 1
    where the biases put it.
    """
    block = Block(4, 1, operator=Gaussian(0.1), mlp_ratio=1, dtype=torch.float64)
    network = block.feed_forward
    with torch.no_grad():
        block.attention.in_proj_weight.copy_(torch.eye(4).repeat(3, 1))
        for linear in (block.attention.out_proj, network.fc1, network.fc2):
            linear.weight.copy_(torch.eye(4))
        network.fc1.bias.fill_(16.0)
    token = torch.tensor([1.0, -1.0, 1.0, -1.0], dtype=torch.float64)
    X = torch.stack([token, -token])
    sides = {side.part: side for side in high_frequency_bounds(block, X)}
    for part in ("attention", "attention_skip"):
        assert_close(sides[part].measured, sides[part].sharp, rtol=1e-10, atol=0)
    reached = sides["attention_skip"].sharp + sides["feed_forward"].sharp / GELU_SLOPE
    along = (block(X) * X).sum() / X.norm()
    assert_close(along, reached.squeeze(), rtol=1e-10, atol=0)


def test_condition_of_a_map_is_that_on_the_tokens():
    torch.manual_seed(0)
    block = Block(5, 1, feed_forward=False, dtype=torch.float64)
    X = torch.randn(12, 5, dtype=torch.float64)
    assert condition_bounds(block, X)[0].measured.isinf()  # a norm without bias loses a direction
    with torch.no_grad():
        block.attention_norm.bias.copy_(torch.randn(5))
    found = {side.part: side for side in condition_bounds(block, X)}
    with torch.no_grad():
        Y = (block(X) - X).numpy()
    M, kappa = Y @ np.linalg.pinv(X.numpy()), np.linalg.cond(X.numpy())
    singular = np.linalg.svd(M, compute_uv=False)
    assert_close(found["attention"].sharp.item(), kappa * singular[0] / singular[4])
    basis = np.linalg.qr(X.numpy())[0]
    skipped = np.linalg.cond(basis + M @ basis)
    assert_close(found["attention_skip"].sharp.item(), kappa * skipped)
    assert_close(found["attention_skip"].measured.item(), np.linalg.cond(X.numpy() + Y))


def test_nothing_is_proved_about_tokens_that_are_dependent():
    block = Block(6, 2, dtype=torch.float64)
    X = torch.randn(2, 9, 6, dtype=torch.float64)
    X[0, :, 1] = X[0, :, 0]
    for tokens, unproved in ((X, [True, False]), (X[:, :5], [True, True])):
        side = condition_bounds(block, tokens)[1]
        assert side.sharp.isinf().tolist() == unproved
        assert side.bound[0].isinf()


@pytest.mark.parametrize("options", [{"scale": FeatScale}, {"residual": GeneralizedResidual}])
def test_other_blocks_are_refused(options):
    with pytest.raises(ValueError, match="model: must have plain residual connections"):
        high_frequency_bounds(Block(6, 2, **options), torch.randn(1, 5, 6))
    with pytest.raises(ValueError, match="model: must be or contain a twinsolve Block, got"):
        condition_bounds(torch.nn.Linear(3, 3), torch.randn(5, 3))
