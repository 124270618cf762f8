"""Entmax and total variation as layers, whose problems are rows."""

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .implicit import Array, Inexact, refuse_tracing
from .inputs import check_numbers, check_rows, expand
from .proof import Proved, SolvedRecord, Standard, solve_certified

_EPS = np.finfo(np.float64).eps
_SERIES = [1 / math.factorial(k + 2) for k in range(14)]  # (exp(x) - 1 - x) / x^2 up to x = 1/2


def solved_entmax(
    logits: Tensor,
    *,
    alpha: Tensor | float,
    mask: Tensor | None = None,
    tol: float = 1e-8,
    inexact: Inexact = "warn",
    return_record: bool = False,
) -> Any:
    """Entmax of rows: softmax at alpha = 1, sparsemax at alpha = 2, with a gradient in alpha.

    ::

        argmax_p  p.z + sum_j (p_j - p_j^alpha) / (alpha (alpha - 1))   on the simplex

    for each row z of the logits. With ``s_j = p_j^(2 - alpha)`` on the support and 0 off it, the
    derivative in z is ``diag(s) - s s^T / sum s``. For alpha < 2 it exists everywhere. From alpha =
    2 on it does not where an entry is just at the edge of the support, which is then taken to stay
    out; beyond 2 the s_j grow without bound as it is approached from within. In alpha, the
    derivative at 1 is that from above.

    Parameters
    ----------
    logits : Tensor of shape (N,) or (..., n, N)
        -inf excludes an entry.
    alpha : float or Tensor broadcastable to (..., n, 1)
        >= 1.
    mask : bool Tensor broadcastable to (..., n, N), optional
        True for the entries that a row may use. A row without any becomes zeros.
    tol : float, default=1e-8
        Largest gap, and largest error of the s_j of a row divided by their sum, that are accepted.
        The latter is found from the equations of the p_j, to first order.
    inexact : {"warn", "raise", "ignore"}, default="warn"
        What happens if one of them is larger, or if a gradient is needed of a row whose margin is
        below 1e-9.
    return_record : bool, default=False
        Return the pair of probabilities and `SolvedRecord`. Its gap is that of
        `twinsolve.solvers.kernel_smoothing.entmax_gap`. Its margin is, from alpha = 2 on, the least
        distance of a logit from the threshold, less the error of the p_j, and else infinite.

    Returns
    -------
    Tensor of shape (N,) or (..., n, N)
        In the dtype and on the device of the logits; computed in float64.

    Raises
    ------
    ValueError
        On NaN, ``+inf``, shapes that do not fit, or alpha out of range.
    RuntimeError
        As `solved_lasso`.

    References
    ----------
    Peters, Niculae and Martins, "Sparse sequence-to-sequence models" (2019); Correia, Niculae and
    Martins, "Adaptively sparse transformers" (2019); EQUATIONS EN-1 to EN-3.

    Examples
    --------
    >>> import torch
    >>> from twinsolve.unrolled.solved import solved_entmax
    >>> z = torch.tensor([[1.0, 0.0, -2.0]], requires_grad=True)
    >>> p = solved_entmax(z, alpha=1.5)
    >>> p[0, 0].backward()
    >>> p.detach(), z.grad
    (tensor([[0.8307, 0.1693, 0.0000]]), tensor([[ 0.2835, -0.2835,  0.0000]]))
    """
    standard = Standard("solved_entmax", tol, inexact)
    refuse_tracing(standard.name, logits)
    if isinstance(logits, Tensor) and logits.ndim == 1:
        options: dict[str, Any] = {"alpha": alpha, "mask": mask, "tol": tol, "inexact": inexact}
        p, record = solved_entmax(logits[None], **options, return_record=True)
        return (p[0], SolvedRecord(*(x[0] for x in record))) if return_record else p[0]
    rows = logits.masked_fill(logits == -math.inf, 0) if isinstance(logits, Tensor) else logits
    z = check_rows(rows, "logits")
    order = expand(check_numbers(alpha, "alpha", z, least=1), (*z.shape[:-1], 1), "alpha")
    hidden = (logits == -math.inf).cpu().numpy()
    if mask is not None:
        if mask.dtype != torch.bool:
            raise ValueError(f"mask: must be boolean, got {mask.dtype}")
        hidden = hidden | ~expand(mask, tuple(z.shape), "mask").cpu().numpy()

    def solve(z: Array, alpha: Array) -> Proved:
        return _solve_entmax(np.where(hidden, -np.inf, z), alpha)

    p, record = solve_certified(standard, solve, z, order)
    p = p.to(logits.dtype)
    return (p, record) if return_record else p


