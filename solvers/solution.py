"""What a solve returns, and the validation that every solver shares."""

import math
import numbers
import os
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from scipy.sparse import csr_array, get_index_dtype, issparse
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import check_array

Array = np.ndarray


@dataclass(frozen=True, eq=False, repr=False)
class Solution:
    """Answer of a solver together with the certificate of its quality.

    Where the rows of the problem decouple, every array but `history` has one entry a row. Solvers
    make one by `certified`, so that objective, gap and dual are those of `coef` as it stands here,
    in its dtype, computed in float64.

    Attributes
    ----------
    coef : ndarray or csr_array of shape (n_rows, n_atoms)
        Coefficients; row i represents sample i.
    objective : ndarray of shape (n_rows,)
        Primal objective at `coef`, on the scale printed in the solver's docstring.
    gap : ndarray of shape (n_rows,)
        ``(objective - dual objective) / |x_i|^2``, or what the solver's docstring says, from the
        definition and not from the algorithm's stopping rule: an upper bound on the relative
        suboptimality. Where constraints bind it is no smaller than their relative violation.
        Zero rows have gap 0; infinity certifies nothing.
    dual : ndarray of shape (n_rows, n_features)
        The feasible dual point that proves `gap`.
    n_iter : ndarray of shape (n_rows,)
        Iterations spent.
    tol : float
        The requested tolerance.
    message : str
        In words: the rule that ended an iteration which has one of its own, whether every gap is
        at or under `tol`, and what to turn if not.
    history : dict of str to ndarray, optional
        Quantities recorded along the iterations, where the solver was asked for them.
    n_passes : ndarray of shape (n_rows,), optional
        Products of the row's residual with all atoms, or searches for those that matter, that a
        working-set solver spent.
    n_looked : ndarray of shape (n_rows,), optional
        Atoms that these passes looked at: all of them each time, or those whose cells no bound
        ruled out. ``1 - n_looked.sum() / (n_passes.sum() * n_atoms)`` is the share skipped.
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

    @property
    def converged(self) -> Array:
        """Whether `gap` is at or under `tol`, and nothing else; an array of bool."""
        return np.asarray(self.gap <= self.tol)

    def __repr__(self) -> str:
        shape = " x ".join(map(str, self.coef.shape))
        nonzero = self.coef.count_nonzero() if issparse(self.coef) else np.count_nonzero(self.coef)
        reached, rows = self.converged, np.ndim(self.gap) > 0
        verdict = f"{reached.sum()} of {reached.size}" if rows else str(bool(reached))
        return (
            f"Solution(coef {shape} with {nonzero} nonzeros, objective {np.sum(self.objective):.6g}"
            f"{' in all' if rows else ''}, largest gap {np.max(self.gap, initial=0.0):.1e}, "
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
) -> Solution:
    """Solution that holds `coef` in `dtype`, certified as what it then is.

    `certify` takes those coefficients in float64 and returns objective, gap and dual point. If they
    miss `tol` by their rounding alone, the message names the dtype; else it ends with `cure`.
    """
    kept = coef.astype(dtype, copy=False)
    kept = narrow(kept) if isinstance(kept, csr_array) else kept
    objective, gap, dual = certify(kept.astype(np.float64, copy=False))
    gap = np.where(np.isnan(gap), np.inf, gap)
    missed = gap > tol
    cures = cure
    if missed.any() and kept.dtype != coef.dtype:
        rounded = missed & (certify(coef)[1] <= tol)
        advice = f"their rounding to {kept.dtype} is in the way: pass float64 data, or increase tol"
        if rounded.any():
            cures = advice if (rounded == missed).all() else f"{cure}; of {rounded.sum()}, {advice}"
    message = ended + "; " if ended else ""
    if not missed.any():
        message += f"the relative gap is at most tol={tol:.3g}"
    elif gap.ndim:
        message += (
            f"{missed.sum()} of {gap.size} {unit}s did not reach the relative gap tol={tol:.3g} "
            f"(worst {gap.max():.3g}); {cures}"
        )
    else:
        message += f"the relative gap is {gap:.3g}, not tol={tol:.3g}; {cures}"
    counts = np.broadcast_to(n_iter, gap.shape).copy()
    return Solution(
        kept, np.asarray(objective), gap, dual, counts, tol, message, history, n_passes, n_looked
    )


def aim(tol: float, dtype: Any) -> float:
    """Gap to iterate to: rounding the answer to float32 takes up most of `tol`."""
    return tol if dtype == np.float64 else 0.1 * tol


def warn_unless_converged(solution: Solution) -> None:
    """Warn the caller of the public function that calls this one, with the solution's message."""
    if not solution.converged.all():
        warnings.warn(solution.message, ConvergenceWarning, stacklevel=3)


