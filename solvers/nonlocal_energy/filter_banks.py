"""Banks of filters on images, potentials of their responses, and proved bounds of their norms."""

from typing import NamedTuple

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import ArrayLike
from scipy.fft import dct
from scipy.sparse import csr_array

from ...validation import check_integer
from ..inputs import Array, as_numbers, check_one_or_each

BORDERS = ("inside", "circular", "zero")
_N_FREQUENCIES = 512


def dct_filters(size: int) -> Array:
    """Filters of the orthonormal discrete cosine transform of windows, except the constant filter.

    Parameters
    ----------
    size : int
        Side of the square windows, >= 2.

    Returns
    -------
    ndarray of shape (size**2 - 1, size, size)

    Raises
    ------
    ValueError
        If `size` is not an integer of at least 2.

    References
    ----------
    EQUATIONS FE-2.

    Examples
    --------
    >>> from twinsolve.solvers.nonlocal_energy import dct_filters
    >>> dct_filters(2)[0]
    array([[ 0.5, -0.5],
           [ 0.5, -0.5]])
    """
    check_integer(size, "size", minimum=2)
    cosines = dct(np.eye(size), axis=0, norm="ortho")
    return np.einsum("ay,bx->abyx", cosines, cosines).reshape(-1, size, size)[1:]


class FilterBank:
    """The operator K: inner products of each filter with the windows of an image.

    Parameters
    ----------
    filters : array-like of shape (n_filters, size, size)
    borders : {"inside", "circular", "zero"}, default="inside"
        Use only windows inside the image; all windows of the periodic image; or all windows that
        touch the image, surrounded by zeros. In each case `adjoint` is K^T, a correlation with the
        rotated filters. (This would not hold for reflecting borders.)

    Raises
    ------
    ValueError
        If filters are not square and finite, or the borders unknown.

    References
    ----------
    EQUATIONS FE-1.

    Examples
    --------
    >>> import numpy as np
    >>> from twinsolve.solvers.nonlocal_energy import FilterBank, dct_filters
    >>> K = FilterBank(dct_filters(2))
    >>> K(np.eye(3)).shape, K.adjoint(np.ones((3, 2, 2))).shape
    ((3, 2, 2), (3, 3))
    """

    def __init__(self, filters: ArrayLike, *, borders: str = "inside") -> None:
        self.filters = as_numbers(filters, "filters", np.float64)
        if self.filters.ndim != 3 or self.filters.shape[1] != self.filters.shape[2]:
            raise ValueError(
                f"filters: must be of shape (n_filters, size, size), got {self.filters.shape}"
            )
        if not np.isfinite(self.filters).all():
            raise ValueError("filters: must not hold NaN or infinity")
        if borders not in BORDERS:
            raise ValueError(f"borders: must be one of {BORDERS}, got {borders!r}")
        self.borders = borders
        self.size = self.filters.shape[1]

    def __call__(self, u: Array) -> Array:
        """Responses K u, of shape (n_filters, rows, columns)."""
        windows = sliding_window_view(self._continue_borders(u), (self.size, self.size))
        return np.tensordot(self.filters, windows, axes=([1, 2], [2, 3]))

    def adjoint(self, responses: Array) -> Array:
        """``K^T p``: the sum of the filters at all windows, weighted by the responses p."""
        rows, columns = responses.shape[1:]
        total = np.zeros((rows + self.size - 1, columns + self.size - 1))
        parts = np.tensordot(self.filters, responses, axes=(0, 0))
        for y, x in np.ndindex(self.size, self.size):
            total[y : y + rows, x : x + columns] += parts[y, x]
        return self._fold_borders(total)

    def counts(self, shape: tuple[int, int]) -> Array:
        """Number of windows that cover each pixel of an image of this shape."""
        if self.borders != "inside":
            return np.full(shape, float(self.size**2))
        rows, columns = (
            np.convolve(np.ones(side - self.size + 1), np.ones(self.size)) for side in shape
        )
        return np.outer(rows, columns)

    def norm_bound(self, weights: ArrayLike = 1.0) -> float:
        """A proved upper bound of ``|sum_i weights_i K_i^T K_i|_2``, for images of every size.

        The weights must be >= 0. The sum of squares of the filters' Fourier transforms is a
        trigonometric polynomial of degree ``size - 1`` along each axis. So it is at most its
        largest value on a grid of n x n points, divided by ``cos(pi (size - 1) / n)`` for each axis
        (Ehlich and Zeller, 1964). The bound exceeds the norm by less than 0.2 % for 7 x 7 filters.
        """
        n, side = max(_N_FREQUENCIES, 4 * self.size), np.arange(self.size)
        entries = self.filters.reshape(len(self.filters), -1)
        products = (entries.T * np.broadcast_to(weights, len(entries))) @ entries
        correlations = np.zeros((n, n))  # summed over the filters, zero shift at [0, 0]
        for (y, x), product in zip(np.ndindex(self.size, self.size), products, strict=True):
            correlations[np.ix_(y - side, x - side)] += product.reshape(self.size, self.size)
        squares = np.fft.rfft2(correlations).real
        return float(squares.max() / np.cos(np.pi * (self.size - 1) / n) ** 2)

    def _continue_borders(self, u: Array) -> Array:
        """Continue an image beyond its far borders, as `borders` says."""
        if min(u.shape) < self.size and self.borders == "inside":
            raise ValueError(
                f"image: must have sides of at least {self.size} pixels, got {u.shape}"
            )
        border = self.size - 1
        if self.borders == "circular":
            return np.pad(u, (0, border), mode="wrap")
        return np.pad(u, border) if self.borders == "zero" else u

    def _fold_borders(self, image: Array) -> Array:
        """Return the adjoint of `_continue_borders`."""
        border = self.size - 1
        if border == 0 or self.borders == "inside":
            return image
        if self.borders == "zero":
            return image[border:-border, border:-border]
        return _fold_period(_fold_period(image, border).T, border).T


