"""Twins: locally linear weights and masked affine attention."""

from functools import partial
from typing import Any

import numpy as np
from scipy.spatial.distance import cdist

from ...solvers import locally_linear_weights
from ...unrolled.locally_linear import LocallyLinear
from ..heads import Array, HeadCall, Tensors, choose_largest
from ..judging.certificates import affine_residual, mean_residual
from ..pairs import Inputs, Numerics, calls_of_heads, layer_matrix, layer_output
from ..registry import Twin, add_twin, having
from ..relations import Identity

_N_NEIGHBORS = 10


def _solve(layer: LocallyLinear, call: HeadCall) -> Array:
    """Solve by locally linear weights; of keys that the layer chose, by those alone."""
    q, k, v = call.tokens
    if len(k) - layer.zero_diagonal == 0:
        return np.zeros((len(q), v.shape[1]))
    on_keys = q.shape == k.shape and bool((q == k).all())
    if call.chosen is None and (on_keys or not layer.zero_diagonal):
        queries = None if layer.zero_diagonal else q
        n_neighbors = min(layer.n_neighbors, len(k) - layer.zero_diagonal)
        weights = locally_linear_weights(k, n_neighbors=n_neighbors, reg=layer.reg, queries=queries)
        return np.asarray(weights @ v)
    return np.concatenate(
        [
            locally_linear_weights(k[near], n_neighbors=len(near), reg=layer.reg, queries=query)
            @ v[near]
            for near, query in zip(_neighbors(layer, call), q[:, None], strict=True)
        ]
    )


def _neighbors(layer: LocallyLinear, call: HeadCall) -> list[Array]:
    """Return the nearest keys of each query, without itself if the layer has a zero diagonal."""
    q, k = call.q, call.k
    squares = cdist(q, k, "sqeuclidean")
    if layer.zero_diagonal:
        query_places, key_places = call.places
        squares[query_places[:, None] == key_places] = np.inf
    sizes = (np.linalg.norm(q, axis=1) + np.linalg.norm(k, axis=1).max()) ** 2
    return choose_largest(
        -squares, min(layer.n_neighbors, len(k) - layer.zero_diagonal), sizes, call
    )


def _certify(twin: Twin, layer: LocallyLinear, inputs: Tensors) -> float:
    """Return the worst of `affine_residual` and `mean_residual` in all heads."""
    residuals = []
    weights, outputs = layer_matrix(twin, layer, *inputs[:2]), layer_output(twin, layer, inputs)
    for call, A, u in zip(calls_of_heads(twin, inputs), weights, outputs, strict=True):
        q, k, v = call.tokens
        distances = cdist(q, k)
        if layer.zero_diagonal:
            np.fill_diagonal(distances, np.inf)
        count = min(layer.n_neighbors, len(k) - layer.zero_diagonal)
        residuals += [
            affine_residual(A, q, k, n_neighbors=count, reg=layer.reg, distances=distances),
            mean_residual(u, A, v),
        ]
    return float(np.max(residuals))


def _build(
    q: Array, k: Array, v: Array, *, n_neighbors: int = _N_NEIGHBORS, **settings: Any
) -> LocallyLinear:
    """Build the layer with this number of neighbours."""
    return LocallyLinear(n_neighbors, **settings)


for name, equation, zero_diagonal in (
    ("locally-linear", "SE-9", True),
    ("locally-linear-attention", "QK-LLE", False),
):
    build = partial(_build, zero_diagonal=zero_diagonal)
    add_twin(
        name=name,
        family="locally_linear",
        relation=Identity(1e-8, certificate=_certify),
        equation=equation,
        source="Roweis and Saul (2000); Attention: Self-Expression Is All You Need, eq. 9",
        layer=LocallyLinear,
        build=build,
        options={
            "strong-regularisation": partial(build, reg=0.3),
            "two-neighbors": partial(build, n_neighbors=2),
            "all-neighbors": partial(build, n_neighbors=10_000, reg=0.1),
        },
        solve=_solve,
        inputs=Inputs(pairing="self" if zero_diagonal else "cross"),
        covers=having(zero_diagonal=zero_diagonal),
        numerics=Numerics(rounded="weights", chooses=True),
    )
