"""Ridge regression and low rank as layers."""

from typing import Any

import numpy as np
from torch import Tensor

from .implicit import Array, Inexact, refuse_tracing
from .inputs import check_numbers, check_rows, expand, find_batch
from .proof import Proved, SolvedRecord, Standard, solve_certified

_EPS = np.finfo(np.float64).eps


def solved_ridge(
    signals: Tensor,
    dictionary: Tensor,
    *,
    ridge: Tensor | float,
    tol: float = 1e-8,
    inexact: Inexact = "warn",
    return_record: bool = False,
) -> Any:
    """Codes of signals in a dictionary by ridge regression, with exact gradients.

    ::

        argmin_C  |X - C A|_F^2 + sum_i ridge_i |c_i|^2

    with the signals as rows of X and the atoms as rows of A: `solved_lasso` without its penalty,
    by ``c = x A^T (A A^T + ridge I)^-1``. With signals that are their own dictionary it is
    self-expression by least squares.

    Parameters
    ----------
    signals : Tensor of shape (..., n_signals, n_features)
    dictionary : Tensor of shape (..., n_atoms, n_features)
        Leading axes broadcast with those of the signals.
    ridge : float or Tensor broadcastable to (..., n_signals, 1)
        Weight > 0 of the squares.
    tol : float, default=1e-8
        Largest relative gap, and largest relative error of gradients, that are accepted. The latter
        is a bound to first order, by the error of the singular value decomposition of A.
    inexact : {"warn", "raise", "ignore"}, default="warn"
        What happens if one of them is larger.
    return_record : bool, default=False
        Return the pair of codes and `SolvedRecord`. Its gap is, with the residual r of a row,
        ``|r A^T - ridge c|^2 / (ridge |x|^2)``, the duality gap divided by ``|x|^2``; its margin is
        infinite.

    Returns
    -------
    Tensor of shape (..., n_signals, n_atoms)
        In the dtype and on the device of the signals; computed in float64.

    Raises
    ------
    ValueError
        On NaN, infinity, shapes that do not fit, or ``ridge <= 0``.
    RuntimeError
        As `solved_lasso`.

    References
    ----------
    EQUATIONS IG-1.

    Examples
    --------
    >>> import torch
    >>> from twinsolve.unrolled.solved import solved_ridge
    >>> x = torch.tensor([[3.0, 0.5]], requires_grad=True)
    >>> codes = solved_ridge(x, torch.eye(2), ridge=1.0)
    >>> codes.sum().backward()
    >>> codes.tolist(), x.grad.tolist()
    ([[1.5, 0.25]], [[0.5, 0.5]])
    """
    standard = Standard("solved_ridge", tol, inexact)
    refuse_tracing(standard.name, signals, dictionary)
    X, A = check_rows(signals, "signals"), check_rows(dictionary, "dictionary")
    if X.shape[-1] != A.shape[-1]:
        raise ValueError(
            f"dictionary: has {A.shape[-1]} features, but the signals have {X.shape[-1]}"
        )
    mu = check_numbers(ridge, "ridge", X)
    batch = find_batch(signals=X, dictionary=A, ridge=mu)
    rows = *batch, X.shape[-2]
    X, mu = expand(X, (*rows, X.shape[-1]), "signals"), expand(mu, (*rows, 1), "ridge")
    if A.shape[:-2].numel() == 1:  # then all signals are rows of one problem
        X, A, mu = X.flatten(0, -2), A.flatten(0, -2), mu.flatten(0, -2)
    else:
        A = expand(A, (*batch, *A.shape[-2:]), "dictionary")
    codes, record = solve_certified(standard, _solve_ridge, X, A, mu)
    codes = codes.view(*rows, A.shape[-2]).to(signals.dtype)
    return (codes, SolvedRecord(*(x.view(rows) for x in record))) if return_record else codes


