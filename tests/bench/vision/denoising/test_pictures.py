"""Pictures that are noisy already: every kind of picture, tiles, estimates, files, the command."""

import numpy as np
import pytest
from PIL import Image, ImageCms

from twinsolve.bench import denoise_image, load_denoiser
from twinsolve.bench.vision.denoising import networks, pictures
from twinsolve.bench.vision.denoising.methods import (
    METHODS,
    DenoisingMethod,
    find_entry,
    register_denoiser,
)
from twinsolve.bench.vision.denoising.networks import apply, network_names
from twinsolve.bench.vision.denoising.picture_files import Picture, read_picture, write_picture
from twinsolve.datasets import add_noise, fetch_set12, load_photographs

from ...command import run

PROFILE = ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes()


def noisy_photograph(n_channels, sigma=25.0, shape=(40, 52)):
    """Levels in [0, 1], the last of two or four channels a slope of alpha."""
    high, wide = shape
    clean = load_photographs(colour=True).images[1][100 : 100 + high, 200 : 200 + wide]
    colours = clean if n_channels > 2 else clean[..., :1]
    noisy = add_noise(colours, sigma=sigma / 255, random_state=0)
    alpha = np.broadcast_to(np.linspace(0, 1, wide)[:, None], (high, wide, 1))
    levels = np.concatenate([noisy, alpha], axis=2)[..., : n_channels or 1]
    return levels[..., 0] if n_channels == 0 else levels


def as_type(levels, dtype):
    top = np.iinfo(dtype).max if np.dtype(dtype).kind == "u" else 1
    return (np.rint(top * levels.clip(0, 1)) if top > 1 else levels).astype(dtype), top


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16, np.float32, np.float64])
@pytest.mark.parametrize("n_channels", [0, 1, 2, 3, 4])
def test_every_kind_of_picture_is_what_the_network_makes_of_its_levels(n_channels, dtype):
    given, top = as_type(noisy_photograph(n_channels), dtype)
    kept = given.copy()
    found = denoise_image(given, sigma=25)
    assert (found.sigma, found.estimated, found.trained_for) == (25, False, 25)
    assert (found.image.dtype, found.image.shape) == (given.dtype, given.shape)
    np.testing.assert_array_equal(given, kept)
    planes = given[..., None] if n_channels == 0 else given
    answer = found.image.reshape(planes.shape)
    n_colours = 3 if n_channels > 2 else 1
    network = load_denoiser("filter-diffusion")
    for channel in range(n_colours):
        expected = top * apply(network, planes[..., channel] / np.float64(top))
        expected = np.rint(expected.clip(0, top)) if top > 1 else expected
        # Colours are one batch, whose float32 rounding is another.
        tolerance = 1.01 if top == 65535 else 1e-5
        close = np.abs(answer[..., channel] - expected)
        assert (close > tolerance).mean() <= (0.001 if top == 255 else 0)
    np.testing.assert_array_equal(answer[..., n_colours:], planes[..., n_colours:])


@pytest.mark.parametrize("name", network_names())
def test_rescaling_is_exact_before_training(name):
    """At 15 a start is that at 25 of the picture times 25 / 15, divided by it."""
    noisy = noisy_photograph(0, sigma=15, shape=(24, 28))
    own, other = (networks.exact_start(name, sigma / 255) for sigma in (15.0, 25.0))
    rescaled = apply(other, noisy * 25 / 15) * 15 / 25
    assert np.abs(apply(own, noisy) - noisy).max() > 0.01
    np.testing.assert_allclose(apply(own, noisy), rescaled, rtol=0, atol=1e-7)


@pytest.mark.parametrize(
    ("method", "sigma", "closest"),
    [("filter-diffusion", 40.0, 50), ("filter-diffusion", 12.5, 25), ("patch-coding", 60.0, 25)],
)
def test_pictures_are_rescaled_to_the_closest_weights(method, sigma, closest):
    noisy = noisy_photograph(0)
    found = denoise_image(noisy, method=method, sigma=sigma)
    scale = closest / sigma
    expected = apply(load_denoiser(method, sigma=closest), scale * noisy) / scale
    np.testing.assert_allclose(found.image, expected, rtol=0, atol=1e-6)
    assert found.trained_for == closest


