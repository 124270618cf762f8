"""Twins: locally linear weights and masked affine attention."""

from typing import Any

import numpy as np

from ...solvers import locally_linear_weights
from ..locally_linear import LocallyLinear
from .registry import Array, Twin, register
from .relations import Identity

_N_NEIGHBORS = 10


def _solve(
    layer: LocallyLinear, q: Array, k: Array, v: Array, head: int = 0, context: Any = None
) -> Array:
    if layer.zero_diagonal and len(k) == 1:
        return np.zeros_like(v)
    queries = None if layer.zero_diagonal else q
    n_neighbors = min(layer.n_neighbors, len(k) - layer.zero_diagonal)
    weights = locally_linear_weights(k, n_neighbors=n_neighbors, reg=layer.reg, queries=queries)
    return weights @ v


register(
    Twin(
        name="locally-linear",
        family="locally_linear",
        relation=Identity(tolerance=1e-8),
        equation="SE-9",
        source="Roweis and Saul (2000); Attention: Self-Expression Is All You Need, eq. 9",
        layer=LocallyLinear,
        build=lambda q, k, v: LocallyLinear(_N_NEIGHBORS, zero_diagonal=True),
        solve=_solve,
        pairing="self",
        covers=lambda layer: layer.zero_diagonal,
    )
)
register(
    Twin(
        name="locally-linear-attention",
        family="locally_linear",
        relation=Identity(tolerance=1e-8),
        equation="QK-LLE",
        source="Roweis and Saul (2000)",
        layer=LocallyLinear,
        build=lambda q, k, v: LocallyLinear(_N_NEIGHBORS),
        solve=_solve,
        pairing="cross",
        covers=lambda layer: not layer.zero_diagonal,
    )
)
