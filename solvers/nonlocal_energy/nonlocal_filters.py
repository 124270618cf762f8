"""Banks of filters whose responses to similar windows are mixed."""

import numpy as np
from numpy.typing import ArrayLike
from scipy.sparse import csr_array

from ..solution import Array, check_one_or_each
from .filter_banks import FilterBank


class NonlocalFilterBank(FilterBank):
    """The operators ``W_i K_i``: responses to each window, mixed with those to similar ones.

    ::

        W_i = (1 - b_i) I + b_i M

    where M replaces the response to a window by the mean over those that it is similar to. In the
    place of a `FilterBank`, it makes `filter_energy` and its steps nonlocal.

    Parameters
    ----------
    filters : array-like of shape (n_filters, size, size)
    similar : array-like of int of shape (n_windows, n_similar)
        Indices of windows inside the image, which are counted row by row.
    sharing : float or array-like of shape (n_filters,)
        b, of any sign.

    Raises
    ------
    ValueError
        If filters are not square and finite, indices or `sharing` out of range or of a shape that
        does not fit; when called, if an image has other windows.

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
                f"similar: must be integers of shape (n_windows, n_similar), got {indices.dtype} "
                f"{indices.shape}"
            )
        n, k = indices.shape
        if indices.min() < 0 or indices.max() >= n:
            raise ValueError(f"similar: must be indices of {n} windows")
        rows = np.repeat(np.arange(n), k)
        self.means = csr_array((np.full(n * k, 1 / k), (rows, indices.ravel())), shape=(n, n))
        self.sharing = check_one_or_each(sharing, "sharing", len(self.filters), "filter")

    def __call__(self, u: Array) -> Array:
        """W K u, of shape (n_filters, rows, columns)."""
        return self._mixed(super().__call__(u), self.means)

    def adjoint(self, responses: Array) -> Array:
        """``K^T W^T p``."""
        return super().adjoint(self._mixed(responses, self.means.T))

    def norm_bound(self, weights: ArrayLike = 1.0) -> float:
        """A proved upper bound of ``|sum_i weights_i K_i^T W_i^T W_i K_i|_2``, of these windows.

        That of `FilterBank` with ``|W_i|_2^2 <= |W_i|_1 |W_i|_inf`` in the weights.
        """
        own, shared = np.abs(1 - self.sharing), np.abs(self.sharing)
        rows, columns = (own + shared * self.means.sum(axis=axis).max() for axis in (1, 0))
        return super().norm_bound(weights * rows * columns)

    def _mixed(self, responses: Array, means: csr_array) -> Array:
        flat = responses.reshape(len(responses), -1)
        if flat.shape[1] != means.shape[0]:
            raise ValueError(
                f"similar: must have a row for each of {flat.shape[1]} windows, got "
                f"{means.shape[0]}"
            )
        share = self.sharing[:, None]
        return ((1 - share) * flat + share * (means @ flat.T).T).reshape(responses.shape)
