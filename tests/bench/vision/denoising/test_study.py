"""The table of `twinsolve denoise`: every number against its definition, on small pictures."""

import json

import numpy as np
import pytest
from PIL import Image
from scipy.ndimage import gaussian_filter
from typer.testing import CliRunner

from twinsolve.bench.cli import app
from twinsolve.bench.vision.denoising.images import load_images, noisy_image
from twinsolve.bench.vision.denoising.methods import (
    METHODS,
    DenoisingMethod,
    register_denoiser,
    settings_of,
)
from twinsolve.bench.vision.denoising.networks import (
    apply,
    at_start,
    deviations,
    load_shipped,
    network_names,
    shipped_path,
    solve,
    started,
)
from twinsolve.bench.vision.denoising.study import SOLVER, denoise
from twinsolve.solvers import nonlocal_means

_SIGMA = 25.0


@pytest.fixture
def folder(tmp_path):
    """Two small pictures, one of them no square."""
    rng = np.random.default_rng(0)
    pictures = tmp_path / "pictures"
    pictures.mkdir()
    for name, shape in (("a", (40, 40)), ("b", (36, 44))):
        smooth = gaussian_filter(rng.standard_normal(shape), 3)
        levels = np.rint(255 * (smooth - smooth.min()) / np.ptp(smooth)).astype(np.uint8)
        Image.fromarray(levels).save(pictures / f"{name}.png")
    return str(pictures)


def test_rows_are_what_a_method_makes_of_the_same_noisy_images(folder):
    table = denoise(folder, methods=["noisy", "non-local means"], sigmas=[15.0, _SIGMA], seed=3)
    assert len(table) == 2 * 2 * 2
    names, clean = load_images(folder)
    for row in table.itertuples():
        place = names.index(row.image)
        noisy = noisy_image(clean[place], row.sigma / 255, 3, place)
        denoised = noisy
        if row.method != "noisy":
            settings = settings_of(row.method)
            h = settings.pop("h") * row.sigma / 255
            denoised = nonlocal_means(noisy, h=h, sigma=row.sigma / 255, **settings)
        error = np.square(denoised - clean[place]).mean()
        np.testing.assert_allclose(row.psnr, -10 * np.log10(error), rtol=1e-12)
    assert table.kind.eq("solved").all()


def test_noise_has_its_level_and_differs_between_images_seeds_and_levels():
    image = np.full((200, 200), 0.5)
    noise = {
        key: noisy_image(image, key[0], *key[1:]) - image
        for key in ((0.1, 0, 0), (0.1, 0, 1), (0.1, 1, 0), (0.2, 0, 0))
    }
    for (level, *_), sample in noise.items():
        assert abs(sample.std() / level - 1) < 0.02  # 4 deviations of an estimate from 40,000
    samples = [sample / level for (level, *_), sample in noise.items()]
    correlations = np.corrcoef([sample.ravel() for sample in samples])
    assert np.abs(correlations - np.eye(len(samples))).max() < 0.03


@pytest.mark.parametrize("name", network_names())
def test_networks_start_at_their_solvers_answer(name, folder):
    table = denoise(folder, methods=[f"{name}, start", name + SOLVER])
    start, solved = (table[table.kind == kind].psnr.to_numpy() for kind in ("start", "solved"))
    assert table.note.isna().all()
    allowed = np.full(len(start), 1e-5)
    if hasattr(network := at_start(name, _SIGMA / 255), "certificate"):
        # A minimiser is known to its certified distance d: |e + d| / |e| in dB, twice.
        errors = 10 ** (-solved / 20)
        allowed = 20 * np.log10(1 + 2 * network.tol / errors)
    assert (np.abs(start - solved) <= allowed).all()


def test_start_and_solver_differ_where_a_parameter_does(folder):
    network, _ = at_start("FilterDiffusionDenoiser", 25 / 255), None
    image = load_images(folder)[1][0]
    before = np.abs(apply(network, image) - solve(network, image)).max()
    network.steps[1].lam.data += 0.5
    other = started(network)
    assert before < 1e-5
    assert np.abs(apply(network, image) - solve(other, image)).max() > 1e-3


