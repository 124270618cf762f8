"""Networks that denoise: what all have in common, and parts of some."""

import numpy as np
import pytest
import torch
from torch.testing import assert_close

from twinsolve.solvers import ista, nonlocal_means
from twinsolve.solvers.sparse_coding.matching_pursuit import pursue_rows
from twinsolve.solvers.sparse_coding.similar_patches import similar_patches as found_by_search
from twinsolve.unrolled.image_filters import EmbeddedMeans
from twinsolve.unrolled.models import denoisers
from twinsolve.unrolled.models.denoisers import (
    GroupCodingDenoiser,
    MixtureOfExpertsDenoiser,
    PatchCodingDenoiser,
)
from twinsolve.unrolled.sparse_coding import SparsePenalty, proximal_map
from twinsolve.unrolled.sparse_coding.coding_step import CodingStep
from twinsolve.unrolled.sparse_coding.patches import (
    Similar,
    average_patches,
    patch_rows,
    photograph_dictionary,
    similar_patches,
    split_means,
)

from ..draws import uniform


@pytest.mark.parametrize("name", denoisers.__all__)
def test_what_is_not_finite_is_seen_in_the_answer_and_in_no_other_image(name):
    """A pixel, in the answer to its image alone; a parameter, in every answer."""
    torch.manual_seed(0)
    network = getattr(denoisers, name)(sigma=0.1).double().eval().requires_grad_(False)
    images = torch.rand(2, 1, 20, 20, dtype=torch.float64)
    for bad in (torch.nan, torch.inf, -torch.inf):
        broken = images.clone()
        broken[1, 0, 5, 5] = bad
        expected, found = network(images), network(broken)
        torch.testing.assert_close(found[0], expected[0], rtol=1e-12, atol=1e-12)
        assert not torch.isfinite(found[1]).all(), bad
    for place, parameter in enumerate(network.parameters()):
        kept = parameter.clone()
        parameter.fill_(torch.nan)
        assert not torch.isfinite(network(images)).all(), place
        parameter.copy_(kept)


# Of pixels in [0, 1]: the spacing of the dtype at 1 times a few hundred roundings of either sign.
ROUNDING = {torch.float64: 1e-5, torch.float32: 1e-5, torch.bfloat16: 0.1, torch.float16: 0.02}


@pytest.mark.parametrize("name", denoisers.__all__)
def test_the_answer_has_the_type_of_the_images_and_autocast_computes_what_it_promises(name):
    torch.manual_seed(0)
    network, images = getattr(denoisers, name)().eval(), torch.rand(2, 1, 24, 20)
    with torch.no_grad():
        expected = network(images)
        for dtype, rounding in ROUNDING.items():
            found = network(images.to(dtype))
            assert found.dtype == dtype
            torch.testing.assert_close(found.float(), expected, rtol=0, atol=rounding)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            found = network(images)
    torch.testing.assert_close(found.float(), expected, rtol=0, atol=ROUNDING[torch.bfloat16])
    if hasattr(network, "certificate"):
        assert found.dtype == torch.float32
        rounding = 4 * torch.finfo(torch.float32).eps / (1 - network.ridge.rho)
        assert (network.certificate(images, found) <= network.tol + rounding).all()


def test_the_first_atom_is_that_of_orthogonal_matching_pursuit_and_later_ones_need_not_be():
    noisy = uniform(1, 1, 20, 20)
    network = MixtureOfExpertsDenoiser(3, threshold=1e-9, dtype=torch.float64)
    atoms, _ = network.codes(noisy)
    signals, _ = split_means(patch_rows(noisy, 8), 1)
    D = photograph_dictionary().numpy()
    first = pursue_rows(signals.numpy(), D, 1, 0.0).indices
    assert (atoms[:, 0].numpy() == first).all()
    pursued = pursue_rows(signals.numpy(), D, 3, 0.0).indices.reshape(-1, 3)
    same = (np.sort(atoms.numpy()) == np.sort(pursued)).all(axis=1)
    assert 0.3 < same.mean() < 1


