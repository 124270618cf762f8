"""Subspace clustering by orthogonal matching pursuit."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from scipy.sparse import csr_array, diags_array

from ..self_expression import omp_self_expression
from ..solution import Array, check_integer
from ..sparse_coding.matching_pursuit import pursue_rows
from .affinity import unit_rows
from .base import Auto, Choices, SubspaceClustering


@dataclass(eq=False, repr=False, kw_only=True)
class OMPSubspaceClustering(SubspaceClustering):
    """Subspace clustering by orthogonal matching pursuit (SSC-OMP): greedy and fast.

    Points are scaled to unit norm; each is represented by at most `n_nonzero` others, chosen one by
    one as the most correlated with what is not yet explained. Then an affinity of the coefficients
    and the spectral step.

    Parameters
    ----------
    n_clusters : int or None, default=8
        None takes the number at the eigengap, at most 10 (`eigengap_n_clusters`).
    n_nonzero : int or "auto", default="auto"
        Most points that represent a point; about the dimension of the subspaces. With fewer than
        ``n_nonzero + 1`` samples, all others may be used. "auto" fits 5, 3 and 10, and takes the
        one whose clusters are best separated and balanced (`choose_settings`).
    tol : float, default=1e-6
        Norm of the residual of a unit row at which it is finished; >= 0.
    affinity, assign_labels, random_state, n_jobs
        As in `SparseSubspaceClustering`.

    Attributes
    ----------
    labels_ : ndarray of int of shape (n_samples,)
    coef_ : csr_array of shape (n_samples, n_samples)
        Coefficients among the unit rows; the diagonal is zero.
    affinity_matrix_ : csr_array of shape (n_samples, n_samples)
    n_nonzero_ : int
        The one given or chosen.
    n_features_in_ : int

    References
    ----------
    You, Robinson and Vidal, "Scalable Sparse Subspace Clustering by Orthogonal Matching Pursuit"
    (2016); EQUATIONS CL-9.

    Examples
    --------
    >>> from twinsolve.solvers import OMPSubspaceClustering
    >>> X = [[1.0, 0.0], [2.0, 0.0], [3.0, 0.0], [0.0, 1.0], [0.0, -1.0], [0.0, 2.0]]
    >>> OMPSubspaceClustering(2, random_state=0).fit_predict(X)
    array([0, 0, 0, 1, 1, 1], dtype=int32)
    """

    n_nonzero: int | Auto = "auto"
    tol: float = 1e-6
    n_jobs: int | None = None

    _choices: ClassVar[Choices] = {"n_nonzero": (5, 3, 10)}

    def _represent(self, X: Array) -> csr_array:
        most = check_integer(self.n_nonzero_, "n_nonzero", minimum=1)
        return omp_self_expression(
            unit_rows(X), n_nonzero=min(most, len(X) - 1), tol=self.tol, n_jobs=self.n_jobs
        )

    def _represent_new(self, X: Array) -> csr_array:
        points, atoms = (np.ascontiguousarray(Z, dtype=np.float64) for Z in (X, self._fit_X))
        norms, lengths = (np.linalg.norm(Z, axis=1) for Z in (points, atoms))
        codes = pursue_rows(
            unit_rows(points), unit_rows(atoms), self.n_nonzero_, self.tol, n_jobs=self.n_jobs
        )
        scale = 1 / np.where(lengths > 0, lengths, 1)
        return (diags_array(norms) @ codes @ diags_array(scale)).tocsr().astype(X.dtype)
