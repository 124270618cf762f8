import numpy as np
import torch
from torch.testing import assert_close

from twinsolve.solvers.sparse_coding.matching_pursuit import pursue_rows
from twinsolve.unrolled.models.denoisers import MixtureOfExpertsDenoiser
from twinsolve.unrolled.sparse_coding.patches import (
    average_patches,
    patch_rows,
    photograph_dictionary,
    split_means,
)

from ..draws import uniform


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
