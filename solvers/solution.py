"""The result of a solve, and the validation that all solvers share."""

import os
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from scipy.sparse import csr_array, get_index_dtype, issparse
from sklearn.base import BaseEstimator
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import check_array
from sklearn.utils.validation import validate_data

Array = np.ndarray


@dataclass(frozen=True, eq=False, repr=False)
class Solution:
    """Answer of a solver with the certificate of its quality.

    If the rows are independent problems, every array but `history` has one entry for each row.
    Solvers make a solution by `certified`, so that objective, gap and dual belong to `coef` after
    rounding to its dtype. They are computed in float64.

    Attributes
    ----------
    coef : ndarray or csr_array of shape (n_rows, n_atoms)
        Coefficients; row i represents sample i.
    objective : ndarray of shape (n_rows,)
        Primal objective at `coef`, on the scale printed in the solver's docstring.
    gap : ndarray of shape (n_rows,)
        ``(objective - dual objective) / |x_i|^2``, or what the docstring of the solver says: an
        upper bound on the relative suboptimality. It is computed from the definition, not from the
        stopping rule of the algorithm. With constraints, it is at least their relative violation.
        Zero rows have gap 0; an infinite gap certifies nothing. With a tiny penalty the objective
        is far below ``|x_i|^2``: see `objective_gap`.
    dual : ndarray of shape (n_rows, n_features)
        The feasible dual point that proves `gap`.
    n_iter : ndarray of shape (n_rows,)
        Number of iterations.
    tol : float
        The requested tolerance.
    message : str
        Says whether every gap is at most `tol`, and which settings to change if not; first, which
        rule ended an iteration that has its own stopping rule.
    history : dict of str to ndarray, optional
        Quantities recorded in each iteration, if the solver was asked for them.
    n_passes : ndarray of shape (n_rows,), optional
        Number of passes of a working-set solver over the atoms: products of the residual of the row
        with all atoms, or searches for the atoms that matter.
    objective_gap : ndarray of shape (n_rows,), optional
        The same gap relative to the objective, ``(objective - dual objective) / objective``: from 0
        to 1 unless constraints are violated, and 0 where both vanish. Near 1, the objective may be
        any multiple of the optimum. None where `gap` is relative to the objective itself, or is no
        difference of objectives.
    n_looked : ndarray of shape (n_rows,), optional
        Number of atoms that these passes looked at: all atoms in each pass, or the atoms in cells
        that no bound excluded. ``1 - n_looked.sum() / (n_passes.sum() * n_atoms)`` is the share
        skipped.
    """

    coef: Any
    objective: Array
    gap: Array
    dual: Array
    n_iter: Array
    tol: float
    message: str
    history: dict[str, Array] | None = None
    n_passes: Array | None = None
    n_looked: Array | None = None
    objective_gap: Array | None = None

    @property
    def converged(self) -> Array:
        """Whether `gap` is at most `tol`, an array of bool; nothing else is tested.

        So it does not say that `objective_gap` is small: at a tiny penalty, lower `tol`.
        """
        return np.asarray(self.gap <= self.tol)

    def __repr__(self) -> str:
        shape = " x ".join(map(str, self.coef.shape))
        nonzero = self.coef.count_nonzero() if issparse(self.coef) else np.count_nonzero(self.coef)
        reached, rows = self.converged, np.ndim(self.gap) > 0
        verdict = f"{reached.sum()} of {reached.size}" if rows else str(bool(reached))
        share = ""
        if self.objective_gap is not None:
            share = f" ({np.max(self.objective_gap, initial=0.0):.1e} of the objective)"
        return (
            f"Solution(coef {shape} with {nonzero} nonzeros, objective {np.sum(self.objective):.6g}"
            f"{' in all' if rows else ''}, largest gap {np.max(self.gap, initial=0.0):.1e}{share}, "
            f"at most {np.max(self.n_iter, initial=0)} iterations, "
            f"converged to {self.tol:g}: {verdict})"
        )


