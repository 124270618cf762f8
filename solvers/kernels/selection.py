"""The largest entries of a vector, part by part."""

import numpy as np

from .active_set import ZERO
from .compiled import jit_counted, jit_reordered, jit_uncounted


@jit_uncounted
def bring_largest_first(key, index, n, m):
    """Move the m largest keys and their indices to the front, by quickselect."""
    lo, hi = 0, n - 1
    while lo < hi:
        pivot = key[(lo + hi) // 2]
        i, j = lo, hi
        while i <= j:
            while key[i] > pivot:
                i += 1
            while key[j] < pivot:
                j -= 1
            if i <= j:
                key[i], key[j] = key[j], key[i]
                index[i], index[j] = index[j], index[i]
                i += 1
                j -= 1
        if m - 1 <= j:
            hi = j
        elif m - 1 >= i:
            lo = i
        else:
            break


@jit_counted
def _top(p, nonneg):
    """max_j |p_j|, or max_j p_j if nonneg, by 64 running maxima, which the compiler vectorises."""
    tops = np.zeros(64, np.float32)
    whole = p.size // 64 * 64
    for start in range(0, whole, 64):
        part = p[start : start + 64]
        for j in range(64):
            v = part[j] if nonneg else abs(part[j])
            tops[j] = v if v > tops[j] else tops[j]
    for j in range(whole, p.size):
        tops[0] = max(tops[0], p[j] if nonneg else abs(p[j]))
    return tops.max()


@jit_uncounted
def add_largest(p, first, n, low, top, nonneg, m, beta, key, index):
    """Add the largest |p_j| of a part of a vector to the n in key, and their indices to index.

    The part starts at entry `first`; `top` is the largest |p_j| of the parts before. Only entries
    above `low` and above `beta` times the largest count, and those beyond the m largest may be left
    out. Returns their number, a bound on all |p_j| that were left out, and the new `top`.
    """
    size = key.size - 1
    top = max(top, _top(p, nonneg))
    low = max(low, np.float32(beta * top))
    for start in range(0, p.size, 64):
        part = p[start : start + 64]
        hits = 0
        if nonneg:
            for j in range(part.size):
                hits += part[j] > low
        else:
            for j in range(part.size):
                hits += abs(part[j]) > low
        if hits == 0:
            continue
        if n + hits > size:
            bring_largest_first(key, index, n, m)
            n = m
            low = max(low, smallest(key, m))
        for j in range(part.size):
            v = part[j] if nonneg else abs(part[j])
            key[n] = v
            index[n] = first + start + j
            n += v > low
    return n, low, top


@jit_uncounted
def keep_largest_keys(key, index, n, low, m):
    """Keep the keys above `low`, at most the m largest; return their number and the new `low`."""
    kept = ZERO
    for a in range(n):
        key[kept], index[kept] = key[a], index[a]
        kept += key[a] > low
    if kept > m:
        bring_largest_first(key, index, kept, m)
        low = max(low, smallest(key, m))
        kept = m
    return kept, low


@jit_uncounted
def smallest(key, n):
    v = key[0]
    for j in range(1, n):
        v = min(v, key[j])
    return v


@jit_uncounted
def holds(index, n, j):
    """Whether j is among the first n entries of `index`."""
    for a in range(n):  # noqa: SIM110
        if index[a] == j:
            return True
    return False


@jit_uncounted
def beyond_rounding(y, d):
    """``|y . d|``, or zero if rounding of it and of orthogonal vectors may be all of it."""
    v, size = 0.0, 0.0
    for j in range(y.size):
        v += y[j] * d[j]
        size += abs(y[j] * d[j])
    return abs(v) if abs(v) > 4 * (y.size + 1) * 2.0**-53 * size else 0.0


@jit_reordered
def strongest(P, rounding, own, Y, D):
    """``max_j |y_i . d_j|`` over j != own[i], in float64; zero at the level of rounding.

    P holds float32 products of y_i, scaled to length 1, with the atoms, scaled to length at most 1.
    Only atoms that P does not exclude are multiplied in float64.
    """
    found = np.zeros(len(P))
    for i in range(len(P)):
        p = P[i]
        if own[i] >= 0:
            p[own[i]] = 0.0
        # Two rounding errors, and the error of rounding the difference.
        low = np.float32(_top(p, False) - 2.5 * rounding)
        for start in range(0, p.size, 64):
            part = p[start : start + 64]
            hits = 0
            for j in range(part.size):
                hits += abs(part[j]) >= low
            for j in range(start, start + part.size if hits else start):
                if abs(p[j]) >= low and j != own[i]:
                    found[i] = max(found[i], beyond_rounding(Y[i], D[j]))
    return found
