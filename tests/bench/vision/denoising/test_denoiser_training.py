"""A denoising network of one convolution, from data to its folder and back."""

import json
import sys

import numpy as np
import pytest
import torch
from PIL import Image
from skimage.metrics import peak_signal_noise_ratio

from twinsolve.bench.recipe import Recipe
from twinsolve.bench.run_folder import load_model, read_metrics, read_settings
from twinsolve.bench.training import generator_of
from twinsolve.bench.vision.denoising.networks import build_network
from twinsolve.bench.vision.denoising.training import (
    NoisyPatches,
    Patches,
    mean_squared_error,
    repeat_training,
    train_denoiser,
    validation_db,
)

from ...command import run as command

SIGMA = 25 / 255
RNG = np.random.default_rng(0)
NETWORK = """
import torch
from torch import nn


class Smoothing(nn.Module):
    def __init__(self, size=3, channels=1, sigma=0.1):
        super().__init__()
        self.size, self.channels, self.sigma = size, channels, sigma
        self.filters = nn.Parameter(torch.zeros(channels, 1, size, size))

    def forward(self, noisy):
        filters = self.filters
        padding = self.size // 2
        return noisy + nn.functional.conv2d(noisy, filters, padding=padding, groups=self.channels)
"""


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A folder with a network of the user's and 24 smooth pictures in colour."""
    (tmp_path / "own_network.py").write_text(NETWORK)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "pictures").mkdir()
    for number in range(24):
        slope = np.linspace(0, 255, 40)[:, None, None] * RNG.random(3) + np.zeros((40, 36, 3))
        Image.fromarray(slope.astype(np.uint8)).save(tmp_path / f"pictures/{number:02d}.png")
    yield tmp_path
    sys.modules.pop("own_network", None)


def recipe(n_steps, **options):
    given = {"batch_size": 4, "learning_rate": 0.03, "validate_every": 10, "ema_decay": 0.5}
    return Recipe(n_steps=n_steps, **(given | options))


def run(directory, n_steps=2, **options):
    """Train the user's network on the user's pictures."""
    given = {"sigma": SIGMA, "recipe": recipe(n_steps), "data": "pictures", "patch_size": 16}
    return train_denoiser(
        options.pop("network", None) or own(), directory=directory, **given | options
    )


def own(**settings):
    words = ",".join(f"{name}={value}" for name, value in settings.items())
    return build_network(f"own_network:Smoothing:{words}", sigma=SIGMA)


@pytest.mark.parametrize("colour", [False, True])
def test_a_network_learns_from_a_folder_of_pictures(place, colour):
    run("run", 60, network=own(channels=3 if colour else 1), colour=colour)
    rows = read_metrics("run")
    assert rows[0]["validation_db"] == pytest.approx(-20 * np.log10(SIGMA), abs=0.2)
    assert rows[-1]["validation_db"] > rows[0]["validation_db"] + 3
    again = load_model("run")
    assert again.channels == (3 if colour else 1)
    assert again.sigma == SIGMA
    assert again.filters.any()


def test_a_run_is_repeated_from_its_folder(place):
    network = own()
    with torch.no_grad():
        network.filters += 0.01  # not what the constructor makes
    given = recipe(None, minutes=0.01, rate_multipliers={"filters": 2.0})
    run("run", network=network, recipe=given)
    again = repeat_training("run", directory="again")
    assert torch.equal(again.filters, load_model("run").filters)
    assert read_settings("again")["n_steps"] == read_settings("run")["n_steps"]
    Image.new("L", (40, 40)).save(place / "pictures" / "another.png")
    with pytest.raises(ValueError, match="holds other pictures than run was trained on"):
        repeat_training("run", directory="third")


def test_a_run_is_repeated_where_its_pictures_were_moved(place, monkeypatch):
    run("run", 4)
    monkeypatch.chdir("pictures")
    again = repeat_training("../run", directory="../again")
    assert torch.equal(again.filters, load_model("../run").filters)
    monkeypatch.chdir(place)
    (place / "pictures").rename("elsewhere")
    command("train-denoiser --like run --data elsewhere --output third")
    assert torch.equal(load_model("third").filters, load_model("run").filters)