Certify = Callable[[Any], tuple[Any, Any, Any]]


def certified(
    coef: Any,
    certify: Certify,
    *,
    dtype: Any,
    tol: float,
    n_iter: Any,
    cure: str = "increase max_iter, lam or tol",
    ended: str = "",
    unit: str = "row",
    history: dict[str, Array] | None = None,
    n_passes: Array | None = None,
    n_looked: Array | None = None,
    scale: Array | None = None,
) -> Solution:
    """Return a solution with `coef` in `dtype`, certified after this rounding.

    `certify` takes the rounded coefficients in float64 and returns objective, gap and dual point.
    If a gap exceeds `tol`, the message ends with `cure`, or with advice about the dtype if only the
    rounding is the cause. `ended` is a sentence that goes first in the message. `scale` is what the
    difference of the objectives was divided by to give the gap, if that is not the objective.
    """
    final = coef.astype(dtype, copy=False)
    final = narrow(final) if isinstance(final, csr_array) else final
    objective, gap, dual = certify(final.astype(np.float64, copy=False))
    gap = np.where(np.isnan(gap), np.inf, gap)
    missed = gap > tol
    remedy = cure
    if missed.any() and final.dtype != coef.dtype:
        rounded = missed & (certify(coef)[1] <= tol)
        advice = f"their rounding to {final.dtype} is the cause: pass float64 data, or increase tol"
        if rounded.any():
            remedy = (
                advice if (rounded == missed).all() else f"{cure}; of {rounded.sum()}, {advice}"
            )
    message = ended + "; " if ended else ""
    if not missed.any():
        message += f"the relative gap is at most tol={tol:.3g}"
    elif gap.ndim:
        message += (
            f"{missed.sum()} of {gap.size} {unit}s did not reach the relative gap tol={tol:.3g} "
            f"(worst {gap.max():.3g}); {remedy}"
        )
    else:
        message += f"the relative gap is {gap:.3g}, not tol={tol:.3g}; {remedy}"
    return Solution(
        final,
        np.asarray(objective),
        gap,
        dual,
        np.broadcast_to(n_iter, gap.shape).copy(),
        tol,
        message,
        history,
        n_passes,
        n_looked,
        None if scale is None else _share(gap * scale, np.asarray(objective)),
    )


def _share(excess: Array, objective: Array) -> Array:
    """``excess / objective``; zero where both are, and infinite where the objective alone is."""
    unbounded = np.where(excess > 0, np.inf, 0.0)
    return np.divide(excess, objective, out=unbounded, where=objective > 0)


def squared_norms(X: Array) -> Array:
    """``|x_i|^2`` of the rows, in float64."""
    return np.einsum("ij,ij->i", X, X, dtype=np.float64)


def aim(tol: float, dtype: Any) -> float:
    """Gap at which to stop: less than `tol` for float32, as rounding the answer adds to the gap."""
    return tol if dtype == np.float64 else 0.1 * tol


def warn_unless_converged(solution: Solution) -> None:
    """Warn, on behalf of the public function that calls this one, with the solution's message."""
    if not solution.converged.all():
        warnings.warn(solution.message, ConvergenceWarning, stacklevel=3)


def check_matrix(
    X: ArrayLike, name: str, *, min_rows: int = 1, n_features: int | None = None
) -> Array:
    """Return `X` as a finite, dense, real 2-D array; float32 is kept, all else becomes float64.

    Raises
    ------
    ValueError
        If `X` is not two-dimensional, holds NaN, infinity or what is no real number (`as_numbers`),
        or has too few rows or the wrong number of columns. The message starts with `name`.
    """
    matrix: Array = _check_by_sklearn(X, name, ensure_min_samples=min_rows)
    if n_features is not None and matrix.shape[1] != n_features:
        raise ValueError(f"{name}: has {matrix.shape[1]} columns, but {n_features} are needed")
    return matrix


