"""Trajectories of rigid bodies, the generated data of motion segmentation."""

import math
from collections.abc import Sequence

import numpy as np
from scipy.spatial.transform import Rotation
from sklearn.utils import check_random_state

from .drawing import per_group, sphere

_CENTRE = (320.0, 240.0)
_RADIUS = 60.0
_TURN = math.pi / 3
_DRIFT = 120.0


def make_rigid_motions(
    n_samples: int | Sequence[int] = 50,
    *,
    n_motions: int = 2,
    n_frames: int = 30,
    noise: float = 0.0,
    random_state: int | np.random.RandomState | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """Draw points on rigid bodies and follow them with an affine camera.

    The camera sees point p of body m in frame f at ``A_mf z_p + b_mf + e``. Here `z_p` is uniform
    in a ball of R^3 of radius 60 pixels, `A_mf` is the first two rows of the body's rotation in
    that frame (orthographic camera) times a zoom common to all bodies, `b_mf` is the body's
    position and `e` is Gaussian noise. Each body turns steadily about its own axis, by up to 60
    degrees in all, and drifts along its own line, by up to 120 pixels. A frame has 640 x 480
    pixels; the camera zooms in or out by up to 20 percent.

    Without noise the trajectories of one motion lie in an affine subspace of dimension at most 3,
    and so in a linear subspace of dimension at most 4.

    Parameters
    ----------
    n_samples : int or sequence of int, default=50
        Points on each body; a sequence gives unequal sizes.
    n_motions : int, default=2
    n_frames : int, default=30
    noise : float, default=0.0
        Standard deviation of the noise of each coordinate, in pixels.
    random_state : int, RandomState or None

    Returns
    -------
    X : ndarray of shape (n_points, 2 n_frames)
        Row i holds the coordinates ``x, y`` of point i in frame 1, then in frame 2, and so on, as
        in `fetch_hopkins155`.
    y : ndarray of shape (n_points,)
        Index of the motion. Rows are shuffled.

    Raises
    ------
    ValueError
        If a number is outside its range.

    References
    ----------
    Tomasi and Kanade, "Shape and motion from image streams under orthography" (1992).

    Examples
    --------
    >>> from twinsolve.datasets import make_rigid_motions
    >>> X, y = make_rigid_motions((20, 40), n_frames=12, noise=0.5, random_state=0)
    >>> X.shape, [int((y == label).sum()) for label in (0, 1)]
    ((60, 24), [20, 40])
    """
    if n_motions < 1 or n_frames < 1:
        raise ValueError(f"n_motions, n_frames: must be >= 1, got {n_motions} and {n_frames}")
    if not 0 <= noise < math.inf:
        raise ValueError(f"noise: must be finite and >= 0, got {noise}")
    sizes = per_group(n_samples, "n_samples", n_motions)

    rng = check_random_state(random_state)
    time = np.linspace(0, 1, n_frames)
    zoom = 1 + rng.uniform(-0.2, 0.2) * time
    X = np.concatenate([_trajectories(rng, size, time, zoom) for size in sizes])
    X += noise * rng.standard_normal(X.shape)
    order = rng.permutation(len(X))
    return X[order], np.repeat(np.arange(n_motions), sizes)[order]


def _trajectories(
    rng: np.random.RandomState, n: int, time: np.ndarray, zoom: np.ndarray
) -> np.ndarray:
    """Draw the trajectories of n points on one rigid body, (n, 2 n_frames)."""
    body = _RADIUS * sphere(rng, n, 3) * np.cbrt(rng.uniform(size=(n, 1)))
    turn = rng.uniform(-_TURN, _TURN) * time[:, None] * sphere(rng, 1, 3)
    camera = zoom[:, None, None] * Rotation.from_rotvec(turn).as_matrix()[:, :2]
    start = np.array(_CENTRE) * rng.uniform(0.5, 1.5, size=2)
    position = start + _DRIFT * rng.uniform(-1, 1, size=2) * time[:, None]
    points = np.einsum("fij,pj->pfi", camera, body) + position
    return points.reshape(n, -1)
