"""Codes of a router beside those of pursuit, where either is known."""

import numpy as np
import pytest
import torch
from routed_codes import beside_pursuit, distinct_atoms
from torch import nn

from twinsolve.unrolled.models.denoisers import MixtureOfExpertsDenoiser
from twinsolve.unrolled.sparse_coding.patches import photograph_dictionary


@pytest.fixture
def pair():
    rng = np.random.default_rng(0)
    clean = np.add.outer(np.arange(17) // 6, np.arange(19) // 5) / 6.0
    return clean + 0.1 * rng.standard_normal(clean.shape), clean


def test_numbers_are_those_of_patches_one_by_one(pair):
    network = MixtureOfExpertsDenoiser(3, threshold=0.25, dtype=torch.float64)
    found = beside_pursuit(network, *pair, dictionary=network)
    D, (noisy, clean) = photograph_dictionary().numpy(), pair
    overlaps, sizes, left, off = [], [], np.zeros(4), np.zeros(4)
    for top in range(10):
        for start in range(12):
            y, x = (
                (p - p.mean()).ravel()
                for p in (image[top : top + 8, start : start + 8] for image in (noisy, clean))
            )
            rest, routed = y, set()
            for _ in range(3):
                scores = D @ rest
                j = int(np.abs(scores).argmax())
                if abs(scores[j]) > 0.25:
                    routed.add(j)
                    rest = rest - np.sign(scores[j]) * (abs(scores[j]) - 0.25) * D[j]
            if not routed:
                continue
            pursued: list[int] = []
            fit = np.zeros_like(y)
            while len(pursued) < len(routed):
                pursued.append(int(np.abs(D @ (y - fit)).argmax()))
                fit = fitted(y, D[pursued])
            overlaps.append(len(routed & set(pursued)) / len(routed | set(pursued)))
            sizes.append(len(routed))
            fits = (y - rest, fitted(y, D[sorted(routed)]), fit)
            left += [*(np.square(z - y).sum() for z in fits), y @ y]
            off += [*(np.square(z - x).sum() for z in fits), x @ x]
    assert len(set(sizes)) > 1
    assert found["atoms"] == pytest.approx(np.mean(sizes), rel=1e-12)
    assert found["jaccard"] == pytest.approx(np.mean(overlaps), rel=1e-12)
    assert 0 < found["jaccard"] < 1
    for which, sums in (("left", left), ("off", off)):
        for name, value in zip(("routed", "refitted", "pursued"), sums / sums[3], strict=False):
            assert found[f"{which}_{name}"] == pytest.approx(value, rel=1e-9)


def fitted(y, atoms):
    return np.linalg.lstsq(atoms.T, y)[0] @ atoms


def test_a_router_that_knows_nothing_agrees_as_if_by_chance(pair):
    start, lost = (MixtureOfExpertsDenoiser(3, threshold=0.01) for _ in range(2))
    generator = torch.Generator().manual_seed(0)
    for layer in lost.layers:
        nn.init.normal_(layer.router, generator=generator)
    agrees = beside_pursuit(start, *pair, dictionary=start)
    guesses = beside_pursuit(lost, *pair, dictionary=start)
    assert agrees["jaccard"] > 3 * agrees["chance"]
    assert guesses["jaccard"] < agrees["jaccard"] / 3
    assert lost.layers[0].router.dtype == torch.float32


def test_atoms_are_of_norm_one_and_those_that_layers_share_are_one():
    network = MixtureOfExpertsDenoiser(2, dtype=torch.float64)
    atoms, columns = distinct_atoms(network)
    assert atoms.shape == (128, 64)
    assert (columns[0] == columns[1]).all()
    with torch.no_grad():
        network.layers[1].synthesis[5] *= -3
    atoms, columns = distinct_atoms(network)
    assert atoms.shape == (129, 64)
    np.testing.assert_allclose(np.linalg.norm(atoms, axis=1), 1)
    moved = network.layers[1].synthesis[5].detach().numpy() / 3
    np.testing.assert_allclose(atoms[columns[1, 5]], moved, rtol=1e-12)
    assert np.flatnonzero(columns[0] != columns[1]).tolist() == [5]
