"""From coefficients to clusters. Samples are rows."""

import numpy as np
from numpy.typing import ArrayLike
from scipy.sparse import csr_array

from .solution import Array, check_matrix


def symmetric_affinity(coef: ArrayLike | csr_array) -> Array | csr_array:
    """Affinity ``|C| + |C|^T`` of self-expression coefficients.

    Parameters
    ----------
    coef : array-like or csr_array of shape (n_samples, n_samples)

    Returns
    -------
    ndarray or csr_array of shape (n_samples, n_samples)
        Symmetric and nonnegative; sparse if `coef` is.

    Raises
    ------
    ValueError
        If `coef` is not square or holds NaN or infinity.

    References
    ----------
    EQUATIONS SE-AFF, PP-2a.

    Examples
    --------
    >>> from twinsolve.solvers import symmetric_affinity
    >>> symmetric_affinity([[0.0, -1.0], [0.5, 0.0]])
    array([[0. , 1.5],
           [1.5, 0. ]])
    """
    if hasattr(coef, "tocsr"):
        C = csr_array(coef)
        if not np.isfinite(C.data).all():
            raise ValueError("coef: must not hold NaN or infinity")
    else:
        C = check_matrix(coef, "coef")
    if C.shape[0] != C.shape[1]:
        raise ValueError(f"coef: must be square, got shape {C.shape}")
    size = abs(C)
    return size + size.T
