"""Volumes and pictures in .npy files: the same numbers as from arrays, and what is refused."""

import json
from itertools import product

import numpy as np
import pytest
from scipy.ndimage import gaussian_filter

from twinsolve.bench import denoise_image
from twinsolve.bench.report.folders import read_runs
from twinsolve.bench.vision.denoising import pictures
from twinsolve.bench.vision.denoising.methods import METHODS, settings_of
from twinsolve.bench.vision.denoising.noise_estimate import estimate_noise
from twinsolve.bench.vision.denoising.study import denoise, load_images, quality
from twinsolve.datasets import add_noise
from twinsolve.solvers import bilateral_filter, nonlocal_means

from ...command import run

SIGMA = 25 / 255
rng = np.random.default_rng(0)


def smooth_volume(shape=(8, 20, 24), seed=0):
    levels = gaussian_filter(np.random.default_rng(seed).standard_normal(shape), 3)
    return (levels - levels.min()) / np.ptp(levels)


VOLUME = smooth_volume()
NOISY = add_noise(VOLUME, sigma=SIGMA, random_state=0)


def means_of(volume, sigma=SIGMA, **options):
    settings = settings_of("non-local means")
    h = settings.pop("h") * sigma
    return nonlocal_means(volume, h=h, sigma=sigma, patch_distance=3, **settings, **options)


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16, np.float32, np.float64])
def test_a_volume_is_denoised_by_the_solver_and_written_as_it_came(dtype, tmp_path):
    top = np.iinfo(dtype).max if np.dtype(dtype).kind == "u" else 1
    given = (np.rint(top * NOISY.clip(0, 1)) if top > 1 else NOISY).astype(dtype)
    np.save(tmp_path / "scan.npy", given)
    said = run("denoise", tmp_path / "scan.npy", "--noisy", "--sigma", 25)
    assert "Method: non-local means" in said
    assert f"Written to {tmp_path / 'scan-denoised.npy'}" in said
    written = np.load(tmp_path / "scan-denoised.npy")
    expected = top * means_of(given / np.float64(top))
    assert (written.dtype, written.shape) == (given.dtype, given.shape)
    np.testing.assert_allclose(written, expected, rtol=0, atol=0.5 + 1e-6 if top > 1 else 1e-6)
    np.testing.assert_array_equal(np.load(tmp_path / "scan.npy"), given)


def test_holes_of_a_volume_are_filled_and_never_read(tmp_path):
    mask = rng.random(VOLUME.shape) > 0.1
    mask[2:5, 5:9, 5:9] = False
    np.save(tmp_path / "scan.npy", np.where(mask, NOISY, np.nan))
    for dtype in (bool, np.uint8):
        np.save(tmp_path / "valid.npy", mask.astype(dtype))
        words = "--mask", tmp_path / "valid.npy", "--sigma", 25
        run("denoise", tmp_path / "scan.npy", "--noisy", *words)
        found = np.load(tmp_path / "scan-denoised.npy")
        np.testing.assert_allclose(found, means_of(NOISY, mask=mask), rtol=0, atol=1e-12)
    assert np.square(found - VOLUME)[~mask].mean() < 0.05**2  # the volume varies by 0.2


def test_large_holes_are_announced_with_their_time(tmp_path, monkeypatch):
    mask = np.ones(VOLUME.shape, bool)
    mask[:, :12] = False  # valid voxels are at most 12 away
    np.save(tmp_path / "scan.npy", NOISY)
    np.save(tmp_path / "valid.npy", mask)
    n_pairs = mask.size * (2 * 8 - 1) * (2 * 12 + 1) ** 2
    monkeypatch.setattr(pictures, "_HOLED_PAIR", 100 / n_pairs)
    words = "--mask", tmp_path / "valid.npy", "--sigma", 25, "--noisy"
    said = run("denoise", tmp_path / "scan.npy", *words)
    assert "Windows reach 12 pixels, across the largest hole: about 100 s." in said
    monkeypatch.setattr(pictures, "_HOLED_PAIR", 29 / n_pairs)
    assert "Windows" not in run("denoise", tmp_path / "scan.npy", *words)


@pytest.mark.parametrize("name", [name for name, each in METHODS.items() if each.volumes])
def test_cubes_give_what_the_whole_volume_gives(name, monkeypatch):
    """So that no method looks further than it says."""
    method, volume = METHODS[name], add_noise(smooth_volume((6, 16, 75)), sigma=0.1)
    shown = []

    def progress(parts, total):
        shown.append(total)
        return parts

    monkeypatch.setattr(pictures, "CUBE", 25)
    found = denoise_image(volume, method=name, sigma=25, progress=progress).image
    assert shown == ([3] if method.reach is not None else [])
    np.testing.assert_allclose(found, method(volume, SIGMA), rtol=0, atol=1e-12)
    whole = denoise_image(volume, method=name, sigma=25).image
    np.testing.assert_array_equal(whole, found)


