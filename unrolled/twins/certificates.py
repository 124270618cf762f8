"""Certificates: an output shown to solve a problem by the problem's own conditions of optimality.

Residuals know the problem alone, never the formula of its solution: where layer and solver share a
wrong formula, they fail. All are in units of the output, so that a twin's tolerance serves them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from scipy.special import logsumexp
from torch import nn

from ..attention import Context
from ..laws.subject import identity_values
from .heads import Array, Tensors, head_calls
from .pairs import Pair, calls_of_heads, layer_output

Logits = Callable[..., Array]
_TINY = np.finfo(np.float64).tiny


def weights_certificate(
    logits: Logits, residual: Callable[..., float] | None = None
) -> Callable[[Pair, nn.Module, Tensors], float]:
    """Certificate of a layer whose weights solve a problem on the simplex, and whose output is u.

    ``logits(layer, call)`` gives the scores z of one head in float64;
    `residual` judges weights at them, `entropic_residual` by default. Rows of the output minimise
    ``sum_j a_ij |u_i - v_j|^2`` at these weights: the gradient there is held to zero too.
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
    """For `Numerics.logit_range`: the largest range of the logits of a head."""

    def largest(layer: nn.Module, q: Array, k: Array, v: Array) -> float:
        given = None if context is None else context(q, k, v)
        return max(float(np.ptp(logits(layer, call))) for call in head_calls(q, k, v, given))

    return largest


def entropic_residual(A: Array, logits: Array, *, n_largest: int | None = None) -> float:
    """How far each row is from ``argmax <a, z> + H(a)`` over the simplex, H the entropy.

    The solution is a softmax, of which no use is made: ``z_j - log a_j`` must be constant where a
    is positive, and the value ``mu`` of the row must be that of the dual problem,
    ``log sum_j exp z_j``. With `n_largest`, over vectors of so many entries at most: then the sum
    is over the largest logits. Where ``z_j = -inf``, a must vanish.
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
    """How far each row is from the point of the simplex nearest to its logits.

    There ``z_j - a_j`` is a constant tau of the row where a is positive, and ``z_j <= tau``
    elsewhere.
    """
    support = A > 0
    tau = np.where(support, logits - A, 0.0).sum(axis=1) / support.sum(axis=1)
    slack = logits - A - tau[:, None]
    return _largest(simplex_residual(A), np.where(support, slack, np.maximum(slack, 0.0)))


def simplex_residual(A: Array) -> float:
    """How far rows are from nonnegative with sum one."""
    return _largest(A.sum(axis=1) - 1, np.minimum(A, 0.0))


def balanced_residual(P: Array, logits: Array) -> float:
    """How far P is from the plan with row and column sums one nearest to ``exp(logits)`` in KL.

    There ``log p_ij - z_ij = f_i + g_j``: its double differences vanish. For positive P.
    """
    potential = np.log(np.maximum(P, _TINY)) - logits
    rows, columns = (potential.mean(axis=axis, keepdims=True) for axis in (1, 0))
    mixed = potential - rows - columns + potential.mean()
    return _largest(P.sum(axis=1) - 1, P.sum(axis=0) - 1, P * mixed)


def mean_residual(u: Array, A: Array, v: Array) -> float:
    """How far each u_i is from ``argmin_u sum_j a_ij |u - v_j|^2``: half the gradient there.

    Each gradient is over ``sum_j |a_ij|``, so that it is in units of u.
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
    """How far the gradient of an energy is from the one that a layer took, by central differences.

    ``energy(u)`` gives a number for each row, which is quadratic in it, so that a difference along
    a random direction has no error but rounding, at any distance. Errors are over the curvature of
    each row and the largest entry of `unit`, an output that the layer made of the gradient.
    """
    size = max(float(np.abs(at).max()), _TINY)
    direction = size * np.random.default_rng(0).standard_normal(at.shape)
    slopes = (energy(at + direction) - energy(at - direction)) / 2
    expected = (gradient * direction).sum(axis=1)
    return _relative((slopes - expected) / (curvature * size), unit)


def pair_energies(weights: Array, u: Array, v: Array) -> Array:
    """``1/2 sum_j p_ij |u_i - v_j|^2`` for each row i."""
    squares = (u**2).sum(axis=1)[:, None] + (v**2).sum(axis=1) - 2 * u @ v.T
    return (weights * squares).sum(axis=1) / 2


def first_and_last(iterate: Callable[[int], Array], n_iter: int) -> Iterator[tuple[int, Any, Any]]:
    """The steps t -> t + 1 of an iteration that are certified: t and both iterates."""
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
    """How far an iterate C' is from minimising the model of the Lasso around the one before.

    The model is ``2 <(C k - q) k^T, C' - C> + |C' - C|_F^2 / step + lam |C'|_1``. At its minimum
    ``2 (C k - q) k^T + 2 (C' - C) / step`` is -lam times the sign of C' where that is not zero, and
    within lam elsewhere; below lam where codes are nonnegative.
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
    """How far C is from minimising ``|q - C k|_F^2 + lam |C|_F^2``: half the gradient there.

    In units of the coefficients: over ``|k|_2^2 + lam``, the largest curvature.
    """
    gradient = (C @ k - q) @ k.T + lam * C
    gradient /= np.linalg.norm(k, 2) ** 2 + lam
    if zero_diagonal:
        np.fill_diagonal(gradient, C.diagonal())
    return _relative(gradient, C)


def nuclear_residual(C: Array, X: Array, *, lam: float) -> float:
    """How far C is from minimising ``|X - C X|_F^2 + lam |C|_*``.

    There ``W = 2 (X - C X) X^T / lam`` is a subgradient of the nuclear norm:
    ``|W|_2 <= 1`` and ``<W, C> = |C|_*``. In units of the coefficients: lam over ``|X|_2^2``.
    """
    W = 2 * ((X - C @ X) @ X.T) / lam
    unit = min(1.0, lam / (2 * float(np.linalg.norm(X, 2)) ** 2))
    size = float(np.linalg.norm(C, "nuc"))
    gap = abs(float((W * C).sum()) - size) / max(size, _TINY)
    return unit * max(float(np.linalg.norm(W, 2)) - 1, gap, 0.0)


def affine_residual(
    A: Array, q: Array, k: Array, *, n_neighbors: int, reg: float, distances: Array
) -> float:
    """How far rows are from the affine weights of their nearest keys that reconstruct them best.

    Row i minimises ``|q_i - sum_j c_j k_j|^2 + reg tr(g) |c|^2``, ``tr(g) = sum |k_j - q_i|^2`` and
    both sums over the `n_neighbors` keys at the least of the given `distances`. With sum one, its
    gradient is the same along all of these.
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
