"""Layers that average pixels of an image."""

import numpy as np
import pytest
import torch
from torch.testing import assert_close

from twinsolve.solvers import nonlocal_means
from twinsolve.solvers.image_filters import bilateral_matrix, nonlocal_means_matrix
from twinsolve.unrolled.image_filters import (
    BilateralFilter,
    NonLocalMeansAttention,
)

from .draws import uniform


@pytest.mark.parametrize(
    ("patch_size", "patch_distance", "sigma"),
    [(1, 0, 0.0), (2, None, 0.1), (4, 3, 0.1), (5, 50, 0.0), (5, None, 0.0)],
)
def test_reproduces_the_denoised_image(patch_size, patch_distance, sigma):
    batch = uniform(2, 3, 11, 9)
    settings = {"patch_size": patch_size, "patch_distance": patch_distance, "sigma": sigma}
    layer = NonLocalMeansAttention(0.3, **settings).double()
    expected = [nonlocal_means(x, h=float(layer.h()), channel_axis=0, **settings) for x in batch]
    for found, reference in zip(layer(batch).numpy(), expected, strict=True):
        assert_close(found, reference, atol=1e-12, rtol=0)


@pytest.mark.parametrize("settings", [{}, {"sigma": 0.2}, {"h": 0.3}], ids=str)
def test_defaults_are_those_of_the_solver(settings):
    image = uniform(1, 1, 19, 17)
    found = NonLocalMeansAttention(**settings).double()(image)[0].numpy()
    assert_close(found, nonlocal_means(image[0], channel_axis=0, **settings), atol=1e-12, rtol=0)


@pytest.mark.slow
@pytest.mark.parametrize("patch_distance", [None, 2])
def test_compiles(patch_distance):
    layer = NonLocalMeansAttention(0.3, patch_size=3, patch_distance=patch_distance)
    image = uniform(1, 1, 8, 8).float()
    with torch.no_grad():
        assert_close(torch.compile(layer)(image), layer(image), atol=1e-5, rtol=0)


PATCHES = {"patch_size": 3, "patch_distance": 2}


def matrix_of(base, image):
    """Of a grey image, column by column."""
    n = image.numel()
    with torch.no_grad():
        ones = torch.eye(n, dtype=image.dtype).view(n, 1, *image.shape)
        guide = image.expand(n, 1, *image.shape)
        return base(guide, ones).flatten(1).T.numpy()


def test_other_values_are_averaged_with_the_weights_of_the_guide():
    image = uniform(9, 8)
    for base, matrix in (
        (BilateralFilter(0.3, 1.4, win_size=5), bilateral_matrix(
            image.numpy(), sigma_color=0.3, sigma_spatial=1.4, win_size=5)),
        (NonLocalMeansAttention(0.4, sigma=0.1, **PATCHES), nonlocal_means_matrix(
            image.numpy(), h=0.4, sigma=0.1, **PATCHES)),
        (NonLocalMeansAttention(0.4, patch_size=3, patch_distance=None), nonlocal_means_matrix(
            image.numpy(), h=0.4, patch_size=3, patch_distance=None)),
    ):  # fmt: skip
        np.testing.assert_allclose(matrix_of(base.double(), image), matrix, atol=1e-7)


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
