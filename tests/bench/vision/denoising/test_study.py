"""The table of `twinsolve denoise`: every number against its definition, on small pictures."""

import itertools
import json
import re
import shutil
import sys
import warnings
from collections import Counter
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from PIL import Image
from scipy.ndimage import gaussian_filter, minimum_filter
from skimage.metrics import structural_similarity
from sklearn.exceptions import ConvergenceWarning

from twinsolve.bench.recipe import Recipe
from twinsolve.bench.run_folder import load_model
from twinsolve.bench.terminal import present_folder
from twinsolve.bench.vision.denoising import figures
from twinsolve.bench.vision.denoising.methods import (
    BUILT_IN,
    METHODS,
    SOLVER,
    DenoisingMethod,
    by_channel,
    find_entry,
    register_denoiser,
    settings_of,
)
from twinsolve.bench.vision.denoising.networks import (
    apply,
    at_start,
    deviations,
    distance,
    load_shipped,
    network_names,
    shipped_path,
    started,
)
from twinsolve.bench.vision.denoising.report import (
    best_of_families,
    means,
    note_on_pairs,
    paired_lines,
    remarks,
    starts,
)
from twinsolve.bench.vision.denoising.study import (
    SMALLEST,
    NoisyImages,
    denoise,
    load_images,
    noisy_image,
    quality,
)
from twinsolve.bench.vision.denoising.training import train_denoiser
from twinsolve.datasets import fetch_train400
from twinsolve.solvers import nonlocal_means
from twinsolve.unrolled.models.denoisers import FilterDiffusionDenoiser

from ...command import run

_SIGMA = 25.0
ROOT = Path(__file__).parents[4]


def write_pictures(place, shapes, seed=0):
    """Small smooth pictures, named a, b and so on."""
    place.mkdir()
    rng = np.random.default_rng(seed)
    for name, shape in zip("abcd", shapes, strict=False):
        smooth = gaussian_filter(rng.standard_normal(shape), (3, 3, 0)[: len(shape)])
        levels = np.rint(255 * (smooth - smooth.min()) / np.ptp(smooth)).astype(np.uint8)
        Image.fromarray(levels).save(place / f"{name}.png")
    return str(place)


@pytest.fixture
def folder(tmp_path):
    """Two small pictures, one of them no square."""
    return write_pictures(tmp_path / "pictures", [(40, 40), (36, 44)])


@pytest.fixture
def register():
    """Registers a function of the user's by a name, until the test ends."""
    yield lambda name, function: register_denoiser(DenoisingMethod(name, "own", "own", function))
    for name in set(METHODS) - BUILT_IN:
        del METHODS[name]


def run_command(*words, output, code=0):
    """What the command prints, in one line; and the rows that it writes."""
    said = run("denoise", *words, "--output", output, code=code)
    path = Path(output) / "table.json"
    return said, json.loads(path.read_text()) if path.is_file() else []


def test_rows_are_what_a_method_makes_of_the_same_noisy_images(folder):
    table = denoise(folder, methods=["noisy", "non-local means"], sigmas=[15.0, _SIGMA], seed=3)
    assert len(table) == 2 * 2 * 2
    names, clean, *_ = load_images(folder)
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
    assert starts(table).within.tolist() == [True]
    start, solved = (table[table.kind == kind].psnr.to_numpy() for kind in ("start", "solved"))
    assert np.abs(start - solved).max() <= 1e-5


@pytest.mark.parametrize("name", network_names())
def test_shipped_networks_agree_with_their_solver_at_what_they_learned(name, folder):
    network = load_shipped(shipped_path(name, 25 / 255))
    image = load_images(folder).clean[0][:24, :24]
    for row in deviations(network, [image]):
        assert row["deviation"] <= row["tolerance"], row
    assert np.abs(apply(started(network), image) - apply(network, image)).max() > 1e-3


def test_shipped_networks_denoise_better_than_they_started(tmp_path):
    for name, photograph in zip("ab", load_images("photographs").clean, strict=True):
        centre = np.rint(255 * photograph[64:112, 64:112]).astype(np.uint8)
        Image.fromarray(centre).save(tmp_path / f"{name}.png")
    trained = [f"{name}, trained" for name in network_names()]
    start = [method.replace("trained", "start") for method in trained]
    psnr = denoise(str(tmp_path), methods=[*trained, *start]).groupby("method").psnr.mean()
    for learned, first in zip(trained, start, strict=True):
        assert psnr[learned] > psnr[first] + 0.3


