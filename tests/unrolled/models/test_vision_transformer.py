import math

import pytest
import torch
from torch.nn import functional as F
from torch.testing import assert_close

from twinsolve.unrolled import Operator, VisionTransformer
from twinsolve.unrolled.models import sinusoidal_positions

from .kinds import KINDS

IMAGES = torch.randn(3, 2, 8, 12, generator=torch.Generator().manual_seed(0))


def model(seed=0, **options):
    torch.manual_seed(seed)
    settings = {"image_size": (8, 12), "patch_size": (2, 3), "in_channels": 2, "num_classes": 5}
    return VisionTransformer(
        **settings | {"dim": 12, "depth": 2, "num_heads": 3} | options
    ).eval()  # fmt: skip


class Recorder(Operator):
    """Softmax attention that keeps the contexts it was given."""

    needs = ("positions", "first_values", "previous_values", "first_tokens")

    def __init__(self):
        super().__init__()
        self.contexts = []

    def attend(self, call):
        q, k, v, mask, _, context = call
        fields = {name: getattr(context, name) for name in self.needs}
        self.contexts.append((fields, v))
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)


def test_sinusoidal_positions_are_those_of_the_formula():
    """IF-5, entry by entry; |p|^2 = dim / 2 is the scale at which learned ones start."""
    p = sinusoidal_positions(5, 6)
    for i in range(5):
        for t in range(3):
            angle = i / 10000 ** (2 * t / 6)
            assert math.isclose(p[i, 2 * t], math.sin(angle), abs_tol=1e-14)
            assert math.isclose(p[i, 2 * t + 1], math.cos(angle), abs_tol=1e-14)
    assert_close(p.square().sum(dim=1), torch.full((5,), 3.0, dtype=torch.float64))
    vit = model(positions="sinusoidal")
    assert_close(vit.positions.weight, sinusoidal_positions(17, 12).float())
    assert "positions.weight" not in vit.state_dict()


def test_one_chain_of_contexts_goes_through_all_layers():
    vit = model(operator=Recorder(), depth=4)
    for _ in range(2):
        vit(IMAGES)
    records = [block.attention.operator.contexts for block in vit.blocks]
    assert records[0][0][1] is not records[0][1][1]
    values = [None, *(of_layer[1][1] for of_layer in records)]
    for of_layer, previous in zip(records, values, strict=False):
        fields, _ = of_layer[1]
        assert_close(fields["positions"], vit.positions.weight)
        assert_close(fields["first_tokens"], vit.tokens(IMAGES))
        assert fields["first_values"] is values[1]
        assert fields["previous_values"] is previous


def test_intermediates_are_the_tokens_and_what_leaves_each_block():
    vit = model(depth=3)
    states = vit.intermediates(IMAGES)
    assert len(states) == 4
    assert_close(states[0], vit.tokens(IMAGES))
    for block, entered, left in zip(vit.blocks, states, states[1:], strict=False):
        assert_close(left, block(entered))
    assert_close(vit.norm(states[-1]), vit.forward_features(IMAGES))


@pytest.mark.parametrize("name", KINDS)
def test_hidden_patches_may_hold_anything(name):
    """Of outputs and of gradients of all parameters and of shown pixels, nothing changes."""
    hidden = torch.arange(16) >= 12
    pixels = torch.zeros(8, 12).bool()
    pixels[6:] = True

    def run(hold, pool):
        vit = model(operator=name, pool=pool)
        images = torch.where(pixels, hold, IMAGES).requires_grad_()
        out = vit(images, hidden.expand(len(images), -1))
        out.square().sum().backward()
        return out, images.grad, *(p.grad for p in vit.parameters() if p.requires_grad)

    for pool in ("class", "mean"):
        expected = run(0.0, pool)
        for value in (torch.nan, torch.inf, 3e38):
            assert_close(run(value, pool), expected, atol=0, rtol=0)
        shown = model(operator=name, pool=pool)(torch.where(pixels, 50.0, IMAGES))
        assert not torch.allclose(shown, expected[0], atol=1e-2)


def test_the_mean_leaves_hidden_patches_out():
    vit = model(pool="mean", depth=0)
    hidden = torch.zeros(3, 16, dtype=torch.bool)
    hidden[0, 3:] = True
    hidden[2] = True
    features = vit.forward_features(IMAGES)
    expected = torch.stack([features[0, :3].mean(0), features[1].mean(0), torch.zeros(12)])
    assert_close(vit(IMAGES, hidden), vit.head(expected))


def test_learned_positions_start_at_the_scale_asked_for():
    for scale in (2**-0.5, 0.02):
        options = {} if scale > 0.5 else {"position_scale": scale}
        weight = model(dim=192, **options).positions.weight
        assert weight.requires_grad
        # Standard error of the deviation of 3264 numbers is 1.2 %.
        assert_close(weight.std().item(), scale, atol=0, rtol=0.06)


def test_presets_have_the_parameters_of_the_papers():
    for size, dim in (("tiny", 192), ("small", 384), ("base", 768)):
        vit = getattr(VisionTransformer, size)(device="meta")
        block = 4 * dim * dim + 4 * dim + 8 * dim * dim + 5 * dim + 4 * dim
        expected = 12 * block + 768 * dim + dim + 198 * dim + 2 * dim + 1000 * dim + 1000
        assert sum(p.numel() for p in vit.parameters()) == expected
        assert all(p.is_meta for p in vit.parameters())
        assert {block.attention.head_dim for block in vit.blocks} == {64}
