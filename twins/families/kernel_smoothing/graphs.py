"""Twins: kernel regression on fixed, chosen or nearby neighbours, and graph attention."""

from functools import partial
from typing import Any

import numpy as np
import torch
from scipy.spatial.distance import cdist
from scipy.special import softmax
from torch import Tensor

from ....solvers import nadaraya_watson, split_frequencies
from ....solvers.image_filters import bilateral_matrix
from ....solvers.spectral_filtering import high_frequency_gain_bound
from ....unrolled.kernel_smoothing import CrissCross, Local, Logistic, SpatialGaussian, TopK
from ...heads import Array, HeadCall, Tensors, choose_largest, head_value, heads, move_parameters
from ...judging.certificates import entropic_residual, range_of, weights_certificate
from ...laws.subject import as_array
from ...pairs import Inputs, Numerics
from ...registry import Twin, add_twin
from ...relations import Bound, Identity, Inequalities
from ..tasks import distances, filtering
from .regression import (
    OF_DOT_PRODUCTS,
    add_smoother,
    dot_product_logits,
    lift,
    local_bandwidth,
    regress_by_dot_products,
    scale_of,
)
from .smoothing_bounds import N_EXTREMAL, attain_gain, head_matrices

_N_LARGEST = 10


def _grid_width(q: Array) -> int:
    """Return the width of the grid if the tokens are those of a square image, or else 1."""
    side = round(q.shape[-2] ** 0.5)
    return side if side**2 == q.shape[-2] else 1


def _grid_geometry(layer: Any, call: HeadCall) -> tuple[int, int]:
    """Return the number of columns and of class tokens."""
    if call.grid is not None:
        return call.grid[1], call.n_class_tokens
    return layer.grid.width or 1, layer.grid.n_class_tokens


def _grid_positions(places: Array, width: int, n_class: int) -> Array:
    """Return the row and column of tokens; those of class tokens mean nothing."""
    return np.stack(np.divmod(places - n_class, width), axis=1)


def _regress(neighbors: list[Array], q: Array, k: Array, v: Array, scale: float) -> Array:
    """Regress each query on its neighbours; a query without any has the output zero."""
    out = np.zeros((len(q), v.shape[1]))
    for i, near in enumerate(neighbors):
        if len(near):
            out[i] = regress_by_dot_products(q[i : i + 1], k[near], v[near], scale)[0]
    return out


def _find_near(layer: Local | CrissCross, call: HeadCall) -> Array:
    """Return which keys each query sees, of shape (n_queries, n_keys)."""
    width, n_class = _grid_geometry(layer, call)
    places = call.places
    rows, columns = (_grid_positions(x, width, n_class) for x in places)
    offsets = np.abs(rows[:, None] - columns[None])
    if isinstance(layer, Local):
        near = offsets.max(axis=2) <= layer.radius
    else:
        near = offsets.min(axis=2) == 0
    return near | np.logical_or.outer(*(x < n_class for x in places))


def _solve_fixed(layer: Local | CrissCross, call: HeadCall) -> Array:
    """Solve by regression on the keys that each query sees."""
    q, k = call.q, call.k
    near = [np.flatnonzero(row) for row in _find_near(layer, call)]
    return _regress(near, q, k, call.v, scale_of(layer, q))


def neighborhood_logits(layer: Local | CrissCross, call: HeadCall) -> Array:
    """Return ``scale q . k``, and -inf for keys that are not near."""
    return np.where(_find_near(layer, call), dot_product_logits(layer, call), -np.inf)


def _solve_top_k(layer: TopK, call: HeadCall) -> Array:
    """Solve by regression on the keys with the largest logits."""
    q, k = call.q, call.k
    scale = scale_of(layer, q)
    if call.bias is not None:
        # The bias is one more feature of the keys for each query, which no other query reads.
        q, k = np.c_[q, np.eye(len(q))], np.c_[k, call.bias.T / scale]
    sizes = np.linalg.norm(q, axis=1) * np.linalg.norm(k, axis=1).max()
    return _regress(choose_largest(q @ k.T, layer.n_largest, sizes, call), q, k, call.v, scale)


def _certify_top_k(twin: Twin, layer: TopK, inputs: Tensors) -> float:
    """Judge the weights among those of any `n_largest` keys: this judges the choice too."""
    residual = partial(entropic_residual, n_largest=layer.n_largest)
    return weights_certificate(dot_product_logits, residual)(twin, layer, inputs)


def _build_spatial(q: Array, k: Array, v: Array) -> SpatialGaussian:
    """Build on a grid; points to cluster are a sequence, as a square's symmetries leave ties."""
    width = _grid_width(q) if v.shape[-1] == 1 else 1
    return SpatialGaussian(1.2, width=width, dtype=torch.float64)


