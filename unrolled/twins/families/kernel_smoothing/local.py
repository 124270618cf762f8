"""Twins: kernel regression and filters on fixed or chosen neighbours, and local attention."""

from functools import partial
from typing import Any

import numpy as np
import torch
from scipy.spatial.distance import cdist

from .....solvers.image_filters import bilateral_matrix
from ....kernel_smoothing import CrissCross, Local, SpatialGaussian, TopK
from ...certificates import entropic_residual, range_of, weights_certificate
from ...heads import Array, HeadCall, Tensors, head_value, largest, moved
from ...pairs import Inputs, Numerics
from ...registry import Twin, add_twin
from ...relations import Identity
from .regression import (
    OF_DOT_PRODUCTS,
    dot_product_logits,
    local_bandwidth,
    regress_by_dot_products,
    scale_of,
)

_N_LARGEST = 10


def _grid_width(q: Array) -> int:
    """Tokens of a square image lie on their grid; others are a sequence."""
    side = round(q.shape[-2] ** 0.5)
    return side if side**2 == q.shape[-2] else 1


def _geometry(layer: Any, call: HeadCall) -> tuple[int, int]:
    """Number of columns and of class tokens."""
    if call.grid is not None:
        return call.grid[1], call.n_class_tokens
    return layer.grid.width or 1, layer.grid.n_class_tokens


def _on_grid(places: Array, width: int, n_class: int) -> Array:
    """Row and column of tokens; class tokens stand nowhere."""
    return np.stack(np.divmod(places - n_class, width), axis=1)


def _regress(neighbors: list[Array], q: Array, k: Array, v: Array, scale: float) -> Array:
    """Regression of each query on its neighbours alone."""
    rows = [
        regress_by_dot_products(q[i : i + 1], k[near], v[near], scale)
        for i, near in enumerate(neighbors)
    ]
    return np.concatenate(rows)


def _near(layer: Local | CrissCross, call: HeadCall) -> Array:
    """Which keys each query sees."""
    width, n_class = _geometry(layer, call)
    places = call.places
    rows, columns = (_on_grid(x, width, n_class) for x in places)
    offsets = np.abs(rows[:, None] - columns[None])
    if isinstance(layer, Local):
        near = offsets.max(axis=2) <= layer.radius
    else:
        near = offsets.min(axis=2) == 0
    return near | np.logical_or.outer(*(x < n_class for x in places))


def _solve_fixed(layer: Local | CrissCross, call: HeadCall) -> Array:
    q, k = call.q, call.k
    near = [np.flatnonzero(row) for row in _near(layer, call)]
    return _regress(near, q, k, call.v, scale_of(layer, q))


def _fixed_logits(layer: Local | CrissCross, call: HeadCall) -> Array:
    return np.where(_near(layer, call), dot_product_logits(layer, call), -np.inf)


def _solve_top_k(layer: TopK, call: HeadCall) -> Array:
    q, k = call.q, call.k
    scale = scale_of(layer, q)
    if call.bias is not None:
        # One more feature of the keys for each query, which it alone reads, is a bias.
        q, k = np.c_[q, np.eye(len(q))], np.c_[k, call.bias.T / scale]
    sizes = np.linalg.norm(q, axis=1) * np.linalg.norm(k, axis=1).max()
    return _regress(largest(q @ k.T, layer.n_largest, sizes, call), q, k, call.v, scale)


def _certify_top_k(twin: Twin, layer: TopK, inputs: Tensors) -> float:
    """The best weights of any `n_largest` keys, so that the choice of these is judged too."""
    residual = partial(entropic_residual, n_largest=layer.n_largest)
    return weights_certificate(dot_product_logits, residual)(twin, layer, inputs)


def _build_spatial(q: Array, k: Array, v: Array) -> SpatialGaussian:
    """Points to cluster are a sequence: symmetries of a square would leave clusters to rounding."""
    width = _grid_width(q) if v.shape[-1] == 1 else 1
    return SpatialGaussian(1.2, width=width, dtype=torch.float64)


