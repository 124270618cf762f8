"""Networks that denoise: what all have in common, and parts of some."""

import numpy as np
import pytest
import torch
from torch.testing import assert_close

from twinsolve.solvers.sparse_coding.matching_pursuit import pursue_rows
from twinsolve.unrolled.models import denoisers
from twinsolve.unrolled.models.denoisers import GroupCodingDenoiser, MixtureOfExpertsDenoiser
from twinsolve.unrolled.sparse_coding.patches import patch_rows, photograph_dictionary, split_means

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


SMALL = {"lam": 0.2, "patch_size": 4, "n_frequencies": 5}
GROUPED = {**SMALL, "window": 3, "n_similar": 5}


def test_small_images_have_fewer_similar_patches():
    network = GroupCodingDenoiser(1, **GROUPED)
    assert network(torch.rand(1, 1, 4, 5)).shape == (1, 1, 4, 5)