def test_a_folder_of_results_shows_what_was_denoised(tmp_path):
    np.save(tmp_path / "scan.npy", NOISY)
    words = "--noisy", "--sigma", 25, "--output", tmp_path / "out"
    run("denoise", tmp_path / "scan.npy", *words)
    assert {path.name for path in (tmp_path / "out").iterdir()} == {
        "denoised.png", "denoised.pdf", "settings.json", "summary.md",
    }  # fmt: skip
    summary = (tmp_path / "out" / "summary.md").read_text()
    assert "| scan.npy | 25.0 | given | non-local means | - |" in summary
    assert "![denoised](denoised.png)" in summary
    (found,) = read_runs([tmp_path])
    assert found.title == "twinsolve denoise --noisy"


def test_what_takes_no_volumes_names_what_does(tmp_path):
    able = "noisy, Gaussian, bilateral, non-local means, non-local means, Gaussian, twicing"
    for method in ("filter-diffusion", "total variation", "OMP, DCT"):
        with pytest.raises(ValueError, match=f"takes no volumes; these do: {able}"):
            denoise_image(NOISY, method=method, sigma=25)
    mask = rng.random(VOLUME.shape) > 0.1
    with_holes = "noisy, bilateral, non-local means, non-local means, Gaussian$"
    for method in ("twicing", "total variation"):
        with pytest.raises(
            ValueError, match=f"takes no volumes with holes; these do: {with_holes}"
        ):
            denoise_image(NOISY, method=method, sigma=25, mask=mask)
    np.save(tmp_path / "a.npy", NOISY)
    said = run("denoise", tmp_path / "a.npy", "--noisy", "--method", "total variation", code=2)
    assert "total variation takes no volumes; these do: noisy, Gaussian" in said


def test_the_last_axis_tells_colour_and_volume_apart(tmp_path):
    colours = add_noise(smooth_volume((24, 32, 3)), sigma=0.1)
    np.save(tmp_path / "colours.npy", colours.astype(np.float32))
    assert "FilterDiffusionDenoiser" in run("denoise", tmp_path / "colours.npy", "--noisy")
    found = np.load(tmp_path / "colours-denoised.npy")
    expected = denoise_image(colours.astype(np.float32)).image
    np.testing.assert_array_equal(found, expected)
    for shape in ((3, 40, 40), (4, 40, 40), (5, 5, 16), (2, 5, 16, 16)):
        with pytest.raises(ValueError, match="image: must have"):
            denoise_image(np.zeros(shape))
    assert denoise_image(NOISY[:5, :16, :16], sigma=25).method == "non-local means"


def test_files_that_are_no_pictures_or_volumes_are_named(tmp_path):
    scan = tmp_path / "scan.npy"
    for array, message in (
        (np.zeros((8, 20, 20), np.int16), "must be uint8, uint16, or floating point"),
        (np.full((8, 20, 20), 300.0), r"about \[0, 1\]; their mean is 300"),
        (np.full((8, 20, 20), np.nan), "a mask may mark them as holes"),
        (np.array([None]), "no NumPy file"),
    ):
        np.save(scan, array, allow_pickle=True)
        with pytest.raises(ValueError, match=message):
            denoise_image(scan)
    np.save(scan, NOISY)
    with pytest.raises(ValueError, match=r"PNG holds no volumes; name a \.npy"):
        pictures.denoise_file(scan, tmp_path / "scan.png")
    np.save(tmp_path / "flat.npy", NOISY[0])
    with pytest.raises(ValueError, match=r"PNG holds no floating-point levels; name a \.npy"):
        pictures.denoise_file(tmp_path / "flat.npy", tmp_path / "flat.png")
    np.save(tmp_path / "mask.npy", 255 * np.ones(NOISY.shape, np.uint8))
    with pytest.raises(ValueError, match="must hold bool, or zeros in holes and ones elsewhere"):
        denoise_image(NOISY, mask=tmp_path / "mask.npy")
    np.save(tmp_path / "mask.npy", np.ones(NOISY.shape[1:], bool))
    with pytest.raises(ValueError, match=r"array of bool of shape \(8, 20, 24\)"):
        denoise_image(NOISY, mask=tmp_path / "mask.npy")


def test_the_noise_of_a_volume_is_that_of_its_flattest_blocks_in_all_slices():
    """Not of its surroundings, which have no noise; but a phantom without noise has none."""
    noisy = add_noise(smooth_volume((16, 60, 60)) / 5, sigma=SIGMA, random_state=0)
    noisy[:8] = noisy[:, :24] = 0
    assert estimate_noise(noisy[..., None]) == pytest.approx(SIGMA, rel=0.05)
    assert denoise_image(noisy).sigma == pytest.approx(25, rel=0.05)
    phantom = np.zeros((16, 60, 60))
    phantom[4:12, 12:48, 12:48] = 0.5
    assert not denoise_image(phantom).denoised
    small = add_noise(smooth_volume((5, 16, 16)), sigma=SIGMA, random_state=0)
    assert estimate_noise(small[..., None]) == pytest.approx(SIGMA, rel=0.15)


