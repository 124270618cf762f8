"""Leading eigenpairs of a large symmetric matrix, with a certificate that none was missed."""

from collections.abc import Callable
from typing import NamedTuple, Protocol

import numpy as np
from scipy.linalg import qr
from scipy.sparse import csr_array, eye_array
from scipy.sparse.csgraph import reverse_cuthill_mckee
from scipy.sparse.linalg import splu

from ..inputs import Array

_BLOCK = 4  # copies of an eigenvalue that one block finds at once
_DEPTH = 12  # blocks between restarts
_CYCLES = {"product": 2, "inverse": 6, "filter": 60}
_NEAR_ONE = 0.2  # the inverse tells eigenvalues apart by their distance to 1
_SHIFTS, _SHARE, _LEAST_SHIFT = 4, 0.01, 1e-10
_MOST_FILL, _MOST_WORK = 5e7, 3e5  # entries of the factor, and mean square of a row's number
_GAIN = 1e3  # of the filter at 1
_LEAST_CUT = -0.5  # of the filter: eigenvalues that have not converged may be anywhere down to -1
_LAPACK = 50  # a cycle on a dense matrix costs LAPACK's time times this and the degree over n
_RESIDUALS = 1e-13, 1e-9  # least and largest tolerance
_SINE = 1e-5  # angle that residuals may leave between the computed and the true subspace
_ROUNDING = 1e-14
_NEARLY = 0.01  # cosine that one more projection takes to rounding

Operator = Callable[[Array], Array]


class LinearMap(Protocol):
    """A symmetric matrix: an array, a csr_array, or what else multiplies vectors."""

    @property
    def shape(self) -> tuple[int, ...]: ...

    def __matmul__(self, X: Array) -> Array: ...


class EigenPairs(NamedTuple):
    """Leading eigenpairs and what is known about them.

    ``error`` is the largest residual ``|M u - mu u|``, ``behind`` the next eigenvalue, or -inf.
    """

    values: Array
    vectors: Array
    behind: float
    error: float
    certified: bool


def basis_size(k: int) -> int:
    """Number of vectors that a search for `k` eigenpairs holds."""
    return k + _BLOCK * (_DEPTH + 2)


