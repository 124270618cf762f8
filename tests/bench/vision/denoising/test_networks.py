"""Denoising networks: tiles against the whole, and how far they are from their start."""

import numpy as np
import pytest
import torch
from PIL import Image

from twinsolve.bench import denoise, denoise_image, load_denoiser
from twinsolve.bench.vision.denoising.networks import (
    apply,
    in_tiles,
    layers_of,
    readable,
    shipped_classes,
    started,
)
from twinsolve.bench.vision.denoising.report import classical_problems, energies
from twinsolve.datasets import add_noise, load_photographs
from twinsolve.unrolled.models.denoisers import (
    FilterDiffusionDenoiser,
    GroupCodingDenoiser,
    MixtureOfExpertsDenoiser,
    NoiseLevelDiffusionDenoiser,
    NonlocalFilterDiffusionDenoiser,
    NonLocalMeansDenoiser,
    PatchCodingDenoiser,
)

from ...command import run

NETWORKS = {
    "diffusion": lambda: FilterDiffusionDenoiser(n_layers=2, filter_size=3),
    "noise levels": lambda: NoiseLevelDiffusionDenoiser(n_layers=2, filter_size=3),
    "similar windows": lambda: NonlocalFilterDiffusionDenoiser(
        n_layers=1, filter_size=3, window=2, n_similar=4
    ),
    "patches": lambda: PatchCodingDenoiser(2, patch_size=4, n_frequencies=5),
    "groups": lambda: GroupCodingDenoiser(2, patch_size=3, n_frequencies=4, window=2, n_similar=4),
    "experts": lambda: MixtureOfExpertsDenoiser(2),
    "means": lambda: NonLocalMeansDenoiser(2, patch_size=3, patch_distance=2),
}


@pytest.fixture
def image():
    return np.random.default_rng(0).random((31, 42))


def perturbed(make, dtype):
    """Away from the start, so that similar patches count."""
    network = make().to(dtype)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in network.parameters():
            noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
            parameter += 0.02 * noise
    return network


def function(network, dtype):
    @torch.no_grad()
    def denoise(part):
        return network(torch.from_numpy(np.ascontiguousarray(part)).to(dtype)[None, None])[0, 0]

    return denoise


@pytest.mark.parametrize("name", NETWORKS)
def test_tiles_are_the_whole(name, image):
    dtype = torch.float64
    network = perturbed(NETWORKS[name], dtype)
    denoise, margin = function(network, dtype), network.margin
    whole = denoise(image).numpy()
    found = in_tiles(denoise, image, margin=margin, side=11)
    np.testing.assert_allclose(found, whole, rtol=0, atol=1e-12)
    # Without the margin it would not be.
    assert np.abs(in_tiles(denoise, image, margin=0, side=16) - whole).max() > 1e-4


@pytest.mark.parametrize("numbers", [{"margin": -1}, {"margin": 0, "side": 0}])
def test_numbers_out_of_range(numbers, image):
    with pytest.raises(ValueError, match="margin, side"):
        in_tiles(lambda part: part, image, **numbers)


DIFFUSION = {"n_layers": 3, "filter_size": 3}
CODING = {"n_layers": 2, "patch_size": 4, "n_frequencies": 5}


@pytest.fixture
def noisy():
    return np.random.default_rng(0).random((17, 20))


def test_coding_problems_at_the_start_and_with_another_penalty():
    network = PatchCodingDenoiser(**CODING, lam=0.3, dtype=torch.float64)
    first, second = classical_problems(network)
    assert np.isnan(first["asymmetry"])
    assert second["lam"] == pytest.approx(0.3, rel=1e-12)
    assert second["asymmetry"] < 1e-12
    layer = network.layers[1]
    with torch.no_grad():
        layer.log_threshold += np.log(2)
        layer.analysis *= 0.5
    assert classical_problems(network)[1]["lam"] == pytest.approx(4 * 0.3, rel=1e-12)
    with torch.no_grad():
        layer.analysis[0] = 0
    assert classical_problems(network)[1]["asymmetry"] > 0.01