def _solve_ridge(X: Array, A: Array, ridge: Array) -> Proved:
    """Solve for NumPy arrays; return codes, pull-back, gaps and margins."""
    U, s, Vt = np.linalg.svd(A, full_matrices=False)
    svd_error = _measure_error(A, U, s, Vt)[..., None]
    s = np.where(s > max(A.shape[-2:]) * _EPS * s.max(axis=-1, initial=0, keepdims=True), s, 0)
    s = s[..., None, :]
    inverse = 1 / (s**2 + ridge)
    # In coordinates of U and V, free of what would cancel beyond them.
    inner = X @ _flip(Vt) * inverse
    codes, residual = inner * s @ _flip(U), ridge * inner @ Vt
    if A.shape[-2] < A.shape[-1]:
        residual += X - X @ _flip(Vt) @ Vt
    wide = A.shape[-2] > A.shape[-1]
    least = ridge[..., 0] + (0 if wide else s.min(axis=-1, initial=np.inf) ** 2)

    def pull(w: Array) -> tuple[Array, ...]:
        along = w @ U * inverse
        h, back = along @ _flip(U), along * s @ Vt
        if wide:
            h += (w - w @ U @ _flip(U)) / ridge
        to_A = _flip(h) @ residual - _flip(codes) @ back
        sizes = (np.linalg.norm(x, axis=-1) for x in (w, h, back, codes, residual))
        of_w, of_h, of_back, of_codes, of_residual = sizes
        share = _divide(of_residual, of_h * of_residual + of_codes * of_back) / least
        error = (2 * svd_error * of_back + _EPS * of_w) * share + svd_error / least**0.5
        return back, to_A, -(along * inner * s).sum(axis=-1, keepdims=True), error

    energy = (X**2).sum(axis=-1)
    gap = (((X - codes @ A) @ _flip(A) - ridge * codes) ** 2).sum(axis=-1) / ridge[..., 0]
    return codes, pull, gap / np.where(energy > 0, energy, 1), np.full(gap.shape, np.inf)


def solved_low_rank(
    matrices: Tensor,
    *,
    lam: Tensor | float,
    tol: float = 1e-8,
    inexact: Inexact = "warn",
    return_record: bool = False,
) -> Any:
    """Matrices with the part of their singular values above lam, with exact gradients.

    ::

        argmin_Z  1/2 |X - Z|_F^2 + lam |Z|_*

    for each matrix X: with ``X = U diag(s) V^T``, the solution is ``U diag(s - lam)_+ V^T``. Its
    derivative takes no differences of singular values that are on one side of lam, so that equal
    ones do no harm. It does not exist where a singular value is lam; there the gradient is that for
    a value that stays below.

    Parameters
    ----------
    matrices : Tensor of shape (..., n, p)
    lam : float or Tensor broadcastable to (..., 1, 1)
        Weight > 0.
    tol : float, default=1e-8
        Largest relative gap, and largest relative error of gradients, that are accepted. The latter
        is the error of the decomposition, divided by the distance of the singular values on either
        side of lam: a bound to first order.
    inexact : {"warn", "raise", "ignore"}, default="warn"
        What happens if one of them is larger, or if a gradient is needed of a matrix whose margin
        is below 1e-9.
    return_record : bool, default=False
        Return the pair of solutions and `SolvedRecord`, of shape (...). Its gap is divided by
        ``|X|_F^2``. Its margin is the least ``|s_i - lam| / lam``, less a bound on rounding.

    Returns
    -------
    Tensor of shape (..., n, p)
        In the dtype and on the device of the matrices; computed in float64.

    Raises
    ------
    ValueError
        On NaN, infinity, shapes that do not fit, or ``lam <= 0``.
    RuntimeError
        As `solved_lasso`.

    References
    ----------
    Cai, Candès and Shen, "A singular value thresholding algorithm for matrix completion" (2010);
    Candès, Sing-Long and Trzasko, "Unbiased risk estimates for singular value thresholding and
    spectral estimators" (2013); EQUATIONS IG-5.

    Examples
    --------
    >>> import torch
    >>> from twinsolve.unrolled.solved import solved_low_rank
    >>> X = torch.tensor([[3.0, 0.0], [0.0, 1.0]], requires_grad=True)
    >>> Z = solved_low_rank(X, lam=2.0)
    >>> Z.sum().backward()
    >>> Z.tolist(), X.grad.tolist()
    ([[1.0, 0.0], [0.0, 0.0]], [[1.0, 0.5], [0.5, 0.0]])
    """
    standard = Standard("solved_low_rank", tol, inexact)
    refuse_tracing(standard.name, matrices)
    X = check_rows(matrices, "matrices")
    weight = expand(check_numbers(lam, "lam", X), (*X.shape[:-2], 1, 1), "lam")
    Z, record = solve_certified(standard, _shrink, X, weight)
    Z = Z.to(matrices.dtype)
    return (Z, record) if return_record else Z


