"""Points on unions of curved manifolds, which turn into subspaces as the curvature goes to 0."""

import math
from collections.abc import Callable, Sequence

import numpy as np
from scipy.special import fresnel
from sklearn.utils import check_random_state

from .drawing import orthonormal_rows, per_group, sphere


def make_union_of_manifolds(
    n_samples: int | Sequence[int] = 50,
    *,
    n_manifolds: int = 4,
    n_features: int = 6,
    dimension: int = 2,
    shape: str = "closed",
    curvature: float = 1.0,
    noise: float = 0.0,
    random_state: int | np.random.RandomState | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """Draw points from a union of curved manifolds; at curvature 0 they lie in subspaces.

    A point of manifold l is ``f(a) B_l + o_l + e``. The rows of `B_l` are a random orthonormal
    frame; `e` is Gaussian with standard deviation ``noise / sqrt(n_features)`` per entry. With c
    for `curvature` and d for `dimension`:

    - ``shape="closed"``: ``f(a) = (a, c h(a)) / sqrt(1 + c^2)`` with `a` uniform on the unit
      sphere of R^d and `h(a)` the harmonics of degree 2, ``a a^T - I / d`` scaled to unit norm;
      ``o_l = 0``. All points have unit norm. For d = 2 these are the closed curves
      ``(cos t, sin t, c cos 2t, c sin 2t)``, the double turn of a trefoil. At c = 0 the points
      lie in a linear subspace of dimension d.
    - ``shape="roll"``: a flat sheet, ``a`` uniform in [-2, 2]^d. Its first direction is rolled up
      at both ends into an Euler spiral, without stretching: at arc length s it has turned by
      ``3 pi c s^2 / 4``, which is one and a half turns at either end for c = 1. `o_l` is a random
      unit vector. At c = 0 the points lie in an affine subspace of dimension d.
    - ``shape="torus"``: ``f(a, b) = ((1 + c cos b) a, c sin b)`` with `a` uniform on the unit
      sphere of R^d and `b` a uniform angle: a tube of radius c around that sphere, for d = 2 the
      ring torus of R^3. `o_l` is a random unit vector. At c = 0 the points lie in an affine
      subspace of dimension d.

    Parameters
    ----------
    n_samples : int or sequence of int, default=50
        Points on each manifold; a sequence gives unequal sizes.
    n_manifolds : int, default=4
    n_features : int, default=6
        Ambient dimension. With fewer features the linear spans of the manifolds overlap more
        (each closed curve spans 4 dimensions), and linear models separate them less well.
    dimension : int, default=2
        Dimension d of the subspaces at curvature 0: at least 2 for tori and closed manifolds (which
        themselves have d - 1 dimensions), at least 1 for rolls.
    shape : {"closed", "roll", "torus"}, default="closed"
    curvature : float, default=1.0
    noise : float, default=0.0
        Expected norm of the noise, for comparison with the norm 1 of points of closed manifolds.
    random_state : int, RandomState or None

    Returns
    -------
    X : ndarray of shape (n_points, n_features)
    y : ndarray of shape (n_points,)
        Index of the manifold. Rows are shuffled.

    Raises
    ------
    ValueError
        If the shape is unknown, the frame does not fit into `n_features`, or a number is outside
        its range.

    Examples
    --------
    >>> from twinsolve.datasets import make_union_of_manifolds
    >>> X, y = make_union_of_manifolds((20, 40), n_manifolds=2, curvature=0.5, random_state=0)
    >>> X.shape, [int((y == label).sum()) for label in (0, 1)]
    ((60, 6), [20, 40])
    """
    if n_manifolds < 1:
        raise ValueError(f"n_manifolds: must be >= 1, got {n_manifolds}")
    if not (0 <= noise < math.inf and 0 <= curvature < math.inf):
        raise ValueError(f"noise, curvature: must be finite and >= 0, got {noise} and {curvature}")
    if shape not in _SHAPES:
        raise ValueError(f"shape: must be one of {sorted(_SHAPES)}, got {shape!r}")
    draw, smallest = _SHAPES[shape]
    if dimension < smallest:
        raise ValueError(f"dimension: must be >= {smallest} for {shape!r}, got {dimension}")
    sizes = per_group(n_samples, "n_samples", n_manifolds)

    rng = check_random_state(random_state)
    points = []
    for size in sizes:
        intrinsic = draw(rng, size, dimension, curvature)
        if intrinsic.shape[1] > n_features:
            raise ValueError(
                f"n_features: {shape!r} of dimension {dimension} needs at least "
                f"{intrinsic.shape[1]}, got {n_features}"
            )
        offset = 0.0 if shape == "closed" else sphere(rng, 1, n_features)
        points.append(intrinsic @ orthonormal_rows(rng, intrinsic.shape[1], n_features) + offset)
    X = np.concatenate(points)
    X += noise / math.sqrt(n_features) * rng.standard_normal(X.shape)
    order = rng.permutation(len(X))
    return X[order], np.repeat(np.arange(n_manifolds), sizes)[order]


def _closed(rng: np.random.RandomState, n: int, dimension: int, curvature: float) -> np.ndarray:
    """Draw points ``(a, c h(a)) / sqrt(1 + c^2)``, with a on the unit sphere."""
    a = sphere(rng, n, dimension)
    harmonics = np.sqrt(dimension / (dimension - 1)) * (
        a[:, :, None] * a[:, None] - np.eye(dimension) / dimension
    )
    rows, columns = np.triu_indices(dimension, 1)
    # Traceless symmetric matrices in orthonormal coordinates: the diagonal has dimension - 1.
    h = np.hstack(
        [
            math.sqrt(2) * harmonics[:, rows, columns],
            np.diagonal(harmonics, axis1=1, axis2=2) @ _traceless(dimension),
        ]
    )
    return np.hstack([a, curvature * h]) / math.sqrt(1 + curvature**2)


def _traceless(dimension: int) -> np.ndarray:
    """Return orthonormal columns that are orthogonal to the vector of ones."""
    return np.linalg.svd(np.ones((1, dimension)))[2][1:].T


def _roll(rng: np.random.RandomState, n: int, dimension: int, curvature: float) -> np.ndarray:
    """Draw points of a sheet whose first direction is rolled up as an Euler spiral."""
    a = rng.uniform(-2, 2, size=(n, dimension))
    s = a[:, 0]
    # fresnel(z) integrates sin and cos of pi t^2 / 2: at z = rate s the angle is 3 pi c s^2 / 4.
    rate = math.sqrt(1.5 * curvature)
    sine, cosine = np.array(fresnel(rate * s)) / rate if rate else (np.zeros(n), s)
    return np.column_stack([cosine, sine, a[:, 1:]])


def _torus(rng: np.random.RandomState, n: int, dimension: int, curvature: float) -> np.ndarray:
    """Draw points ``((1 + c cos b) a, c sin b)``, with a on the unit sphere and b an angle."""
    a, b = sphere(rng, n, dimension), rng.uniform(0, 2 * math.pi, size=(n, 1))
    return np.hstack([(1 + curvature * np.cos(b)) * a, curvature * np.sin(b)])


_Draw = Callable[[np.random.RandomState, int, int, float], np.ndarray]
_SHAPES: dict[str, tuple[_Draw, int]] = {
    "closed": (_closed, 2),
    "roll": (_roll, 1),
    "torus": (_torus, 2),
}