def _build_spatial_heads(q: Array, k: Array, v: Array) -> SpatialGaussian:
    """Build the layer with a learned bandwidth for each head, on a grid with class tokens."""
    return move_parameters(
        SpatialGaussian(
            1.2, width=5, n_class_tokens=2, num_heads=len(q), learnable=True, dtype=torch.float64
        )
    )


def _solve_spatial(layer: SpatialGaussian, call: HeadCall) -> Array:
    """Solve by the bilateral filter with infinite range width on the grid, cut to its tokens."""
    width, n_class = _grid_geometry(layer, call)
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
    """Return ``-d^2 / (2 h^2)`` with distances d on the grid, which are 0 for class tokens."""
    width, n_class = _grid_geometry(layer, call)
    places = call.places
    squares = cdist(*(_grid_positions(x, width, n_class) for x in places), "sqeuclidean")
    squares[np.logical_or.outer(*(x < n_class for x in places))] = 0
    return -squares / (2 * head_value(layer.bandwidth, call.head) ** 2)


def _local_scale(q: Array, k: Array) -> float:
    return local_bandwidth(q, k) ** -2


_on_graph = partial(
    add_smoother, equation="QK-local", source="Attention: Self-Expression Is All You Need"
)
_on_graph(
    neighborhood_logits,
    numerics=OF_DOT_PRODUCTS,
    name="local-window",
    layer=Local,
    build=lambda q, k, v: Local(3, width=_grid_width(q), scale=_local_scale(q, k)),
    options={
        "sequence": lambda q, k, v: Local(2),
        "class-tokens": lambda q, k, v: Local(1, width=5, n_class_tokens=2),
    },
    solve=_solve_fixed,
)
_on_graph(
    neighborhood_logits,
    numerics=OF_DOT_PRODUCTS,
    name="criss-cross",
    layer=CrissCross,
    build=lambda q, k, v: CrissCross(max(4, _grid_width(q)), scale=_local_scale(q, k)),
    options={
        "sequence": lambda q, k, v: CrissCross(),
        "class-tokens": lambda q, k, v: CrissCross(5, n_class_tokens=2),
    },
    solve=_solve_fixed,
)
_on_graph(
    dot_product_logits,
    name="top-k",
    relation=Identity(certificate=_certify_top_k),
    layer=TopK,
    build=lambda q, k, v: TopK(_N_LARGEST, scale=_local_scale(q, k)),
    options={
        "default-scale": lambda q, k, v: TopK(_N_LARGEST),
        "one": lambda q, k, v: TopK(1),
        "all": lambda q, k, v: TopK(10_000),
    },
    solve=_solve_top_k,
    inputs=Inputs(reads_bias=True),
    numerics=Numerics(range_of(dot_product_logits), chooses=True),
)
_on_graph(
    _spatial_logits,
    name="spatial-gaussian",
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
)


_WINDOW = 1.2  # width of a window's Gaussian, in pixels


def _build_logistic(
    q: Array, k: Array, v: Array, *, negative_slope: float | None, of_heads: bool = True
) -> Logistic:
    """Build the layer with weights that make the largest terms 2, and with a negative bias."""
    layer = Logistic(
        q.shape[-1],
        num_heads=len(q) if of_heads else None,
        negative_slope=negative_slope,
        dtype=torch.float64,
    )
    rng = np.random.default_rng(0)
    with torch.no_grad():
        for weight, points in ((layer.query_weight, q), (layer.key_weight, k)):
            drawn = rng.standard_normal(tuple(weight.shape))
            terms = np.abs(points @ drawn).max()
            weight.copy_(torch.from_numpy(2 * drawn / terms))
        layer.bias.fill_(-0.7)
    return layer


def _build_window(q: Array, k: Array, v: Array, *, negative_slope: float | None) -> Logistic:
    """Build with weights that fall as a Gaussian of the distance to the middle of a window."""
    layer = Logistic(1, negative_slope=negative_slope, dtype=torch.float64)
    with torch.no_grad():
        for weight in (layer.query_weight, layer.key_weight):  # terms are negative
            weight.fill_(-0.5 / _WINDOW**2 / (negative_slope or 1))
        layer.bias.zero_()
    return layer


def _covers(layer: Logistic, *, leaky: bool) -> bool:
    return (layer.negative_slope is not None) == leaky


def _parameters(layer: Logistic, head: int) -> tuple[Array, Array, float]:
    """Return u_Q, u_K and b of a head."""
    parameters = (layer.query_weight, layer.key_weight, layer.bias)
    index = 0 if layer.num_heads is None else head
    u_q, u_k, b = (as_array(p).reshape(-1, *p.shape[-2:])[index][:, 0] for p in parameters)
    return u_q, u_k, float(b[0])


def _solve_rank_one(layer: Logistic, call: HeadCall) -> Array:
    terms = (call.k @ _parameters(layer, call.head)[1])[:, None]
    return nadaraya_watson(*lift(np.ones((len(call.q), 1)), terms), call.v, bandwidth=1.0)