def _shrink(X: Array, lam: Array) -> Proved:
    """Shrink singular values of NumPy arrays; return Z, pull-back, gaps and margins."""
    U, s, Vt = np.linalg.svd(X, full_matrices=False)
    kept = np.maximum(s - lam[..., 0], 0)
    Z = (U * kept[..., None, :]) @ Vt

    def pull(w: Array) -> tuple[Array, Array, Array]:
        inner = _flip(U) @ w @ _flip(Vt)
        turned = _divide(kept[..., :, None] + kept[..., None, :], s[..., :, None] + s[..., None, :])
        above = kept > 0
        on_two_sides = above[..., :, None] != above[..., None, :]
        difference = kept[..., :, None] - kept[..., None, :]
        bent = np.where(on_two_sides, _divide(difference, s[..., :, None] - s[..., None, :]), 0)
        bent += above[..., :, None] & above[..., None, :]
        core = bent * (inner + _flip(inner)) / 2 + turned * (inner - _flip(inner)) / 2
        ratio = _divide(kept, s)[..., None, :]
        right, left = w @ _flip(Vt), _flip(U) @ w  # with parts beyond the singular vectors
        to_X = U @ core @ Vt + ((right - U @ inner) * ratio) @ Vt
        to_X += (U * ratio) @ (left - inner @ Vt)
        trace = (np.diagonal(inner, axis1=-2, axis2=-1) * above).sum(axis=-1)
        lowest = np.where(above, s, np.inf).min(axis=-1, initial=np.inf)
        distance = lowest - np.where(above, 0, s).max(axis=-1, initial=0)
        return to_X, -trace[..., None, None], _measure_error(X, U, s, Vt) / distance

    weight, axes = lam[..., 0, 0], (-2, -1)
    Y = X - Z
    spectral = np.linalg.svd(Y, compute_uv=False).max(axis=-1, initial=0)[..., None, None]
    Y *= np.minimum(1, _divide(lam, spectral, other=1))
    penalty = weight * np.linalg.norm(Z, "nuc", axis=axes)
    gap = ((Z - X + Y) ** 2).sum(axis=axes) / 2 + penalty - (Z * Y).sum(axis=axes)
    largest = s.max(axis=-1, initial=0)
    rounding = _EPS * max(X.shape[-2:]) * largest
    nearest = np.abs(s - lam[..., 0]).min(axis=-1, initial=np.inf)
    return Z, pull, _divide(gap, (s**2).sum(axis=-1)), (nearest - rounding) / weight


def _measure_error(X: Array, U: Array, s: Array, Vt: Array) -> Array:
    """Bound to first order how far X is from a matrix with exactly this decomposition."""
    error = np.linalg.norm(X - (U * s[..., None, :]) @ Vt, axis=(-2, -1))
    for V in (_flip(U) @ U, Vt @ _flip(Vt)):
        turned = np.linalg.norm(V - np.eye(V.shape[-1]), axis=(-2, -1))
        error += s.max(axis=-1, initial=0) * turned
    return np.asarray(error)


def _flip(x: Array) -> Array:
    """Transpose the last two axes."""
    return np.swapaxes(x, -2, -1)


def _divide(a: Array, b: Array, other: float = 0) -> Array:
    """Return ``a / b``, or `other` where b is zero."""
    return np.where(b != 0, a / np.where(b != 0, b, 1), other)