def test_a_method_that_fails_leaves_a_note_and_the_others_their_numbers(folder, register):
    register("one row less", lambda noisy, sigma: noisy[1:])
    table = denoise(folder, methods=["noisy", "one row less"]).set_index("method")
    assert table.psnr["one row less"].isna().all()
    assert table.note["one row less"].str.contains("ValueError: returned an image of shape").all()
    assert table.psnr["noisy"].notna().all()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"methods": ["Gausian"]}, "close ones are Gaussian"),
        ({"methods": []}, "must name at least one"),
        ({"methods": ["json:nothing"]}, "no function"),
        ({"sigmas": [0.0]}, "must be one or more, > 0"),
        ({"sigmas": [float("nan")]}, "must be one or more, > 0"),
        ({"sigmas": [float("inf")]}, "must be one or more, > 0"),
        ({"sigmas": []}, "must be one or more"),
        ({"images": "set12", "colour": True}, "set12 is grey"),
        ({"images": "nowhere"}, "images: must be photographs, set12, held-out or a"),
        ({"methods": ["FilterDiffusionDenoiser, trained"], "sigmas": [13.0]}, "no weights .* 25"),
    ],
)
def test_bad_arguments_are_named(arguments, message):
    with pytest.raises(ValueError, match=message):
        denoise(**arguments)


def test_the_command_takes_a_folder_and_resumes(folder, tmp_path):
    output = tmp_path / "out"
    words = [folder, "--method", "noisy", "--method", "Gaussian", "--sigma", "25"]
    _, rows = run_command(*words, output=output)
    assert {(row["method"], row["kind"], row["image"], row["sigma"]) for row in rows} == {
        (method, "solved", image, 25.0) for method in ("noisy", "Gaussian") for image in ("a", "b")
    }
    assert all(row["psnr"] > 15 for row in rows)
    for name in ("summary.md", "settings.json", "means.csv", "crops.png", "quality.png"):
        assert (output / name).is_file()
    assert run_command(*words, output=output)[1] == rows  # seconds too: kept, not run again


def test_a_changed_picture_is_run_again_and_the_others_are_not(folder, tmp_path):
    kept = {"methods": ["Gaussian"], "directory": tmp_path / "runs"}
    first = denoise(folder, **kept).set_index("image")
    with Image.open(f"{folder}/a.png") as picture:
        image = np.asarray(picture)
    Image.fromarray(255 - image[::-1] // 2).save(f"{folder}/a.png")
    Image.fromarray(np.full((40, 40), 9, np.uint8)).save(f"{folder}/c.png")
    again = denoise(folder, **kept).set_index("image")
    assert again.ssim["a"] != first.ssim["a"]
    assert again.seconds["b"] == first.seconds["b"]


def test_distances_are_certified_for_every_image(folder):
    table = denoise(folder, methods=["ConvexRidgeDenoiser, start", "noisy"])
    known = table[table.kind == "start"].distance
    assert (known > 0).all()
    assert (known <= at_start("ConvexRidgeDenoiser", _SIGMA / 255).tol).all()
    assert table[table.method == "noisy"].distance.isna().all()
    network = at_start("ConvexRidgeDenoiser", _SIGMA / 255).double()
    network.ridge.tol = 1e-6
    clean = load_images(folder).clean
    for place, image in enumerate(clean):
        noisy = noisy_image(image, _SIGMA / 255, 0, place)
        rough = apply(start := at_start("ConvexRidgeDenoiser", _SIGMA / 255), noisy)
        apart = np.sqrt(np.square(rough - apply(network, noisy)).mean())
        assert apart <= distance(start, noisy, rough) + 1e-6


@pytest.fixture
def own_module(tmp_path, monkeypatch):
    """Writes a module of the user's, and forgets it."""

    def write(text):
        (tmp_path / "own_denoiser.py").write_text(text)
        sys.modules.pop("own_denoiser", None)

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)  # two texts within a second
    yield write
    sys.modules.pop("own_denoiser", None)