def check_dense_or_sparse(X: ArrayLike | csr_array, name: str) -> Array | csr_array:
    """Return `X` as `check_matrix` does, or as a csr_array if it is sparse.

    Raises
    ------
    ValueError
        As `check_matrix`; of a sparse `X` the stored entries are checked.
    """
    matrix = _check_by_sklearn(X, name, accept_sparse="csr")
    return narrow(_canonical(csr_array(matrix))) if issparse(matrix) else matrix


def _canonical(matrix: csr_array) -> csr_array:
    """Return the matrix with sorted indices and without duplicates, a copy if it has others.

    SciPy would sort in place, and so in the arrays of the caller, which matrices share.
    """
    if not matrix.has_canonical_format:
        matrix = matrix.copy()
        matrix.sum_duplicates()
    return matrix


def narrow(matrix: csr_array) -> csr_array:
    """Return the matrix with indices of 32 bits, which scikit-learn needs, if these suffice.

    A matrix that already has such indices is returned itself. Another shares its data: it must be
    the caller's own or in canonical format, as sorting permutes data with the indices.
    """
    kind = get_index_dtype(maxval=max(matrix.nnz, *matrix.shape))
    if matrix.indices.dtype == kind == matrix.indptr.dtype:
        return matrix
    indices, indptr = (x.astype(kind, copy=False) for x in (matrix.indices, matrix.indptr))
    return csr_array((matrix.data, indices, indptr), shape=matrix.shape)


def _check_by_sklearn(X: ArrayLike | csr_array, name: str, **options: Any) -> Any:
    """Return the result of scikit-learn's `check_array`; an error starts with `name`."""
    if _is_plainly_valid(X, options.get("ensure_min_samples", 1)):
        return X
    try:
        X = X if issparse(X) else _numbers(X)
        return check_array(X, dtype=[np.float64, np.float32], input_name=name, **options)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{name}: {error}") from error


def as_numbers(values: ArrayLike, name: str, dtype: Any = None) -> Array:
    """Return `values` as an array, of `dtype` unless that is None, if they are numbers.

    NumPy turns dates, durations, text and many objects into numbers. That is left to the caller.

    Raises
    ------
    ValueError
        On such values, and rows of unequal length; the message starts with `name`.
    """
    try:
        return _numbers(values) if dtype is None else _numbers(values).astype(dtype, copy=False)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{name}: {error}") from error


def _numbers(values: ArrayLike) -> Array:
    array = np.asarray(values)
    if array.dtype.kind not in "biufc":
        raise ValueError(f"must hold real numbers, got values of type {array.dtype}")
    return array


def validate_points(estimator: BaseEstimator, X: ArrayLike, **options: Any) -> Array:
    """Return X as scikit-learn's `validate_data` does for an estimator of real numbers.

    Raises
    ------
    ValueError
        As `validate_data`, and on dates, durations and text. Objects may be numbers.
    """
    if not issparse(X):
        kinds = {np.asarray(X).dtype.kind}
        if kinds == {"O"}:
            kinds |= {np.asarray(value).dtype.kind for value in np.ravel(np.asarray(X))}
        if kinds & set("mMSTUV"):
            raise ValueError("X: must hold real numbers, got dates, durations or text")
    points: Array = validate_data(estimator, X, dtype=[np.float64, np.float32], **options)
    return points


def _is_plainly_valid(X: Any, min_rows: int) -> bool:
    """Whether a quick test shows that the slower `check_array` would return X itself."""
    if type(X) is not np.ndarray or X.ndim != 2 or X.dtype not in (np.float64, np.float32):
        return False
    with np.errstate(over="ignore", invalid="ignore"):
        return X.shape[0] >= min_rows and X.shape[1] > 0 and bool(np.isfinite(X.sum()))


def check_square(matrix: Any, name: str, size: int | None = None) -> Any:
    """Return `matrix`, dense or sparse, if it is square, and of size `size` unless that is None.

    Raises
    ------
    ValueError
        Otherwise; the message starts with `name`.
    """
    rows, columns = matrix.shape
    if size is None and rows != columns:
        raise ValueError(f"{name}: must be square, got shape {matrix.shape}")
    if size is not None and (rows, columns) != (size, size):
        raise ValueError(
            f"{name}: must be {size} x {size} to fit the other input, got shape {matrix.shape}"
        )
    return matrix


