"""Points on unions of subspaces, the generated data of subspace clustering."""

import math
from collections.abc import Sequence

import numpy as np
from sklearn.utils import check_random_state

from .drawing import orthonormal_rows, per_group, sphere


def make_union_of_subspaces(
    n_samples: int | Sequence[int] = 50,
    *,
    n_subspaces: int = 4,
    n_features: int = 30,
    dimension: int | Sequence[int] = 4,
    density: float | None = None,
    angle: float | None = None,
    affine: bool = False,
    noise: float = 0.0,
    outliers: float = 0.0,
    random_state: int | np.random.RandomState | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """Draw points from a union of linear or affine subspaces.

    A point of subspace l is ``a B_l + o_l + e``. The `dimension` rows of `B_l` are an orthonormal
    basis, `a` is uniform on the unit sphere, and `o_l` is a random unit vector if `affine` and zero
    otherwise. `e` is Gaussian with standard deviation ``noise / sqrt(n_features)`` per entry, so
    that `noise` is the expected ratio of the norms of noise and signal.

    Parameters
    ----------
    n_samples : int or sequence of int, default=50
        Points in each subspace; a sequence gives unequal sizes.
    n_subspaces : int, default=4
    n_features : int, default=30
        Ambient dimension.
    dimension : int or sequence of int, default=4
        Dimension of each subspace.
    density : float, optional
        Points per dimension of a subspace. ``round(density * dimension)`` replaces `n_samples`.
    angle : float, optional
        All principal angles between any two subspaces of equal dimension, in radians, in
        ``(0, pi / 2]``. None draws the subspaces uniformly.
    affine : bool, default=False
        Shift every subspace by a random unit vector.
    noise : float, default=0.0
    outliers : float, default=0.0
        Number of outliers to add, as a share of the points in subspaces. They are uniform on the
        unit sphere.
    random_state : int, RandomState or None

    Returns
    -------
    X : ndarray of shape (n_points, n_features)
    y : ndarray of shape (n_points,)
        Index of the subspace, -1 for outliers. Rows are shuffled.

    Raises
    ------
    ValueError
        If sizes or dimensions do not fit, or a number is outside its range.

    References
    ----------
    Soltanolkotabi and Candes, "A geometric analysis of subspace clustering" (2012), for angle and
    density as the quantities that decide the difficulty.

    Examples
    --------
    >>> from twinsolve.datasets import make_union_of_subspaces
    >>> X, y = make_union_of_subspaces((20, 40), n_subspaces=2, dimension=3, random_state=0)
    >>> X.shape, [int((y == label).sum()) for label in (0, 1)]
    ((60, 30), [20, 40])
    """
    if n_subspaces < 1 or n_features < 1:
        raise ValueError(
            f"n_subspaces, n_features: must be >= 1, got {n_subspaces} and {n_features}"
        )
    if not (0 <= noise < math.inf and 0 <= outliers < math.inf):
        raise ValueError(f"noise, outliers: must be finite and >= 0, got {noise} and {outliers}")
    dimensions = per_group(dimension, "dimension", n_subspaces)
    if max(dimensions) > n_features:
        raise ValueError(f"dimension: must be at most n_features={n_features}, got {dimension}")
    if density is not None:
        if not 0 < density < math.inf:
            raise ValueError(f"density: must be finite and > 0, got {density}")
        n_samples = [max(1, round(density * d)) for d in dimensions]
    sizes = per_group(n_samples, "n_samples", n_subspaces)

    rng = check_random_state(random_state)
    bases = _bases(rng, dimensions, n_features, angle)
    points, labels = [], []
    for label, (basis, size) in enumerate(zip(bases, sizes, strict=True)):
        offset = sphere(rng, 1, n_features) if affine else 0.0
        points.append(sphere(rng, size, len(basis)) @ basis + offset)
        labels.append(np.full(size, label))
    n_outliers = round(outliers * sum(sizes))
    X = np.concatenate([*points, sphere(rng, n_outliers, n_features)])
    y = np.concatenate([*labels, np.full(n_outliers, -1)])
    X += noise / math.sqrt(n_features) * rng.standard_normal(X.shape)
    order = rng.permutation(len(X))
    return X[order], y[order]


def _bases(
    rng: np.random.RandomState, dimensions: list[int], n_features: int, angle: float | None
) -> list[np.ndarray]:
    """Draw orthonormal bases of the subspaces, as rows."""
    if angle is None:
        return [orthonormal_rows(rng, d, n_features) for d in dimensions]
    if not 0 < angle <= math.pi / 2:
        raise ValueError(f"angle: must be in (0, pi / 2] radians, got {angle}")
    largest = max(dimensions)
    needed = largest + sum(dimensions)
    if needed > n_features:
        raise ValueError(f"angle: needs n_features >= {needed} for these subspaces")
    # B_l = c B_0 + s E_l with orthogonal blocks: B_l B_m^T = c^2 I, and c^2 = cos(angle).
    frame = orthonormal_rows(rng, needed, n_features)
    shared, own_blocks = frame[:largest], np.split(frame[largest:], np.cumsum(dimensions)[:-1])
    c, s = math.sqrt(max(math.cos(angle), 0.0)), math.sqrt(1 - max(math.cos(angle), 0.0))
    return [c * shared[: len(block)] + s * block for block in own_blocks]
