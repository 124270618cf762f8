"""Lasso on a small working set: a second-order active-set method on a triangular factor.

The inverse of the support's Gram matrix is ``R^T R`` for the inverse R^T of its upper Cholesky
factor, which is up- and down-dated: products with R wait for no divisions. The quadratic of a sign
pattern is minimised exactly, so that coherent atoms do not slow it down. With ``h = lam l1_ratio /
2`` and ``q = (y - c D) D^T - ridge c``, a point is optimal iff ``q_j = h sign(c_j)`` on its support
and ``|q_j| <= h`` elsewhere.
"""

from typing import NamedTuple

import numpy as np

from .compiled import jit_uncounted

# Python numbers have other types: functions would be compiled once more for them.
ZERO, NONE = np.int64(0), np.int64(-1)

# Squared relative distance from the span of the support below which an atom counts as dependent.
_DEPENDENT = 1e-11


class Work(NamedTuple):
    """Scratch memory of one thread, for one row at a time; `cap` bounds the working sets."""

    atoms: np.ndarray  # (cap,) working set
    gram: np.ndarray  # (cap, cap) its Gram matrix, row `a` valid where known[a]
    known: np.ndarray  # (cap,)
    factor: np.ndarray  # (cap, cap) R, lower triangular
    support: np.ndarray  # (cap,) positions in the working set, in the factor's order
    x: np.ndarray  # (cap,) coefficients
    q: np.ndarray  # (cap,) correlations
    sign: np.ndarray  # (cap,) 0 off the support
    z: np.ndarray  # (cap,)
    key: np.ndarray  # candidates: size of their correlation, and index
    candidate: np.ndarray
    q_all: np.ndarray  # (m,) correlations with all atoms


@jit_uncounted
def _forward(R, k, first, z):
    """z <- R z, where z[:first] = 0."""
    for i in range(k - 1, first - 1, -1):
        v = 0.0
        for j in range(i + 1):
            v += R[i, j] * z[j]
        z[i] = v


@jit_uncounted
def _backward(R, k, first, z):
    """z <- R^T z, where z[:first] = 0."""
    for i in range(first, k):
        v = z[i]
        for j in range(i):
            z[j] += v * R[i, j]
        z[i] = v * R[i, i]


@jit_uncounted
def _append(work, k, pos):
    """Add position `pos` to the factor; False if it depends on the support (work.z = R g)."""
    R, z, gram, support = work.factor, work.z, work.gram, work.support
    for a in range(k):
        z[a] = gram[pos, support[a]]
    _forward(R, k, ZERO, z)
    d = gram[pos, pos]
    limit = _DEPENDENT * d
    for a in range(k):
        d -= z[a] * z[a]
    if d <= limit:
        return False
    _backward(R, k, ZERO, z)
    scale = 1.0 / np.sqrt(d)
    for a in range(k):
        R[k, a] = -scale * z[a]
    R[k, k] = scale
    support[k] = pos
    return True


@jit_uncounted
def _delete(work, k, out):
    """Remove entry `out` from the factor: rotations move its column to the last row."""
    R = work.factor
    for a in range(out, k - 1):
        work.support[a] = work.support[a + 1]
    for i in range(out, k - 1):
        upper, lower = R[i], R[i + 1]
        rho = np.hypot(upper[out], lower[out])
        s, c = upper[out] / rho, lower[out] / rho
        upper[i + 1] = 0.0
        for j in range(out):
            u, v = upper[j], lower[j]
            upper[j] = s * v - c * u
            lower[j] = s * u + c * v
        lower[out] = rho
        for j in range(out + 1, i + 2):
            u, v = upper[j], lower[j]
            upper[j - 1] = s * v - c * u
            lower[j] = s * u + c * v
    return k - 1


@jit_uncounted
def _move(work, k, w, t):
    """x += t z on the support, and the correlations with it."""
    q, z, support, gram = work.q[:w], work.z, work.support, work.gram
    for a in range(k):
        work.x[support[a]] += t * z[a]
    a = 0
    while a + 4 <= k:  # four rows at a time, to load and store q less often
        g0, g1 = gram[support[a], :w], gram[support[a + 1], :w]
        g2, g3 = gram[support[a + 2], :w], gram[support[a + 3], :w]
        z0, z1, z2, z3 = t * z[a], t * z[a + 1], t * z[a + 2], t * z[a + 3]
        for j in range(w):
            q[j] -= z0 * g0[j] + z1 * g1[j] + z2 * g2[j] + z3 * g3[j]
        a += 4
    while a < k:
        z0, g0 = t * z[a], gram[support[a], :w]
        for j in range(w):
            q[j] -= z0 * g0[j]
        a += 1