def search_eigenpairs(M: LinearMap, k: int, known: Array) -> EigenPairs:
    """Eigenpairs of a symmetric M with eigenvalues in [-1, 1]: those of 1, and the next k.

    The columns of `known`, orthonormal, are all eigenvectors of eigenvalue 1 that need no search.

    A block Krylov method with restarts runs on M. Where it needs many restarts it runs on a
    function of M that has the same eigenvectors and spreads the leading eigenvalues: the inverse of
    ``(1 + shift) I - M`` if eigenvalues crowd at 1 and the factor stays sparse, or a Chebyshev
    polynomial.

    **Certificate.** Residuals are taken from the definition. They are at most 1e-5 times the gap
    behind eigenvalue k, or 1e-13 if this is larger. Then the search starts again from random
    vectors orthogonal to what it found. An eigenvector that was missed is orthogonal too, so that
    it would lead this search. The pairs are certified if it ends with the same k eigenvalues.
    """
    pairs = _search(M, k, known, lambda X: M @ X, _CYCLES["product"])
    if pairs.certified:
        return pairs
    cut = max(pairs.behind - 0.1 * (1 - pairs.behind), _LEAST_CUT)
    if 1 - cut < _NEAR_ONE and isinstance(M, csr_array) and _has_sparse_factor(M):
        for _ in range(_SHIFTS):  # each search says better how far from 1 the eigenvalues lie
            shift = max(_SHARE * (1 - pairs.behind), _LEAST_SHIFT)
            pairs = _search(M, k, known, _inverse(M, shift), _CYCLES["inverse"])
            if pairs.certified:
                return pairs
    degree = max(2, int(np.arccosh(_GAIN) / np.arccosh((3 - cut) / (1 + cut))))
    n_cycles = _CYCLES["filter"]
    if isinstance(M, np.ndarray):
        n_cycles = min(n_cycles, len(M) // (_LAPACK * degree))
    return _search(M, k, known, _chebyshev_filter(M, cut, degree), n_cycles) if n_cycles else pairs


def _has_sparse_factor(M: csr_array) -> bool:
    """Whether M, reordered to a narrow envelope, has a small Cholesky factor."""
    order = reverse_cuthill_mckee(M, symmetric_mode=True)
    rows, columns = M[order][:, order].nonzero()
    widths = np.zeros(M.shape[0])
    np.maximum.at(widths, rows, rows - columns)
    return widths.sum() <= _MOST_FILL and (widths**2).mean() <= _MOST_WORK


def _inverse(M: csr_array, shift: float) -> Operator:
    """Return a function that multiplies by ``((1 + shift) I - M)^-1``, positive definite."""
    shifted = ((1 + shift) * eye_array(M.shape[0]) - M).tocsc()
    symmetric = {"SymmetricMode": True}
    factor = splu(shifted, "MMD_AT_PLUS_A", diag_pivot_thresh=0.0, options=symmetric)
    return lambda X: factor.solve(X)


def _chebyshev_filter(M: LinearMap, cut: float, degree: int) -> Operator:
    """Return a function that multiplies by ``T_degree(x(M))``, large beyond `cut`."""
    centre, half = (cut - 1) / 2, (cut + 1) / 2

    def product(X: Array) -> Array:
        previous, current = X, (M @ X - centre * X) / half
        for _ in range(degree - 1):
            previous, current = current, (2 / half) * (M @ current - centre * current) - previous
        return current

    return product


def _search(M: LinearMap, k: int, known: Array, operator: Operator, n_cycles: int) -> EigenPairs:
    """Find eigenpairs of M orthogonal to `known`, in Krylov spaces of a function of M."""
    rng = np.random.RandomState(0)
    kept, max_basis = k + 2 * _BLOCK, basis_size(k)
    n, n_known = known.shape
    basis = np.empty((n, n_known + max_basis), order="F")
    basis[:, :n_known] = known
    V, H = basis[:, n_known:], np.zeros((max_basis, max_basis))
    size, claimed, beyond = 0, np.inf, _fresh_block(known, rng)
    for _ in range(n_cycles):
        V[:, size : size + _BLOCK] = beyond
        size, beyond = _extend(basis, H, size + _BLOCK, operator, rng)
        powers, S = np.linalg.eigh(H[:size, :size])
        powers, ritz = powers[: -kept - 1 : -1], V[:, :size] @ S[:, : -kept - 1 : -1]
        values, vectors, residuals = _rayleigh_ritz(M, ritz[:, : k + 1])
        gap, error = values[k - 1] - values[k], residuals[:k].max()
        tol = np.clip(_SINE * gap, *_RESIDUALS)
        is_complete = error <= tol and residuals[k] <= max(gap / 4, tol)
        certified = bool(is_complete and abs(values[k - 1] - claimed) <= tol)
        if certified:
            break
        size = k if is_complete else kept
        H[:] = 0
        H[range(size), range(size)] = powers[:size]
        V[:, :size] = ritz[:, :size]
        if is_complete:  # search the orthogonal complement anew
            claimed, V[:, :k] = values[k - 1], vectors[:, :k]
            beyond = _fresh_block(basis[:, : n_known + k], rng)
    values = np.concatenate([np.ones(n_known), values])
    vectors = np.hstack([known, vectors[:, :k]])
    return EigenPairs(values[:-1], vectors, values[-1], error, certified)


def _fresh_block(V: Array, rng: np.random.RandomState) -> Array:
    """Random orthonormal vectors, orthogonal to V."""
    return _orthonormal(rng.standard_normal((len(V), _BLOCK)), V, rng)[0]


def _extend(
    basis: Array, H: Array, size: int, operator: Operator, rng: np.random.RandomState
) -> tuple[int, Array]:
    """Fill the basis and H, the operator on its last columns; return size and next block.

    H holds `size` vectors at first, and as many columns as the basis without known eigenvectors.
    """
    n_known = basis.shape[1] - len(H)
    while True:
        last, end = slice(size - _BLOCK, size), n_known + size
        image = operator(np.ascontiguousarray(basis[:, end - _BLOCK : end]))
        block, inside, R = _orthonormal(image, basis[:, :end], rng)
        H[:size, last], H[last, :size] = inside[n_known:], inside[n_known:].T
        if size + _BLOCK > len(H):
            return size, block
        following = slice(size, size + _BLOCK)
        basis[:, end : end + _BLOCK] = block
        H[following, last], H[last, following] = R, R.T
        size += _BLOCK


def _orthonormal(W: Array, V: Array, rng: np.random.RandomState) -> tuple[Array, Array, Array]:
    """Return Q, C and R with ``W = V C + Q R`` and orthonormal ``[V, Q]``.

    Random columns take the place of those that lie in the span of V and the columns before.
    """
    inside = V.T @ W
    Q, R = qr(W - V @ inside, mode="economic", check_finite=False)
    lost = np.abs(np.diag(R)) <= _ROUNDING * np.linalg.norm(W)
    Q[:, lost] = rng.standard_normal((len(Q), lost.sum()))
    R[lost] = 0
    overlap = np.ones((1, 1))
    while np.abs(overlap).max(initial=0) > _NEARLY:
        overlap = V.T @ Q
        inside += overlap @ R
        Q, factor = qr(Q - V @ overlap, mode="economic", check_finite=False)
        R = factor @ R
    return Q, inside, R


def _rayleigh_ritz(M: LinearMap, U: Array) -> tuple[Array, Array, Array]:
    """Return Ritz values of M in the span of U, descending, vectors, and residual norms."""
    image = M @ U
    values, S = np.linalg.eigh(U.T @ image)
    values, S = values[::-1], S[:, ::-1]
    vectors = U @ S
    return values, vectors, np.linalg.norm(image @ S - vectors * values, axis=0)


def residuals_of(M: Array, values: Array, vectors: Array) -> Array:
    """Return the norms of ``M u - mu u``."""
    return np.linalg.norm(M @ vectors - vectors * values, axis=0)