def test_a_function_that_changed_is_run_again(folder, own_module, tmp_path):
    asked = {"methods": ["own_denoiser:half"], "directory": tmp_path / "runs"}
    own_module("def half(noisy, sigma):\n    return noisy / 2\n")
    first = denoise(folder, **asked)
    assert denoise(folder, **asked).seconds.equals(first.seconds)
    own_module("def half(noisy, sigma):\n    return noisy / 2 + 0.2\n")
    assert not denoise(folder, **asked).psnr.equals(first.psnr)


def _blurred(noisy, sigma, width):
    return gaussian_filter(noisy, width)


def test_settings_of_a_registered_method_are_part_of_what_is_kept(folder, tmp_path, register):
    found = []
    for width in (1.0, 2.0):
        register("blurred", partial(_blurred, width=width))
        found.append(denoise(folder, methods=["blurred"], directory=tmp_path / "runs"))
        del METHODS["blurred"]
    assert not found[0].psnr.equals(found[1].psnr)


def test_registered_methods_run_in_other_processes(folder, register):
    register("less", lambda noisy, sigma: 0.9 * noisy)
    one, two = (denoise(folder, methods=["less", "noisy"], n_jobs=n) for n in (1, 2))
    assert two.note.isna().all()
    assert one.psnr.equals(two.psnr)


def test_a_method_of_an_unknown_kind_is_refused():
    with pytest.raises(ValueError, match="kind: must be among solved, peer, own"):
        DenoisingMethod("x", "trained", "own", lambda y, s: y)


def test_what_failed_is_tried_again(folder, own_module, tmp_path):
    asked = {"methods": ["own_denoiser:fails"], "directory": tmp_path / "runs"}
    own_module("""
from pathlib import Path

def fails(noisy, sigma):
    if not Path("mended").exists():
        raise OSError("not yet")
    return noisy
""")
    assert denoise(folder, **asked).note.str.contains("OSError: not yet").all()
    (tmp_path / "mended").touch()
    assert denoise(folder, **asked).note.isna().all()


def test_means_are_over_all_images_or_missing_and_warnings_are_told(folder, register):
    def fussy(noisy, sigma):
        if noisy.shape == (40, 40):
            raise RuntimeError("no squares")
        warnings.warn("gap 1", ConvergenceWarning, stacklevel=1)
        return noisy

    register("fussy", fussy)
    table = denoise(folder, methods=["noisy", "fussy"])
    found = means(table).set_index("method").psnr
    assert np.isnan(found["fussy"])
    assert found["noisy"] == pytest.approx(table[table.method == "noisy"].psnr.mean())
    assert remarks(table) == [
        "fussy warned on 1 images, first: ConvergenceWarning: gap 1",
        "fussy failed on 1 images, first: RuntimeError: no squares",
    ]


def test_pictures_that_are_unreadable_or_too_small_are_left_out_and_told(folder, tmp_path):
    """The others keep their numbers, whatever the method, and the exit code says so."""
    clean = denoise(folder, methods=["Gaussian"])
    Image.fromarray(np.full((5, 5), 99, np.uint8)).save(f"{folder}/tiny.png")
    Image.fromarray(np.zeros((40, 40), np.float32)).save(f"{folder}/float.tif")
    Image.new("L", (40, 40)).save(f"{folder}/old.gif")
    Path(folder, "notes.txt").write_text("two photographs")
    Path(folder, ".hidden").write_text("")
    with pytest.warns(UserWarning, match="left out") as told:
        table = denoise(folder, methods=["Gaussian"])
    assert len(told) == 3
    assert table.image.tolist() == ["a", "b"]
    output = tmp_path / "out"
    said, rows = run_command(folder, "--method", "Gaussian", output=output, code=1)
    for words in (
        "out: .*tiny: has 5 x 5 pixels; must have 16 x 16",
        r"out: .*float\.tif: levels must .*floating-point",
        r"out: .*old\.gif: is none of \.png",
        r"out, as no pictures: notes\.txt\.",
    ):
        for text in (said, (output / "summary.md").read_text()):
            assert re.search(f"Left {words}", text)
    for row, noisy_apart in zip(rows, clean.psnr, strict=True):
        assert row["psnr"] == pytest.approx(noisy_apart, abs=0.5)
    (tmp_path / "small").mkdir()
    shutil.copy(f"{folder}/tiny.png", tmp_path / "small")
    with pytest.raises(ValueError, match="tiny: has 5 x 5 pixels"):
        denoise(str(tmp_path / "small"), methods=["Gaussian"])


