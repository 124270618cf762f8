"""Masks, maps and volumes beside a literal loop over pixels, windows and patches."""

import tracemalloc
from itertools import product

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from twinsolve.solvers import bilateral_filter, nonlocal_means

rng = np.random.default_rng(0)
IMAGE, COLOURS, VOLUME = rng.random((8, 9)), rng.random((6, 7, 3)), rng.random((5, 5, 6))
CASES = [(IMAGE, None), (COLOURS, -1), (VOLUME, None)]
FILTERS = [
    (nonlocal_means, {"patch_size": 3, "patch_distance": 2, "h": 0.3, "sigma": 0.1}),
    (nonlocal_means, {"patch_size": 4, "patch_distance": None, "h": 0.3}),
    (bilateral_filter, {"sigma_color": 0.3}),
    (bilateral_filter, {"sigma_color": np.inf, "sigma_spatial": 2.0, "win_size": 5}),
    (bilateral_filter, {"sigma_color": 0.3, "sigma_spatial": np.inf}),
]


def gaussian(x, sigma):
    return np.exp(-((x / sigma) ** 2) / 2)


def literal(image, mask, channel_axis, weigh, patch_size=1, reach=1, taps=None, sigma=0.0):
    """The formulas of the docstrings; ``weigh(i, distance, shift)`` returns a weight."""
    y = image[..., None] if channel_axis is None else image
    shape, axes = y.shape[:-1], y.ndim - 1
    before, after = (patch_size - 1) // 2, patch_size // 2
    border = [(before, after)] * axes
    taps = np.full(patch_size, 1 / patch_size) if taps is None else taps
    padded = np.pad(y, [*border, (0, 0)], mode="reflect")
    valid = np.pad(mask, border, mode="reflect")
    noise = np.pad(np.broadcast_to(np.square(sigma), shape), border, mode="reflect")
    result = np.empty_like(y)
    for i in np.ndindex(shape):
        known, unknown = [], []
        near = [
            range(max(0, p - reach), min(n, p + reach + 1)) for p, n in zip(i, shape, strict=True)
        ]
        for j in product(*near):
            if not mask[j]:
                continue
            total = mass = 0.0
            for k in product(range(patch_size), repeat=axes):
                a, b = tuple(np.add(i, k)), tuple(np.add(j, k))
                if valid[a] and valid[b]:
                    t = np.prod(taps[list(k)])
                    squares = np.square(padded[a] - padded[b]).mean()
                    total += t * (squares - noise[a] - noise[b])
                    mass += t
            if mass > 0:
                known.append((weigh(i, max(total / mass, 0), np.subtract(j, i)), y[j]))
            else:
                unknown.append((weigh(i, 0.0, np.subtract(j, i)), y[j]))
        weights, values = map(np.array, zip(*(known or unknown), strict=True))
        result[i] = weights @ values / weights.sum()
    return result[..., 0] if channel_axis is None else result


def holes(shape, seed=1):
    """Single pixels, and a block that no patch of three pixels reaches across."""
    mask = np.random.default_rng(seed).random(shape) > 0.2
    mask[tuple(slice(1, 4) for _ in shape)] = False
    return mask


def shape_of(image, channel_axis):
    return image.shape if channel_axis is None else image.shape[:-1]


@pytest.mark.parametrize(("image", "channel_axis"), CASES, ids=["grey", "colour", "volume"])
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize(("patch_size", "reach", "kind"), [(3, 2, "uniform"), (2, 3, "gaussian")])
def test_nonlocal_means_equals_the_loop(image, channel_axis, masked, patch_size, reach, kind):
    shape = shape_of(image, channel_axis)
    mask = holes(shape) if masked else np.ones(shape, bool)
    h, sigma = 0.1 + 0.3 * rng.random(shape), 0.2 * rng.random(shape)
    taps = gaussian(np.arange(patch_size) - (patch_size - 1) / 2, (patch_size - 1) / 4)
    taps = taps / taps.sum() if kind == "gaussian" else None
    expected = literal(
        image, mask, channel_axis, lambda i, d, _: np.exp(-d / h[i] ** 2),
        patch_size, reach, taps, sigma,
    )  # fmt: skip
    found = nonlocal_means(
        image, patch_size=patch_size, patch_distance=reach, h=h, sigma=sigma, patch_weights=kind,
        mask=mask, channel_axis=channel_axis,
    )  # fmt: skip
    assert_allclose(found, expected, atol=1e-13)  # exponents below 100, to a few units each


@pytest.mark.parametrize(("image", "channel_axis"), CASES, ids=["grey", "colour", "volume"])
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("sigma_color", [0.2, np.inf])
def test_bilateral_filter_equals_the_loop(image, channel_axis, masked, sigma_color):
    mask = holes(shape_of(image, channel_axis)) if masked else np.ones(image.shape, bool)[..., 0]
    mask = mask if masked or channel_axis is not None else np.ones(image.shape, bool)
    channels = 1 if channel_axis is None else 3

    def weigh(_, distance, shift):
        level = gaussian(np.sqrt(channels * distance), sigma_color)
        return level * gaussian(np.linalg.norm(shift), 1.5)

    expected = literal(image, mask, channel_axis, weigh, reach=3)
    options = {"sigma_color": sigma_color, "sigma_spatial": 1.5, "win_size": 7}
    options |= {"channel_axis": channel_axis, "mask": mask}
    assert_allclose(bilateral_filter(image, **options), expected, atol=1e-13)