@pytest.mark.parametrize("cls", [FilterDiffusionDenoiser, NonlocalFilterDiffusionDenoiser])
def test_energies_fall_at_the_start_and_rise_against_it(cls, noisy):
    start = cls(**DIFFUSION)
    rows = energies(start, start, noisy)
    assert all(row["descends"] for row in rows)
    assert [row["after"] for row in rows] == pytest.approx([row["classical"] for row in rows])
    assert [row["before"] for row in rows[1:]] == [row["after"] for row in rows[:-1]]
    against = cls(**DIFFUSION)
    with torch.no_grad():
        against.steps[1].lam.fill_(2.5)  # over 2: a step of that length rises
    found = energies(against, start, noisy)
    assert [row["descends"] for row in found] == [True, False, True]
    assert against.steps[0].lam.dtype == torch.float32
    assert energies(PatchCodingDenoiser(**CODING), start, noisy) == []


def test_energy_of_similar_windows_is_that_of_their_responses(noisy):
    local, shared = (
        FilterDiffusionDenoiser(**DIFFUSION),
        NonlocalFilterDiffusionDenoiser(**DIFFUSION, n_similar=3, window=2),
    )
    with torch.no_grad():
        for step in shared.steps:
            step.sharing.fill_(0.8)
    alone, together = (energies(network, network, noisy)[0] for network in (local, shared))
    # responses to noise that are averaged are smaller
    assert 0 < together["before"] < 0.8 * alone["before"]


def test_the_shipped_network_of_all_levels_is_that_for_25_at_25_and_helps_at_all(noisy):
    network, fixed = load_denoiser("noise-level-diffusion"), load_denoiser("filter-diffusion")
    np.testing.assert_allclose(
        apply(network, noisy, 25 / 255), apply(fixed, noisy), rtol=0, atol=1e-6
    )
    clean = load_photographs().images[0][100:228, 200:328]
    for sigma in (5, 15, 50, 75):
        given = add_noise(clean, sigma=sigma / 255, random_state=0)
        closest = load_denoiser("filter-diffusion", sigma=50 if sigma > 35 else 25)
        s = 255 * closest.sigma / sigma
        found = apply(network, given, sigma / 255), apply(closest, s * given) / s
        errors = [10 * np.log10(np.square(image - clean).mean()) for image in found]
        assert errors[0] < errors[1] + 0.15, sigma  # dB behind what is rescaled
        start = apply(started(network), given, sigma / 255)
        assert np.square(found[0] - clean).mean() < np.square(start - clean).mean()


def test_a_noise_is_told_without_a_sign():
    network = load_denoiser("nonlocal-means")
    noises = [layer.means.noise.detach() for layer in layers_of(network)]
    assert any(bool((x < 0).all()) for x in noises)
    told = [row["means noise"] for row in readable(network)]
    assert told == [float(x.double().median().abs()) for x in noises]


def test_functions_take_it_at_each_noise(tmp_path):
    clean = load_photographs().images[0][100:164, 200:264]
    noisy = add_noise(clean, sigma=13 / 255, random_state=0)
    found = denoise_image(noisy, method="noise-level-diffusion", sigma=13)
    assert found.trained_for is None
    expected = apply(load_denoiser("noise-level-diffusion"), noisy, 13 / 255)
    np.testing.assert_allclose(found.image, expected, rtol=0, atol=1e-6)
    Image.fromarray(np.rint(255 * clean).astype(np.uint8)).save(tmp_path / "a.png")
    method = "NoiseLevelDiffusionDenoiser, trained"
    table = denoise(str(tmp_path), methods=[method], sigmas=[13, 60])
    assert table.note.isna().all()
    assert (table.psnr > [27, 20]).all()


@pytest.mark.parametrize("name", sorted(shipped_classes()))
def test_the_command_reports_on_each_shipped_network_beside_its_solver(name, tmp_path):
    rng = np.random.default_rng(0)
    pictures, results = tmp_path / "pictures", tmp_path / "results"
    pictures.mkdir()
    Image.fromarray(rng.integers(0, 256, (48, 48), dtype=np.uint8)).save(pictures / "a.png")
    levels = ["--sigma", 25, *["--sigma", 60] * (name == "noise-level-diffusion")]
    run("denoise", pictures, "--method", name, *levels, "--output", results)
    assert (results / "summary.md").is_file()