def _solve_entmax(z: Array, alpha: Array) -> Proved:
    """Solve for NumPy arrays; return p, pull-back, gaps and margins."""
    from ...solvers.kernel_smoothing import entmax, entmax_gap

    if not z.size:
        return _solve_nothing(z, alpha)
    p = entmax(z, alpha=alpha)
    inside, excess = p > 0, alpha - 1
    below = z - np.maximum(z.max(axis=-1, keepdims=True), np.finfo(np.float64).min)

    def pull(w: Array) -> tuple[Array, Array, Array]:
        log_p = np.log(np.where(inside, p, 1))
        s = np.where(inside, np.exp((1 - excess) * log_p), 0)
        share = s / np.maximum(s.sum(axis=-1, keepdims=True), 1)
        # (s - p (1 + x)) / (alpha - 1)^2 for p = s exp(x), which cancels where x is small.
        x = (1 - alpha) * log_p
        near = p * log_p**2 * np.polynomial.polynomial.polyval(np.minimum(x, 0.5), _SERIES)
        bend = np.where(x < 0.5, near, (s - p * (1 + x)) / np.where(excess > 0, excess, 1) ** 2)
        to_alpha = share * bend.sum(axis=-1, keepdims=True) - bend
        to_z = s * w - share * (s * w).sum(axis=-1, keepdims=True)
        # A Newton step of p: on the support (p^(alpha - 1) - 1) / (alpha - 1) is z less a constant.
        power = np.divide(np.expm1(-x), excess, out=log_p.copy(), where=excess > 0)
        newton_step = s * np.where(inside, power - below, 0)
        newton_step -= share * newton_step.sum(axis=-1, keepdims=True)
        rounding = 4 * _EPS * s * np.abs(power)
        error = (
            np.abs(2 - alpha) * share * (np.abs(newton_step) + rounding) / np.where(inside, p, 1)
        )
        return to_z, (w * to_alpha).sum(axis=-1, keepdims=True), error.sum(axis=-1)

    margin = np.full(z.shape[:-1], np.inf)
    if (alpha >= 2).any():
        power = p ** np.maximum(excess, 1) / np.maximum(excess, 1)
        distance = below + power.max(axis=-1, keepdims=True)  # from the threshold
        deviation = np.where(inside, np.abs(power - distance), 0).max(axis=-1)
        margin = np.where(inside, distance, -distance).min(axis=-1) - deviation
        margin = np.where(alpha[..., 0] >= 2, margin, np.inf)
    return p, pull, entmax_gap(z, p, alpha=alpha), margin