@pytest.fixture
def tiny_tiles(monkeypatch):
    for module in (networks, pictures):
        monkeypatch.setattr(module, "LARGE", 32)


@pytest.mark.parametrize(
    ("method", "n_channels"), [("filter-diffusion", 3), ("non-local means", 3), ("OMP, DCT", 0)]
)
def test_tiles_are_the_whole(method, n_channels, tiny_tiles, monkeypatch):
    noisy = noisy_photograph(n_channels, shape=(40, 180))
    calls = []
    inner = networks.in_tiles
    for module in (networks, pictures):
        monkeypatch.setattr(
            module, "in_tiles", lambda *args, **more: calls.append(1) or inner(*args, **more)
        )
    tiled = denoise_image(noisy, method=method, sigma=25).image
    assert calls == [1]
    whole = find_entry(method).denoiser(25 / 255)[0]
    monkeypatch.setattr(networks, "LARGE", 512)
    np.testing.assert_allclose(tiled, whole(noisy, 25 / 255), rtol=0, atol=2e-6)


def test_a_function_of_the_user_gets_the_whole_and_its_answer_is_looked_at(tiny_tiles):
    noisy, asked = noisy_photograph(3, shape=(40, 180)), []

    def centre(y, sigma):
        asked.append((y.shape, sigma))
        return y - y.mean()

    answers = {"centred": centre, "cut": lambda y, _: y[1:], "none": lambda y, _: y * np.nan}
    try:
        for name, answer in answers.items():
            register_denoiser(DenoisingMethod(name, "own", "own", answer, colour=True))
        found = denoise_image(noisy, method="centred", sigma=30)
        np.testing.assert_allclose(found.image, noisy - noisy.mean(), rtol=0, atol=1e-12)
        assert asked == [((40, 180, 3), 30 / 255)]
        filed = as_type(noisy, np.uint8)[0]
        expected = np.rint(255 * (filed / 255 - filed.mean() / 255).clip(0, 1))
        np.testing.assert_array_equal(denoise_image(filed, method="centred").image, expected)
        for name, message in (("cut", "returned an image of shape"), ("none", "non-finite")):
            with pytest.raises(ValueError, match=message):
                denoise_image(noisy, method=name, sigma=30)
    finally:
        for name in answers:
            METHODS.pop(name, None)


@pytest.mark.parametrize("sigma", [15.0, 25.0, 50.0])
def test_estimates_are_close_on_set12(sigma, real_data):
    noisy = [
        add_noise(clean, sigma=sigma / 255, random_state=seed)
        for seed, clean in enumerate(fetch_set12().images)
    ]
    found = np.array([denoise_image(image, method="Gaussian").sigma for image in noisy])
    assert np.abs(found - sigma).max() < 1.7
    assert abs(found.mean() - sigma) < 0.8


def test_what_is_transparent_and_how_levels_are_stored_leave_the_estimate():
    levels = noisy_photograph(4, sigma=20, shape=(160, 160))
    levels[..., 3] = np.arange(160) < 60
    levels[:, 60:, :3] = 0.7
    for dtype in (np.float64, np.uint8, np.uint16):
        found = denoise_image(as_type(levels, dtype)[0], method="Gaussian")
        assert found.estimated
        assert abs(found.sigma - 20) < 2, dtype


@pytest.mark.parametrize("dtype", [">u2", ">f4", "<u2"])
def test_bytes_in_either_order_are_the_same_picture(dtype):
    given = as_type(noisy_photograph(1, sigma=20, shape=(32, 32)), np.dtype(dtype[1:]).type)[0]
    expected = denoise_image(given, method="Gaussian", sigma=20).image
    found = denoise_image(given.astype(dtype), method="Gaussian", sigma=20).image
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("level", [0, 90, 255])
def test_without_noise_the_picture_is_returned(level):
    given = np.full((20, 20, 3), level, np.uint8)
    found = denoise_image(given)
    assert found.estimated
    assert not found.denoised
    np.testing.assert_array_equal(found.image, given)
    assert found.image is not given


FINE = np.full((20, 20), 0.5)


