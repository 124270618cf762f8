"""Leading eigenvectors of a symmetric matrix by LAPACK, however many eigenvalues are equal."""

from contextlib import suppress

from scipy.linalg import LinAlgError, eigh

from .inputs import Array


def leading_eigh(M: Array, k: int) -> tuple[Array, Array]:
    """The k largest eigenvalues of M, descending, and their eigenvectors.

    With many equal eigenvalues, the LAPACK driver for subsets may fail or return fewer than k. Then
    another driver finds all.
    """
    n = len(M)
    with suppress(LinAlgError):
        values, vectors = eigh(M, subset_by_index=[n - k, n - 1])
        if len(values) == k:
            return values[::-1], vectors[:, ::-1]
    values, vectors = (array[..., n - k :] for array in eigh(M, driver="evd"))
    return values[::-1], vectors[:, ::-1]
