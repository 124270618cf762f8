"""Twins: kernel regression and filters on fixed or chosen neighbours, and local attention."""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
from scipy.spatial.distance import cdist

from ....solvers import nadaraya_watson
from ....solvers.image_filters import bilateral_matrix
from ...kernel_smoothing import CrissCross, Local, SpatialGaussian, TopK
from ..certificates import entropic_residual, weights_certificate
from ..heads import HeadCall, Tensors, largest
from ..parameters import head_value, moved
from ..registry import Array, Twin, register
from ..relations import Identity
from .lifted_points import dot_product_logits, dot_product_range, lift, scale_of
from .regression import local_bandwidth

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
    q, k = lift(q, k)
    rows = [
        nadaraya_watson(q[i : i + 1], k[near], v[near], bandwidth=scale**-0.5)
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


def _logit_range(layer: Any, q: Array, k: Array, v: Array) -> float:
    return dot_product_range(scale_of(layer, q), q, k)


def _spatial_range(layer: SpatialGaussian, q: Array, k: Array, v: Array) -> float:
    width = layer.grid.width or 1
    squares = ((_on_grid(np.array([q.shape[-2] - 1]), width, 0) + width) ** 2).sum()
    return float(squares) / (2 * head_value(layer.bandwidth, 0) ** 2)


def _scale(q: Array, k: Array) -> float:
    return local_bandwidth(q, k) ** -2


_OPTIONS: dict[str, dict[str, Callable[..., torch.nn.Module]]] = {
    "local-window": {
        "sequence": lambda q, k, v: Local(2),
        "class-tokens": lambda q, k, v: Local(1, width=5, n_class_tokens=2),
    },
    "criss-cross": {
        "sequence": lambda q, k, v: CrissCross(),
        "class-tokens": lambda q, k, v: CrissCross(5, n_class_tokens=2),
    },
    "top-k": {
        "default-scale": lambda q, k, v: TopK(_N_LARGEST),
        "one": lambda q, k, v: TopK(1),
        "all": lambda q, k, v: TopK(10_000),
    },
}
for name, layer_type, build, solve, certificate in (
    ("local-window", Local,
     lambda q, k, v: Local(3, width=_grid_width(q), scale=_scale(q, k)), _solve_fixed,
     weights_certificate(_fixed_logits)),
    ("criss-cross", CrissCross,
     lambda q, k, v: CrissCross(max(4, _grid_width(q)), scale=_scale(q, k)), _solve_fixed,
     weights_certificate(_fixed_logits)),
    ("top-k", TopK, lambda q, k, v: TopK(_N_LARGEST, scale=_scale(q, k)), _solve_top_k,
     _certify_top_k),
):  # fmt: skip
    register(
        Twin(
            name=name,
            family="kernel_smoothing",
            relation=Identity(),
            equation="QK-local",
            source="Attention: Self-Expression Is All You Need",
            layer=layer_type,
            build=build,
            options=_OPTIONS[name],
            solve=solve,
            reads_bias=layer_type is TopK,
            chooses=layer_type is TopK,
            certificate=certificate,
            logit_range=_logit_range,
        )
    )
register(
    Twin(
        name="spatial-gaussian",
        family="kernel_smoothing",
        relation=Identity(),
        equation="IF-13, QK-local",
        source="Tomasi and Manduchi (1998); Revisiting Transformers, eq. 13",
        layer=SpatialGaussian,
        build=_build_spatial,
        options={
            "sequence": lambda q, k, v: SpatialGaussian(2.5),
            "class-tokens": _build_spatial_heads,
        },
        solve=_solve_spatial,
        fitted=("bandwidth",),
        certificate=weights_certificate(_spatial_logits),
        logit_range=_spatial_range,
    )
)