@pytest.mark.parametrize(
    ("image", "options", "message"),
    [
        (np.where(np.eye(20) > 0, np.nan, 0.5), {}, "image: must be finite, got 20"),
        (np.zeros((0, 0)), {}, "image: must have 16 x 16 pixels or more, got 0 x 0"),
        (np.zeros((40, 15)), {}, "got 40 x 15"),
        (np.zeros((3, 40, 40)), {}, r"channels: grey.*got \(3, 40, 40\)"),
        (np.zeros(40), {}, r"got \(40,\)"),
        (np.zeros((1, 40, 40, 3)), {}, r"got \(1, 40, 40, 3\)"),
        (np.zeros((20, 20), int), {}, "uint8, uint16, or floating point.*int64"),
        (FINE > 0, {}, "got bool"),
        (FINE * 255, {}, r"about \[0, 1\]; their mean is 128"),
        (FINE, {"sigma": 25 / 255}, "sigma: must be 0.1 or more, in grey levels of 255"),
        (FINE, {"sigma": np.nan}, "sigma: must be"),
        (FINE, {"sigma": np.inf}, "sigma: must be"),
        (FINE, {"method": "filter-difusion"}, "close ones are filter-diffusion"),
    ],
)
def test_what_cannot_be_denoised_is_named(image, options, message):
    with pytest.raises(ValueError, match=message):
        denoise_image(image, **options)


def test_a_map_of_noise_is_refused_by_the_name_of_what_takes_it():
    with pytest.raises(TypeError, match=r"sigma: must be a number.*noise-level-diffusion"):
        denoise_image(FINE, sigma=np.full(FINE.shape, 20.0))


def test_networks_load_by_name_or_the_error_lists_them():
    network = load_denoiser("filter-diffusion", sigma=50)
    assert not network.training
    assert network.sigma == pytest.approx(50 / 255)
    with pytest.raises(ValueError, match=r"convex-ridge \(25\), filter-diffusion \(25, 50\)"):
        load_denoiser("FilterDiffusionDenoiser")
    with pytest.raises(ValueError, match="sigma: patch-coding has weights for a noise of 25; got"):
        load_denoiser("patch-coding", sigma=15)
    for name, cls in networks.shipped_classes().items():
        assert f'"{name}"' in load_denoiser.__doc__
        assert type(load_denoiser(name)).__name__ == cls


@pytest.mark.parametrize(
    ("n_channels", "dtype"),
    [*((n, np.uint8) for n in (0, 2, 3, 4)), *((n, np.uint16) for n in (0, 3, 4))],
)
@pytest.mark.parametrize("suffix", [".png", ".tif"])
def test_files_keep_levels_alpha_and_profile(suffix, n_channels, dtype, tmp_path):
    pixels, _ = as_type(noisy_photograph(n_channels), dtype)
    path, deep = tmp_path / f"picture{suffix}", dtype is np.uint16
    profile = None if deep and suffix == ".png" and n_channels else PROFILE
    write_picture(path, Picture(pixels, profile))
    found = read_picture(path)
    assert found.pixels.dtype == dtype
    np.testing.assert_array_equal(found.pixels, pixels)
    assert found.profile == profile
    with Image.open(path) as stored:
        grey = ("I;16", "I") if deep else ("L",)  # the second before Pillow 11
        assert stored.mode in {0: grey, 2: ("LA",), 3: ("RGB",), 4: ("RGBA",)}[n_channels]


def test_palettes_transparent_colours_and_orientation_are_read(tmp_path):
    pixels = np.zeros((20, 30), np.uint8)
    pixels[:5, :7] = 200
    path = tmp_path / "picture.png"
    Image.fromarray(pixels).save(path, transparency=200)
    found = read_picture(path).pixels
    np.testing.assert_array_equal(found[..., 1], np.where(pixels == 200, 0, 255))
    palette = Image.fromarray(pixels).convert("P")
    palette.save(path)
    np.testing.assert_array_equal(read_picture(path).pixels, np.repeat(pixels[..., None], 3, 2))
    exif = Image.Exif()
    exif[0x0112] = 6
    Image.fromarray(pixels).save(path, exif=exif)
    np.testing.assert_array_equal(read_picture(path).pixels, np.rot90(pixels, -1))