@jit_uncounted
def _settle(work, k, first, w, h):
    """Minimise over the support, dropping atoms that change sign.

    support[:first] is stationary already.
    Returns (size of the support, number of steps).
    """
    x, q, sign, z, support = work.x, work.q, work.sign, work.z, work.support
    steps = 0
    while k > 0:
        steps += 1
        for a in range(first):
            z[a] = 0.0
        for a in range(first, k):
            pos = support[a]
            z[a] = q[pos] - h * sign[pos]
        _forward(work.factor, k, first, z)
        _backward(work.factor, k, first, z)
        t, out = 1.0, NONE
        for a in range(k):
            pos = support[a]
            if sign[pos] * (x[pos] + z[a]) <= 0.0:
                ratio = -x[pos] / z[a] if z[a] != 0.0 else 0.0
                if ratio < t or out < 0:
                    t, out = ratio, a
        _move(work, k, w, t)
        if out < 0:
            break
        pos = support[out]
        x[pos] = 0.0
        sign[pos] = 0.0
        k = _delete(work, k, out)
        if out < first:
            first -= 1
    return k, steps


@jit_uncounted
def _exchange(work, k, w, pos):
    """Exchange position `pos`, which depends on the support (work.z = R g), for an atom in it.

    Moves along the null direction until an atom leaves: the fit stays the same, and the l1 norm
    decreases. Returns (size of the support, success).
    """
    x, z, support = work.x, work.z, work.support
    s = work.sign[pos]
    _backward(work.factor, k, ZERO, z)
    t, out = np.inf, NONE
    for a in range(k):
        z[a] *= -s
        p = support[a]
        if work.sign[p] * z[a] < 0.0:
            ratio = -x[p] / z[a]
            if ratio < t:
                t, out = ratio, a
    if out < 0:
        return k, False
    _move(work, k, w, t)
    q = work.q
    g = work.gram[pos]
    for j in range(w):
        q[j] -= t * s * g[j]
    x[pos] += t * s
    p = support[out]
    x[p] = 0.0
    work.sign[p] = 0.0
    k = _delete(work, k, out)
    if not _append(work, k, pos):
        # Still dependent: undo the exchange; the next round repairs the correlations exactly.
        for j in range(w):
            q[j] += x[pos] * g[j]
        x[pos] = 0.0
        return k, False
    return k + 1, True


@jit_uncounted
def _know(work, G, ridge, w, pos):
    """Gather row `pos` of the working set's Gram matrix from the stored one."""
    if not work.known[pos]:
        source = G[work.atoms[pos]]
        g = work.gram[pos]
        for j in range(w):
            g[j] = work.gram[j, pos] if work.known[j] else source[work.atoms[j]]
        g[pos] += ridge
        work.known[pos] = True


@jit_uncounted
def active_set(work, G, k, factored, w, h, ridge, yy, tol, nonneg):
    """Solve the Lasso on the working set from the given support, to a gap of about `tol * yy`.

    If `factored`, work already holds the factor of the support. Returns (size of the support,
    number of pivots).
    """
    x, q, sign = work.x, work.q, work.sign
    # Factor the support; dependent atoms leave it, and _settle gives their weight to the others.
    n = ZERO
    for a in range(k):
        pos = work.support[a]
        _know(work, G, ridge, w, pos)
        if factored or _append(work, n, pos):
            n += 1
        else:
            g = work.gram[pos]
            for j in range(w):
                q[j] += x[pos] * g[j]
            x[pos] = 0.0
            sign[pos] = 0.0
    k = n
    k, pivots = _settle(work, k, ZERO, w, h)
    limit = 50 + 20 * w
    banned = 2.0
    while pivots < limit:
        top, new = h, NONE
        for j in range(w):
            if sign[j] == 0.0:
                v = q[j] if nonneg else abs(q[j])
                if v > top:
                    top, new = v, j
        if new < 0:
            break
        l1 = 0.0
        for a in range(k):
            l1 += abs(x[work.support[a]])
        shrink = 1.0 - h / top
        if shrink * (shrink * yy + 2.0 * h * l1) <= tol * yy:
            break
        _know(work, G, ridge, w, new)
        sign[new] = 1.0 if q[new] > 0.0 else -1.0
        if _append(work, k, new):
            k, steps = _settle(work, k + 1, k, w, h)
            pivots += steps
            if sign[new] == 0.0:
                sign[new] = banned
        else:
            pivots += 1
            k, ok = _exchange(work, k, w, new)
            if not ok:
                sign[new] = banned
            k, steps = _settle(work, k, ZERO, w, h)
    return k, pivots


def new_work(cap: int, m: int, room: int) -> Work:
    return Work(
        np.empty(cap, np.int64),
        np.empty((cap, cap)),
        np.empty(cap, np.bool_),
        np.empty((cap, cap)),
        np.empty(cap, np.int64),
        np.empty(cap),
        np.empty(cap),
        np.empty(cap),
        np.empty(cap),
        np.empty(room + 1, np.float32),
        np.empty(room + 1, np.int64),
        np.empty(m),
    )