def test_the_smallest_pictures_are_denoised_by_every_method(tmp_path):
    pictures = tmp_path / "small"
    pictures.mkdir()
    rng = np.random.default_rng(0)
    for side in (SMALLEST, 3 * SMALLEST):
        levels = rng.integers(0, 256, (SMALLEST, side), dtype=np.uint8)
        Image.fromarray(levels).save(pictures / f"{side}.png")
    table = denoise(str(pictures))
    assert table.note.isna().all(), table.note.dropna().tolist()
    assert table.psnr.notna().all()


def test_colour_reaches_every_kind_of_method(tmp_path):
    coloured = write_pictures(tmp_path / "coloured", [(40, 36, 3)] * 2, seed=1)
    methods = ["noisy", "Gaussian", "non-local means", "FilterDiffusionDenoiser, start"]
    methods += ["FilterDiffusionDenoiser" + SOLVER, "FilterDiffusionDenoiser, trained"]
    table = denoise(coloured, methods=methods, colour=True)
    assert table.note.isna().all()
    assert starts(table).within.all()
    given = NoisyImages(coloured, 0, None, True)
    noisy, level = given.noisy(0, _SIGMA / 255), _SIGMA / 255
    assert noisy.shape == (40, 36, 3)
    width = settings_of("Gaussian")["width"]
    each = [gaussian_filter(noisy[..., i], width, mode="reflect") for i in range(3)]
    settings = settings_of("non-local means")
    joint = nonlocal_means(
        noisy, h=settings.pop("h") * level, sigma=level, channel_axis=-1, **settings
    )
    first = table[table.image == "a"].set_index("method").psnr
    for method, expected in (("Gaussian", np.stack(each, axis=-1)), ("non-local means", joint)):
        error = np.square(expected - given.clean[0]).mean()
        assert first[method] == pytest.approx(-10 * np.log10(error), rel=1e-12)
    words = [coloured, "--colour", "--method", methods[0], "--method", methods[-1]]
    run_command(*words, output=tmp_path / "out")
    assert (tmp_path / "out" / "crops.png").is_file()


def test_differences_are_paired_by_images_and_told_for_each_folder():
    """By hand: beside b, the best that is no network, x is ahead by 1 and 3, and by 2 and 2."""
    psnr = {"a": [1, 1, 1, 1], "b": [5, 6, 7, 8], "x": [6, 9, 9, 10], "y": [9, 9, 9, None]}
    table = _table_of(psnr, ["one/p", "one/q", "two/p", "two/q"], solved="ab")
    head, rows = paired_lines(table)
    assert head[3] == "dB beyond b"
    t_of_one, t_of_three = "+2.00 ± 12.71", "+2.00 ± 1.30"  # times 1 and the root of 2/3 over 2
    assert [row[:-1] for row in rows] == [
        ("x", "one", "2", t_of_one, "0.295", "inconclusive at ± 12.71"),
        ("x", "two", "2", "+2.00 ± not determined", "-", "not determined"),  # without spread
        ("x", "all", "4", t_of_three, "0.033", "ahead"),  # twice 0.016
    ]
    alone = paired_lines(table[table.method != "x"])
    assert alone[1] == []  # y has no number for one of the images


def _table_of(psnr, images, solved):
    rows = pd.DataFrame(psnr, index=pd.Index(images, name="image")).melt(
        var_name="method", value_name="psnr", ignore_index=False
    )
    return rows.reset_index().assign(
        kind=["solved" if name in solved else "trained" for name in rows.method], sigma=25.0,
        family="", ssim=1.0, seconds=1.0, megapixels=1.0, parameters=1, flops_per_pixel=1.0,
    )  # fmt: skip


def test_a_network_is_ahead_only_if_its_p_survives_the_number_of_comparisons():
    """Of differences 1, 3, 2, 2 the p is 0.016, whose interval leaves zero out, and 7 x 0.016."""
    psnr = {"b": [5, 6, 7, 8]} | {f"x{i}": [6, 9, 9, 10] for i in range(7)}
    table = _table_of(psnr, list("pqrs"), solved="b")
    _, many = paired_lines(table)
    _, one = paired_lines(table[table.method.isin(["b", "x0"])])
    assert {row[3:6] for row in many} == {("+2.00 ± 1.30", "0.114", "inconclusive at ± 1.30")}
    assert [row[3:6] for row in one] == [("+2.00 ± 1.30", "0.016", "ahead")]
    assert "all comparisons of the table, here 7:" in note_on_pairs(table)
    assert "equal" not in note_on_pairs(table)
    close = _table_of({"b": [5, 6, 7, 8], "x": [5.001, 6, 7, 8]}, list("pqrs"), solved="b")
    assert paired_lines(close)[1][0][5].startswith("inconclusive")


