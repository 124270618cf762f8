import numpy as np
import pytest
import torch
from torch.testing import assert_close

from twinsolve.solvers.sparse_coding import dct_dictionary, denoise_ista
from twinsolve.solvers.sparse_coding.similar_patches import similar_patches as found_by_search
from twinsolve.unrolled.models.denoisers import GroupCodingDenoiser, PatchCodingDenoiser
from twinsolve.unrolled.sparse_coding.patches import Similar, patch_rows, similar_patches

SMALL = {"lam": 0.2, "patch_size": 4, "n_frequencies": 5, "window": 3, "n_similar": 5}


def draw(*shape, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.rand(shape, generator=generator, dtype=torch.float64)


def test_starts_as_ista_on_the_codes_of_all_patches():
    noisy = draw(2, 1, 11, 9)
    network = GroupCodingDenoiser(4, dtype=torch.float64, **SMALL)
    expected = [denoise_ista(x[0], dct_dictionary(4, 5), lam=0.2, n_iter=4) for x in noisy]
    for found, reference in zip(network(noisy).detach().numpy(), expected, strict=True):
        assert_close(found[0], reference, atol=0, rtol=1e-10)


def test_sharing_changes_the_output_and_is_trained_from_its_start():
    noisy = draw(1, 1, 12, 12)
    network = GroupCodingDenoiser(2, dtype=torch.float64, **SMALL)
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


def test_gradcheck_of_all_parameters():
    settings = {"patch_size": 2, "n_frequencies": 2, "lam": 0.1, "n_similar": 3, "window": 1}
    network = GroupCodingDenoiser(2, dtype=torch.float64, **settings)
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


def test_small_images_have_fewer_similar_patches():
    network = GroupCodingDenoiser(1, **SMALL)
    assert network(torch.rand(1, 1, 4, 5)).shape == (1, 1, 4, 5)


def test_has_what_patch_coding_has_and_its_sharing():
    grouped, apart = (
        cls(2, patch_size=4, n_frequencies=5) for cls in (GroupCodingDenoiser, PatchCodingDenoiser)
    )
    more = set(grouped.state_dict()) - set(apart.state_dict())
    assert more == {"layers.0.sharing", "layers.1.sharing"}
