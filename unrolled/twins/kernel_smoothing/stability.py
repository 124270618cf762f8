"""Twins: how far softmax attention moves when its logits do."""

import numpy as np
import torch
from torch import Tensor

from ...kernel_smoothing import Softmax
from ..heads import HeadCall, as_array
from ..inequalities import Inequalities
from ..registry import Array, Twin, exact_twin, register
from ..relations import Bound, identity_values
from .lifted_points import scale_of
from .regression import local_bandwidth

_SOURCE = "Revisiting Transformers with Insights from Image Filtering"
_N_KEYS = 8
_FAR = 40.0  # a logit so far above the others that they have no share


def _build(q: Array, k: Array, v: Array) -> Softmax:
    return Softmax(scale=local_bandwidth(q, k) ** -2)


def _solve(layer: Softmax, call: HeadCall) -> Array:
    return exact_twin(layer).solve(layer, call)


def _logit_range(layer: Softmax, q: Array, k: Array, v: Array) -> float:
    return exact_twin(layer).logit_range(layer, q, k, v)


def _stability(layer: Softmax, q: Tensor, k: Tensor, v: Tensor) -> Inequalities:
    """``|sm(c + n) - sm(c)| <= min(sqrt 2, |n| / 2)`` for each query, and that times ``|V|_2``."""
    rng = np.random.default_rng(0)
    sides, scale = Inequalities(), scale_of(layer, as_array(q))
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
            sides.at_most(np.linalg.norm(as_array(difference), axis=-1), limit * norm)
    _attain_stability(sides, layer, q)
    return sides


def _attain_stability(sides: Inequalities, layer: Softmax, like: Tensor) -> None:
    """Two equal logits far above the others, moved apart by 2 t: ``tanh(t) / sqrt 2``.

    That is ``tanh(t) / t`` of the bound. From one logit far above the others to another it is
    sqrt 2.
    """
    k = torch.eye(_N_KEYS, dtype=like.dtype)[None]
    one = _FAR / scale_of(layer, as_array(k)) * k
    two, apart = one + one.roll(-1, -1), (one - one.roll(-1, -1)) / _FAR
    t = torch.linspace(0.1, 0.6, _N_KEYS, dtype=like.dtype)[:, None]
    moved = two + t * apart

    def distance(a: Tensor, b: Tensor) -> Array:
        difference = layer(a, k, identity_values(k)) - layer(b, k, identity_values(k))
        return np.linalg.norm(as_array(difference)[0], axis=-1)

    sizes = as_array(t)[:, 0]
    # Logits are rounded on their own scale.
    sides.attained(
        distance(moved, two), sizes / np.sqrt(2), share=np.tanh(sizes) / sizes, scale=_FAR
    )
    sides.attained(distance(one, one.roll(1, -2)), np.sqrt(2), scale=_FAR)


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