@pytest.mark.parametrize("name", [m.name for m in METHODS.values() if m.kind == "peer"])
def test_peers_get_colours_in_the_form_that_serves_them_best(name):
    """Scikit-image's total variation has no such form: it takes channels apart by itself."""
    if not METHODS[name].installed:
        pytest.skip(f"{METHODS[name].module} is not installed")
    given = NoisyImages("photographs", colour=True)
    level, square = _SIGMA / 255, np.s_[:64, :64]
    clean, noisy = given.clean[0][square], given.noisy(0, level)[square]
    denoiser = find_entry(name).denoiser(level)[0]
    joint, apart = denoiser(noisy, level), by_channel(METHODS[name])(noisy, level)
    gain = quality(clean, joint)["psnr"] - quality(clean, apart)["psnr"]
    assert gain == 0 if name == "scikit-image total variation" else gain > 0.1


def trained(place, network=None, sigma=_SIGMA / 255, **options):
    pictures = place / "train"
    if not pictures.exists():
        pictures.mkdir()
        for number in range(22):
            picture = np.tile(np.linspace(0, 9 * number, 32), (32, 1)).astype(np.uint8)
            Image.fromarray(picture).save(pictures / f"{number:02d}.png")
    network = network or FilterDiffusionDenoiser(n_layers=1, filter_size=3, sigma=sigma)
    recipe = Recipe(n_steps=2, batch_size=1, learning_rate=1e-3)
    return train_denoiser(
        network, sigma=sigma, recipe=recipe, data=str(pictures), patch_size=16, **options
    )


