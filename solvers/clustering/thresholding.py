"""Subspace clustering by the nearest points by angle."""

from dataclasses import dataclass

import numpy as np
from scipy.sparse import csr_array

from ..solution import Array, check_integer, narrow
from .affinity import unit_rows
from .neighbors import NeighborClustering

_BLOCK_ENTRIES = 2**22


@dataclass(eq=False, repr=False, kw_only=True)
class ThresholdingSubspaceClustering(NeighborClustering):
    """Thresholding-based subspace clustering (TSC): the nearest points by angle, a baseline.

    ``c_ij = exp(-2 arccos |u_i . u_j|)`` for the `n_neighbors` points j != i with the largest
    ``|u_i . u_j|``, ``u_i = x_i / |x_i|``, and zero otherwise. Orthogonal points and zero rows are
    not joined. Then an affinity of the coefficients and the spectral step.

    Parameters
    ----------
    n_clusters : int or None, default=8
        None takes the number at the eigengap, at most 10 (`eigengap_n_clusters`).
    n_neighbors : int or "auto", default="auto"
        With fewer than ``n_neighbors + 1`` samples, all others are used. "auto" fits 5, 3 and 10,
        and takes the one whose clusters are best separated and balanced (`choose_settings`).
    affinity, assign_labels, random_state
        As in `SparseSubspaceClustering`.

    Attributes
    ----------
    labels_ : ndarray of int of shape (n_samples,)
    coef_ : csr_array of shape (n_samples, n_samples)
    affinity_matrix_ : csr_array of shape (n_samples, n_samples)
    n_neighbors_ : int
        The one given or chosen.
    n_features_in_ : int

    References
    ----------
    Heckel and Boelcskei, "Robust Subspace Clustering via Thresholding" (2015); EQUATIONS CL-10.

    Examples
    --------
    >>> from twinsolve.solvers import ThresholdingSubspaceClustering
    >>> X = [[1.0, 0.0], [2.0, 0.0], [3.0, 0.0], [0.0, 1.0], [0.0, -1.0], [0.0, 2.0]]
    >>> ThresholdingSubspaceClustering(2, random_state=0).fit_predict(X)
    array([0, 0, 0, 1, 1, 1], dtype=int32)
    """

    def _represent(self, X: Array) -> csr_array:
        return self._nearest(X, exclude_self=True)

    def _represent_new(self, X: Array) -> csr_array:
        return self._nearest(X, exclude_self=False)

    def _nearest(self, X: Array, exclude_self: bool) -> csr_array:
        most = check_integer(self.n_neighbors_, "n_neighbors", minimum=1)
        U, atoms = unit_rows(X), unit_rows(self._fit_X)
        n, n_atoms = len(U), len(atoms)
        q = min(most, n_atoms - exclude_self)
        size = max(1, _BLOCK_ENTRIES // n_atoms)
        found, weights = [], []
        for start in range(0, n, size):
            cosines = np.abs(U[start : start + size] @ atoms.T)
            if exclude_self:
                rows = np.arange(len(cosines))
                cosines[rows, start + rows] = -1
            nearest = np.argpartition(-cosines, q - 1, axis=1)[:, :q]
            cosine = np.minimum(np.take_along_axis(cosines, nearest, axis=1), 1)
            found.append(nearest)
            weights.append(np.where(cosine > 0, np.exp(-2 * np.arccos(cosine)), 0))
        indices, data = np.concatenate(found).ravel(), np.concatenate(weights).ravel()
        indptr = np.arange(0, n * q + 1, q)
        coef = narrow(csr_array((data, indices, indptr), shape=(n, n_atoms)))
        coef.eliminate_zeros()
        coef.sort_indices()
        return coef
