import numpy as np
import pytest
import torch
from torch.testing import assert_close

from twinsolve.solvers import ista
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

from ..draws import uniform

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