def rounding_error(dtype: Any) -> float:
    """Relative error that counts as rounding, as in exponentials of logits up to 1,000 in size."""
    return 1e3 * float(np.finfo(dtype).eps)


def check_row_sums(sums: Array, dtype: Any, name: str) -> None:
    """Accept row sums of a matrix in `dtype` if they are 1, up to rounding in that dtype.

    A deviation of 1e-6 is always accepted: a float32 softmax passes after a cast to float64.

    Raises
    ------
    ValueError
        Otherwise; the message starts with `name`.
    """
    off = np.abs(sums - 1).ravel()
    if off.max() > max(rounding_error(dtype), 1e-6):
        row = int(off.argmax())
        raise ValueError(
            f"{name}: every row must sum to 1, but row {row} is off by {off[row]:.3g}, more than "
            f"rounding in {np.dtype(dtype)}"
        )


def check_row_stochastic(A: ArrayLike, name: str) -> tuple[Array, Any]:
    """Return A in float64, rescaled to row sums of 1, and its own dtype.

    Raises
    ------
    ValueError
        If `check_matrix` or `check_row_sums` refuses it.
    """
    checked = check_matrix(A, name)
    sums = checked.sum(axis=1, keepdims=True, dtype=np.float64)
    check_row_sums(sums, checked.dtype, name)
    return checked / sums, checked.dtype


def unit_under(*arrays: Array, axis: int | None = None) -> Any:
    """Largest power of two that is at most the largest absolute entry; division by it is exact.

    It is one number for all arrays, or with `axis` one number for each line along this axis.
    """
    largest = np.max([np.abs(array).max(axis=axis) for array in arrays], axis=0)
    return np.ldexp(1.0, np.frexp(largest)[1] - 1)


def unit_size(X: Array) -> Array:
    """X in float64 divided by `unit_under(X)`, without rounding."""
    unit: Array = X.astype(np.float64) / unit_under(X)
    return unit


def frobenius_norm(X: Array) -> float:
    """Frobenius norm, from scaled entries, so that no square overflows or vanishes."""
    size = float(np.abs(X).max())
    return size * float(np.linalg.norm(X / size)) if size > 0 else 0.0


def check_folder(folder: str | os.PathLike[str] | None, name: str) -> Path | None:
    """Return `folder` as a Path; None stays None.

    Raises
    ------
    TypeError
        If it is not a path; the message starts with `name`.
    """
    if folder is None:
        return None
    if not isinstance(folder, str | os.PathLike):
        raise TypeError(f"{name}: must be the path of a folder or None, got {folder!r}")
    return Path(folder)


def check_one_or_each(values: float | ArrayLike, name: str, count: int, what: str) -> Array:
    """Return a number, or one for each layer, feature or row, as a finite array of shape (count,).

    Raises
    ------
    ValueError
        Otherwise; the message starts with `name`.
    """
    checked = as_numbers(values, name, np.float64)
    if checked.shape not in ((), (count,)):
        raise ValueError(
            f"{name}: must be a number or hold one entry for each of the {count} {what}s, "
            f"got shape {checked.shape}"
        )
    if not np.isfinite(checked).all():
        raise ValueError(f"{name}: must be finite, got {values!r}")
    return np.broadcast_to(checked, (count,)).copy()


def check_lam(lam: float | ArrayLike, n_rows: int) -> Array:
    """Return the penalty weight as an array of shape (n_rows,) with positive entries.

    Raises
    ------
    ValueError
        If an entry is not finite and positive, or `lam` is not a number or `n_rows` numbers.
    """
    values = check_one_or_each(lam, "lam", n_rows, "row")
    if not (values > 0).all():
        raise ValueError(f"lam: must be finite and > 0, got {lam!r}")
    return values