def test_files_that_would_lose_something_are_refused(tmp_path):
    for name, n_channels, dtype, profile, message in (
        ("a.jpg", 4, np.uint8, None, "no alpha"),
        ("a.jpg", 0, np.uint16, None, "no 16 bits"),
        ("a.png", 3, np.uint16, PROFILE, "without colour profile"),
        ("a.webp", 0, np.uint8, None, "must end in"),
    ):
        pixels, _ = as_type(noisy_photograph(n_channels), dtype)
        with pytest.raises(ValueError, match=message):
            write_picture(tmp_path / name, Picture(pixels, profile))
    stack = [Image.fromarray(np.full((20, 20), k, np.uint8)) for k in range(2)]
    stack[0].save(tmp_path / "stack.tif", save_all=True, append_images=stack[1:])
    Image.fromarray(np.zeros((20, 20), np.float32)).save(tmp_path / "float.tif")
    (tmp_path / "text.png").write_text("no picture")
    for name, message in (("stack", "one picture, got 2"), ("float", "got F"), ("text", "picture")):
        (path,) = tmp_path.glob(f"{name}.*")
        with pytest.raises(ValueError, match=message):
            denoise_image(path)
    assert len(list(tmp_path.iterdir())) == 3


@pytest.mark.parametrize(
    ("name", "n_channels", "dtype"),
    [("deep.png", 4, np.uint16), ("deep.tif", 3, np.uint16), ("photo.jpg", 3, np.uint8)],
)
def test_the_command_denoises_a_picture_as_it_is(name, n_channels, dtype, tmp_path):
    path, out = tmp_path / name, tmp_path / name.replace(".", "-denoised.")
    write_picture(path, Picture(as_type(noisy_photograph(n_channels), dtype)[0]))
    before = path.read_bytes()
    expected = denoise_image(path)
    said = run("denoise", path, "--noisy")
    assert f"Noise: {expected.sigma:.1f} of 255, estimated" in said
    assert "Method: FilterDiffusionDenoiser, trained at 25" in said
    assert f"Written to {out}" in said
    found = read_picture(out).pixels
    assert found.dtype == dtype
    apart = np.abs(found - expected.image.astype(float)).mean()
    removed = np.abs(read_picture(path).pixels - expected.image.astype(float)).mean()
    assert apart == 0 if name != "photo.jpg" else apart < removed / 5
    assert path.read_bytes() == before
    other = tmp_path / "other" / "x.tiff"
    options = ("--sigma", 12, "--method", "non-local means", "--save", other)
    assert "Noise: 12.0 of 255, given" in run("denoise", path, "--noisy", *options)
    again = denoise_image(path, sigma=12, method="non-local means").image
    np.testing.assert_array_equal(read_picture(other).pixels, again)


def test_the_command_refuses_what_it_would_overwrite_ignore_or_guess(tmp_path, monkeypatch):
    """And does so before it denoises."""
    monkeypatch.setattr(pictures, "denoise_image", None)
    path = tmp_path / "a.png"
    write_picture(path, Picture(as_type(noisy_photograph(0), np.uint8)[0]))
    before = path.read_bytes()
    (tmp_path / "link.png").hardlink_to(path)
    for words, message in (
        ([path, "--noisy", "--save", path], "is not overwritten"),
        ([path, "--noisy", "--save", tmp_path / "link.png"], "is not overwritten"),
        ([path, "--noisy", "--save", tmp_path / "a.gif"], "must end in"),
        ([path, "--noisy", "--seed", 1, "--colour"], "cannot be combined with --seed, --colour"),
        ([path, "--noisy", "--sigma", 1, "--sigma", 2], "give one with --noisy"),
        ([tmp_path, "--noisy"], "is not a picture file"),
        ([path, "--save", tmp_path / "b.png"], "needs --noisy"),
        ([path], "--noisy denoises it as it is"),
    ):
        assert message in run("denoise", *words, code=2)
    assert path.read_bytes() == before
    assert {found.name for found in tmp_path.iterdir()} == {"a.png", "link.png"}