@pytest.mark.parametrize(("image", "channel_axis"), CASES, ids=["grey", "colour", "volume"])
@pytest.mark.parametrize(("smooth", "options"), FILTERS)
def test_values_in_holes_are_never_read(image, channel_axis, smooth, options):
    """Nor do they choose the unit of the levels: the results are the same bits."""
    mask = holes(shape_of(image, channel_axis))
    options = options | {"mask": mask, "channel_axis": channel_axis}
    found = smooth(image, **options)
    for value in (0.0, 1e6, 1e300, np.nan, -np.inf):
        filled = image.copy()
        filled[~mask] = value
        assert_array_equal(smooth(filled, **options), found)
    single = smooth(image.astype(np.float32), **options)
    assert single.dtype == np.float32
    assert_allclose(single, found, atol=1e-5)  # exponents below 60 of levels to 6e-8


@pytest.mark.parametrize(("image", "channel_axis"), CASES, ids=["grey", "colour", "volume"])
@pytest.mark.parametrize(("smooth", "options"), FILTERS)
def test_without_holes_or_changes_all_forms_agree(image, channel_axis, smooth, options):
    options = options | {"channel_axis": channel_axis}
    expected, shape = smooth(image, **options), shape_of(image, channel_axis)
    assert_array_equal(smooth(image, mask=np.ones(shape, bool), **options), expected)
    maps = {name: np.full(shape, options[name]) for name in ("h", "sigma") if name in options}
    if maps:
        assert_allclose(smooth(image, **options | maps), expected, atol=1e-13)
    mask = np.ones(shape, bool)
    mask[(-1,) * len(shape)] = False
    several = [smooth(image, mask=mask, n_jobs=n, **options) for n in (1, 3)]
    assert_array_equal(*several)


def test_the_default_decay_follows_the_noise_of_each_pixel():
    sigma = np.where(rng.random(IMAGE.shape) < 0.5, 0.0, 0.2)
    h = np.where(sigma > 0, 0.8 * sigma, 0.1)
    assert_array_equal(nonlocal_means(IMAGE, sigma=sigma), nonlocal_means(IMAGE, sigma=sigma, h=h))


def test_a_constant_image_stays_so_and_a_large_hole_gets_the_mean():
    mask = np.ones((12, 12), bool)
    mask[3:9, 3:9] = False
    levels = np.where(mask, np.arange(12) % 2, np.nan)
    assert_allclose(nonlocal_means(np.where(mask, 0.3, 7.0), mask=mask), 0.3, atol=1e-15)
    # The patch around (6, 6) lies in the hole: pixels 4 and more away are averaged alike.
    found = nonlocal_means(levels, patch_size=3, patch_distance=4, h=1e-3, mask=mask)[6, 6]
    window = levels[2:11, 2:11]
    assert found == pytest.approx(window[~np.isnan(window)].mean(), abs=1e-15)


def test_memory_of_a_volume_is_a_few_slabs():
    volume = rng.random((60, 40, 40))
    options = {"patch_size": 3, "patch_distance": 1, "h": 0.3}
    nonlocal_means(volume[:8, :8, :8], **options)
    tracemalloc.start()
    nonlocal_means(volume, **options)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 14 * volume.nbytes


def test_bad_masks_and_maps_are_named():
    lonely = np.zeros(IMAGE.shape, bool)
    lonely[0, 0] = True
    for smooth in (nonlocal_means, bilateral_filter):
        for mask, words in [
            (np.ones((8, 8), bool), r"must be an array of bool of shape \(8, 9\)"),
            (np.ones(IMAGE.shape), "must be an array of bool .* got float64"),
            (np.zeros(IMAGE.shape, bool), "must be True at one pixel"),
            ([[True], [True, False]], ""),
        ]:
            with pytest.raises(ValueError, match=f"mask: {words}"):
                smooth(IMAGE, mask=mask)
        holed = IMAGE.copy()
        holed[2, 3] = np.nan
        with pytest.raises(ValueError, match=r"image: must not hold NaN .* where mask is False"):
            smooth(holed)
    with pytest.raises(ValueError, match=r"mask: 63 pixels have no valid .* first \(0, 3\)"):
        nonlocal_means(IMAGE, patch_size=1, patch_distance=2, mask=lonely)
    for name in ("h", "sigma"):
        for value, words in [
            (np.ones(9), r"must be a number, or hold one .* shape \(8, 9\); got shape \(9,\)"),
            (np.full(IMAGE.shape, -1.0), "must be finite and >"),
            (np.full(IMAGE.shape, np.nan), "must be finite"),
            (np.full(IMAGE.shape, "a"), "must hold real numbers"),
        ]:
            with pytest.raises(ValueError, match=f"{name}: {words}"):
                nonlocal_means(IMAGE, **{name: value})
    with pytest.raises(ValueError, match="footprint: must be an array of 3 axes"):
        bilateral_filter(VOLUME, footprint=np.ones((3, 3)))
