"""Non-local means on points, each with its own metric. Samples are rows."""

import numpy as np
from numpy.typing import ArrayLike
from scipy.ndimage import gaussian_filter

from ...validation import check_integer, check_positive
from ..inputs import Array, as_array, check_matrix
from ..scales import unit_under
from .regression import check_values, smooth
from .weights import exact_weights

_NARROWEST = 1e-100  # pixels: such a window holds one pixel, and 1e-200 is no underflow


def anisotropic_nonlocal_means(
    X: ArrayLike, values: ArrayLike, *, metric: ArrayLike, h: float, n_jobs: int | None = None
) -> Array:
    """Average the values of similar points, with a metric for each point.

    ::

        u_i = sum_j w_ij v_j / sum_j w_ij,   w_ij = exp(-sum_d m_id (x_id - x_jd)^2 / h^2)

    with x_i the rows of `X`, v_j those of `values` and m_i those of `metric`. With ``m_i = 1``
    this is plain non-local means, `nadaraya_watson` at the bandwidth ``h / sqrt(2)``. On patches of
    an image, `oriented_metric` weighs the pixels of each patch along the local edge. Weights are
    not symmetric: ``w_ij`` uses the metric of point i.

    Parameters
    ----------
    X : array-like of shape (n_samples, n_features)
        Points, as tokens or patches.
    values : array-like of shape (n_samples, n_values)
    metric : array-like of shape (n_samples, n_features) or (n_features,)
        Diagonals of the metrics, >= 0: a row for each point, or one for all points, as
        `elliptical_metric` gives.
    h : float
        Decay of the weights, in the units of the features.
    n_jobs : int, optional
        Number of threads; None is 1.

    Returns
    -------
    ndarray of shape (n_samples, n_values)
        float32 if all inputs are, else float64; computed in float64.

    Raises
    ------
    ValueError
        On NaN, infinity, shapes that do not fit, negative entries of the metric, or ``h <= 0``.

    References
    ----------
    Maleki, Narayan and Baraniuk, "Anisotropic nonlocal means denoising" (2013); Buades, Coll and
    Morel (2005); EQUATIONS SE-7m, IF-14, IF-31.

    Examples
    --------
    >>> import numpy as np
    >>> from twinsolve.solvers import anisotropic_nonlocal_means
    >>> X = [[0.0, 0.0], [0.0, 9.0], [9.0, 0.0]]
    >>> u = anisotropic_nonlocal_means(X, [[1.0], [3.0], [8.0]], metric=[1.0, 0.0], h=1.0)
    >>> u.round(6).ravel()
    array([2., 2., 8.])
    """
    X = check_matrix(X, "X")
    values = check_values(values, X)
    h = check_positive(h, "h")
    per_sample = np.ndim(metric) != 1
    rows = metric if per_sample else np.reshape(as_array(metric, "metric"), (1, -1))
    M = check_matrix(rows, "metric", n_features=X.shape[1])
    if per_sample and len(M) != len(X):
        raise ValueError(f"metric: has {len(M)} rows, but there are {len(X)} points")
    if (M < 0).any():
        raise ValueError(f"metric: must be >= 0, got {M.min()}")
    weights = exact_weights(X, X, h / np.sqrt(2), "gaussian", metric=M.astype(np.float64))
    out = np.empty((len(X), values.shape[1]), np.result_type(X, values, M))
    return smooth(weights, values, out, n_jobs)


def elliptical_metric(values: ArrayLike, previous: ArrayLike) -> Array:
    """Metric that weighs each feature by how much it changes from one layer to the next.

    ::

        m_d = mean_n |v_nd - v'_nd|,   divided by its maximum

    The paper divides the differences by the step between the layers; here the step cancels. If no
    value changes, all weights are 1, as in the first layer.

    Parameters
    ----------
    values, previous : array-like of shape (n_samples, n_features)
        Values v of this layer and v' of the previous one.

    Returns
    -------
    ndarray of shape (n_features,)
        In [0, 1]. It can be the `metric` of `anisotropic_nonlocal_means`, or the diagonal
        `precision` of `nadaraya_watson`. float32 if all inputs are, else float64.

    Raises
    ------
    ValueError
        On NaN, infinity, or unequal shapes.

    References
    ----------
    Nielsen et al., "Elliptical attention" (2024); EQUATIONS IF-31.

    Examples
    --------
    >>> from twinsolve.solvers.kernel_smoothing import elliptical_metric
    >>> elliptical_metric([[1.0, 2.0]], [[0.0, 4.0]])
    array([0.5, 1. ])
    """
    values = check_matrix(values, "values")
    previous = check_matrix(previous, "previous", n_features=values.shape[1])
    if len(previous) != len(values):
        raise ValueError(f"previous: has {len(previous)} rows, but values has {len(values)}")
    unit = unit_under(values, previous)
    changes = np.abs(values / unit - previous / unit).mean(axis=0)
    largest = changes.max()
    metric = changes / largest if largest > 0 else np.ones_like(changes)
    return metric.astype(np.result_type(values, previous), copy=False)


