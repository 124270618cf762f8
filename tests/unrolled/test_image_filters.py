import pytest
import torch
from torch.testing import assert_close

from twinsolve.solvers import nonlocal_means
from twinsolve.unrolled import NonLocalMeansAttention

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
