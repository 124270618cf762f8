"""Twins: regression with kernels by name, function and features; sparsemax; linear and balanced.

The evidence for iterates of Sinkhorn balancing is a formula: rows and columns of entries, not of
logarithms, are divided by their sums. Only the limit solves a problem: it is a projection.
"""

import copy
from functools import partial
from typing import Any

import numpy as np
import torch
from scipy.spatial.distance import cdist
from scipy.special import logsumexp
from torch import Tensor

from ....solvers import least_squares_self_expression, nadaraya_watson, sinkhorn, sparsemax
from ....unrolled.attention import SoftmaxSmoother
from ....unrolled.kernel_smoothing import (
    CrissCross,
    FeatureKernel,
    Gaussian,
    Kernel,
    Linear,
    Local,
    Sinkhorn,
    Softmax,
    Sparsemax,
)
from ....unrolled.kernel_smoothing.kernel import LogKernel
from ...heads import Array, HeadCall, head_value, heads, move_parameters
from ...judging.certificates import (
    Logits,
    balanced_residual,
    projection_residual,
    range_of,
    weights_certificate,
)
from ...laws.subject import as_array, identity_values
from ...pairs import Inputs, Numerics, solve_head
from ...registry import add_twin, exact_twin, having, numerics_of_base
from ...relations import Bound, FixedPointLimit, Identity, Inequalities, Iterate
from .graphs import neighborhood_logits
from .regression import (
    add_smoother,
    build_gaussian,
    dot_product_logits,
    dot_product_range,
    gaussian_logits,
    lift,
    local_bandwidth,
    scale_of,
)

_FAR = 1e13  # penalty over s_1^2: the limit is reached up to 1e-13


