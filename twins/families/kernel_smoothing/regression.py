"""Twins: Nadaraya-Watson regression and softmax attention.

Dot products are turned into distances, so that regression on distances also solves kernels of dot
products.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from scipy.spatial.distance import cdist

from ....solvers import nadaraya_watson
from ....unrolled.attention import Attention
from ....unrolled.kernel_smoothing import Gaussian, Softmax
from ...heads import Array, HeadCall, Tensors, head_value, move_parameters
from ...judging.certificates import (
    Logits,
    entropic_residual,
    mean_residual,
    range_of,
    weights_certificate,
)
from ...laws.subject import as_array
from ...pairs import Inputs, Numerics, Rounded, layer_output
from ...registry import Twin, add_twin
from ...relations import Identity

_INPUTS = Inputs()
_PERPLEXITY = 5.0
_N_QUERIES = 64


def lift(q: Array, k: Array) -> tuple[Array, Array]:
    """Return points with the same dot products and one more coordinate, with keys of equal norm.

    For these ``|q - k|^2`` is ``-2 q . k`` up to a term that depends only on the query.
    """
    squares = (k**2).sum(axis=1)
    return np.c_[q, np.zeros(len(q))], np.c_[k, np.sqrt(squares.max() - squares)]


def regress_by_dot_products(
    q: Array, k: Array, v: Array, scale: float = 1.0, bias: Array | None = None
) -> Array:
    """Return ``softmax(scale q k^T + bias) v``, by Gaussian regression and products of weights."""
    if bias is None:
        return nadaraya_watson(*lift(q, k), v, bandwidth=scale**-0.5)
    A = regress_by_dot_products(q, k, np.eye(len(k)), scale) * np.exp(bias)
    return np.asarray(A / A.sum(axis=1, keepdims=True) @ v)


def scale_of(layer: object, q: Array) -> float:
    """Return the scale of a layer's dot products for queries of this width."""
    scale = getattr(layer, "scale", None)
    return q.shape[-1] ** -0.5 if scale is None else float(scale)


def dot_product_range(scale: float, q: Array, k: Array) -> float:
    """Return the largest range of the logits ``scale q . k`` of a head."""
    return scale * max(float(np.ptp(a @ b.T)) for a, b in zip(q, k, strict=True))


def dot_product_logits(layer: Any, call: HeadCall) -> Array:
    """Return ``scale q . k``."""
    return scale_of(layer, call.q) * call.q @ call.k.T


OF_DOT_PRODUCTS = Numerics(range_of(dot_product_logits))