def solved_total_variation(
    signals: Tensor,
    *,
    lam: Tensor | float,
    tol: float = 1e-8,
    inexact: Inexact = "warn",
    return_record: bool = False,
) -> Any:
    """Signals denoised by their total variation along the last axis, each row apart.

    ::

        argmin_u  1/2 |u - f|^2 + lam sum_i |u_(i+1) - u_i|

    The solution is constant on segments, and on each the mean of f plus lam times the number of its
    higher neighbours less that of its lower ones, divided by its length. So a gradient in f is
    averaged over each segment. Where a segment is about to split or two are about to merge, the
    solution is not differentiable, and the gradient is that of the segments as they are. It has no
    other error: the margin proves the segments.

    Parameters
    ----------
    signals : Tensor of shape (..., n_signals, n)
    lam : float or Tensor broadcastable to (..., n_signals, 1)
        Weight > 0.
    tol : float, default=1e-8
        Largest relative gap that is accepted.
    inexact : {"warn", "raise", "ignore"}, default="warn"
        What happens if a gap is larger, or if a gradient is needed of a row whose margin is below
        1e-9.
    return_record : bool, default=False
        Return the pair of solutions and `SolvedRecord`. Its gap is that of
        `twinsolve.solvers.nonlocal_energy.signal_variation`. With the dual point p, the running
        sums of ``u - f``, its margin is the smaller of ``1 - |p_i| / lam`` within segments and of
        ``|u_(i+1) - u_i| / lam`` between them, less a bound on rounding and the largest error of
        ``|p_i| / lam = 1`` between them.

    Returns
    -------
    Tensor of shape (..., n_signals, n)
        In the dtype and on the device of the signals; computed in float64.

    Raises
    ------
    ValueError
        On NaN, infinity, shapes that do not fit, or ``lam <= 0``.
    RuntimeError
        As `solved_lasso`.

    References
    ----------
    EQUATIONS FE-5, IG-4.

    Examples
    --------
    >>> import torch
    >>> from twinsolve.unrolled.solved import solved_total_variation
    >>> f = torch.tensor([[0.0, 0.0, 1.0, 1.0]], requires_grad=True)
    >>> u = solved_total_variation(f, lam=0.1)
    >>> u[0, 0].backward()
    >>> u.detach(), f.grad
    (tensor([[0.0500, 0.0500, 0.9500, 0.9500]]), tensor([[0.5000, 0.5000, 0.0000, 0.0000]]))
    """
    standard = Standard("solved_total_variation", tol, inexact)
    refuse_tracing(standard.name, signals)
    f = check_rows(signals, "signals")
    weight = expand(check_numbers(lam, "lam", f), (*f.shape[:-1], 1), "lam")
    u, record = solve_certified(standard, _solve_variation, f, weight)
    u = u.to(signals.dtype)
    return (u, record) if return_record else u


def _solve_variation(signals: Array, weights: Array) -> Proved:
    """Solve for NumPy arrays; return u, pull-back, gaps and margins."""
    from ...solvers.nonlocal_energy.segments import Segments, signal_variation

    if not signals.size:
        return _solve_nothing(signals, weights)
    f, lam = signals.reshape(-1, signals.shape[-1]), weights.reshape(-1)
    solution = signal_variation(f, lam=lam)
    u = solution.coef
    segments = Segments(u)

    def pull(w: Array) -> tuple[Array, Array, Array]:
        means = segments.sums(w.reshape(f.shape)) / segments.sizes
        to_lam = np.bincount(segments.row, means * segments.pushes, minlength=len(f))
        return segments.spread(means).reshape(w.shape), to_lam.reshape(weights.shape), np.zeros(1)

    jumps, p = np.diff(u, axis=1), np.cumsum(u - f, axis=1)[:, :-1]
    slack = lam[:, None] - np.where(jumps != 0, np.sign(jumps) * p, np.abs(p))
    nearest = np.where(jumps != 0, np.abs(jumps), slack)
    deviation = np.where(jumps != 0, np.abs(slack), 0).max(axis=1, initial=0)
    rounding = _EPS * f.shape[1] * np.abs(f).max(axis=1)
    shape = signals.shape[:-1]
    margin = (nearest.min(axis=1, initial=np.inf) - rounding - deviation) / lam
    return u.reshape(signals.shape), pull, solution.gap.reshape(shape), margin.reshape(shape)


def _solve_nothing(rows: Array, numbers: Array) -> Proved:
    """Return the solution of no rows, with zero gradients, gaps of 0 and infinite margins."""
    certain = np.zeros(rows.shape[:-1]), np.full(rows.shape[:-1], np.inf)
    return rows, lambda w: (w, np.zeros_like(numbers), np.zeros(1)), *certain