@pytest.fixture
def folder(tmp_path):
    place = tmp_path / "scans"
    (place / "second").mkdir(parents=True)
    np.save(place / "a.npy", VOLUME)
    np.save(
        place / "second" / "b.npy", np.rint(255 * smooth_volume((6, 16, 18), 1)).astype("uint8")
    )
    return place


def test_the_command_compares_methods_on_volumes_and_resumes(folder, tmp_path):
    words = [folder, "--method", "noisy", "--method", "bilateral", "--output", tmp_path / "out"]
    run("denoise", *words)
    rows = json.loads((tmp_path / "out" / "table.json").read_text())
    assert [(row["method"], row["image"]) for row in rows] == [
        *product(["noisy", "bilateral"], ["a", "second/b"])
    ]
    settings = settings_of("bilateral")
    for row in rows:
        clean = load_images(str(folder)).clean[("a", "second/b").index(row["image"])]
        assert row["megapixels"] == pytest.approx(clean.size / 1e6)
        error = 10 ** (-row["psnr"] / 10)
        if row["method"] == "noisy":
            assert error == pytest.approx(SIGMA**2, rel=0.1)
        else:
            noisy = add_noise(clean, sigma=SIGMA, random_state=1)
            own = bilateral_filter(
                noisy, sigma_color=settings["colour"] * SIGMA, sigma_spatial=settings["width"],
                win_size=11,
            )  # fmt: skip
            assert error == pytest.approx(np.square(own - clean).mean(), rel=0.15)  # other noise
            assert row["ssim"] > 0.5
    assert (tmp_path / "out" / "crops.png").is_file()
    run("denoise", *words)
    assert json.loads((tmp_path / "out" / "table.json").read_text()) == rows  # seconds too


def test_every_method_that_takes_volumes_runs_by_default_and_others_are_refused(folder):
    table = denoise(str(folder))
    assert set(table.method) == {
        name for name, each in METHODS.items() if each.volumes and each.installed
    }
    assert table.note.isna().all(), table.note.dropna().tolist()
    assert table.ssim.notna().all()
    with pytest.raises(ValueError, match="total variation takes no volumes; these do"):
        denoise(str(folder), methods=["total variation"])
    with pytest.raises(ValueError, match=r"a\.npy: colour: volumes are grey"):
        denoise(str(folder), colour=True)


def test_volumes_with_holes_are_compared_outside_them(folder, tmp_path):
    masks = tmp_path / "masks"
    (masks / "second").mkdir(parents=True)
    for path in ("a.npy", "second/b.npy"):
        mask = np.ones(np.load(folder / path).shape, bool)
        mask[1:3, 4:7] = False
        np.save(masks / path, mask)
    table = denoise(str(folder), methods=["noisy", "non-local means"], mask=str(masks))
    assert table.note.isna().all()
    psnr = table.set_index(["image", "method"]).psnr
    assert psnr["a", "noisy"] == pytest.approx(-20 * np.log10(SIGMA), abs=0.3)
    assert psnr["a", "non-local means"] > psnr["a", "noisy"] + 3
    np.save(masks / "a.npy", np.ones((3, 3, 3), bool))
    with pytest.raises(ValueError, match="mask: must have the 8 x 20 x 24 pixels of a"):
        denoise(str(folder), methods=["noisy"], mask=str(masks))


def test_pictures_in_npy_files_are_those_in_picture_files(tmp_path):
    colours = np.rint(255 * smooth_volume((20, 24, 3))).astype(np.uint8)
    (tmp_path / "own").mkdir()
    np.save(tmp_path / "own" / "colours.npy", colours)
    np.save(tmp_path / "own" / "grey.npy", colours[..., 0] / np.float32(255))
    np.save(tmp_path / "own" / "wrong.npy", np.arange(12))
    found = load_images(str(tmp_path / "own"))
    assert found.names == ("colours", "grey")
    luma = colours @ np.array([0.299, 0.587, 0.114]) / 255
    np.testing.assert_allclose(found.clean[0], luma, rtol=1e-12)
    assert len(found.left_out) == 1
    assert "wrong.npy: image: must be uint8" in found.left_out[0]
    both = load_images(str(tmp_path / "own"), colour=True).clean
    np.testing.assert_array_equal(both[0], colours / 255)
    assert both[1].shape == (20, 24, 3)


def test_quality_of_thin_volumes_has_windows_that_fit():
    assert quality(VOLUME[:5], VOLUME[:5] + 1e-9)["ssim"] == pytest.approx(1)
    assert quality(VOLUME[:6], NOISY[:6])["ssim"] < 0.9
