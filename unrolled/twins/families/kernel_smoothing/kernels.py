"""Twins: regression with kernels by name, function and features, sparsemax and linear attention."""

import copy
from functools import partial

import numpy as np
import torch
from scipy.spatial.distance import cdist
from torch import Tensor

from .....solvers import least_squares_self_expression, nadaraya_watson, sparsemax
from ....kernel_smoothing import FeatureKernel, Kernel, Linear, Sparsemax
from ....kernel_smoothing.kernel import LogKernel
from ....laws.subject import as_array, identity_values
from ...certificates import projection_residual, range_of, weights_certificate
from ...heads import Array, HeadCall, head_value, heads, moved
from ...pairs import Derivatives, Inputs, Numerics
from ...registry import add_twin
from ...relations import Bound, Identity, Inequalities
from .regression import (
    dot_product_logits,
    lift,
    local_bandwidth,
    scale_of,
)

_FAR = 1e13  # times s_1^2: the limit up to 1e-13


def student_kernel(q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
    """Logarithm of the heavy-tailed kernel ``1 / (1 + |q - k|^2)``."""
    return -torch.log1p((q[..., :, None, :] - k[..., None, :, :]).square().sum(dim=-1))


def _student_weights(r: Array) -> Array:
    return 1 / (1 + r**2)


def _build(q: Array, k: Array, v: Array, *, kernel: str | LogKernel) -> Kernel:
    return Kernel(kernel, local_bandwidth(q, k), dtype=torch.float64)


def _build_learned(q: Array, k: Array, v: Array, *, kernel: str | LogKernel) -> Kernel:
    return moved(
        Kernel(
            kernel,
            local_bandwidth(q, k),
            num_heads=len(q),
            learnable=True,
            dtype=torch.float64,
        )
    )


def _has(layer: Kernel, *, kernel: str | LogKernel) -> bool:
    return layer.kernel == kernel


def _solve(layer: Kernel, call: HeadCall) -> Array:
    q, k, v = call.tokens
    bandwidth = head_value(layer.bandwidth, call.head)
    if layer.kernel == "exponential":
        q, k = lift(q, k)
        return nadaraya_watson(q, k, v, bandwidth=bandwidth)
    kernel = layer.kernel if isinstance(layer.kernel, str) else _student_weights
    return nadaraya_watson(q, k, v, bandwidth=bandwidth, kernel=kernel)


def _logits(layer: Kernel, call: HeadCall) -> Array:
    """Logarithms of the kernel: its values are the weights before they sum to one."""
    q, k = call.q, call.k
    q, k = (x / head_value(layer.bandwidth, call.head) for x in (q, k))
    if layer.kernel == "exponential":
        return q @ k.T
    r = cdist(q, k)
    return {"gaussian": -(r**2) / 2, "laplace": -r}.get(str(layer.kernel), -np.log1p(r**2))


def squared_features(x: torch.Tensor) -> torch.Tensor:
    """Features of another kernel than the default."""
    return torch.cat([x.square(), x + x.square() + 1], dim=-1)


class Landmarks(torch.nn.Module):
    """Gaussians around given points, which near tokens share, and a little that all share.

    Without that, weights of tokens far from all points would be rounding.
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
    """``elu(x) + 1``, or the user's own map, evaluated in float64."""
    if layer.feature_map is None:
        return np.where(x > 0, x + 1, np.exp(np.minimum(x, 0)))
    feature_map = copy.deepcopy(layer.feature_map)
    if isinstance(feature_map, torch.nn.Module):
        feature_map = feature_map.double()
    with torch.no_grad():
        return as_array(feature_map(torch.from_numpy(x)))


def _solve_features(layer: FeatureKernel, call: HeadCall) -> Array:
    """Between unit queries a and keys b of norm B, ``a . b = (1 + B^2)(1 - r^2) / 2``.

    That is the Epanechnikov kernel of ``r = |a - b| / (1 + B^2)^(1/2)``.
    """
    a, b = (_features(layer, x) for x in (call.q, call.k))
    a, b = lift(a / np.linalg.norm(a, axis=1, keepdims=True), b)
    bandwidth = float(np.sqrt(1 + (b[0] ** 2).sum()))
    return nadaraya_watson(a, b, call.v, bandwidth=bandwidth, kernel="epanechnikov")


def _feature_logits(layer: FeatureKernel, call: HeadCall) -> Array:
    a, b = (_features(layer, x) for x in (call.q, call.k))
    return np.asarray(np.log(a @ b.T))


def build_sparsemax(q: Array, k: Array, v: Array) -> Sparsemax:
    """At three bandwidths, as the weights end where those of a Gaussian fall to a third or so."""
    return Sparsemax(scale=(3 * local_bandwidth(q, k)) ** -2)


def _solve_sparsemax(layer: Sparsemax, call: HeadCall) -> Array:
    logits = scale_of(layer, call.q) * call.q @ call.k.T
    if call.bias is not None:
        logits = logits + call.bias
    return sparsemax(logits) @ call.v


def _solve_linear(layer: Linear, call: HeadCall) -> Array:
    """The limit ``lam C -> X X^T`` on queries and keys together, of which one block is q k^T."""
    X = np.concatenate([call.q, call.k])
    lam = _FAR * max(float(np.linalg.norm(X, 2)) ** 2, 1e-300)
    products = lam * least_squares_self_expression(X, lam=lam)[: len(call.q), len(call.q) :]
    return layer.scale * products @ call.v


def _build_bound(q: Array, k: Array, v: Array) -> Linear:
    """The penalty is twice the largest s_1^2 of a head: G / lam is 3/2 of C there."""
    return Linear(scale=0.5 / max(float(np.linalg.norm(x, 2)) ** 2 for x in k))


def _bound(layer: Linear, q: Tensor, k: Tensor, v: Tensor) -> Inequalities:
    """``|C - G / lam|_2 = s_1^4 / (lam (s_1^2 + lam))`` at the penalty of the layer."""
    sides, lam = Inequalities(), 1 / layer.scale
    for _, (X, A) in heads((k, layer(k, k, identity_values(k)))):
        top = float(np.linalg.norm(X, 2)) ** 2
        C = least_squares_self_expression(X, lam=lam)
        sides.attained(np.linalg.norm(A - C, 2), top**2 / (lam * (top + lam)))
    return sides


_add = partial(add_twin, family="kernel_smoothing", relation=Identity())
_KERNELS: tuple[tuple[str, str | LogKernel], ...] = (
    ("gaussian-kernel", "gaussian"),
    ("laplace-kernel", "laplace"),
    ("exponential-kernel", "exponential"),
    ("student-kernel", student_kernel),
)
_ONCE = Derivatives(twice=("torch.func",))  # see `squared_distances`
for name, kernel in _KERNELS:
    _add(
        name=name,
        relation=Identity(certificate=weights_certificate(_logits)),
        equation="SE-5",
        source="Nadaraya (1964), Watson (1964); Attention: Self-Expression Is All You Need",
        layer=Kernel,
        build=partial(_build, kernel=kernel),
        options={"learned-bandwidths": partial(_build_learned, kernel=kernel)},
        solve=_solve,
        covers=partial(_has, kernel=kernel),
        fitted={"bandwidth": None},
        numerics=Numerics(range_of(_logits), rounded="weights"),
        derivatives=_ONCE if kernel in ("gaussian", "laplace") else Derivatives(),
    )
_add(
    name="feature-kernel",
    relation=Identity(certificate=weights_certificate(_feature_logits)),
    equation="QK-kernel",
    source="Katharopoulos et al. (2020); Nadaraya (1964), Watson (1964)",
    layer=FeatureKernel,
    build=lambda q, k, v: FeatureKernel(),
    options={"own-features": lambda q, k, v: FeatureKernel(squared_features)},
    task={"build": _build_local_features},
    solve=_solve_features,
)
_add(
    name="sparsemax-attention",
    relation=Identity(certificate=weights_certificate(dot_product_logits, projection_residual)),
    equation="SE-SPM",
    source="Martins and Astudillo (2016)",
    layer=Sparsemax,
    build=build_sparsemax,
    options={"default-scale": lambda q, k, v: Sparsemax()},
    solve=_solve_sparsemax,
    inputs=Inputs(reads_bias=True),
    numerics=Numerics(range_of(dot_product_logits), rounded="weights"),
)
_LINEAR = partial(
    _add,
    source="Attention: Self-Expression Is All You Need, eq. 14",
    layer=Linear,
    solve=_solve_linear,
    numerics=Numerics(rounded="output"),
)
_LINEAR(
    name="linear-attention",
    relation=Identity(evidence="solver"),
    equation="SE-14, FF-11",
    build=lambda q, k, v: Linear(),
    options={"own-scale": lambda q, k, v: Linear(0.5)},
)
_LINEAR(
    name="linear-attention-ridge-bound",
    relation=Bound(sides=_bound),
    equation="SE-14",
    build=_build_bound,
    inputs=Inputs(pairing="self"),
)
