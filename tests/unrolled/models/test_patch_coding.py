import numpy as np
import pytest
import torch
from torch.testing import assert_close

from twinsolve.solvers import ista
from twinsolve.solvers.sparse_coding import dct_dictionary, denoise_ista
from twinsolve.solvers.sparse_coding.similar_patches import similar_patches as found_by_search
from twinsolve.unrolled.models.denoisers import GroupCodingDenoiser, PatchCodingDenoiser
from twinsolve.unrolled.sparse_coding import SparsePenalty, proximal_map
from twinsolve.unrolled.sparse_coding.coding_step import CodingStep
from twinsolve.unrolled.sparse_coding.patches import (
    Similar,
    average_patches,
    patch_rows,
    similar_patches,
)

SMALL = {"lam": 0.2, "patch_size": 4, "n_frequencies": 5}
GROUPED = {**SMALL, "window": 3, "n_similar": 5}


def draw(*shape, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.rand(shape, generator=generator, dtype=torch.float64)


@pytest.mark.parametrize(("n_layers", "channels"), [(1, 1), (5, 3)])
def test_starts_as_ista_on_the_codes_of_all_patches(n_layers, channels):
    noisy = draw(2, channels, 11, 9)
    network = PatchCodingDenoiser(n_layers, channels=channels, dtype=torch.float64, **SMALL)
    D = dct_dictionary(4, 5, channels)
    expected = [denoise_ista(x, D, lam=0.2, n_iter=n_layers, channel_axis=0) for x in noisy]
    for found, reference in zip(network(noisy).detach().numpy(), expected, strict=True):
        assert_close(found, reference, atol=0, rtol=1e-10)


def test_starts_as_the_solver_at_its_own_size():
    noisy = draw(1, 1, 24, 20)
    network = PatchCodingDenoiser(dtype=torch.float64)
    settings = {"lam": network.lam, "n_iter": network.n_layers}
    expected = denoise_ista(noisy[0, 0], dct_dictionary(8, 11), **settings)
    assert_close(network(noisy)[0, 0].detach().numpy(), expected, atol=0, rtol=1e-10)


def test_a_step_is_a_proximal_step_whatever_the_units_of_its_codes():
    D, Y = draw(7, 5) - 0.5, draw(6, 5, seed=1)
    coding, codes = CodingStep(D, lam=0.2, step=0.3), draw(6, 7, seed=2) - 0.5
    expected = proximal_map(Y, D, SparsePenalty(0.2))(codes, 0.3)
    for unit in (torch.ones(7, dtype=torch.float64), draw(7, seed=3) + 0.1):
        found = coding(Y, codes / unit, unit) * coding.threshold()
        assert_close(found, expected, atol=1e-14, rtol=0)
    expected = torch.from_numpy(ista(Y, D, lam=0.2, n_iter=1, step=0.3).coef)
    assert_close(coding(Y) * coding.threshold(), expected, atol=1e-14, rtol=0)


@pytest.mark.parametrize(
    ("kind", "settings"),
    [(PatchCodingDenoiser, {}), (GroupCodingDenoiser, {"n_similar": 3, "window": 1})],
)
def test_gradcheck_of_images_and_all_parameters(kind, settings):
    small = {"patch_size": 2, "n_frequencies": 2, "lam": 0.1}
    network = kind(2, dtype=torch.float64, **small, **settings)
    names, values = zip(*network.named_parameters(), strict=True)
    moved = [
        (value + 0.1 * draw(*value.shape, seed=i)).detach().requires_grad_()
        for i, value in enumerate(values)
    ]
    noisy = draw(1, 1, 4, 5).requires_grad_()

    def run(noisy, *values):
        parameters = dict(zip(names, values, strict=True))
        return torch.func.functional_call(network, parameters, (noisy,))

    assert torch.autograd.gradcheck(run, (noisy, *moved))


def test_parameters_of_each_layer_are_its_own():
    network = PatchCodingDenoiser(3, **SMALL)
    network(draw(1, 1, 9, 8).float()).square().sum().backward()
    parameters = dict(network.named_parameters())
    # From zero codes, the first layer synthesises nothing.
    assert len({value.data_ptr() for value in parameters.values()}) == 3 * 4 - 1 + 1
    assert all(value.grad is not None for value in parameters.values())


def test_single_precision_and_autocast_round_alone():
    network = PatchCodingDenoiser(4, **SMALL)
    noisy = draw(1, 1, 16, 12)
    with torch.no_grad():
        single = network(noisy.float())
        with torch.autocast("cpu", torch.bfloat16):
            half = network(noisy.float())
        expected = network.double()(noisy)
    assert single.dtype == half.dtype == torch.float32
    assert_close(single.double(), expected, atol=1e-5, rtol=0)
    assert_close(half.double(), expected, atol=2e-2, rtol=0)


def test_patches_average_to_their_image():
    images = draw(2, 3, 5, 7)
    for size in (1, 2, 5):
        rows = patch_rows(images, size)
        assert rows.shape == (2 * (6 - size) * (8 - size), 3 * size**2)
        assert_close(average_patches(rows, images.shape), images)


def test_other_images_are_refused():
    whole = torch.zeros(1, 1, 9, 9, dtype=torch.uint8)
    for images in (torch.zeros(1, 2, 9, 9), torch.zeros(1, 1, 9, 3), whole):
        with pytest.raises(ValueError, match=r"images: must be floating point \(batch, 1, "):
            PatchCodingDenoiser(1, **SMALL)(images)


def test_groups_start_as_ista_too():
    noisy = draw(2, 1, 11, 9)
    network = GroupCodingDenoiser(4, dtype=torch.float64, **GROUPED)
    expected = [denoise_ista(x[0], dct_dictionary(4, 5), lam=0.2, n_iter=4) for x in noisy]
    for found, reference in zip(network(noisy).detach().numpy(), expected, strict=True):
        assert_close(found[0], reference, atol=0, rtol=1e-10)


def test_sharing_changes_the_output_and_is_trained_from_its_start():
    noisy = draw(1, 1, 12, 12)
    network = GroupCodingDenoiser(2, dtype=torch.float64, **GROUPED)
    before = network(noisy)
    before.square().sum().backward()
    for layer in network.layers:
        assert bool((layer.sharing.grad != 0).any())
        layer.sharing.data.fill_(0.5)
    assert float((network(noisy) - before).detach().abs().max()) > 1e-3


@pytest.mark.parametrize(("window", "n_similar"), [(2, 5), (1, 4), (30, 20), (0, 1)])
def test_similar_patches_are_the_closest_in_their_window(window, n_similar):
    images = draw(2, 3, 9, 7)
    found = similar_patches(images, 3, window, n_similar)
    rows, grid = patch_rows(images, 3), (7, 5)
    n = grid[0] * grid[1]
    places = np.stack(np.unravel_index(np.arange(n), grid), axis=1)
    apart = np.abs(places[:, None] - places).max(axis=2) > window
    for b, image in enumerate(images):
        mine = rows[b * n : (b + 1) * n].numpy()
        squares = ((mine[:, None] - mine) ** 2).sum(axis=2)
        squares[apart] = np.inf
        closest = np.argsort(squares, axis=1)[:, :n_similar]
        chosen = found[b * n : (b + 1) * n].numpy() - b * n
        assert (np.sort(chosen) == np.sort(closest)).all()
        assert (found_by_search(image.numpy(), 3, window, n_similar) == closest).all()


def test_sums_over_similar_rows_and_their_gradient():
    indices = torch.tensor([[0, 1], [1, 1], [3, 0], [3, 1]])
    x = draw(4, 3).requires_grad_()
    similar = Similar.of(indices)
    assert similar.n_similar == 2
    assert_close(similar.sums(x), x[indices].sum(dim=1))
    assert torch.autograd.gradcheck(similar.sums, (x,))


def test_small_images_have_fewer_similar_patches():
    network = GroupCodingDenoiser(1, **GROUPED)
    assert network(torch.rand(1, 1, 4, 5)).shape == (1, 1, 4, 5)


def test_has_what_patch_coding_has_and_its_sharing():
    grouped, apart = (
        cls(2, patch_size=4, n_frequencies=5) for cls in (GroupCodingDenoiser, PatchCodingDenoiser)
    )
    more = set(grouped.state_dict()) - set(apart.state_dict())
    assert more == {"layers.0.sharing", "layers.1.sharing"}
