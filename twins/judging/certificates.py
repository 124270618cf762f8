"""Certificates: residuals of the optimality conditions of the problem that an output solves.

A residual uses only the problem, never a formula of its solution. It therefore detects a wrong
formula that layer and solver share. Residuals are in units of the output, so that the tolerance of
the twin applies to them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
from scipy.special import logsumexp
from torch import nn

from ...unrolled.attention import Context
from ..heads import Array, Tensors, head_calls
from ..laws.subject import identity_values
from ..pairs import Pair, calls_of_heads, layer_output

Logits = Callable[..., Array]
_TINY = np.finfo(np.float64).tiny


def weights_certificate(
    logits: Logits, residual: Callable[..., float] | None = None
) -> Callable[[Pair, nn.Module, Tensors], float]:
    """Return the certificate of a layer whose weights solve a problem on the simplex.

    ``logits(layer, call)`` returns the scores z of one head in float64. ``residual(A, z)`` judges
    the weights A, by default `entropic_residual`. The rows u_i of the output must minimise
    ``sum_j a_ij |u_i - v_j|^2`` for these weights and the values v_j; see `mean_residual`.
    """
    judge = residual or entropic_residual

    def certificate(twin: Pair, layer: nn.Module, inputs: Tensors) -> float:
        q, k, _ = inputs
        outputs = layer_output(twin, layer, inputs)
        weights = layer_output(twin, layer, (q, k, identity_values(k)))
        calls = calls_of_heads(twin, inputs)
        residuals = [
            (judge(A, logits(layer, call)), mean_residual(u, A, call.v))
            for call, A, u in zip(calls, weights, outputs, strict=True)
        ]
        return float(np.max(residuals))

    return certificate


def range_of(logits: Logits, context: Callable[..., Context] | None = None) -> Callable[..., float]:
    """Return a function for `Numerics.logit_range`: the largest range of the logits of a head."""

    def largest_range(layer: nn.Module, q: Array, k: Array, v: Array) -> float:
        present = None if context is None else context(q, k, v)
        return max(float(np.ptp(logits(layer, call))) for call in head_calls(q, k, v, present))

    return largest_range


def entropic_residual(A: Array, logits: Array, *, n_largest: int | None = None) -> float:
    """Return how far each row a of A is from ``argmax <a, z> + H(a)`` over the simplex.

    z is the row of `logits` and H the entropy. The solution is a softmax, but that is not used:
    ``z_j - log a_j`` must be a constant ``mu`` where a is positive, ``mu`` must be the value of the
    dual problem, ``log sum_j exp z_j``, and a_j must be zero where ``z_j = -inf``. With `n_largest`
    the maximum is over vectors of at most so many entries, and the sum over the largest logits.
    """
    dual = logits
    support = A > 0
    if n_largest is not None and n_largest < A.shape[1]:
        if support.sum(axis=1).max() > n_largest:
            return float("inf")
        dual = np.partition(logits, -n_largest, axis=1)[:, -n_largest:]
    outside = np.isneginf(logits)
    with np.errstate(invalid="ignore"):
        slack = np.where(support & ~outside, logits - np.log(np.maximum(A, _TINY)), 0.0)
    mu = (A * slack).sum(axis=1)
    return _largest(
        simplex_residual(A),
        A * np.where(support, slack - mu[:, None], 0.0),
        np.where(outside, A, 0.0),
        logsumexp(dual, axis=1) - mu,
    )


def projection_residual(A: Array, logits: Array) -> float:
    """Return how far each row a of A is from the point of the simplex nearest to its logits z.

    At this point ``z_j - a_j`` is a constant tau where a is positive, and ``z_j <= tau`` elsewhere.
    """
    support = A > 0
    tau = np.where(support, logits - A, 0.0).sum(axis=1) / support.sum(axis=1)
    slack = logits - A - tau[:, None]
    return _largest(simplex_residual(A), np.where(support, slack, np.maximum(slack, 0.0)))


def simplex_residual(A: Array) -> float:
    """Return how far the rows of A are from nonnegative rows with sum one."""
    return _largest(A.sum(axis=1) - 1, np.minimum(A, 0.0))


def balanced_residual(P: Array, logits: Array) -> float:
    """Return how far P is from the KL projection of ``exp(logits)`` onto row and column sums one.

    For the projection ``log p_ij - z_ij = f_i + g_j``, whose double differences are zero. P must be
    positive.
    """
    potential = np.log(np.maximum(P, _TINY)) - logits
    rows, columns = (potential.mean(axis=axis, keepdims=True) for axis in (1, 0))
    mixed = potential - rows - columns + potential.mean()
    return _largest(P.sum(axis=1) - 1, P.sum(axis=0) - 1, P * mixed)


def mean_residual(u: Array, A: Array, v: Array) -> float:
    """Return how far the rows u_i are from minimising ``sum_j a_ij |u_i - v_j|^2``.

    The residual is half the gradient by u_i, divided by ``sum_j |a_ij|`` and by the largest entry
    of u.
    """
    gradient = A.sum(axis=1, keepdims=True) * u - A @ v
    return _relative(gradient / np.abs(A).sum(axis=1, keepdims=True), u)


def gradient_residual(
    energy: Callable[[Array], Array],
    at: Array,
    gradient: Array | float,
    *,
    curvature: Array,
    unit: Array,
) -> float:
    """Compare the gradient of an energy at `at`, by a central difference, with `gradient`.

    ``energy(u)`` returns one number for each row of u, quadratic in this row: the difference along
    a random direction is exact up to rounding, for any step. The error of each row is divided by
    its `curvature` and by the largest entry of `unit`, the layer's output.
    """
    size = max(float(np.abs(at).max()), _TINY)
    direction = size * np.random.default_rng(0).standard_normal(at.shape)
    slopes = (energy(at + direction) - energy(at - direction)) / 2
    expected = (gradient * direction).sum(axis=1)
    return _relative((slopes - expected) / (curvature * size), unit)


def pair_energies(weights: Array, u: Array, v: Array) -> Array:
    """Return ``1/2 sum_j p_ij |u_i - v_j|^2`` for each row i, with p_ij the `weights`."""
    squares = (u**2).sum(axis=1)[:, None] + (v**2).sum(axis=1) - 2 * u @ v.T
    return (weights * squares).sum(axis=1) / 2


def smoothing_residual(u: Array, logits: Array, v: Array) -> float:
    """Return how far the rows u_i are from minimising ``1/2 sum_j exp(z_ij) |u_i - v_j|^2``.

    z are the `logits`. The weights of each row are divided by their largest.
    """
    weights = np.exp(logits - logits.max(axis=1, keepdims=True))
    energy, curvature = partial(pair_energies, weights, v=v), weights.sum(axis=1)
    return gradient_residual(energy, u, gradient=0.0, curvature=curvature, unit=u)


def first_and_last(iterate: Callable[[int], Array], n_iter: int) -> Iterator[tuple[int, Any, Any]]:
    """Yield t and the iterates t and t + 1 for the first and the last step of an iteration."""
    for t in sorted({0, n_iter - 1}):
        yield t, iterate(t), iterate(t + 1)


def proximal_residual(
    after: Array,
    before: Array,
    q: Array,
    k: Array,
    *,
    step: float,
    lam: float | Array,
    zero_diagonal: bool = False,
    nonnegative: bool = False,
) -> float:
    """Return how far the iterate C' (`after`) is from minimising the Lasso's model around C.

    C is the iterate `before`. The model is ``2 <(C k - q) k^T, C' - C> + |C' - C|_F^2 / step + lam
    |C'|_1``. At its minimum ``2 (C k - q) k^T + 2 (C' - C) / step`` is -lam times the sign of C'
    where C' is not zero. Elsewhere its absolute value is at most lam; if codes are nonnegative, it
    is at least -lam.
    """
    half_lam = step * np.reshape(np.asarray(lam, dtype=np.float64), (-1, 1)) / 2
    pull = before - after - step * ((before @ k - q) @ k.T)
    over = np.maximum((pull if nonnegative else np.abs(pull)) - half_lam, 0.0)
    residual = np.where(after != 0, pull - np.sign(after) * half_lam, over)
    if zero_diagonal:
        np.fill_diagonal(residual, after.diagonal())
    if nonnegative:
        residual = np.maximum(np.abs(residual), np.maximum(-after, 0.0))
    return _relative(residual, after)


def ridge_residual(
    C: Array, q: Array, k: Array, *, lam: float, zero_diagonal: bool = False
) -> float:
    """Return how far C is from minimising ``|q - C k|_F^2 + lam |C|_F^2``.

    The residual is half the gradient divided by the largest curvature, ``|k|_2^2 + lam``, and by
    the largest coefficient.
    """
    gradient = (C @ k - q) @ k.T + lam * C
    gradient /= np.linalg.norm(k, 2) ** 2 + lam
    if zero_diagonal:
        np.fill_diagonal(gradient, C.diagonal())
    return _relative(gradient, C)


def nuclear_residual(C: Array, X: Array, *, lam: float) -> float:
    """Return how far C is from minimising ``|X - C X|_F^2 + lam |C|_*``.

    At the minimum ``W = 2 (X - C X) X^T / lam`` is a subgradient of the nuclear norm:
    ``|W|_2 <= 1`` and ``<W, C> = |C|_*``. The factor ``lam / (2 |X|_2^2)``, at most 1, turns errors
    of W into units of the coefficients.
    """
    W = 2 * ((X - C @ X) @ X.T) / lam
    unit = min(1.0, lam / (2 * float(np.linalg.norm(X, 2)) ** 2))
    size = float(np.linalg.norm(C, "nuc"))
    gap = abs(float((W * C).sum()) - size) / max(size, _TINY)
    return unit * max(float(np.linalg.norm(W, 2)) - 1, gap, 0.0)


def affine_residual(
    A: Array, q: Array, k: Array, *, n_neighbors: int, reg: float, distances: Array
) -> float:
    """Return how far the rows of A are from the best affine weights of the nearest keys.

    Row i minimises ``|q_i - sum_j c_j k_j|^2 + reg tr(g) |c|^2`` among the c with sum one, where
    ``tr(g) = sum_j |k_j - q_i|^2``. Both sums are over the `n_neighbors` keys with the smallest
    `distances`. At the minimum the gradient is the same for all these keys, and other weights are
    zero.
    """
    near = np.argsort(distances, axis=1, kind="stable")[:, :n_neighbors]
    outside = A.copy()
    np.put_along_axis(outside, near, 0.0, axis=1)
    c = np.take_along_axis(A, near, axis=1)
    local = k[near] - q[:, None]
    squares = (local**2).sum(axis=(1, 2))
    gradient = np.einsum("iad,id->ia", local, np.einsum("ia,iad->id", c, local))
    gradient = gradient / np.maximum(squares, _TINY)[:, None] + reg * c
    gradient -= gradient.mean(axis=1, keepdims=True)
    return _relative(np.maximum(_row_max(gradient), _row_max(outside)), A) + _largest(
        (A.sum(axis=1) - 1) / np.abs(A).sum(axis=1)
    )


def _row_max(x: Array) -> Array:
    return np.asarray(np.abs(x).max(axis=1))


def _relative(residual: Array, unit: Array) -> float:
    return _largest(residual) / max(float(np.abs(unit).max()), _TINY)


def _largest(*residuals: Any) -> float:
    return float(np.max([np.max(np.abs(residual)) for residual in residuals]))
