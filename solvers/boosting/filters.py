"""Filters as functions, checks of their values, and the loop that all recursions share."""

import math
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import ArrayLike
from scipy.sparse import sparray

from ...validation import check_integer
from ..inputs import Array, as_array, check_dense_or_sparse, check_matrix, check_square

Function = Callable[[Array], Array]
Filter: TypeAlias = ArrayLike | sparray | Function
Callback = Callable[[int, Array], Any]


def check_signal(values: ArrayLike, name: str) -> Array:
    """Return `values` as a finite real array of two or three dimensions, float32 or float64.

    Raises
    ------
    ValueError
        Otherwise; the message starts with `name`.
    """
    try:
        shape = np.shape(values)
    except ValueError as error:
        raise ValueError(f"{name}: must be an array, got rows of unequal length") from error
    if len(shape) not in (2, 3):
        raise ValueError(f"{name}: must have two or three dimensions, got shape {shape}")
    if len(shape) == 2:
        return check_matrix(values, name)
    rows = np.reshape(as_array(values, name), (shape[0], math.prod(shape[1:])))
    return check_matrix(rows, name).reshape(shape)


def bind(filter: Filter, values: Array, name: str) -> tuple[Function, Array]:
    """Return the filter as a function of arrays like `values`, and `values` in its dtype.

    The function works on copies, so that a filter may write into its argument or reuse its output.

    Raises
    ------
    ValueError
        If a matrix does not fit the values. The returned function raises it if the result of the
        filter does not fit.
    """
    if callable(filter):
        return _check_results(filter, name), values
    if values.ndim != 2:
        raise ValueError(
            f"{name}: a matrix needs values of two dimensions, one row a sample or pixel, got "
            f"shape {values.shape}"
        )
    A = check_square(check_dense_or_sparse(filter, name), name, len(values))
    dtype = np.result_type(A.dtype, values.dtype)
    return _check_results(lambda x: A @ x, name), values.astype(dtype, copy=False)


def bind_layers(
    filter: Filter | Sequence[Filter], values: Array, n_layers: int, name: str
) -> tuple[list[Function], Array]:
    """`bind` for each layer: one filter serves all layers, a sequence has one for each."""
    if isinstance(filter, np.ndarray) and filter.ndim == 3:
        filter = list(filter)
    if not _is_sequence_of_filters(filter):
        function, values = bind(filter, values, name)
        return [function] * n_layers, values
    filters: Any = filter
    if len(filters) != n_layers:
        raise ValueError(f"{name}: holds {len(filters)} filters for {n_layers} layers")
    functions = []
    for layer, layer_filter in enumerate(filters):
        function, values = bind(layer_filter, values, f"{name}[{layer}]")
        functions.append(function)
    return functions, values


@np.errstate(over="ignore", invalid="ignore")  # a recursion that diverges is refused below
def iterate(
    step: Callable[[int, Array], Array],
    start: Array,
    n_iter: int,
    callback: Callback | None,
    name: str,
) -> Array:
    """Return u_n of ``u_{k+1} = step(k, u_k)``, after ``callback(k, u_k)`` for k = 0 to n.

    Raises
    ------
    ValueError
        If `n_iter` is negative or an iterate is not finite.
    """
    n_iter = check_integer(n_iter, "n_iter", minimum=0)
    u = start.copy()
    for k in range(n_iter + 1):
        if k > 0:
            u = step(k - 1, u)
        if not np.isfinite(u).all():
            raise ValueError(
                f"{name}: iterate {k} holds NaN or infinity: the filter returned them, or the "
                "recursion diverges"
            )
        if callback is not None:
            callback(k, u)
    return u


def _check_results(function: Function, name: str) -> Function:
    """Wrap a function so that its results are checked to be real arrays of the right shape."""

    def apply(x: Array) -> Array:
        result = np.array(function(x.copy()))
        if result.shape != x.shape or result.dtype.kind not in "fiub":
            raise ValueError(
                f"{name}: must return a real array of shape {x.shape}; it returned shape "
                f"{result.shape} and dtype {result.dtype}"
            )
        return result.astype(x.dtype, copy=False)

    return apply


def _is_sequence_of_filters(filter: Any) -> bool:
    """Whether this is a list of filters, not one filter given as nested lists of numbers."""
    return isinstance(filter, list | tuple) and any(
        callable(entry) or getattr(entry, "ndim", 0) == 2 for entry in filter
    )
