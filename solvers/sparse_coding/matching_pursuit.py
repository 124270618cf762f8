"""Orthogonal matching pursuit of many rows at once, on orthogonalised supports."""

import numpy as np
from scipy.sparse import csr_array

from ..inputs import Array, narrow
from ..kernels.compiled import jit
from ..kernels.workers import one_blas_thread, spread

_BLOCK_ROWS = 256
_BLOCK_ENTRIES = 2**22
# Relative size up to which a correlation, or an atom's distance to the span of the support, is 0.
_NO_CORRELATION = 1e-13
_DEPENDENT = 1e-10


def pursue_rows(
    Y: Array,
    D: Array,
    n_nonzero: int,
    tol: float,
    *,
    exclude_self: bool = False,
    n_jobs: int | None = None,
) -> csr_array:
    """Codes of the rows of Y in the atoms D, by orthogonal matching pursuit.

    A row takes atoms until its residual has ``|r| <= tol``, and at most `n_nonzero`. Y and D are
    contiguous float64. With `exclude_self`, row i may not use atom i.
    """
    n, m = len(Y), len(D)
    own_atom = np.arange(n) if exclude_self else np.full(n, -1)
    max_nonzero = min(n_nonzero, m - exclude_self, D.shape[1])
    size = max(1, min(_BLOCK_ROWS, _BLOCK_ENTRIES // (m + (max_nonzero + 1) * D.shape[1])))
    blocks = [slice(start, start + size) for start in range(0, n, size)]
    tasks = [(Y[rows], D, own_atom[rows], max_nonzero, tol) for rows in blocks]
    with one_blas_thread:
        by_block = list(spread(_pursue, tasks, n_jobs))
    support, values, counts = (np.concatenate(parts) for parts in zip(*by_block, strict=True))
    stored = np.arange(max_nonzero) < counts[:, None]
    indptr = np.concatenate([[0], np.cumsum(counts)])
    coef = narrow(csr_array((values[stored], support[stored], indptr), shape=(n, m)))
    coef.sort_indices()
    return coef


def _pursue(Y: Array, D: Array, own: Array, most: int, tol: float) -> tuple[Array, Array, Array]:
    """Return support, coefficients and number of atoms of each row; row i avoids atom own[i]."""
    norms, sizes = np.linalg.norm(D, axis=1), np.linalg.norm(Y, axis=1)
    basis = np.empty((len(Y), most, D.shape[1]))
    triangle = np.empty((len(Y), most, most))
    support = np.empty((len(Y), most), dtype=np.intp)
    counts = np.zeros(len(Y), dtype=np.intp)
    residual = Y.copy()
    active = np.flatnonzero(sizes > tol)
    for _ in range(most):
        if len(active) == 0:
            break
        scores = np.abs(residual[active] @ D.T)
        grown = _grow(
            D, norms, sizes, own, tol, active, scores, residual, basis, triangle, support, counts
        )
        active = active[grown]
    return support, _coefficients(Y, basis, triangle, counts), counts


@jit
def _grow(
    D: Array,
    norms: Array,
    sizes: Array,
    own: Array,
    tol: float,
    active: Array,
    all_scores: Array,
    residual: Array,
    basis: Array,
    triangle: Array,
    support: Array,
    counts: Array,
) -> Array:
    """Add one atom to each active row; return which rows continue."""
    go_on = np.zeros(active.size, np.bool_)
    for a in range(active.size):
        b = active[a]
        k, r = counts[b], residual[b]
        scores = all_scores[a]
        if own[b] >= 0:
            scores[own[b]] = -1.0
        for i in range(k):
            scores[support[b, i]] = -1.0
        new = np.argmax(scores)
        if scores[new] <= _NO_CORRELATION * norms[new] * sizes[b]:
            continue
        q = basis[b, k]
        q[:] = D[new]
        for i in range(k):
            triangle[b, i, k] = np.dot(basis[b, i], q)
            _subtract(triangle[b, i, k], basis[b, i], q)
        distance = np.sqrt(np.dot(q, q))
        if distance <= _DEPENDENT * norms[new]:
            continue
        triangle[b, k, k] = distance
        q /= distance
        _subtract(np.dot(q, r), q, r)
        support[b, k] = new
        counts[b] = k + 1
        go_on[a] = np.sqrt(np.dot(r, r)) > tol
    return go_on


@jit
def _subtract(c: float, b: Array, out: Array) -> None:
    """out <- out - c b; as a loop it compiles much faster than on arrays."""
    for j in range(out.size):
        out[j] -= c * b[j]


@jit
def _coefficients(signals: Array, basis: Array, triangle: Array, counts: Array) -> Array:
    """Return the c with ``triangle c = basis signal``, by back substitution."""
    values = np.zeros(basis.shape[:2])
    for b in range(len(signals)):
        for i in range(counts[b] - 1, -1, -1):
            value = np.dot(basis[b, i], signals[b])
            for j in range(i + 1, counts[b]):
                value -= triangle[b, i, j] * values[b, j]
            values[b, i] = value / triangle[b, i, i]
    return values
