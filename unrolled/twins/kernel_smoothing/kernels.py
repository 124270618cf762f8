"""Twins: Nadaraya-Watson regression with kernels by name, by function and by features."""

import copy
from functools import partial

import numpy as np
import torch
from scipy.spatial.distance import cdist

from ....solvers import nadaraya_watson
from ...kernel_smoothing import FeatureKernel, Kernel
from ...kernel_smoothing.kernel import LogKernel
from ..certificates import weights_certificate
from ..heads import HeadCall, as_array
from ..parameters import head_value, moved
from ..registry import Array, Twin, register
from ..relations import Identity
from .lifted_points import lift
from .regression import gaussian_logit_range, local_bandwidth


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


_KERNELS: tuple[tuple[str, str | LogKernel], ...] = (
    ("gaussian-kernel", "gaussian"),
    ("laplace-kernel", "laplace"),
    ("exponential-kernel", "exponential"),
    ("student-kernel", student_kernel),
)
_OF_DISTANCES = ("gaussian", "laplace")  # see `squared_distances`
for name, kernel in _KERNELS:
    register(
        Twin(
            name=name,
            family="kernel_smoothing",
            relation=Identity(),
            equation="SE-5",
            source="Nadaraya (1964), Watson (1964); Attention: Self-Expression Is All You Need",
            layer=Kernel,
            rounded="weights",
            build=partial(_build, kernel=kernel),
            options={"learned-bandwidths": partial(_build_learned, kernel=kernel)},
            solve=_solve,
            certificate=weights_certificate(_logits),
            covers=partial(_has, kernel=kernel),
            fitted=("bandwidth",),
            logit_range=gaussian_logit_range,
            differentiable_twice=(
                ("torch.func",) if kernel in _OF_DISTANCES else ("backward", "torch.func")
            ),
        )
    )
register(
    Twin(
        name="feature-kernel",
        family="kernel_smoothing",
        relation=Identity(),
        equation="QK-kernel",
        source="Katharopoulos et al. (2020); Nadaraya (1964), Watson (1964)",
        layer=FeatureKernel,
        build=lambda q, k, v: FeatureKernel(),
        options={"own-features": lambda q, k, v: FeatureKernel(squared_features)},
        task={"build": _build_local_features},
        solve=_solve_features,
        certificate=weights_certificate(_feature_logits),
    )
)
