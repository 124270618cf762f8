"""What solvers accept: checks that they share, and the arrays that these return."""

from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from scipy.sparse import csr_array, get_index_dtype, issparse
from sklearn.base import BaseEstimator
from sklearn.utils import check_array
from sklearn.utils.validation import validate_data

Array = np.ndarray


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

    NumPy would turn dates, durations, text and many objects into numbers. Here they are refused,
    but for objects that are whole or real numbers.

    Raises
    ------
    ValueError
        On such values, and on rows of unequal length. The message starts with `name`.
    """
    try:
        array = _numbers(values)
        if dtype is None:
            return array
        if array.dtype.kind == "c":
            raise ValueError(f"must hold real numbers, got values of type {array.dtype}")
        return array.astype(dtype, copy=False)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{name}: {error}") from error


def _numbers(values: ArrayLike) -> Array:
    array = _unmasked(values)
    if array.dtype.kind == "O" and _kinds_of_objects(array) <= set("biuf"):
        array = array.astype(np.float64)
    if array.dtype.kind not in "biufc":
        raise ValueError(f"must hold real numbers, got values of type {array.dtype}")
    return array


def _unmasked(values: ArrayLike) -> Array:
    """Return an array; refuse one whose mask hides values, which NumPy would take for given."""
    if isinstance(values, np.ma.MaskedArray) and np.ma.is_masked(values):
        raise ValueError("must not be a masked array; fill or leave out what its mask hides")
    return np.asarray(values)


def _kinds_of_objects(array: Array) -> set[str]:
    return {np.asarray(value).dtype.kind for value in np.ravel(array)}


def refuse_sparse(X: Any, why: str) -> None:
    """Refuse sparse points of a problem that looks at single features.

    Raises
    ------
    ValueError
        If X is sparse: says what else is wrong with it, or how large it would be if dense.
    """
    if issparse(X):
        n, d = check_dense_or_sparse(X, "X").shape
        raise ValueError(
            f"X: must not be sparse, as {why}; as a dense array it takes "
            f"{8 * n * d / 2**30:.2g} GiB"
        )


def validate_points(estimator: BaseEstimator, X: ArrayLike, **options: Any) -> Array:
    """Return X as scikit-learn's `validate_data` does for an estimator of real numbers.

    Raises
    ------
    ValueError
        As `validate_data`, on dates, durations and text, on a masked array, and on sparse points
        unless they are among the `options`. Objects may be numbers.
    """
    if "accept_sparse" not in options:
        refuse_sparse(X, f"{type(estimator).__name__} reads single features")
    if not issparse(X):
        array = as_array(X, "X")
        kinds = _kinds_of_objects(array) if array.dtype.kind == "O" else {array.dtype.kind}
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
    deviation = np.abs(sums - 1).ravel()
    if deviation.max() > max(rounding_error(dtype), 1e-6):
        row = int(deviation.argmax())
        raise ValueError(
            f"{name}: every row must sum to 1, but row {row} is off by {deviation[row]:.3g}, "
            f"more than rounding in {np.dtype(dtype)}"
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


def as_array(values: ArrayLike, name: str) -> Array:
    """Return `values` as an array.

    Raises
    ------
    ValueError
        If rows differ in length, or a mask hides values; the message starts with `name`.
    """
    try:
        return _unmasked(values)
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from error


def fill_holes(
    values: Array, mask: ArrayLike | None, name: str, channel_axis: int | None = None
) -> tuple[Array, Array | None]:
    """Return values with zeros in holes, and the mask, or None if all are valid.

    Raises
    ------
    ValueError
        On NaN or infinity at valid places, and on a mask of another shape, without any valid place
        or of anything but bool.
    """
    if mask is not None:
        shape = values.shape if channel_axis is None else np.delete(values.shape, channel_axis)
        mask = check_mask(mask, tuple(map(int, shape)))
        valid = mask if channel_axis is None else np.expand_dims(mask, channel_axis)
        values = np.where(valid, values, values.dtype.type(0))
    if not np.isfinite(values).all():
        raise ValueError(f"{name}: must not hold NaN or infinity, but where mask is False")
    return values, None if mask is None or mask.all() else mask


def check_mask(mask: ArrayLike, shape: tuple[int, ...]) -> Array:
    """Return a mask of valid places as an array of bool.

    Raises
    ------
    ValueError
        On another shape, on anything but bool, and if no place is valid.
    """
    valid = as_array(mask, "mask")
    if valid.dtype != bool or valid.shape != shape:
        raise ValueError(
            f"mask: must be an array of bool of shape {shape}, True at valid pixels, as "
            f"mask > 127 gives it; got {valid.dtype} of shape {valid.shape}"
        )
    if not valid.any():
        raise ValueError("mask: must be True at one pixel or more")
    return valid
