"""Linear systems on the supports of sparse codes, one row after the other.

Row i has the support S, its atoms B = D_S and the matrix ``M = B B^T + ridge_i I``. The upper
Cholesky factor of M is stored row after row, from the diagonal on: entry (a, b) of a support of k
atoms stands at ``factor_at[i] + a k - a (a + 1) / 2 + b``.
"""

from typing import NamedTuple

import numpy as np

from .compiled import jit_reordered, jit_uncounted
from .slots import dot


class Supports(NamedTuple):
    """Rows of codes with the factors of their systems."""

    indptr: np.ndarray  # (n + 1,)
    atom: np.ndarray  # (nnz,)
    value: np.ndarray  # (nnz,)
    factor_at: np.ndarray  # (n + 1,)
    factor: np.ndarray
    inverse: np.ndarray  # (n,) trace of M^-1, at least its norm; infinite if M is not regular
    residual: np.ndarray  # (n, p) y - c B


@jit_reordered
def factor_rows(first, stop, supports, D, G, ridge):
    """Factor the systems of rows. If G holds the Gram matrix of D, it is used."""
    z = np.empty(np.diff(supports.indptr[first : stop + 1]).max())
    for i in range(first, stop):
        atom = supports.atom[supports.indptr[i] : supports.indptr[i + 1]]
        U = supports.factor[supports.factor_at[i] : supports.factor_at[i + 1]]
        _fill_gram(U, atom, D, G, ridge[i])
        supports.inverse[i] = np.inf
        if _factor(U, atom.size):
            supports.inverse[i] = _trace_of_inverse(U, atom.size, z)


@jit_reordered
def pull_rows(first, stop, supports, D, ridge, upstream, pulled, to_signals, to_atoms, error):
    """Carry gradients of codes back to what the codes depend on.

    With w the upstream gradient of row i on its support, it writes ``h = w M^-1`` to `pulled`, h B
    to `to_signals` and a bound on the relative error of h, and adds ``h^T r - c^T (h B)`` to the
    rows S of `to_atoms`.
    """
    largest = np.diff(supports.indptr[first : stop + 1]).max()
    z = np.empty(largest)
    for i in range(first, stop):
        at, k = supports.indptr[i], supports.indptr[i + 1] - supports.indptr[i]
        atom, c, h = supports.atom[at : at + k], supports.value[at:], pulled[at : at + k]
        U = supports.factor[supports.factor_at[i] : supports.factor_at[i + 1]]
        back, r = to_signals[i], supports.residual[i]
        h[:] = 0.0
        off = 0.0
        for step in range(3):  # solve, refine, and measure what is left
            _combine(D, atom, h, back)
            off = 0.0
            for a in range(k):
                z[a] = upstream[i, atom[a]] - dot(back, D[atom[a]]) - ridge[i] * h[a]
                off += z[a] * z[a]
            if step < 2:
                _solve(U, k, z)
                for a in range(k):
                    h[a] += z[a]
        size = np.sqrt(dot(h, h))
        error[i] = np.sqrt(off) * supports.inverse[i] / size if size > 0.0 else 0.0
        for a in range(k):
            row = to_atoms[atom[a]]
            for j in range(row.size):
                row[j] += h[a] * r[j] - c[a] * back[j]


@jit_uncounted
def _row_at(k, a):
    """Where row a of a packed factor would start if it began at its column 0."""
    return a * k - a * (a + 1) // 2


@jit_uncounted
def _fill_gram(U, atom, D, G, ridge):
    k, stored = atom.size, G.shape[0] == D.shape[0]
    for a in range(k):
        row = _row_at(k, a)
        for b in range(a, k):
            U[row + b] = G[atom[a], atom[b]] if stored else dot(D[atom[a]], D[atom[b]])
        U[row + a] += ridge


@jit_uncounted
def _factor(U, k):
    """Overwrite the upper triangle of M by its Cholesky factor; False if M is not regular."""
    for a in range(k):
        at = _row_at(k, a)
        if not U[at + a] > 0.0:
            return False
        inv = 1.0 / np.sqrt(U[at + a])
        top = U[at + a : at + k]
        for b in range(top.size):
            top[b] *= inv
        for c in range(a + 1, k):
            below, u = _row_at(k, c), U[at + c]
            target, source = U[below + c : below + k], U[at + c : at + k]
            for b in range(target.size):
                target[b] -= u * source[b]
    return True


@jit_uncounted
def _solve_lower(U, k, first, z):
    """z <- U^-T z, where z[:first] = 0."""
    for a in range(first, k):
        at = _row_at(k, a)
        v = z[a] / U[at + a]
        z[a] = v
        row, rest = U[at + a + 1 : at + k], z[a + 1 : k]
        for b in range(row.size):
            rest[b] -= v * row[b]


@jit_uncounted
def _solve(U, k, z):
    """z <- M^-1 z."""
    _solve_lower(U, k, 0, z)
    for a in range(k - 1, -1, -1):
        at = _row_at(k, a)
        z[a] = (z[a] - dot(U[at + a + 1 : at + k], z[a + 1 : k])) / U[at + a]


@jit_uncounted
def _trace_of_inverse(U, k, z):
    total = 0.0
    for a in range(k):
        z[:k] = 0.0
        z[a] = 1.0
        _solve_lower(U, k, a, z)
        total += dot(z[a:k], z[a:k])
    return total


@jit_uncounted
def _combine(D, atom, h, out):
    """out <- h B."""
    out[:] = 0.0
    for a in range(atom.size):
        v, d = h[a], D[atom[a]]
        for j in range(out.size):
            out[j] += v * d[j]