def test_codes_are_what_is_taken():
    noisy = uniform(1, 1, 9, 9)
    network = MixtureOfExpertsDenoiser(3, threshold=0.2, dtype=torch.float64)
    atoms, codes = network.codes(noisy)
    assert (codes < 0).any()
    assert (codes > 0).any()
    left = signals = split_means(patch_rows(noisy, 8), 1)[0]
    for k, layer in enumerate(network.layers):
        left = left - codes[:, k, None] * layer.synthesis[atoms[:, k]]
    taken = average_patches(signals - left, noisy.shape)
    means = average_patches(patch_rows(noisy, 8) - signals, noisy.shape)
    assert_close(network(noisy), means + taken)


def test_patches_without_structure_lose_nothing():
    network = MixtureOfExpertsDenoiser(2)
    flat = torch.full((1, 1, 9, 9), 0.3, requires_grad=True)
    out = network(flat)
    assert_close(out, flat)
    out.sum().backward()
    assert bool(flat.grad.isfinite().all())


def test_dictionary_of_photographs_is_of_unit_atoms_without_mean():
    D = photograph_dictionary().numpy()
    assert_close(np.linalg.norm(D, axis=1), np.ones(128))
    assert np.abs(D.mean(axis=1)).max() < 1e-4


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


SMALL = {"lam": 0.2, "patch_size": 4, "n_frequencies": 5}
GROUPED = {**SMALL, "window": 3, "n_similar": 5}


def test_a_step_is_a_proximal_step_whatever_the_units_of_its_codes():
    D, Y = uniform(7, 5) - 0.5, uniform(6, 5, seed=1)
    coding, codes = CodingStep(D, lam=0.2, step=0.3), uniform(6, 7, seed=2) - 0.5
    expected = proximal_map(Y, D, SparsePenalty(0.2))(codes, 0.3)
    for unit in (torch.ones(7, dtype=torch.float64), uniform(7, seed=3) + 0.1):
        found = coding(Y, codes / unit, unit) * coding.threshold()
        assert_close(found, expected, atol=1e-14, rtol=0)
    expected = torch.from_numpy(ista(Y, D, lam=0.2, n_iter=1, step=0.3).coef)
    assert_close(coding(Y) * coding.threshold(), expected, atol=1e-14, rtol=0)


def test_parameters_of_each_layer_are_its_own():
    network = PatchCodingDenoiser(3, **SMALL)
    network(uniform(1, 1, 9, 8).float()).square().sum().backward()
    parameters = dict(network.named_parameters())
    # From zero codes, the first layer synthesises nothing.
    assert len({value.data_ptr() for value in parameters.values()}) == 3 * 4 - 1 + 1
    assert all(value.grad is not None for value in parameters.values())


def test_patches_average_to_their_image():
    images = uniform(2, 3, 5, 7)
    for size in (1, 2, 5):
        rows = patch_rows(images, size)
        assert rows.shape == (2 * (6 - size) * (8 - size), 3 * size**2)
        assert_close(average_patches(rows, images.shape), images)


def test_sharing_changes_the_output_and_is_trained_from_its_start():
    noisy = uniform(1, 1, 12, 12)
    network = GroupCodingDenoiser(2, dtype=torch.float64, **GROUPED)
    before = network(noisy)
    before.square().sum().backward()
    for layer in network.layers:
        assert bool((layer.sharing.grad != 0).any())
        layer.sharing.data.fill_(0.5)
    assert float((network(noisy) - before).detach().abs().max()) > 1e-3


@pytest.mark.parametrize(("window", "n_similar"), [(2, 5), (1, 4), (30, 20), (0, 1)])
def test_similar_patches_are_the_closest_in_their_window(window, n_similar):
    images = uniform(2, 3, 9, 7)
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
    x = uniform(4, 3).requires_grad_()
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
