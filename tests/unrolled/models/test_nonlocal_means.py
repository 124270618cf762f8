import pytest
import torch
from torch.testing import assert_close

from twinsolve.solvers import nonlocal_means
from twinsolve.solvers.image_filters import nonlocal_means_matrix
from twinsolve.unrolled.image_filters import EmbeddedMeans, tiled_average
from twinsolve.unrolled.models.denoisers import NonLocalMeansDenoiser


def draw(*shape, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.rand(shape, generator=generator, dtype=torch.float64)


@pytest.mark.parametrize(
    ("channels", "size", "distance", "patch_weights"),
    [(1, 5, 6, "gaussian"), (3, 4, 2, "uniform"), (1, 1, 3, "uniform"), (3, 3, 30, "gaussian")],
)
def test_starts_as_nonlocal_means(channels, size, distance, patch_weights):
    settings = {"patch_size": size, "patch_distance": distance, "patch_weights": patch_weights}
    images = draw(2, channels, 19, 10)
    layer = EmbeddedMeans(0.2, noise=0.1, channels=channels, dtype=torch.float64, **settings)
    for found, image in zip(layer(images).detach().numpy(), images.numpy(), strict=True):
        expected = nonlocal_means(image, h=0.2, sigma=0.1, channel_axis=0, **settings)
        assert_close(found, expected, atol=0, rtol=1e-10)


def test_network_starts_as_boosted_nonlocal_means():
    noisy = draw(1, 1, 12, 11)
    network = NonLocalMeansDenoiser(3, sigma=0.2, dtype=torch.float64)
    settings = {"patch_size": 7, "patch_weights": "gaussian"}
    y = noisy[0, 0].numpy()
    u = nonlocal_means(y, h=0.2 * network.h, sigma=0.2, **settings)
    widths = {"h": 0.2 * network.h_later, "sigma": 0.2 * network.noise_later}
    for _ in range(2):
        A = nonlocal_means_matrix(u, **widths, **settings)
        u = u + network.tau * (A @ (y - u).ravel()).reshape(y.shape)
    assert_close(network(noisy)[0, 0].detach().numpy(), u, atol=0, rtol=1e-10)


def test_gradients_of_features_values_and_offset():
    inputs = draw(1, 2, 3, 4), draw(1, 1, 3, 4, seed=1), torch.tensor(0.05, dtype=torch.float64)
    assert torch.autograd.gradcheck(
        lambda e, v, offset: tiled_average(e, v, patch_distance=2, offset=offset),
        [x.requires_grad_() for x in inputs],
    )


def test_other_images_are_refused():
    with pytest.raises(ValueError, match=r"images: must be floating point \(batch, 1, "):
        NonLocalMeansDenoiser(1)(torch.zeros(1, 2, 9, 9))
