"""Layers that average pixels of an image."""

import pytest
import torch
from torch.testing import assert_close

from twinsolve.unrolled.image_filters import BilateralFilter, NonLocalMeansAttention

from .draws import uniform


@pytest.mark.slow
@pytest.mark.parametrize("patch_distance", [None, 2])
def test_compiles(patch_distance):
    layer = NonLocalMeansAttention(0.3, patch_size=3, patch_distance=patch_distance)
    image = uniform(1, 1, 8, 8).float()
    with torch.no_grad():
        assert_close(torch.compile(layer)(image), layer(image), atol=1e-5, rtol=0)


def test_bilateral_layer_computes_in_float32_far_from_the_corner():
    half = torch.bfloat16
    image = torch.zeros(1, 1, 3, 1200)
    image[..., 1100:] = uniform(1, 1, 3, 100).float()
    layer = BilateralFilter(0.2, 0.8, win_size=3)
    exact = layer.double()(image.double())
    with torch.autocast("cpu", dtype=half):
        found = layer.float()(image)
    assert found.dtype == torch.float32
    assert_close(found.double(), exact, atol=1e-5, rtol=0)
    rounded = layer.to(half)(image.to(half))
    assert rounded.dtype == half
    widths = layer.sigma_color().double(), layer.sigma_spatial().double()
    known = BilateralFilter(*(float(w.detach()) for w in widths), win_size=3).double()
    expected = known(image.to(half).double())
    assert_close(rounded.double(), expected, atol=2 * torch.finfo(half).eps, rtol=0)
