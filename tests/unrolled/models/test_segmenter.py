"""The segmenter on the vision transformer."""

import pytest
import torch
from torch.testing import assert_close

from twinsolve.unrolled import GeneralizedResidual
from twinsolve.unrolled.models import Segmenter

SIZE = {"dim": 16, "depth": 2, "num_heads": 2}


@pytest.mark.parametrize(
    ("settings", "upscale"),
    [
        ({"operator": "neutreno"}, 1),
        ({"operator": "bilateral"}, 4),
        ({"residual": GeneralizedResidual}, 4),
    ],
)
def test_every_pixel_has_scores_and_every_parameter_a_gradient(settings, upscale):
    torch.manual_seed(0)
    model = Segmenter(5, (16, 24), upscale=upscale, **SIZE, **settings)
    scores = model(torch.randn(2, 3, 16, 24))
    assert scores.shape == (2, 5, 16, 24)
    scores.square().sum().backward()
    assert all(p.grad is not None for p in model.parameters())


def test_squares_lie_where_their_patch_lies():
    model = Segmenter(2, (16, 24), upscale=2, **SIZE)
    grid = torch.arange(6.0).view(2, 3)
    tokens = torch.zeros(1, 6, 16)
    tokens[..., 0] = grid.flatten()
    with torch.no_grad():
        model.head.weight.zero_()[:, 0] = 1
        model.head.bias.copy_(torch.arange(8.0) / 10)
    model.backbone.forward_features = lambda images: tokens
    model.image_size = (4, 6)  # as many pixels as squares, so that none is interpolated
    scores = model(torch.zeros(1, 3, 16, 24))[0, 1]
    inner = torch.tensor([[0.4, 0.5], [0.6, 0.7]])
    assert_close(scores, torch.kron(grid, torch.ones(2, 2)) + inner.repeat(2, 3))
