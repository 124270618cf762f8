"""Encoders that start at the same codes, and the tasks that train them."""

import numpy as np
import pytest
import task_driven as study
import torch
from sklearn.preprocessing import normalize

from twinsolve.unrolled import solved_lasso

RNG = np.random.default_rng(0)
ATOMS, SIGNALS = (
    torch.from_numpy(normalize(RNG.standard_normal((n, 12)))).float() for n in (16, 40)
)


def test_encoders_start_at_the_same_problem():
    solved = solved_lasso(SIGNALS, ATOMS, lam=0.2)
    with torch.no_grad():
        codes = {name: make(ATOMS, 0.2)(SIGNALS) for name, make in study.ENCODERS.items()}
        long = study.ENCODERS["unrolled, 10 iterations"](ATOMS, 0.2)
        long.n_iter = 3000
        assert (long(SIGNALS) - solved).abs().max() < 1e-4
    for name in ("K-SVD", "solved"):
        assert (codes[name] - solved).abs().max() < 1e-5  # atoms are normalised once more
    ten = codes["unrolled, 10 iterations"]
    assert (codes["LISTA, 10 iterations"] - ten).abs().max() < 1e-5
    assert (codes["LISTA, 1 iteration"] - ten).abs().max() > 0.1


@pytest.mark.parametrize("encoder", study.ENCODERS)
def test_training_learns_digits(encoder):
    (row,) = study.compare(task="digits", encoder=encoder, seed=0, seconds=1.5)
    assert row["score"] > 50
    assert row["steps"] >= 5
    readout = 10 * study.N_ATOMS + 10
    assert row["parameters"] >= readout + 64 * study.N_ATOMS


def test_an_image_is_denoised_by_its_patches(monkeypatch, real_data):
    """A dictionary of unit vectors, whose codes at a tiny penalty are the patches."""
    identity = torch.eye(study.PATCH**2)
    readout = torch.nn.Linear(study.PATCH**2, study.PATCH**2, bias=False)
    readout.weight.data.copy_(identity)
    network = study.Network(study.LassoEncoder(identity, 1e-6), readout)
    monkeypatch.setattr(study, "_CROP", 32)
    with torch.no_grad():
        psnr = dict(study.measure_images(network, None))
    assert len(psnr) == 12
    assert np.mean(list(psnr.values())) == pytest.approx(-20 * np.log10(study.SIGMA), abs=0.3)