def _fold_period(image: Array, border: int) -> Array:
    """Return the adjoint of a periodic continuation by `border` rows at the end."""
    height = len(image) - border
    folded = image[:height].copy()
    np.add.at(folded, np.arange(height, len(image)) % height, image[height:])
    return folded


class Potentials(NamedTuple):
    """Even potentials rho_i whose derivatives are piecewise linear, as sums of clippings.

    ::

        rho_i(z)  = sum_k weights_ik huber(z; thresholds_ik)
        rho_i'(z) = sum_k weights_ik clip(z, -thresholds_ik, thresholds_ik)

    with ``huber(z; t) = z^2/2`` where ``|z| <= t``, and ``t |z| - t^2/2`` elsewhere. With negative
    weights, the influence functions rho_i' may redescend.

    Attributes
    ----------
    thresholds, weights : ndarray of shape (n_filters, n_knots)

    References
    ----------
    EQUATIONS FE-1.

    Examples
    --------
    >>> import numpy as np
    >>> from twinsolve.solvers.nonlocal_energy import Potentials
    >>> huber = Potentials(np.array([[1.0]]), np.array([[1.0]]))
    >>> huber.influence(np.array([[[0.5, 3.0]]]))
    array([[[0.5, 1. ]]])
    """

    thresholds: Array
    weights: Array

    def value(self, responses: Array) -> float:
        """Sum of ``rho_i`` over all responses, which have shape (n_filters, rows, columns)."""
        size = np.abs(responses)
        total = 0.0
        for t, weight in self._knots():
            clipped = np.minimum(size, t)
            total += float((weight * clipped * (size - clipped / 2)).sum())
        return total

    def influence(self, responses: Array) -> Array:
        """``rho_i'`` of all responses."""
        total = np.zeros_like(responses)
        for t, weight in self._knots():
            total += weight * np.clip(responses, -t, t)
        return total

    def curvatures(self) -> tuple[Array, Array]:
        """Smallest and largest second derivative of each potential, of shape (n_filters,)."""
        order = np.argsort(self.thresholds, axis=1)
        weights = np.take_along_axis(self.weights, order, axis=1)
        slopes = np.cumsum(weights[:, ::-1], axis=1)  # between knots, from the last one down
        return np.minimum(slopes.min(axis=1), 0), np.maximum(slopes.max(axis=1), 0)

    def _knots(self) -> list[tuple[Array, Array]]:
        columns = zip(self.thresholds.T, self.weights.T, strict=True)
        return [(t[:, None, None], weight[:, None, None]) for t, weight in columns]