def test_runs_are_shown_whatever_their_folders_are_called(folder, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = ["FilterDiffusionDenoiser", "a, b", "x, solver", "noisy:x"]
    for name in names:
        trained(tmp_path, directory=tmp_path / name)
    words = [word for name in [*names, "noisy"] for word in ("--method", name)]
    _, rows = run_command(folder, *words, output="out")
    noisy, clean = NoisyImages(folder).noisy(0, _SIGMA / 255), load_images(folder).clean[0]
    first = {row["method"]: row for row in rows if row["image"] == "a"}
    for name in names:
        assert first[name]["kind"] == "trained"
        error = np.square(apply(load_model(name), noisy) - clean).mean()
        assert first[name]["psnr"] == pytest.approx(-10 * np.log10(error), rel=1e-9)


def test_a_run_is_for_its_noise_alone_and_is_run_again_if_it_was_trained_again(folder, tmp_path):
    asked = {"methods": [str(tmp_path / "run")], "directory": tmp_path / "runs"}
    trained(tmp_path, directory=tmp_path / "run")
    with pytest.raises(ValueError, match="for a noise of 50; there are for 25"):
        denoise(folder, sigmas=[25.0, 50.0], **asked)
    first = denoise(folder, **asked)
    shutil.rmtree(tmp_path / "run")
    other = FilterDiffusionDenoiser(n_layers=2, filter_size=3, sigma=_SIGMA / 255)
    trained(tmp_path, other, directory=tmp_path / "run")
    assert not denoise(folder, **asked).psnr.equals(first.psnr)


def test_networks_of_the_user_without_a_twin_are_shown_and_not_checked(
    folder, own_module, tmp_path
):
    own_module("""
import torch
from torch import nn

class Scaled(nn.Module):
    def __init__(self, channels=1):
        super().__init__()
        self.channels = channels
        self.parts = nn.ModuleList([nn.Conv2d(channels, 1, 1), nn.Conv2d(1, channels, 1)])

    def forward(self, noisy):
        return noisy + self.parts[1](self.parts[0](noisy))
""")
    with present_folder():
        from own_denoiser import Scaled
    trained(tmp_path, Scaled(), directory=tmp_path / "run")
    said, _ = run_command(folder, "--method", str(tmp_path / "run"), output=tmp_path / "out")
    assert "against their solvers" not in said


def test_a_check_that_fails_fails_the_command(folder, tmp_path, monkeypatch):
    worse = [{"layers": 1, "deviation": 1.0, "tolerance": 0.1}]
    monkeypatch.setattr(
        "twinsolve.bench.vision.denoising.report.deviations", lambda network, images: worse
    )
    words = [folder, "--method", "FilterDiffusionDenoiser, trained"]
    assert "NO" in run_command(*words, output=tmp_path / "out", code=1)[0]


def test_results_are_not_written_among_the_pictures(folder):
    said, _ = run_command(folder, "--method", "noisy", output=f"{folder}/out", code=2)
    assert "inside the folder of pictures" in said


@pytest.fixture(scope="module")
def drawn():
    """The committed table with the figures that are drawn of it, by name."""
    rows = json.loads((ROOT / "docs/results/denoise/table.json").read_text())
    table, found = pd.DataFrame(rows), {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(figures, "save", lambda figure, path: found.update({path.stem: figure}))
        figures.draw_quality(means(table), Path("quality.png"), sigma=_SIGMA)
        figures.draw_learned(table, Path("learned.png"), sigma=_SIGMA)
        some = table[table.method.isin(["total variation", "FilterDiffusionDenoiser, trained"])]
        shown = best_of_families(some), NoisyImages("photographs")
        figures.draw_crops(*shown, Path("crops.png"), sigma=_SIGMA)
    for figure in found.values():
        figure.draw_without_rendering()
    return table, found


def _boxes(texts):
    shown = [text for text in texts if text.get_text() and text.get_visible()]
    return [text.get_window_extent() for text in shown]


def test_every_point_of_quality_has_a_name_and_no_two_names_meet(drawn):
    table, found = drawn
    axes = found["quality"].axes
    labels = axes[0].get_yticklabels()
    methods = table[(table.method != "noisy") & ~table.method.str.endswith(SOLVER)].method.unique()
    assert {text.get_text() for text in labels} == {m.replace("Denoiser", "") for m in methods}
    for own in axes[:2]:
        points = np.concatenate([x.get_offsets() for x in own.collections if len(x.get_offsets())])
        assert sorted(points[:, 1]) == sorted(axes[0].get_yticks())
    boxes = _boxes(labels)
    assert not any(a.overlaps(b) for a, b in itertools.combinations(boxes, 2))


def test_crops_show_the_error_at_a_scale_of_the_noise(drawn):
    given = NoisyImages("photographs")
    clean, noisy = given.clean[0], given.noisy(0, _SIGMA / 255)
    shown = drawn[1]["crops"].axes
    (label,) = [own for own in shown if own.get_title().startswith("total variation")]
    (image,) = shown[shown.index(label) + 4].get_images()  # clean, noisy and two methods a row
    expected = find_entry("total variation").denoiser(_SIGMA / 255)[0](noisy, _SIGMA / 255) - clean
    square = figures.find_busiest_square(clean)
    np.testing.assert_allclose(image.get_array(), 255 * expected[square], atol=1e-9)
    assert image.get_clim() == (-_SIGMA, _SIGMA)


def test_figures_of_an_earlier_run_are_gone(folder, tmp_path):
    output = tmp_path / "out"
    for methods, drawn in ((["FilterDiffusionDenoiser, trained"], True), (["noisy"], False)):
        options = [word for name in [*methods, "Gaussian"] for word in ("--method", name)]
        run_command(folder, *options, output=output)
        assert (output / "learned.png").is_file() == drawn
        assert ("learned.png" in (output / "summary.md").read_text()) == drawn


def test_held_out_photographs_are_not_among_those_of_training(real_data):
    names, clean, *_ = load_images("held-out")
    counts = Counter(name.partition("/")[0] for name in names)
    assert counts == {"train400": 20, "packaged": 12, "camvid": 24}
    trained_on = fetch_train400().images[:-20].reshape(380, -1)
    for name, image in zip(names, clean, strict=True):
        assert image.ndim == 2
        assert 0 <= image.min() < image.max() <= 1
        assert image.shape != (180, 180) or not (trained_on == image.ravel()).all(1).any(), name
    assert len({image.tobytes() for image in clean}) == len(clean)


def write_masks(place, shapes, seed=5):
    """Masks of pictures a, b and so on, dark in holes; as arrays of bool."""
    place.mkdir()
    rng, masks = np.random.default_rng(seed), {}
    for name, shape in zip("abcd", shapes, strict=False):
        masks[name] = rng.random(shape) > 0.02
        masks[name][12:17, 5:9] = False
        Image.fromarray((255 * masks[name]).astype(np.uint8)).save(place / f"{name}.png")
    return masks


@pytest.mark.parametrize("colour", [False, True])
def test_holes_are_left_out_of_methods_and_numbers(tmp_path, colour):
    shapes = [(40, 40), (36, 44)]
    pictures = write_pictures(
        tmp_path / "pictures", [(*s, 3) for s in shapes] if colour else shapes
    )
    masks = write_masks(tmp_path / "masks", shapes)
    options = {"mask": str(tmp_path / "masks"), "colour": colour}
    table = denoise(pictures, **options)
    names = ["noisy", "bilateral", "non-local means", "non-local means, Gaussian"]
    assert set(table.method) == {*names, "total variation"}
    assert table.note.isna().all()
    assert table[["psnr", "ssim"]].notna().all(axis=None)
    rows = table[table.method == "non-local means"].set_index("image")
    for place, name in enumerate("ab"):
        clean, mask = load_images(pictures, colour=colour).clean[place], masks[name]
        noisy = noisy_image(clean, _SIGMA / 255, 0, place)
        axis = -1 if colour else None
        found = nonlocal_means(
            np.where(mask[..., None] if colour else mask, noisy, np.nan), mask=mask,
            channel_axis=axis, **nonlocal_settings(_SIGMA / 255),
        )  # fmt: skip
        error = (found - clean)[mask]
        assert rows.psnr[name] == pytest.approx(-10 * np.log10(np.square(error).mean()), abs=1e-9)
        similar = structural_similarity(clean, found, data_range=1.0, channel_axis=axis, full=True)
        whole = minimum_filter(mask, 7, mode="constant", cval=False)
        assert rows.ssim[name] == pytest.approx(similar[1][whole].mean(), abs=1e-12)
    # What lies under the holes changes no number.
    for name in "ab":
        path = tmp_path / "pictures" / f"{name}.png"
        levels = np.array(Image.open(path))
        levels[~masks[name]] = 255
        Image.fromarray(levels).save(path)
    again = denoise(pictures, **options)
    pd.testing.assert_frame_equal(again.drop(columns="seconds"), table.drop(columns="seconds"))


def nonlocal_settings(sigma):
    settings = settings_of("non-local means")
    return settings | {"h": settings["h"] * sigma, "sigma": sigma}


def test_the_command_takes_masks_and_says_what_numbers_cover(tmp_path):
    shapes = [(40, 40), (36, 44)]
    pictures = write_pictures(tmp_path / "pictures", shapes)
    write_masks(tmp_path / "masks", shapes)
    _, rows = run_command(pictures, "--mask", tmp_path / "masks", output=tmp_path / "out")
    assert {row["note"] for row in rows} == {None}
    assert "pixels outside the holes" in (tmp_path / "out" / "summary.md").read_text()
    assert (tmp_path / "out" / "crops.png").is_file()
    said, _ = run_command(
        pictures, "--mask", tmp_path / "masks", "--method", "low-rank groups",
        output=tmp_path / "none", code=2,
    )  # fmt: skip
    assert "low-rank groups takes no holes; these do: noisy, bilateral" in said


def test_masks_that_do_not_fit_are_named(tmp_path):
    pictures = write_pictures(tmp_path / "pictures", [(40, 40), (36, 44)])
    for shapes, words in [
        ([(40, 40)], "masks holds no picture of the name b"),
        ([(40, 40), (36, 43)], "must have the 36 x 44 pixels of b, got 36 x 43"),
    ]:
        write_masks(tmp_path / "masks", shapes)
        with pytest.raises(ValueError, match=f"mask: .*{words}"):
            denoise(pictures, mask=str(tmp_path / "masks"))
        shutil.rmtree(tmp_path / "masks")
    with pytest.raises(FileNotFoundError, match="masks: is not a folder"):
        denoise(pictures, mask=str(tmp_path / "masks"))
    write_masks(tmp_path / "masks", [(40, 40), (36, 44)])
    Image.fromarray(np.zeros((36, 44), np.uint8)).save(tmp_path / "masks" / "b.png")
    with pytest.raises(ValueError, match="mask: leaves no pixel of b"):
        denoise(pictures, mask=str(tmp_path / "masks"))
