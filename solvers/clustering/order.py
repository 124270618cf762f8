"""An order of samples that depends on their values alone, so that answers do not depend on theirs.

Ties between neighbours, seeds drawn by index and rounding make a clusterer depend on the order in
which the samples come. A clusterer that computes on the samples in this order does not. Equal rows
cannot be told apart: they may exchange their labels.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import wraps
from typing import Any, TypeVar

import numpy as np
from scipy.sparse import csr_array

from ..inputs import Array, check_dense_or_sparse, narrow

Step = TypeVar("Step", bound=Callable[..., Any])
_order: ContextVar[Array | None] = ContextVar("order of the samples", default=None)


def row_order(X: Array | csr_array) -> Array:
    """Indices that sort the rows by their distance from the mean, the farthest first.

    Equal distances are sorted by value, so that the order of the rows plays no part at all. Up to
    rounding, neither do units, rotations and the origin. The rows of a sparse matrix keep theirs.
    """
    if isinstance(X, csr_array) or X.shape[1] == 0:
        return np.arange(X.shape[0])
    order = _order_by_value(X)
    rows = X[order].astype(np.float64)  # sums in this order are the same to the last bit
    scaled = rows / (np.abs(rows).max() or 1.0)
    squares = ((scaled - scaled.mean(axis=0)) ** 2).sum(axis=1)
    return order[np.argsort(-squares, kind="stable")]


def _order_by_value(X: Array) -> Array:
    """Indices that sort the rows by their bytes, column by column."""
    floats = X.astype(np.result_type(X.dtype, np.float32)) + 0.0  # of both zeros, the positive one
    # Big-endian bytes of floats compare as the floats do, but for the sign.
    digits = np.ascontiguousarray(floats, dtype=floats.dtype.newbyteorder(">"))
    rows = digits.view(f"V{digits.itemsize * digits.shape[1]}").ravel()
    return np.argsort(rows, kind="stable")


def reordered(pairs: Array | csr_array, order: Array) -> Array | csr_array:
    """Return a matrix over pairs of samples with rows and columns in another order."""
    if isinstance(pairs, csr_array):
        return narrow(pairs[order][:, order])
    return pairs[np.ix_(order, order)]


@contextmanager
def samples_in(order: Array | None) -> Iterator[None]:
    """Let the steps under `in_order_of_samples` compute in this order; None is the given order."""
    before = _order.set(order)
    try:
        yield
    finally:
        _order.reset(before)


def in_order_of_samples(step: Step) -> Step:
    """Decorate a step that computes in the order of `samples_in` and answers in the given one.

    So ties and rounding do not depend on the given order, whoever calls the step.
    """

    @wraps(step)
    def ordered(coef: Any, *args: Any, **kwargs: Any) -> Any:
        order = _order.get()
        if order is None or np.shape(coef) != (len(order), len(order)):
            return step(coef, *args, **kwargs)
        with samples_in(None):
            result = step(reordered(check_dense_or_sparse(coef, "coef"), order), *args, **kwargs)
        return reordered(result, np.argsort(order))

    return ordered  # type: ignore[return-value]