@pytest.mark.parametrize("name", network_names())
def test_shipped_networks_agree_with_their_solver_at_what_they_learned(name, folder):
    path = shipped_path(name, 25 / 255)
    if not path.is_file():
        pytest.skip("no weights are shipped")
    image = load_images(folder)[1][0][:24, :24]
    for row in deviations(load_shipped(path), [image]):
        assert row["deviation"] <= row["tolerance"], row
    fresh = started(load_shipped(path))
    assert np.abs(apply(fresh, image) - apply(load_shipped(path), image)).max() > 1e-3


def test_shipped_networks_denoise_better_than_they_started(folder):
    trained = [f"{n}, trained" for n in network_names() if shipped_path(n, 25 / 255).is_file()]
    start = [method.replace("trained", "start") for method in trained]
    psnr = denoise(methods=[*trained, *start]).groupby("method").psnr.mean()
    for learned, first in zip(trained, start, strict=True):
        assert psnr[learned] > psnr[first] + 0.3


def test_a_method_that_fails_leaves_a_note_and_the_others_their_numbers(folder):
    method = register_denoiser(DenoisingMethod("one row less", "own", "own", lambda y, s: y[1:]))
    try:
        table = denoise(folder, methods=["noisy", method.name])
    finally:
        del METHODS[method.name]
    failed = table[table.method == method.name]
    assert failed.psnr.isna().all()
    assert failed.note.str.contains("ValueError: returned no finite image").all()
    assert table[table.method == "noisy"].psnr.notna().all()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"methods": ["Gausian"]}, "close ones are Gaussian"),
        ({"methods": []}, "must be one or more"),
        ({"methods": ["json:nothing"]}, "no function"),
        ({"sigmas": [0.0]}, "must be > 0"),
        ({"images": "nowhere"}, "images: must be photographs or set12"),
        ({"methods": ["FilterDiffusionDenoiser, trained"], "sigmas": [13.0]}, "no weights"),
    ],
)
def test_bad_arguments_are_named(arguments, message):
    with pytest.raises(ValueError, match=message):
        denoise(**arguments)


def test_the_command_takes_a_folder_and_resumes(folder, tmp_path):
    output = tmp_path / "out"
    options = ["--method", "noisy", "--method", "Gaussian", "--sigma", "25"]
    command = ["denoise", folder, *options, "--output", str(output)]
    run = CliRunner().invoke(app, command)
    assert run.exit_code == 0, run.output
    rows = json.loads((output / "table.json").read_text())
    assert {(row["method"], row["kind"], row["image"], row["sigma"]) for row in rows} == {
        (method, "solved", image, 25.0) for method in ("noisy", "Gaussian") for image in ("a", "b")
    }
    assert all(row["psnr"] > 15 for row in rows)
    for name in ("summary.md", "settings.json", "means.csv", "crops.png", "quality.png"):
        assert (output / name).is_file()
    first = {row["method"]: row["seconds"] for row in rows}
    assert CliRunner().invoke(app, command).exit_code == 0
    again = json.loads((output / "table.json").read_text())
    assert {row["method"]: row["seconds"] for row in again} == first  # kept, not run again


def test_changed_pictures_are_run_again(folder, tmp_path):
    kept = {"methods": ["noisy"], "directory": tmp_path / "runs"}
    before = denoise(folder, **kept)
    with Image.open(f"{folder}/a.png") as picture:
        image = np.asarray(picture)
    Image.fromarray(255 - image[::-1] // 2).save(f"{folder}/a.png")
    load_images.cache_clear()
    after = denoise(folder, **kept)
    assert after.ssim[0] != before.ssim[0]


def test_distances_are_certified_for_every_image(folder):
    table = denoise(folder, methods=["ConvexRidgeDenoiser, start", "noisy"])
    known = table[table.kind == "start"].distance
    assert (known > 0).all()
    assert (known <= at_start("ConvexRidgeDenoiser", _SIGMA / 255).tol).all()
    assert table[table.method == "noisy"].distance.isna().all()
    network = at_start("ConvexRidgeDenoiser", _SIGMA / 255).double()
    network.ridge.tol = 1e-6
    _, clean = load_images(folder)
    for place, proved in enumerate(known):
        noisy = noisy_image(clean[place], _SIGMA / 255, 0, place)
        rough = apply(at_start("ConvexRidgeDenoiser", _SIGMA / 255), noisy)
        apart = np.sqrt(np.square(rough - apply(network, noisy)).mean())
        assert apart <= proved + 1e-6