def local_bandwidth(q: Array, k: Array) -> float:
    """Return a bandwidth that suits the data: the one for 64 queries of the first head.

    It makes the median perplexity of their weights 5, the smallest value that is usual for t-SNE,
    or half the number of keys if there are fewer than ten. Bisection finds it to a percent.
    """
    queries, keys = q.reshape(-1, *q.shape[-2:])[0], k.reshape(-1, *k.shape[-2:])[0]
    squares = cdist(queries[:: 1 + len(queries) // _N_QUERIES], keys, "sqeuclidean")
    squares -= squares.min(axis=1, keepdims=True)
    high = float(np.sqrt(squares.max())) or 1.0
    low, wanted = 1e-3 * high, np.log(min(_PERPLEXITY, max(len(keys) / 2, 1.0)))
    while high > 1.01 * low:
        middle = float(np.sqrt(low * high))
        logits = squares / (2 * middle**2)
        weights = np.exp(-logits)
        mass = weights.sum(axis=1)
        entropies = np.log(mass) + (weights * logits).sum(axis=1) / mass
        low, high = (middle, high) if np.median(entropies) < wanted else (low, middle)
    return high


def build_gaussian(q: Array, k: Array, v: Array) -> Gaussian:
    return Gaussian(local_bandwidth(q, k), dtype=torch.float64)


def build_gaussian_heads(q: Array, k: Array, v: Array) -> Gaussian:
    """Build the layer with a learned bandwidth for each head."""
    bandwidth = local_bandwidth(q, k)
    return move_parameters(
        Gaussian(bandwidth, num_heads=len(q), learnable=True, dtype=torch.float64)
    )


def _build_learned(q: Array, k: Array, v: Array) -> Gaussian:
    return move_parameters(Gaussian(local_bandwidth(q, k), learnable=True, dtype=torch.float64))


def solve_gaussian(layer: Gaussian, call: HeadCall) -> Array:
    return nadaraya_watson(call.q, call.k, call.v, bandwidth=_bandwidth(layer, call.q, call.head))


def _bandwidth(layer: Any, q: Array, head: int) -> float:
    """Return the bandwidth of a head: given, or ``d^(1/4)``."""
    if layer.bandwidth is None:
        return q.shape[-1] ** 0.25
    return head_value(layer.bandwidth, head)


def gaussian_logits(layer: Any, call: HeadCall) -> Array:
    """Return ``-|q - k|^2 / (2 h^2)``."""
    return -cdist(call.q, call.k, "sqeuclidean") / (2 * _bandwidth(layer, call.q, call.head) ** 2)


def smoother_logits(layer: Any, call: HeadCall) -> Array:
    """Return the logits of a Gaussian smoother or of one of dot products."""
    logits = dot_product_logits if isinstance(layer, Softmax) else gaussian_logits
    return logits(layer, call)


def solve_softmax(layer: Softmax, call: HeadCall) -> Array:
    return regress_by_dot_products(*call.tokens, scale=scale_of(layer, call.q))


def add_smoother(
    logits: Logits,
    *,
    residual: Callable[..., float] | None = None,
    rounded: Rounded = "anything",
    inputs: Inputs = _INPUTS,
    **fields: Any,
) -> Twin:
    """Register a twin whose weights solve a problem on the simplex with these logits.

    See `weights_certificate` for `logits` and `residual`.
    """
    return add_twin(
        **{
            "family": "kernel_smoothing",
            "relation": Identity(certificate=weights_certificate(logits, residual)),
            "inputs": inputs,
            "numerics": Numerics(range_of(logits, inputs.context), rounded=rounded),
        }
        | fields
    )


def _build_mahalanobis(X: Array) -> Attention:
    """Build one head with the same projection W of queries and keys: the metric is W W^T."""
    dim = X.shape[-1]
    W = np.random.default_rng(0).standard_normal((dim, dim)) / np.sqrt(dim)
    layer = Attention(dim, 1, operator=Gaussian(local_bandwidth(X @ W, X @ W)), bias=False)
    weight = torch.from_numpy(np.concatenate([W.T, W.T, np.eye(dim)]))
    layer.in_proj_weight = torch.nn.Parameter(weight)
    layer.out_proj.weight = torch.nn.Parameter(torch.eye(dim, dtype=torch.float64))
    return layer.double()


def _build_biased_mahalanobis(X: Array) -> Attention:
    """Build the layer with random projections and biases and the default bandwidth."""
    dim, generator = X.shape[-1], torch.Generator().manual_seed(1)
    layer = Attention(dim, 1, operator=Gaussian(), dtype=torch.float64)
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.normal_(std=dim**-0.5, generator=generator)
        for parameter in (layer.in_proj_weight, layer.in_proj_bias):
            parameter[dim : 2 * dim] = parameter[:dim]
    return layer


def _is_mahalanobis(layer: Attention) -> bool:
    """Whether queries and keys of a single head have the same projection."""
    if not isinstance(layer.operator, Gaussian):
        return False
    q, k, _ = layer.in_proj_weight.chunk(3)
    same_bias = layer.in_proj_bias is None or bool(
        (layer.in_proj_bias.chunk(3)[0] == layer.in_proj_bias.chunk(3)[1]).all()
    )
    return layer.num_heads == 1 and same_bias and bool((q == k).all())


def _solve_mahalanobis(layer: Attention, X: Array) -> Array:
    """Solve by regression in the metric of the projection."""
    weights = as_array(layer.in_proj_weight)
    w_q, _, w_v = np.split(weights, 3)
    values, bias = X @ w_v.T, layer.in_proj_bias
    if bias is not None:
        values = values + np.split(as_array(bias), 3)[2]
    smoothed = nadaraya_watson(
        X, X, values, bandwidth=_bandwidth(layer.operator, X, 0), precision=w_q.T @ w_q
    )
    out = smoothed @ as_array(layer.out_proj.weight).T
    return out if bias is None else out + as_array(layer.out_proj.bias)


def _certify_mahalanobis(twin: Twin, layer: Attention, inputs: Tensors) -> float:
    """Return the residuals of the shell's weights, and of its output for these weights."""
    X = as_array(inputs[0])
    w_q, _, w_v = np.split(as_array(layer.in_proj_weight), 3)
    b_v = b_out = np.zeros(X.shape[1])
    if layer.in_proj_bias is not None:
        b_v = np.split(as_array(layer.in_proj_bias), 3)[2]
        b_out = as_array(layer.out_proj.bias)
    with torch.no_grad():
        A = as_array(layer(*(inputs[0][None],) * 3)[1][0])
    projected = X @ w_q.T
    values = (X @ w_v.T + b_v) @ as_array(layer.out_proj.weight).T + b_out
    return max(
        entropic_residual(
            A, gaussian_logits(layer.operator, HeadCall(projected, projected, values))
        ),
        mean_residual(layer_output(twin, layer, inputs), A, values),
    )


def _mahalanobis_logit_range(layer: Attention, X: Array) -> float:
    projected = (X @ as_array(layer.in_proj_weight)[: X.shape[1]].T)[None]
    return range_of(gaussian_logits)(layer.operator, projected, projected, projected)


_SOURCE = "Attention: Self-Expression Is All You Need, eq. 6 and 7"
add_smoother(
    gaussian_logits,
    name="gaussian-attention",
    equation="SE-6",
    source=_SOURCE,
    layer=Gaussian,
    build=build_gaussian,
    options={
        "default-bandwidth": lambda q, k, v: Gaussian(),
        "learned-bandwidth": _build_learned,
        "learned-bandwidths": build_gaussian_heads,
    },
    solve=solve_gaussian,
    fitted={"bandwidth": lambda head_dim: head_dim**0.25},
)
add_smoother(
    dot_product_logits,
    name="softmax-attention",
    equation="SE-7",
    source=_SOURCE,
    layer=Softmax,
    build=lambda q, k, v: Softmax(scale=local_bandwidth(q, k) ** -2),
    options={"default-scale": lambda q, k, v: Softmax()},
    solve=solve_softmax,
    fitted={"scale": lambda head_dim: head_dim**-0.5},
)
add_twin(
    name="mahalanobis-attention",
    family="kernel_smoothing",
    source=_SOURCE,
    equation="SE-7m",
    relation=Identity(certificate=_certify_mahalanobis),
    layer=Attention,
    build=_build_mahalanobis,
    options={"biases": _build_biased_mahalanobis},
    solve=_solve_mahalanobis,
    inputs=Inputs(
        "features",
        apply=lambda layer, X: layer(X[None], X[None], X[None], need_weights=False)[0][0],
    ),
    covers=_is_mahalanobis,
    numerics=Numerics(logit_range=_mahalanobis_logit_range),
)