def mask_of(shape, seed=3):
    """Single pixels, and a block."""
    mask = np.random.default_rng(seed).random(shape) > 0.1
    mask[10:14, 20:24] = False
    return mask


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16, np.float64])
@pytest.mark.parametrize("n_channels", [0, 2, 3, 4])
@pytest.mark.parametrize("method", ["non-local means", "bilateral", "total variation"])
def test_holes_are_filled_and_never_read(method, n_channels, dtype):
    given, top = as_type(noisy_photograph(n_channels), dtype)
    mask = mask_of(given.shape[:2])
    n_colours = 3 if n_channels > 2 else 1
    found = denoise_image(given, method=method, mask=mask)
    assert (found.image.dtype, found.image.shape) == (given.dtype, given.shape)
    planes = given.reshape(*mask.shape, -1)
    alpha = found.image.reshape(*mask.shape, -1)[..., n_colours:]
    np.testing.assert_array_equal(alpha, planes[..., n_colours:])
    for value in (0, top) if top > 1 else (0, 1e6, np.nan):
        filled = planes.copy()
        filled[~mask, :n_colours] = value
        again = denoise_image(filled.reshape(given.shape), method=method, mask=mask)
        assert again.sigma == found.sigma
        np.testing.assert_array_equal(again.image, found.image)
    clean = as_type(noisy_photograph(n_channels, sigma=1e-9), dtype)[0].reshape(planes.shape)
    error = (found.image.reshape(planes.shape) / top - clean / top)[..., :n_colours]
    assert np.square(error[~mask]).mean() < 0.1**2  # the picture varies by 0.2, the noise by 0.1


def test_a_mask_of_all_pixels_is_none_and_clean_pictures_are_filled():
    given = noisy_photograph(0)
    whole = denoise_image(given, mask=np.ones(given.shape, bool))
    usual = denoise_image(given, method="non-local means")
    np.testing.assert_array_equal(whole.image, usual.image)
    flat = np.full((20, 20), 0.25)
    mask = mask_of((40, 40))[5:25, 10:30]
    found = denoise_image(np.where(mask, flat, 7.0), mask=mask)
    assert (found.sigma, found.denoised) == (pictures.NO_NOISE, True)
    np.testing.assert_allclose(found.image, flat, rtol=1e-12)


def test_the_command_fills_holes_of_a_picture(tmp_path):
    given, _ = as_type(noisy_photograph(3), np.uint8)
    mask = mask_of(given.shape[:2])
    Image.fromarray(given).save(tmp_path / "a.png")
    Image.fromarray((255 * mask).astype(np.uint8)).save(tmp_path / "holes.png")
    said = run("denoise", tmp_path / "a.png", "--noisy", "--mask", tmp_path / "holes.png")
    assert "non-local means" in said
    written = np.asarray(Image.open(tmp_path / "a-denoised.png"))
    np.testing.assert_array_equal(written, denoise_image(given, mask=mask).image)
    said = run("denoise", tmp_path / "a.png", "--noisy", "--mask", tmp_path, code=2)
    assert "with --noisy it is one picture" in said


def test_masks_that_do_not_fit_are_named(tmp_path):
    given = noisy_photograph(0)
    Image.fromarray(np.full((40, 40), 255, np.uint8)).save(tmp_path / "small.png")
    for mask in (np.ones((40, 51), bool), np.ones(given.shape), tmp_path / "small.png"):
        with pytest.raises(ValueError, match=r"mask: must be an array of bool of shape \(40, 52\)"):
            denoise_image(given, mask=mask)
    with pytest.raises(ValueError, match="mask: must be True at one pixel or more"):
        denoise_image(given, mask=np.zeros(given.shape, bool))
    with pytest.raises(ValueError, match=r"filter-diffusion|FilterDiffusion.*takes no holes"):
        denoise_image(given, method="filter-diffusion", mask=mask_of(given.shape))
    board = np.indices(given.shape).sum(axis=0) % 2 == 0
    with pytest.raises(ValueError, match="sigma: no 4 x 4 pixels are without holes"):
        denoise_image(given, mask=board)
    with pytest.raises(ValueError, match="a mask may mark them as holes"):
        denoise_image(np.where(mask_of(given.shape), given, np.nan))