def oriented_metric(
    image: ArrayLike,
    *,
    patch_size: int = 7,
    along: float = 3.0,
    across: float = 1.0,
    sigma: float = 1.5,
) -> Array:
    """Metric of each patch of an image: an elliptical Gaussian window along the local edge.

    ::

        m_i(o) ~ exp(-o^T A_i o / 2),   A_i = p I + q (2 J_i / tr J_i - I),   sum_o m_i(o) = 1
        p, q = (across^-2 +- along^-2) / 2

    for offsets o from the centre of the patch, with J_i the structure tensor. On an ideal edge the
    window has the standard deviation `along` the edge, and `across` at right angles to it. Where no
    direction dominates (``J = I tr J / 2``, or no gradient at all) the window is round.

    Parameters
    ----------
    image : array-like of shape (height, width)
    patch_size : int, default=7
        Side of the square patches in pixels, odd.
    along, across : float, default=3.0 and 1.0
        Standard deviations of the window, in pixels.
    sigma : float, default=1.5
        Scale of the Gaussian derivatives, in pixels. Their products are averaged at twice this
        scale. Both, like the patches, reflect at the border without repeating the edge.

    Returns
    -------
    ndarray of shape (height * width, patch_size ** 2)
        Rows are pixels and columns are offsets within a patch, both in row-major order. It is the
        `metric` of `anisotropic_nonlocal_means` on flattened patches. float32 if the image is, else
        float64.

    Raises
    ------
    ValueError
        On NaN, infinity, an image that is not two-dimensional, an even patch, or a width or scale
        that is not positive.

    References
    ----------
    Maleki, Narayan and Baraniuk, "Anisotropic nonlocal means denoising" (2013), which orients the
    windows; the structure tensor and the soft transition to round windows are choices made here.

    Examples
    --------
    >>> import numpy as np
    >>> from twinsolve.solvers.kernel_smoothing import oriented_metric
    >>> edge = np.repeat([[0.0, 0.0, 0.0, 1.0, 1.0, 1.0]], 6, axis=0)
    >>> window = oriented_metric(edge, patch_size=3)[14].reshape(3, 3)
    >>> bool(window[0, 1] > window[1, 0])
    True
    """
    pixels = check_matrix(image, "image")
    if check_integer(patch_size, "patch_size", minimum=1) % 2 == 0:
        raise ValueError(f"patch_size: must be odd, got {patch_size}")
    narrow, wide = (
        max(check_positive(width, name), _NARROWEST) ** -2 / 2
        for width, name in ((across, "across"), (along, "along"))
    )
    cosine, sine = _edge_direction(pixels.astype(np.float64), check_positive(sigma, "sigma"))
    y, x = np.indices((patch_size, patch_size)).reshape(2, -1) - patch_size // 2
    square = x**2 + y**2
    turned = np.outer(cosine, x**2 - y**2) + np.outer(sine, 2 * x * y)
    turned = turned.clip(-square, square)
    window = np.exp(-(narrow * (square + turned) + wide * (square - turned)) / 2)
    window /= window.sum(axis=1, keepdims=True)
    return window.astype(pixels.dtype, copy=False)


def _edge_direction(pixels: Array, sigma: float) -> tuple[Array, Array]:
    """Return each pixel's coherence times cosine, and sine, of twice the gradient's angle."""
    pixels = pixels / unit_under(pixels)
    pixels -= pixels.min()
    pixels /= unit_under(pixels)
    dy, dx = (gaussian_filter(pixels, sigma, order, mode="mirror") for order in ((1, 0), (0, 1)))
    xx, yy, xy = (gaussian_filter(a, 2 * sigma, mode="mirror") for a in (dx * dx, dy * dy, dx * dy))
    trace = xx + yy
    cosine, sine = (
        np.divide(a, trace, out=np.zeros_like(a), where=trace > 0) for a in (xx - yy, 2 * xy)
    )
    return cosine.ravel(), sine.ravel()
