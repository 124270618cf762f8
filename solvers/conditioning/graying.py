"""Token graying: a power law on the spectrum of raw tokens, by SVD or cosine transform."""

import math

import numpy as np
import scipy.fft
from numpy.typing import ArrayLike

from ...validation import check_positive
from ..inputs import Array
from .spectrum import EPS, check_tokens

_LEAST_SQUARE = 1e-9


def gray_tokens(
    X: ArrayLike, *, eps: float = 0.95, transform: str = "svd", keep_scale: bool = True
) -> Array:
    """Lower the contrast of the spectrum of raw tokens by a power law (token graying).

    ::

        svd:  X~ = U diag(s_1 (s / s_1)^eps) R^T
        dct:  X~ = Dn^T (sign(F) m (|F| / m)^eps) Dd

    with the thin SVD ``X = U diag(s) R^T``, or the orthonormal discrete cosine transform
    ``F = Dn X Dd^T`` of rows and columns and ``m = max|F|``. The SVD gives
    ``kappa(X~) = kappa(X)^eps`` and keeps s_1. The DCT keeps m and all signs; it lowers the
    condition number of most images, without a guarantee, and depends on the order of the features.

    Values at rounding level become 0, as ``0^eps = 0``. Relative to the largest, these are singular
    values up to ``max(n_tokens, n_features)`` times machine precision, and coefficients up to
    ``log2(2 n_tokens n_features)`` times machine precision.

    Parameters
    ----------
    X : array-like of shape (..., n_tokens, n_features)
        Flattened image patches before the patch embedding, in training and in inference. Each
        matrix is grayed separately.
    eps : float, default=0.95
        Power in (0, 1]; 1 changes nothing. 0.95 is the default of the paper.
    transform : {"svd", "dct"}, default="svd"
    keep_scale : bool, default=True
        False makes the largest singular value, or coefficient, 1.

    Returns
    -------
    ndarray of shape (..., n_tokens, n_features)
        float32 if X is, else float64; computed in float64.

    Raises
    ------
    ValueError
        On NaN, infinity, fewer than two dimensions, an eps outside (0, 1] or an unknown transform.

    References
    ----------
    Ji et al., "Always skip attention" (2025); EQUATIONS SK-A1, SK-8, SK-9, SK-A2. The paper's
    listing of the SVD form divides by s_1 and does not multiply back (erratum E4-i, as
    ``keep_scale=False``); its DCT matrix is printed transposed (erratum E4-j), and there is no
    guarantee for the DCT form (errata E4-k to E4-m).

    Examples
    --------
    >>> import numpy as np
    >>> from twinsolve.solvers import gray_tokens
    >>> gray_tokens(np.diag([4.0, 1.0]), eps=0.5)
    array([[4., 0.],
           [0., 2.]])
    """
    X = check_tokens(X, "X")
    if check_positive(eps, "eps") > 1:
        raise ValueError(f"eps: must be in (0, 1], got {eps!r}")
    if not isinstance(transform, str) or transform not in ("svd", "dct"):
        raise ValueError(f'transform: must be "svd" or "dct", got {transform!r}')
    exact = _gray_svd if X.dtype == np.float64 else _gray_gram
    gray = exact if transform == "svd" else _gray_dct
    grayed = np.empty_like(X)
    for index in np.ndindex(X.shape[:-2]):
        # Unit scale, so that no square overflows.
        scale = float(np.abs(X[index]).max()) or 1.0
        unit, largest = gray(np.divide(X[index], scale, dtype=np.float64), eps)
        factor = scale * largest if keep_scale else 1.0
        np.multiply(unit, factor, out=grayed[index], casting="same_kind")
    return grayed


def _gray_svd(X: Array, eps: float) -> tuple[Array, float]:
    """Return the grayed matrix divided by its largest singular value, and that value."""
    U, s, Rt = np.linalg.svd(X, full_matrices=False)
    largest = float(s[0])
    return (U * _power_law(s, eps, max(X.shape))) @ Rt, largest


def _gray_gram(X: Array, eps: float) -> tuple[Array, float]:
    """Return what `_gray_svd` returns, faster, for entries rounded to float32.

    The Gram matrix in float64 changes the least singular value by the relative error
    ``eps64 kappa^2``. Rounding the entries has already changed it by ``eps32 kappa``, which is far
    more up to the largest kappa allowed, 3e4.
    """
    wide = len(X) < X.shape[1]
    squares, V = np.linalg.eigh(X @ X.T if wide else X.T @ X)
    if squares[0] <= _LEAST_SQUARE * squares[-1]:
        return _gray_svd(X, eps)
    largest = math.sqrt(squares[-1])
    response = (V * (squares / squares[-1]) ** ((eps - 1) / 2)) @ (V.T / largest)
    return (response @ X if wide else X @ response), largest


def _gray_dct(X: Array, eps: float) -> tuple[Array, float]:
    """Return the grayed matrix divided by its largest coefficient, and that size."""
    F = scipy.fft.dctn(X, norm="ortho", overwrite_x=True)
    size = np.abs(F)
    largest = float(size.max())
    np.copysign(_power_law(size, eps, math.log2(2 * X.size)), F, out=F)
    return scipy.fft.idctn(F, norm="ortho", overwrite_x=True), largest


def _power_law(size: Array, eps: float, rounding: float) -> Array:
    """Divide by the largest entry, zero rounding errors, and raise to the power eps, in place."""
    size /= size.max() or 1.0
    size[size <= rounding * EPS] = 0
    return np.power(size, eps, out=size)
