import numpy as np
import pytest

from twinsolve.bench.vision.patches import Patches, generator_of

RNG = np.random.default_rng(0)


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


def test_a_patch_depends_on_seed_step_and_sample_alone():
    patches = Patches([RNG.random((40, 40))], 8)
    draws = {
        key: patches.crop(generator_of(*key)).tobytes()
        for key in ((0, 0, 0), (1, 0, 0), (0, 1, 0), (0, 0, 1))
    }
    assert len(set(draws.values())) == 4
    assert patches.crop(generator_of(0, 1, 0)).tobytes() == draws[0, 1, 0]


@pytest.mark.parametrize(
    ("images", "match"),
    [([], "one or more"), ([np.zeros((9, 9)), np.zeros((9, 3))], r"image 1, \(9, 3\)")],
)
def test_images_that_hold_no_patch_are_named(images, match):
    with pytest.raises(ValueError, match=match):
        Patches(images, 4)
