import pytest
import torch
from torch.testing import assert_close

from twinsolve.solvers import nonlocal_means
from twinsolve.unrolled.image_filters import EmbeddedMeans

from ..draws import uniform


@pytest.mark.parametrize(
    ("channels", "size", "distance", "patch_weights"),
    [(1, 5, 6, "gaussian"), (3, 4, 2, "uniform"), (1, 1, 3, "uniform"), (3, 3, 30, "gaussian")],
)
def test_starts_as_nonlocal_means(channels, size, distance, patch_weights):
    settings = {"patch_size": size, "patch_distance": distance, "patch_weights": patch_weights}
    images = uniform(2, channels, 19, 10)
    layer = EmbeddedMeans(0.2, noise=0.1, channels=channels, dtype=torch.float64, **settings)
    for found, image in zip(layer(images).detach().numpy(), images.numpy(), strict=True):
        expected = nonlocal_means(image, h=0.2, sigma=0.1, channel_axis=0, **settings)
        assert_close(found, expected, atol=0, rtol=1e-10)
