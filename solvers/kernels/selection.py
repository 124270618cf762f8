"""The largest entries of a vector, in one pass."""

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
def largest(p, low, nonneg, m, beta, key, index):
    """Write the largest |p_j|, at most m, to key and their indices to index.

    Only entries above `low` and above `beta` times the largest count. Returns their number, and a
    bound on all other |p_j|.
    """
    low = max(low, np.float32(beta * _top(p, nonneg)))
    n, size = ZERO, key.size - 1
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
            low = smallest(key, m)
        for j in range(part.size):
            v = part[j] if nonneg else abs(part[j])
            key[n] = v
            index[n] = start + j
            n += v > low
    if n > m:
        bring_largest_first(key, index, n, m)
        n = m
        low = smallest(key, m)
    return n, low


@jit_uncounted
def smallest(key, n):
    v = key[0]
    for j in range(1, n):
        v = min(v, key[j])
    return v


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