def check_matrix(
    X: ArrayLike, name: str, *, min_rows: int = 1, n_features: int | None = None
) -> Array:
    """Return `X` as a finite, dense, real 2-D array; float32 is kept, all else becomes float64.

    Raises
    ------
    ValueError
        If `X` is not two-dimensional, holds NaN or infinity, is complex, or has too few rows or the
        wrong number of columns. The message starts with `name`.
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
    return narrow(csr_array(matrix)) if issparse(matrix) else matrix


def narrow(matrix: csr_array) -> csr_array:
    """The same matrix with indices of 32 bits where these suffice, which scikit-learn asks for.

    A matrix that has them is returned itself.
    """
    kind = get_index_dtype(maxval=max(matrix.nnz, *matrix.shape))
    if matrix.indices.dtype == kind == matrix.indptr.dtype:
        return matrix
    indices, indptr = (x.astype(kind, copy=False) for x in (matrix.indices, matrix.indptr))
    return csr_array((matrix.data, indices, indptr), shape=matrix.shape)


def _check_by_sklearn(X: ArrayLike | csr_array, name: str, **options: Any) -> Any:
    if _is_plainly_valid(X, options.get("ensure_min_samples", 1)):
        return X
    try:
        return check_array(X, dtype=[np.float64, np.float32], input_name=name, **options)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{name}: {error}") from error


def _is_plainly_valid(X: Any, min_rows: int) -> bool:
    """Whether a quick look shows that `check_array`, which takes longer, would return X."""
    if type(X) is not np.ndarray or X.ndim != 2 or X.dtype not in (np.float64, np.float32):
        return False
    with np.errstate(over="ignore", invalid="ignore"):
        return X.shape[0] >= min_rows and X.shape[1] > 0 and bool(np.isfinite(X.sum()))


def check_square(matrix: Any, name: str, size: int | None = None) -> Any:
    """Return `matrix`, dense or sparse, if it is square, and of the given size if there is one.

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
    """Relative error that is taken for rounding: of exponentials of logits up to 1,000 in size."""
    return 1e3 * float(np.finfo(dtype).eps)


def check_row_sums(sums: Array, dtype: Any, name: str) -> None:
    """Accept row sums of a matrix in `dtype` if they are 1, up to rounding in that dtype.

    They may always miss 1 by 1e-6: a float32 softmax passes after a cast to float64.

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
    """Return A in float64 with row sums of exactly 1, up to float64, and its own dtype.

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
    """The power of two at or under the largest size of the entries: dividing by it is exact.

    One for all the arrays, or along `axis` one for each line.
    """
    largest = np.max([np.abs(array).max(axis=axis) for array in arrays], axis=0)
    return np.ldexp(1.0, np.frexp(largest)[1] - 1)


def unit_size(X: Array) -> Array:
    """X in float64 over the power of two at or under its largest entry, without rounding."""
    unit: Array = X.astype(np.float64) / unit_under(X)
    return unit


def frobenius_norm(X: Array) -> float:
    """Norm of all entries, from entries of unit size, so that no square overflows or vanishes."""
    size = float(np.abs(X).max())
    return size * float(np.linalg.norm(X / size)) if size > 0 else 0.0


def check_positive(value: float, name: str, *, allow_zero: bool = False) -> float:
    """Return `value` as a float if it is finite and positive (or zero, where allowed).

    Raises
    ------
    ValueError
        Otherwise; the message starts with `name`.
    """
    allowed = ">= 0" if allow_zero else "> 0"
    if not isinstance(value, numbers.Real) or not math.isfinite(value):
        raise ValueError(f"{name}: must be a finite number {allowed}, got {value!r}")
    if value < 0 or (value == 0 and not allow_zero):
        raise ValueError(f"{name}: must be {allowed}, got {value!r}")
    return float(value)


def check_integer(value: int, name: str, *, minimum: int, maximum: int | None = None) -> int:
    """Return `value` as an int if it is a whole number in ``[minimum, maximum]``.

    Raises
    ------
    ValueError
        Otherwise; the message starts with `name`.
    """
    allowed = f">= {minimum}" if maximum is None else f"in [{minimum}, {maximum}]"
    whole = isinstance(value, numbers.Integral) and not isinstance(value, bool)
    if not whole or value < minimum or (maximum is not None and value > maximum):
        raise ValueError(f"{name}: must be a whole number {allowed}, got {value!r}")
    return int(value)


def check_folder(folder: str | os.PathLike[str] | None, name: str) -> Path | None:
    """Return `folder` as a Path; None stays None.

    Raises
    ------
    TypeError
        If it is no path; the message starts with `name`.
    """
    if folder is None:
        return None
    if not isinstance(folder, str | os.PathLike):
        raise TypeError(f"{name}: must be the path of a folder or None, got {folder!r}")
    return Path(folder)


def check_one_or_each(values: float | ArrayLike, name: str, count: int, what: str) -> Array:
    """Return a finite number, or one for each layer, feature or row, as an array of shape (count,).

    Raises
    ------
    ValueError
        Otherwise; the message starts with `name`.
    """
    try:
        checked = np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"{name}: must be a number or one for each {what}, got {values!r}"
        ) from error
    if checked.shape not in ((), (count,)):
        raise ValueError(
            f"{name}: must be a number or hold one entry for each of the {count} {what}s, "
            f"got shape {checked.shape}"
        )
    if not np.isfinite(checked).all():
        raise ValueError(f"{name}: must be finite, got {values!r}")
    return np.broadcast_to(checked, (count,)).copy()


def check_lam(lam: float | ArrayLike, n_rows: int) -> Array:
    """Return the penalty weight as an array of shape (n_rows,), one positive entry a row.

    Raises
    ------
    ValueError
        If an entry is not finite and positive, or there is neither one nor one for each row.
    """
    values = check_one_or_each(lam, "lam", n_rows, "row")
    if not (values > 0).all():
        raise ValueError(f"lam: must be finite and > 0, got {lam!r}")
    return values