class NonlocalFilterBank(FilterBank):
    """The operators ``W_i K_i``: mix the response to each window with those to similar windows.

    ::

        W_i = (1 - b_i) I + b_i M

    where M replaces the response to a window by the mean response to its similar windows. Used in
    place of a `FilterBank`, it makes `filter_energy` and its steps nonlocal.

    Parameters
    ----------
    filters : array-like of shape (n_filters, size, size)
    similar : array-like of int of shape (n_windows, n_similar)
        For each window, the indices of its similar windows. Windows lie inside the image and are
        numbered row by row.
    sharing : float or array-like of shape (n_filters,)
        The b_i, of any sign.

    Raises
    ------
    ValueError
        If filters are not square and finite, or indices or `sharing` are out of range or have a
        shape that does not fit; when called, if an image has another number of windows.

    References
    ----------
    Qiao et al. (2017); EQUATIONS FE-1.

    Examples
    --------
    >>> import numpy as np
    >>> from twinsolve.solvers.nonlocal_energy import NonlocalFilterBank
    >>> K = NonlocalFilterBank([[[1.0]]], [[0, 1], [1, 1]], sharing=1.0)
    >>> K(np.array([[1.0, 3.0]])), K.adjoint(np.array([[[1.0, 0.0]]]))
    (array([[[2., 3.]]]), array([[0.5, 0.5]]))
    """

    def __init__(self, filters: ArrayLike, similar: ArrayLike, *, sharing: ArrayLike) -> None:
        super().__init__(filters)
        indices = np.asarray(similar)
        if indices.ndim != 2 or indices.size == 0 or not np.issubdtype(indices.dtype, np.integer):
            raise ValueError(
                "similar: must be integers of shape (n_windows, n_similar), got "
                f"{indices.dtype} of shape {indices.shape}"
            )
        n, k = indices.shape
        if indices.min() < 0 or indices.max() >= n:
            raise ValueError(
                f"similar: must be indices of {n} windows, 0 to {n - 1}, got {indices.min()} to "
                f"{indices.max()}"
            )
        rows = np.repeat(np.arange(n), k)
        self.means = csr_array((np.full(n * k, 1 / k), (rows, indices.ravel())), shape=(n, n))
        self.sharing = check_one_or_each(sharing, "sharing", len(self.filters), "filter")

    def __call__(self, u: Array) -> Array:
        """Responses W K u, of shape (n_filters, rows, columns)."""
        return self._mix_responses(super().__call__(u), self.means)

    def adjoint(self, responses: Array) -> Array:
        """``K^T W^T p``."""
        return super().adjoint(self._mix_responses(responses, self.means.T))

    def norm_bound(self, weights: ArrayLike = 1.0) -> float:
        """A proved upper bound of ``|sum_i weights_i K_i^T W_i^T W_i K_i|_2`` for these windows.

        It is the bound of `FilterBank` with the weights multiplied by ``|W_i|_1 |W_i|_inf``, which
        is at least ``|W_i|_2^2``.
        """
        kept_share, shared_share = np.abs(1 - self.sharing), np.abs(self.sharing)
        rows, columns = (
            kept_share + shared_share * self.means.sum(axis=axis).max() for axis in (1, 0)
        )
        return super().norm_bound(weights * rows * columns)

    def _mix_responses(self, responses: Array, means: csr_array) -> Array:
        """Mix each response with the mean of those at similar windows."""
        flat = responses.reshape(len(responses), -1)
        if flat.shape[1] != means.shape[0]:
            raise ValueError(
                f"similar: must have one row for each of the {flat.shape[1]} windows of the image, "
                f"got {means.shape[0]}"
            )
        share = self.sharing[:, None]
        return ((1 - share) * flat + share * (means @ flat.T).T).reshape(responses.shape)
