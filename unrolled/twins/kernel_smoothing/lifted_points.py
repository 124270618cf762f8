"""Dot products as distances, so that regression on distances serves dot-product kernels."""

from typing import Any

import numpy as np

from ..heads import HeadCall
from ..registry import Array


def lift(q: Array, k: Array) -> tuple[Array, Array]:
    """Points with the same dot products whose keys all have the same norm, by one coordinate more.

    Then ``|q - k|^2`` is ``-2 q . k`` up to a term of the query.
    """
    squares = (k**2).sum(axis=1)
    return np.c_[q, np.zeros(len(q))], np.c_[k, np.sqrt(squares.max() - squares)]


def dot_product_range(scale: float, q: Array, k: Array) -> float:
    """Largest range of the logits ``scale q . k`` over the heads."""
    return scale * max(float(np.ptp(a @ b.T)) for a, b in zip(q, k, strict=True))


def scale_of(layer: object, q: Array) -> float:
    """The scale of the dot products that a layer uses on queries of this width."""
    scale = getattr(layer, "scale", None)
    return q.shape[-1] ** -0.5 if scale is None else float(scale)


def dot_product_logits(layer: Any, call: HeadCall) -> Array:
    """``scale q . k``."""
    return scale_of(layer, call.q) * call.q @ call.k.T
