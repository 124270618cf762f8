import numpy as np
import pytest
from scipy.ndimage import binary_erosion, label

from twinsolve.datasets import make_pathfinder

SQUARE = np.ones((3, 3))


@pytest.mark.parametrize("settings", [{}, {"size": 16}, {"path_length": 20, "n_distractors": 5}])
def test_dots_are_connected_where_the_label_says_so(settings):
    images, y, paths = make_pathfinder(200, return_paths=True, random_state=0, **settings)
    n_paths = 2 + settings.get("n_distractors", images.shape[1] // 10)
    for image, connected, own in zip(images, y, paths, strict=True):
        numbered, n_found = label(own, SQUARE)
        dots = np.argwhere(binary_erosion(image, SQUARE))
        assert n_found == n_paths
        assert len(dots) == 2
        first, second = (numbered[tuple(dot)] for dot in dots)
        assert min(first, second) > 0
        assert (first == second) == connected
    assert y.sum() == 100
    assert (images[paths] == 0).mean() > 0.2  # dashes
    assert not (binary_erosion(~paths, np.ones((1, 3, 3))) & (images > 0)).any()  # dots and paths


def test_both_classes_have_dots_equally_far_apart():
    images, y = make_pathfinder(600, random_state=0)
    dots = [np.argwhere(binary_erosion(image, SQUARE)) for image in images]
    apart = np.array([np.linalg.norm(first - second) for first, second in dots])
    error = apart.std() * (2 / 300) ** 0.5
    assert abs(apart[y == 1].mean() - apart[y == 0].mean()) < 3 * error


def test_seed_decides():
    first, same, other = (make_pathfinder(8, random_state=s) for s in (0, 0, 1))
    assert (first[0] == same[0]).all()
    assert (first[1] == same[1]).all()
    assert (first[0] != other[0]).any()


@pytest.mark.parametrize(
    "wrong",
    [
        {"size": 7},
        {"dash": 0},
        {"n_distractors": 9, "size": 8},
        {"path_length": 3},
        {"n_samples": 0},
    ],
)
def test_what_cannot_be_drawn_is_refused(wrong):
    with pytest.raises(ValueError, match=next(iter(wrong))):
        make_pathfinder(**wrong, random_state=0)