def test_a_run_of_two_processes_is_not_repeated_by_one(place):
    run("run")
    path = place / "run" / "settings.json"
    known = json.loads(path.read_text())
    known["settings"]["processes"] = 2
    path.write_text(json.dumps(known))
    with pytest.raises(ValueError, match="was trained in 2 processes"):
        repeat_training("run", directory="again")


def test_noise_is_seeded_white_and_not_clipped():
    draw = NoisyPatches([np.zeros((64, 64)), np.ones((64, 64))], size=48, sigma=0.1)
    noisy, clean, levels = draw(3, 7, range(40))
    assert torch.equal(levels, torch.full((40,), 0.1))
    noise = (noisy - clean).double().numpy()
    assert noisy.shape == (40, 1, 48, 48)
    assert noisy.dtype == torch.float32
    assert noise.std() == pytest.approx(0.1, rel=0.02)
    assert abs(noise.mean()) < 0.002
    assert abs((noise[..., 1:] * noise[..., :-1]).mean()) < 1e-4
    assert noisy.min() < 0 < 1 < noisy.max()
    assert set(clean.unique().tolist()) == {0.0, 1.0}
    loss = mean_squared_error(0.1)(torch.nn.Identity(), (noisy, clean, levels))
    assert float(loss) == pytest.approx(1, abs=0.02)  # in units of the noise
    part = draw(3, 7, range(10, 20))
    assert torch.equal(part[0], noisy[10:20])
    assert not torch.equal(draw(3, 8, range(10, 20))[0], part[0])


def test_noise_levels_of_a_range_are_log_uniform_and_told_to_the_network():
    lowest, highest = 0.02, 0.3
    draw = NoisyPatches([np.full((64, 64), 0.5)], size=48, sigma=(lowest, highest))
    noisy, clean, levels = draw(3, 7, range(60))
    assert torch.equal(draw(3, 7, range(20, 30))[2], levels[20:30])
    found = (noisy - clean).flatten(1).std(dim=1)
    assert (found / levels - 1).abs().max() < 0.06  # of 2304 pixels: four standard errors
    places = (levels / lowest).log() / np.log(highest / lowest)
    assert 0 < places.min() < 0.1
    assert 0.9 < places.max() < 1
    assert float(places.mean()) == pytest.approx(0.5, abs=0.12)

    def told(network, x, sigma):
        assert torch.equal(sigma, levels)
        return x

    network = torch.nn.Identity()
    network.forward = lambda x, sigma: told(network, x, sigma)
    loss = mean_squared_error((lowest, highest))(network, (noisy, clean, levels))
    expected = (levels / (lowest * highest) ** 0.5).mean()
    assert float(loss) == pytest.approx(float(expected), rel=0.02)


def test_a_network_of_all_noise_levels_is_trained_and_repeated(place):
    network = build_network("NoiseLevelDiffusionDenoiser:n_layers=1,filter_size=3", sigma=SIGMA)
    levels = (SIGMA / 5, 3 * SIGMA)
    run("run", 12, network=network, sigma=levels)
    trained = load_model("run")
    assert trained.steps[0].weight_slopes.any()
    again = repeat_training("run", directory="again")
    assert torch.equal(again.steps[0].coefficient_slopes, trained.steps[0].coefficient_slopes)
    rows = read_metrics("run")
    assert rows[-1]["validation_db"] > rows[0]["validation_db"]


@pytest.mark.parametrize(
    ("sigma", "message"),
    [((0.1, 0.2), "Smoothing takes no level"), ((0.2, 0.1), "rise from above 0, got 0.2 to 0.1"),
     ((0.0, 0.1), "rise from above 0")],
)  # fmt: skip
def test_ranges_that_cannot_be_are_refused(sigma, message, place):
    with pytest.raises(ValueError, match=f"sigma: .*{message}"):
        run("run", sigma=sigma)