def student_kernel(q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
    """Logarithm of the heavy-tailed kernel ``1 / (1 + |q - k|^2)``."""
    return -torch.log1p((q[..., :, None, :] - k[..., None, :, :]).square().sum(dim=-1))


def _student_weights(r: Array) -> Array:
    return 1 / (1 + r**2)


def _build_kernel(
    q: Array, k: Array, v: Array, *, kernel: str | LogKernel, learned: bool = False
) -> Kernel:
    """Build the layer with this kernel and, if `learned`, a bandwidth for each head."""
    settings: dict[str, Any] = {"num_heads": len(q), "learnable": True} if learned else {}
    layer = Kernel(kernel, local_bandwidth(q, k), dtype=torch.float64, **settings)
    return move_parameters(layer) if learned else layer


def _solve_kernel(layer: Kernel, call: HeadCall) -> Array:
    """Solve by Nadaraya-Watson regression with the kernel."""
    q, k, v = call.tokens
    bandwidth = head_value(layer.bandwidth, call.head)
    if layer.kernel == "exponential":
        q, k = lift(q, k)
        return nadaraya_watson(q, k, v, bandwidth=bandwidth)
    kernel = layer.kernel if isinstance(layer.kernel, str) else _student_weights
    return nadaraya_watson(q, k, v, bandwidth=bandwidth, kernel=kernel)


def _kernel_logits(layer: Kernel, call: HeadCall) -> Array:
    """Return the logarithms of the weights, up to a constant of each row."""
    q, k = call.q, call.k
    q, k = (x / head_value(layer.bandwidth, call.head) for x in (q, k))
    if layer.kernel == "exponential":
        return q @ k.T
    r = cdist(q, k)
    return {"gaussian": -(r**2) / 2, "laplace": -r}.get(str(layer.kernel), -np.log1p(r**2))


def squared_features(x: torch.Tensor) -> torch.Tensor:
    """Return features of a kernel that is not the default."""
    return torch.cat([x.square(), x + x.square() + 1], dim=-1)


class Landmarks(torch.nn.Module):
    """Features that nearby tokens share: Gaussians around given points, and a small constant.

    Without the constant, weights of tokens far from all points would be rounding.
    """

    def __init__(self, points: Array, bandwidth: float) -> None:
        super().__init__()
        self.register_buffer("points", torch.from_numpy(points))
        self.bandwidth = bandwidth

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        differences = x[..., :, None, :] - self.get_buffer("points").to(x.dtype)
        near = (-differences.square().sum(dim=-1) / (2 * self.bandwidth**2)).exp()
        return torch.cat([near, torch.full_like(near[..., :1], 0.01)], dim=-1)


def _build_local_features(q: Array, k: Array, v: Array) -> FeatureKernel:
    return FeatureKernel(Landmarks(k[0], local_bandwidth(q, k)))


def _features(layer: FeatureKernel, x: Array) -> Array:
    """Evaluate ``elu(x) + 1``, or the user's own map, in float64."""
    if layer.feature_map is None:
        return np.where(x > 0, x + 1, np.exp(np.minimum(x, 0)))
    feature_map = copy.deepcopy(layer.feature_map)
    if isinstance(feature_map, torch.nn.Module):
        feature_map = feature_map.double()
    with torch.no_grad():
        return as_array(feature_map(torch.from_numpy(x)))


def _solve_features(layer: FeatureKernel, call: HeadCall) -> Array:
    """Solve by the Epanechnikov kernel ``1 - r^2`` of ``r = |a - b| / (1 + B^2)^(1/2)``.

    For unit queries a and keys b of norm B, ``a . b = (1 + B^2)(1 - r^2) / 2``.
    """
    a, b = (_features(layer, x) for x in (call.q, call.k))
    a, b = lift(a / np.linalg.norm(a, axis=1, keepdims=True), b)
    bandwidth = float(np.sqrt(1 + (b[0] ** 2).sum()))
    return nadaraya_watson(a, b, call.v, bandwidth=bandwidth, kernel="epanechnikov")


def _feature_logits(layer: FeatureKernel, call: HeadCall) -> Array:
    a, b = (_features(layer, x) for x in (call.q, call.k))
    return np.asarray(np.log(a @ b.T))


def build_sparsemax(q: Array, k: Array, v: Array) -> Sparsemax:
    """Build at three bandwidths: weights are zero where those of a Gaussian are about a third."""
    return Sparsemax(scale=(3 * local_bandwidth(q, k)) ** -2)


def _solve_sparsemax(layer: Sparsemax, call: HeadCall) -> Array:
    """Solve by the solver's projection on the simplex."""
    logits = scale_of(layer, call.q) * call.q @ call.k.T
    if call.bias is not None:
        logits = logits + call.bias
    return sparsemax(logits) @ call.v


def solve_linear(layer: Linear, call: HeadCall) -> Array:
    """Solve for the limit ``lam C -> X X^T`` of queries and keys together; one block is q k^T."""
    X = np.concatenate([call.q, call.k])
    lam = _FAR * max(float(np.linalg.norm(X, 2)) ** 2, 1e-300)
    products = lam * least_squares_self_expression(X, lam=lam)[: len(call.q), len(call.q) :]
    return layer.scale * products @ call.v


def _build_bound(q: Array, k: Array, v: Array) -> Linear:
    """Build with a penalty of twice the largest s_1^2 of a head, where G / lam is 3/2 of C."""
    return Linear(scale=0.5 / max(float(np.linalg.norm(x, 2)) ** 2 for x in k))


def _compare_with_ridge(layer: Linear, q: Tensor, k: Tensor, v: Tensor) -> Inequalities:
    """Compare ``|C - G / lam|_2`` with ``s_1^4 / (lam (s_1^2 + lam))`` at the layer's penalty."""
    sides, lam = Inequalities(), 1 / layer.scale
    for _, (X, A) in heads((k, layer(k, k, identity_values(k)))):
        top = float(np.linalg.norm(X, 2)) ** 2
        C = least_squares_self_expression(X, lam=lam)
        sides.attained(np.linalg.norm(A - C, 2), top**2 / (lam * (top + lam)))
    return sides


_KERNELS: tuple[tuple[str, str | LogKernel], ...] = (
    ("gaussian-kernel", "gaussian"),
    ("laplace-kernel", "laplace"),
    ("exponential-kernel", "exponential"),
    ("student-kernel", student_kernel),
)
for name, kernel in _KERNELS:
    add_smoother(
        _kernel_logits,
        name=name,
        equation="SE-5",
        source="Nadaraya (1964), Watson (1964); Attention: Self-Expression Is All You Need",
        layer=Kernel,
        build=partial(_build_kernel, kernel=kernel),
        options={"learned-bandwidths": partial(_build_kernel, kernel=kernel, learned=True)},
        solve=_solve_kernel,
        covers=having(kernel=kernel),
        fitted={"bandwidth": None},
        numerics=Numerics(
            range_of(_kernel_logits), rounded="weights", scales_first=callable(kernel)
        ),
    )
add_smoother(
    _feature_logits,
    numerics=Numerics(),
    name="feature-kernel",
    equation="QK-kernel",
    source="Katharopoulos et al. (2020); Nadaraya (1964), Watson (1964)",
    layer=FeatureKernel,
    build=lambda q, k, v: FeatureKernel(),
    options={"own-features": lambda q, k, v: FeatureKernel(squared_features)},
    task={"build": _build_local_features},
    solve=_solve_features,
)
add_smoother(
    dot_product_logits,
    residual=projection_residual,
    rounded="weights",
    name="sparsemax-attention",
    equation="SE-SPM",
    source="Martins and Astudillo (2016)",
    layer=Sparsemax,
    build=build_sparsemax,
    options={"default-scale": lambda q, k, v: Sparsemax()},
    solve=_solve_sparsemax,
    inputs=Inputs(reads_bias=True),
)
_linear = partial(
    add_twin,
    family="kernel_smoothing",
    source="Attention: Self-Expression Is All You Need, eq. 14",
    layer=Linear,
    solve=solve_linear,
    numerics=Numerics(rounded="output"),
)
_linear(
    name="linear-attention",
    relation=Identity(evidence="solver"),
    equation="SE-14, FF-11",
    build=lambda q, k, v: Linear(),
    options={"own-scale": lambda q, k, v: Linear(0.5)},
)
_linear(
    name="linear-attention-ridge-bound",
    relation=Bound(sides=_compare_with_ridge),
    equation="SE-14",
    build=_build_bound,
    inputs=Inputs(pairing="self"),
)


_LOGITS: dict[type, Logits] = {
    Gaussian: gaussian_logits,
    Softmax: dot_product_logits,
    Local: neighborhood_logits,
    CrissCross: neighborhood_logits,
}
_TOL = 1e-12
_SHIFT = 0.01  # of two keys: it puts two tokens out of balance


def _build_balanced(q: Array, k: Array, v: Array, *, share: float = 0.5) -> Sinkhorn:
    """Build with logits that differ by at most 2: balancing takes more than one iteration."""
    spread = max(float(cdist(a, b).max()) for a, b in zip(q, k, strict=True))
    return Sinkhorn(Gaussian(share * spread, dtype=torch.float64))


def _base_matrix(layer: Sinkhorn, call: HeadCall) -> Array:
    return solve_head(exact_twin(layer.base), layer.base, call.of_identity())


def _solve_iterates(layer: Sinkhorn, call: HeadCall) -> Array:
    """Scale the entries between visible tokens, which are queries and keys.

    A hidden query weights the visible keys with the scales of the visible queries. Rows and columns
    of zeros stay as they are.
    """
    seen = _visible_tokens(call)
    L = _balanced_logits(layer, call)[:, seen]
    L = L - _log_sums(L, axis=1)
    for _ in range(layer.n_iter):
        L = L - _log_sums(L[seen], axis=0)
        L = L - _log_sums(L, axis=1)
    return np.asarray(np.exp(L) @ call.v[seen])


def _log_sums(L: Array, axis: int) -> Array:
    """Return the logarithms of the sums of ``exp(L)``, and 0 for those of zeros alone."""
    sums = np.asarray(logsumexp(L, axis=axis, keepdims=True))
    return np.where(sums == -np.inf, 0.0, sums)


def _solve_limit(layer: Sinkhorn, call: HeadCall) -> Array:
    """Solve for the limit of visible tokens, whose column scales also give the hidden rows.

    The matrix must be positive: one with zeros may have no limit.
    """
    seen = _visible_tokens(call)
    A = _base_matrix(layer, call)[:, seen]
    with np.errstate(divide="ignore"):
        balanced = sinkhorn(np.log(A[seen]), tol=_TOL)
    scales = (balanced / A[seen]).mean(axis=0)
    rows = A * scales
    rows /= rows.sum(axis=1, keepdims=True)
    rows[seen] = balanced
    return rows @ call.v[seen]


def _visible_tokens(call: HeadCall) -> Array:
    """Return the indices of keys that the mask does not hide from all queries."""
    if call.visible is None:
        return np.arange(len(call.k))
    return np.flatnonzero(call.visible.any(axis=0))


def _balanced_logits(layer: Sinkhorn, call: HeadCall) -> Array:
    """Return the logarithms of the matrix that is balanced.

    The layer balances the logits of a base that has them, whose exponentials may vanish. They are
    unknown, and NaN, in a column without any weight.
    """
    base = layer.base
    if logits := _LOGITS.get(exact_twin(base).layer):
        return logits(base, call)
    A = _base_matrix(layer, call)
    if isinstance(base, SoftmaxSmoother):
        A = np.where(A.any(axis=0), A, np.nan)
    with np.errstate(divide="ignore"):
        return np.asarray(np.log(A))


def _bound_rate(layer: Sinkhorn, q: Tensor, k: Tensor, v: Tensor) -> Inequalities:
    """Compare both sides of ``d(A_n) <= t^2n d(A)``, with P the limit of balancing.

    Hilbert's distance to P is ``d(A) = osc(log A - log P)``.
    """
    sides = Inequalities()
    _compare_distances(sides, layer, q, k)
    close = copy.deepcopy(layer)
    close.base = Gaussian(1.0)
    # At q = k = +-x without the shift, t = tanh(x^2): such that a quarter of the distance is left.
    x = np.sqrt(np.arctanh(0.25 ** (0.5 / max(layer.n_iter, 1))))
    pair = torch.tensor([[[x], [-x]]], dtype=q.dtype)
    _compare_distances(sides, close, pair, pair + _SHIFT, share=1 - _SHIFT)
    return sides


def _compare_distances(
    sides: Inequalities, layer: Sinkhorn, q: Tensor, k: Tensor, share: float | None = None
) -> None:
    """Add the bound for each query, with the `share` that is reached, and row sums of 1."""
    for head, (a, b, weights) in heads((q, k, layer(q, k, identity_values(k)))):
        with np.errstate(divide="ignore", invalid="ignore"):
            matrix = _base_matrix(layer, HeadCall(a, b, b, head))
            start, reached = np.log(matrix), np.log(weights)
            limit = np.log(sinkhorn(start, tol=_TOL))
            widest = max(
                float(np.ptp(start[i:] - row, axis=1).max()) for i, row in enumerate(start)
            )
            before, after = (np.ptp(x - limit, axis=1) for x in (start, reached))
        rate, scale = np.tanh(widest / 4) ** (2 * layer.n_iter), 1 + widest
        if share is None:
            sides.at_most(after, rate * before, scale=scale)
        else:
            sides.attained(after, rate * before, share=share, scale=scale)
        sides.attained(weights.sum(axis=1), 1.0)


_balanced = partial(
    add_twin,
    family="kernel_smoothing",
    equation="QK-Sinkhorn",
    source="Sinkhorn and Knopp (1967); Franklin and Lorenz (1989)",
    layer=Sinkhorn,
    inputs=Inputs(by_rows=False),
    numerics=numerics_of_base(2),  # a potential of rows, and one of columns
)
_OPTIONS = {
    "dot-products": lambda q, k, v: Sinkhorn(Softmax(2 / dot_product_range(1.0, q, k)), n_iter=3),
    "features": lambda q, k, v: Sinkhorn(FeatureKernel(), n_iter=3),
}
_LOCAL = partial(_build_balanced, share=0.25)  # as local as still converges in a hundred iterations
_limit_relation = partial(
    FixedPointLimit, certificate=weights_certificate(_balanced_logits, balanced_residual)
)
_balanced(
    name="sinkhorn-iterates",
    relation=Iterate(),
    build=lambda q, k, v: Sinkhorn(build_gaussian(q, k, v)),
    options=_OPTIONS,
    solve=_solve_iterates,
)
_balanced(
    name="sinkhorn-limit",
    relation=_limit_relation(n_iter=40),  # rows of logits differ by at most 4: tanh(1)^80 < 1e-9
    build=_build_balanced,
    options=_OPTIONS,
    solve=_solve_limit,
    task={"build": _LOCAL, "relation": _limit_relation(n_iter=100)},
)
_balanced(
    name="sinkhorn-rate",
    relation=Bound(sides=_bound_rate),
    build=_build_balanced,
    solve=_solve_iterates,
    task={"build": _LOCAL},
)