def _build_spatial_heads(q: Array, k: Array, v: Array) -> SpatialGaussian:
    return moved(
        SpatialGaussian(
            1.2,
            width=5,
            n_class_tokens=2,
            num_heads=len(q),
            learnable=True,
            dtype=torch.float64,
        )
    )


def _solve_spatial(layer: SpatialGaussian, call: HeadCall) -> Array:
    """The bilateral filter of infinite range width on the whole grid, then on its tokens alone."""
    width, n_class = _geometry(layer, call)
    query_places, key_places = call.places
    n_tokens = max(1, 1 + max(query_places.max(), key_places.max()) - n_class)
    n_rows = -(-n_tokens // width)
    A = bilateral_matrix(
        np.zeros((n_rows, width)),
        win_size=2 * max(n_rows, width) + 1,
        sigma_color=np.inf,
        sigma_spatial=head_value(layer.bandwidth, call.head),
    )[:n_tokens, :n_tokens]
    A = np.pad(A / A.diagonal()[:, None], (n_class, 0), constant_values=1.0)
    A = A[np.ix_(query_places, key_places)]
    return A @ call.v / A.sum(axis=1, keepdims=True)


def _spatial_logits(layer: SpatialGaussian, call: HeadCall) -> Array:
    """Minus half the squared distances on the grid; class tokens are at none of any token."""
    width, n_class = _geometry(layer, call)
    places = call.places
    squares = cdist(*(_on_grid(x, width, n_class) for x in places), "sqeuclidean")
    squares[np.logical_or.outer(*(x < n_class for x in places))] = 0
    return -squares / (2 * head_value(layer.bandwidth, call.head) ** 2)


def _scale(q: Array, k: Array) -> float:
    return local_bandwidth(q, k) ** -2


_local = partial(
    add_twin,
    family="kernel_smoothing",
    equation="QK-local",
    source="Attention: Self-Expression Is All You Need",
    numerics=OF_DOT_PRODUCTS,
)
_local(
    name="local-window",
    relation=Identity(certificate=weights_certificate(_fixed_logits)),
    layer=Local,
    build=lambda q, k, v: Local(3, width=_grid_width(q), scale=_scale(q, k)),
    options={
        "sequence": lambda q, k, v: Local(2),
        "class-tokens": lambda q, k, v: Local(1, width=5, n_class_tokens=2),
    },
    solve=_solve_fixed,
)
_local(
    name="criss-cross",
    relation=Identity(certificate=weights_certificate(_fixed_logits)),
    layer=CrissCross,
    build=lambda q, k, v: CrissCross(max(4, _grid_width(q)), scale=_scale(q, k)),
    options={
        "sequence": lambda q, k, v: CrissCross(),
        "class-tokens": lambda q, k, v: CrissCross(5, n_class_tokens=2),
    },
    solve=_solve_fixed,
)
_local(
    name="top-k",
    relation=Identity(certificate=_certify_top_k),
    layer=TopK,
    build=lambda q, k, v: TopK(_N_LARGEST, scale=_scale(q, k)),
    options={
        "default-scale": lambda q, k, v: TopK(_N_LARGEST),
        "one": lambda q, k, v: TopK(1),
        "all": lambda q, k, v: TopK(10_000),
    },
    solve=_solve_top_k,
    inputs=Inputs(reads_bias=True),
    numerics=Numerics(range_of(dot_product_logits), chooses=True),
)
_local(
    name="spatial-gaussian",
    relation=Identity(certificate=weights_certificate(_spatial_logits)),
    equation="IF-13, QK-local",
    source="Tomasi and Manduchi (1998); Revisiting Transformers, eq. 13",
    layer=SpatialGaussian,
    build=_build_spatial,
    options={
        "sequence": lambda q, k, v: SpatialGaussian(2.5),
        "class-tokens": _build_spatial_heads,
    },
    solve=_solve_spatial,
    fitted={"bandwidth": None},
    numerics=Numerics(range_of(_spatial_logits)),
)
