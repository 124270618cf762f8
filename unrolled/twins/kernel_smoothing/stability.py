"""Twins: how far softmax attention moves when its logits do."""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from ...kernel_smoothing import Softmax
from ..registry import Array, Twin, exact_twin, register
from ..relations import Bound, identity_values
from .regression import local_bandwidth

_SOURCE = "Revisiting Transformers with Insights from Image Filtering"


def _build(q: Array, k: Array, v: Array) -> Softmax:
    return Softmax(scale=local_bandwidth(q, k) ** -2)


def _solve(
    layer: Softmax, q: Array, k: Array, v: Array, head: int = 0, context: Any = None
) -> Array:
    return exact_twin(layer).solve(layer, q, k, v, head=head, context=context)


def _logit_range(layer: Softmax, q: Array, k: Array, v: Array) -> float:
    return exact_twin(layer).logit_range(layer, q, k, v)


def _stability(layer: Softmax, q: Tensor, k: Tensor, v: Tensor) -> tuple[Array, Array]:
    """``|sm(c + n) - sm(c)| <= min(sqrt 2, |n| / 2)`` for each query, and that times ``|V|_2``."""
    rng = np.random.default_rng(0)
    lhs, rhs = [], []
    scale = q.shape[-1] ** -0.5 if layer.scale is None else layer.scale
    for size in (1e-2, 1e-1, 1.0):
        noise = size * rng.standard_normal(q.shape) * q.double().numpy().std()
        moved = (torch.from_numpy(noise).to(q.dtype) + q).double()
        change = scale * (moved - q.double()).numpy() @ k.double().mT.numpy()
        limit = np.minimum(np.sqrt(2), np.linalg.norm(change, axis=-1) / 2)
        for values, norm in (
            (identity_values(k), 1.0),
            (v, np.linalg.norm(v.double().numpy(), 2, axis=(-2, -1))[:, None]),
        ):
            difference = layer(moved.to(q.dtype), k, values) - layer(q, k, values)
            lhs.append(np.linalg.norm(difference.double().numpy(), axis=-1))
            rhs.append(limit * norm)
    return np.array(lhs), np.array(rhs)


register(
    Twin(
        name="softmax-stability",
        family="kernel_smoothing",
        relation=Bound(),
        equation="IF-22, IF-23",
        source=_SOURCE,
        layer=Softmax,
        build=_build,
        solve=_solve,
        bound=_stability,
        logit_range=_logit_range,
    )
)
