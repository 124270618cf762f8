"""Pathfinder: whether two dots lie on one dashed path."""

import numpy as np
from scipy.ndimage import maximum_filter
from sklearn.utils import check_random_state

from ..validation import check_integer

_TURN = 0.22  # standard deviation of the change of direction, radians a pixel
_FINE = 2  # points of a path a pixel
_APART = 2  # pixels that stay free between two paths, and between parts of one
_WIDTH = 2 * _APART + 1
_BLOCK = 256  # images that are drawn at a time
_TRIALS, _ROUNDS = 8, 48  # walks for a path, of which the first that fits is taken
_FUTILE = 5  # blocks without an image


def make_pathfinder(
    n_samples: int = 100,
    *,
    size: int = 32,
    path_length: int | None = None,
    n_distractors: int | None = None,
    dash: int = 3,
    gap: int = 2,
    return_paths: bool = False,
    random_state: int | np.random.RandomState | None = None,
) -> tuple[np.ndarray, ...]:
    """Draw images of dashed paths with two dots, which lie on one path or on two.

    Each image has two paths of equal length, and shorter distractors. All are smooth random walks
    that neither touch each other nor themselves. Connected dots are both ends of the first path.
    Other dots are the beginnings of the two paths. The second path begins as far from the beginning
    of the first as that one's end is. So paths and distances of the dots have the same distribution
    in both classes.

    Parameters
    ----------
    n_samples : int, default=100
    size : int, default=32
        Height and width in pixels.
    path_length : int, optional
        Length of the two paths in pixels. None is three quarters of `size`.
    n_distractors : int, optional
        Number of further paths, of half the length. None is a tenth of `size`.
    dash, gap : int, default=3 and 2
        Pixels that are drawn and left out along a path.
    return_paths : bool, default=False
    random_state : int, RandomState or None

    Returns
    -------
    images : float32 ndarray of shape (n_samples, size, size)
        1 on dashes and dots, which are 3 x 3, and 0 elsewhere.
    y : int64 ndarray of shape (n_samples,)
        1 where the dots are connected, in half of the images, and 0 elsewhere.
    paths : bool ndarray of shape (n_samples, size, size)
        True on all paths, without gaps. Returned only with `return_paths`.

    Raises
    ------
    ValueError
        If a number is outside its range, or there is no room for such paths.

    References
    ----------
    Linsley et al., "Learning long-range spatial dependencies with horizontal gated recurrent units"
    (2018); Tay et al., "Long Range Arena" (2021), which shows the pixels one by one. These images
    are our own, with other paths: an accuracy on them is not comparable with theirs.

    Examples
    --------
    >>> from twinsolve.datasets import make_pathfinder
    >>> images, y = make_pathfinder(6, size=16, random_state=0)
    >>> images.shape, int(y.sum())
    ((6, 16, 16), 3)
    """
    check_integer(n_samples, "n_samples", 1)
    check_integer(size, "size", 8)
    check_integer(dash, "dash", 1)
    check_integer(gap, "gap", 0)
    path_length = 3 * size // 4 if path_length is None else path_length
    check_integer(path_length, "path_length", 4, 4 * size)
    n_distractors = size // 10 if n_distractors is None else n_distractors
    check_integer(n_distractors, "n_distractors", 0)
    rng = check_random_state(random_state)
    lengths = [path_length] * 2 + [path_length // 2] * n_distractors
    blocks: list[list[np.ndarray]] = []
    while sum(len(block[0]) for block in blocks) < n_samples:
        blocks.append(_draw_paths(rng, size, lengths))
        if not sum(len(block[0]) for block in blocks[-_FUTILE:]) and len(blocks) >= _FUTILE:
            raise ValueError(
                f"size, path_length, n_distractors: an image of {size} x {size} has no room for "
                f"{len(lengths)} paths; take fewer or shorter ones"
            )
    walks = [np.concatenate(parts)[:n_samples] for parts in zip(*blocks, strict=True)]
    y = rng.permutation(np.arange(n_samples) % 2)
    images = np.zeros((n_samples, size, size), dtype=np.float32)
    for walk in walks:
        along = np.arange(walk.shape[1]) / _FINE + (dash + gap) * rng.random_sample((n_samples, 1))
        _mark(images, walk, along % (dash + gap) < dash)
    ends = np.stack([walks[0][:, 0], np.where(y[:, None], walks[0][:, -1], walks[1][:, 0])], axis=1)
    dots = _mark(np.zeros_like(images), ends)
    images = np.maximum(images, maximum_filter(dots, (1, 3, 3)))
    if not return_paths:
        return images, y
    paths = np.zeros(images.shape, dtype=bool)
    for walk in walks:
        _mark(paths, walk)
    return images, y, paths


def _draw_paths(rng: np.random.RandomState, size: int, lengths: list[int]) -> list[np.ndarray]:
    """Draw the paths of a block of images, each (n_images, n_points, 2).

    Images without room for all paths are dropped.
    """
    paths: list[np.ndarray] = []
    taken = np.zeros((_BLOCK, size, size), dtype=bool)
    for number, length in enumerate(lengths):
        new, has_path = _find_paths(rng, taken, length, paths[0] if number == 1 else None)
        paths = [*(path[has_path] for path in paths), new[has_path]]
        widened = maximum_filter(
            _mark(np.zeros_like(taken[has_path]), new[has_path]), (1, *[_WIDTH] * 2)
        )
        taken = taken[has_path] | widened
    return paths


def _find_paths(
    rng: np.random.RandomState, taken: np.ndarray, length: int, first: np.ndarray | None
) -> tuple[np.ndarray, np.ndarray]:
    """Draw one path for each image, away from the pixels `taken`; return also where that worked.

    With `first`, the first path of each image, the new path begins on the circle around the
    beginning of the first that goes through its end.
    """
    size, paths = taken.shape[1], np.zeros((len(taken), length * _FINE + 1, 2))
    open_images = np.arange(len(taken))
    for _ in range(_ROUNDS):
        shape = (len(open_images), _TRIALS)
        starts = 1 + (size - 3) * rng.random_sample((*shape, 2))
        if first is not None:
            ends = first[open_images][:, [0, -1]]
            reach = np.linalg.norm(ends[:, 1] - ends[:, 0], axis=1)[:, None, None]
            starts = ends[:, :1] + reach * _directions(_angles(rng, shape))
        walks = starts[:, :, None] + _walk(rng, shape, length)
        fits = _find_fitting(walks, taken[open_images])
        has_fit = fits.any(axis=1)
        paths[open_images[has_fit]] = walks[has_fit, fits[has_fit].argmax(axis=1)]
        open_images = open_images[~has_fit]
    return paths, ~np.isin(np.arange(len(taken)), open_images)


def _angles(rng: np.random.RandomState, shape: tuple[int, ...]) -> np.ndarray:
    """Draw angles uniformly."""
    return 2 * np.pi * rng.random_sample(shape)


def _directions(angles: np.ndarray) -> np.ndarray:
    """Return the unit vectors of these angles."""
    return np.stack([np.cos(angles), np.sin(angles)], axis=-1)


def _walk(rng: np.random.RandomState, shape: tuple[int, ...], length: int) -> np.ndarray:
    """Draw points on smooth random walks from the origin, (*shape, n_points, 2)."""
    turns = _TURN * _FINE**-0.5 * rng.standard_normal((*shape, length * _FINE))
    steps = _directions(_angles(rng, shape)[..., None] + turns.cumsum(axis=-1)) / _FINE
    points = steps.cumsum(axis=-2)
    return np.concatenate([np.zeros_like(points[..., :1, :]), points], axis=-2)


def _find_fitting(walks: np.ndarray, taken: np.ndarray) -> np.ndarray:
    """Whether walks (n_images, n_trials, n_points, 2) stay inside and touch no other path."""
    size = taken.shape[1]
    inside = ((walks > 0.5) & (walks < size - 1.5)).all(axis=(2, 3))
    pixels = walks.round().clip(0, size - 1).astype(np.intp)
    image = np.arange(len(walks))[:, None, None]
    free = ~taken[image, pixels[..., 0], pixels[..., 1]].any(axis=2)
    fits = inside & free
    fits[fits] = ~_meets_itself(walks[fits])
    return fits


def _meets_itself(walks: np.ndarray) -> np.ndarray:
    """Whether walks (n, n_points, 2) come near their own earlier points."""
    least = 1 + _APART
    points = walks[:, ::_FINE]  # a pixel apart
    near = np.zeros(len(walks), dtype=bool)
    for lag in range(2 * least, points.shape[1]):
        difference = points[:, lag:] - points[:, :-lag]
        near |= (np.square(difference).sum(axis=2) < least**2).any(axis=1)
    return near


def _mark(images: np.ndarray, points: np.ndarray, drawn: np.ndarray | bool = True) -> np.ndarray:
    """Set the pixels at points (n_images, n_points, 2) to 1, where `drawn` is true."""
    image, place = np.nonzero(np.broadcast_to(drawn, points.shape[:2]))
    rows, columns = points[image, place].round().astype(np.intp).T
    images[image, rows, columns] = 1
    return images