def _solve_leaky(layer: Logistic, call: HeadCall) -> Array:
    """Solve by the softmax of leaky logits, as in the definition."""
    u_q, u_k, b = _parameters(layer, call.head)
    logits = np.add.outer(call.q @ u_q, call.k @ u_k) + b
    slope = layer.negative_slope or 1.0
    return np.asarray(softmax(np.where(logits > 0, logits, slope * logits), axis=1) @ call.v)


def _logistic_logits(layer: Logistic, call: HeadCall) -> Array:
    """Return the logits, through the leaky ReLU."""
    u_q, u_k, b = _parameters(layer, call.head)
    terms = (call.q @ u_q)[:, None] + call.k @ u_k + b
    slope = 1.0 if layer.negative_slope is None else layer.negative_slope
    return np.asarray(np.maximum(terms, 0) + slope * np.minimum(terms, 0))


def _bound_gain(layer: Logistic, q: Tensor, k: Tensor, v: Tensor) -> Inequalities:
    """Compare both sides of ``|HC[A v]|_F <= |H A H|_2 |HC v|_F <= bound(alpha) |HC v|_F``.

    Here ``alpha = |u_K| gamma``. The singular vectors of H A H attain the first bound.
    """
    sides = Inequalities()
    for head, (keys, values, smoothed) in heads((k, v, layer(q, k, v))):
        gamma = float(np.linalg.norm(keys, axis=1).max())
        alpha = float(np.linalg.norm(_parameters(layer, head)[1])) * gamma
        before, after = (np.linalg.norm(split_frequencies(x)[1]) for x in (values, smoothed))
        sides.at_most(after, high_frequency_gain_bound(len(values), alpha) * before)
    few_q, few_k = q[:, :N_EXTREMAL], k[:, :N_EXTREMAL]
    matrices = head_matrices(partial(_solve_leaky, layer), few_q, few_k)
    attain_gain(sides, partial(layer, few_q, few_k), matrices, v)
    _attain_alpha(sides, layer, k)
    return sides


def _attain_alpha(sides: Inequalities, layer: Logistic, k: Tensor) -> None:
    """Compare the range of a row's logits with ``2 alpha``, times the slope if all are negative.

    Keys of size gamma along u_K attain it, for queries far along u_Q.
    """
    slope = layer.negative_slope or 1.0
    queries, keys, alphas = [], [], []
    for head, (points,) in heads((k,)):
        u_q, u_k, b = _parameters(layer, head)
        gamma = float(np.linalg.norm(points, axis=1).max())
        alphas.append(gamma * float(np.linalg.norm(u_k)))
        far = (alphas[-1] + abs(b) + 1) * u_q / (u_q @ u_q)
        along = gamma * u_k / np.linalg.norm(u_k)
        queries.append([far, -far])
        keys.append([along, -along])
    pairs = (torch.from_numpy(np.array(x)).to(k.dtype) for x in (queries, keys))
    A = as_array(layer(*pairs, torch.eye(2, dtype=k.dtype).expand(len(k), 2, 2)))
    with np.errstate(divide="ignore", invalid="ignore"):
        ranges = np.log(A[..., 0]) - np.log(A[..., 1])
    sides.attained(ranges, 2 * np.outer(alphas, [1, slope]))


def _list_logistic_options(negative_slope: float | None) -> dict[str, Any]:
    """Return builders with other settings, by name."""
    options = {
        "one-for-all-heads": partial(_build_logistic, negative_slope=negative_slope, of_heads=False)
    }
    if negative_slope is not None:
        options["other-slope"] = partial(_build_logistic, negative_slope=1.5)
    return options


_logistic = partial(
    add_twin,
    family="kernel_smoothing",
    source="Velickovic et al. (2018); Anti-Oversmoothing in Deep ViTs, eq. 68",
    layer=Logistic,
    numerics=Numerics(range_of(_logistic_logits)),
)
for name, negative_slope, solve in (
    ("logistic-attention", None, _solve_rank_one),
    ("graph-attention", 0.2, _solve_leaky),
):
    _logistic(
        relation=Identity(certificate=weights_certificate(_logistic_logits)),
        name=name,
        equation="AO-68",
        build=partial(_build_logistic, negative_slope=negative_slope),
        options=_list_logistic_options(negative_slope),
        task=filtering(
            partial(_build_window, negative_slope=negative_slope), solve, points=distances
        ),
        solve=solve,
        covers=partial(_covers, leaky=negative_slope is not None),
    )
_logistic(
    name="graph-attention-gain-bound",
    relation=Bound(sides=_bound_gain),
    equation="AO-68b, AO-6",
    build=partial(_build_logistic, negative_slope=0.2),
    task=filtering(
        partial(_build_window, negative_slope=0.2),
        _solve_leaky,
        points=distances,
        sides=_bound_gain,
    ),
    solve=_solve_leaky,
    covers=partial(_covers, leaky=True),
)