def test_validation_is_the_psnr_of_the_middles_with_the_same_noise():
    images = [RNG.random((150, 140)), np.rint(255 * RNG.random((60, 70))).astype(np.uint8)]
    noisy = []

    class Watched(torch.nn.Conv2d):
        def forward(self, image):
            noisy.append(image.numpy()[0, 0])
            return super().forward(image)

    network = Watched(1, 1, 1, bias=False).double()
    torch.nn.init.constant_(network.weight, 0.9)
    validate = validation_db(images, 0.1)
    with torch.no_grad():
        found = [validate(network)["validation_db"] for _ in range(2)]
    clean = [images[0][11:139, 6:134], images[1] / np.float32(255)]
    pairs = zip(clean, noisy, strict=False)
    expected = [peak_signal_noise_ratio(c, 0.9 * n, data_range=1.0) for c, n in pairs]
    assert found[0] == found[1]
    assert found[0] == pytest.approx(np.mean(expected), abs=1e-9)


def test_the_command_trains_and_repeats(place):
    words = "train-denoiser own_network:Smoothing:size=5 --steps 12 --batch-size 2 --data pictures"
    assert "step 12 of 12: " in command(words + " --patch-size 16 --sigma 50 --output run")
    known = read_settings("run")["settings"]
    assert known["model"]["arguments"] == {"size": 5, "channels": 1, "sigma": 50 / 255}
    assert known["task"]["sigma"] == 50 / 255
    command("train-denoiser --like run --output again")
    assert torch.equal(load_model("again").filters, load_model("run").filters)


@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        ([], "name one: NETWORK or --like"),
        (["own_network:Absent", "--steps", "1"], "no class"),
        (["own_network:Smoothing:width=5", "--steps", "1"], "cannot make"),
        (["own_network:Smoothing", "--data", "absent", "--steps", "1"], "is not a folder of"),
        (
            ["own_network:Smoothing", "--data", "pictures", "--steps", "1"],
            "fewer than a patch of 48 x 48",
        ),
        (["own_network:Smoothing", "--device", "nowhere", "--steps", "1"], "device: 'nowhere'"),
        (["--like", "absent"], "has no settings.json"),
        (["--like", "absent", "--steps", "3"], "cannot be combined with --steps"),
    ],
)
def test_what_the_command_refuses_is_named(place, arguments, match):
    assert match in command("train-denoiser", *arguments, "--output", "run", code=2)
    assert not (place / "run").exists()


def test_the_last_images_of_train400_validate(real_data, place):
    run("run", data="train400", patch_size=48)
    assert [row["step"] for row in read_metrics("run")] == [0, 2]
    assert read_metrics("run")[0]["validation_db"] == pytest.approx(20.18, abs=0.02)
    assert read_settings("run")["settings"]["task"]["data"] == "train400"


def squares(image, size):
    """All squares of an image in all eight positions, as bytes."""
    windows = np.lib.stride_tricks.sliding_window_view(image, (size, size)).reshape(-1, size, size)
    return {
        np.ascontiguousarray(np.rot90(side, turns)).tobytes()
        for window in windows
        for side in (window, window[:, ::-1])
        for turns in range(4)
    }


def test_patches_are_all_the_squares_of_an_image_in_eight_positions():
    image = RNG.random((4, 5)).astype(np.float32)
    patches = Patches([image], 3)
    drawn = {patches.crop(generator_of(0, 0, i))[0].tobytes() for i in range(1000)}
    assert drawn == squares(image, 3)
    assert len(drawn) == 2 * 3 * 8


def test_patches_come_from_all_images_and_keep_colours_together():
    images = [np.full((6 + k, 5, 3), [k, 10 * k, 20 * k], dtype=np.uint8) for k in range(4)]
    patches = Patches(images, 4)
    drawn = [patches.crop(generator_of(0, 0, i)) for i in range(100)]
    assert {patch.shape for patch in drawn} == {(3, 4, 4)}
    found = {tuple(np.rint(255 * patch[:, 0, 0]).astype(int)) for patch in drawn}
    assert found == {(k, 10 * k, 20 * k) for k in range(4)}
    assert drawn[0].dtype == np.float32


@pytest.mark.parametrize(
    ("images", "match"),
    [([], "one or more"), ([np.zeros((9, 9)), np.zeros((9, 3))], r"image 1 of shape \(9, 3\)")],
)
def test_images_that_hold_no_patch_are_named(images, match):
    with pytest.raises(ValueError, match=match):
        Patches(images, 4)
