"""Twins: regression in an elliptical metric, and elliptical attention."""

from functools import partial

import numpy as np
import torch

from ....solvers.kernel_smoothing import elliptical_metric
from ...attention import Context
from ...kernel_smoothing import Elliptical
from ..certificates import weights_certificate
from ..heads import HeadCall
from ..registry import Array, Twin, register
from ..relations import Identity
from .positions import regress_by_dot_products


def _consecutive_values(q: Array, k: Array, v: Array) -> Context:
    """Values of two layers, as wide as the keys, that change by another amount in each feature."""
    change = np.cos(np.arange(k.shape[-1])) * k**2
    return Context(values=torch.from_numpy(k + change), previous_values=torch.from_numpy(k.copy()))


def _estimated(q: Array, k: Array, v: Array) -> Elliptical:
    return Elliptical()


def _given(q: Array, k: Array, v: Array) -> Elliptical:
    return Elliptical(np.random.default_rng(0).random((len(q), q.shape[-1])))


def _given_to_all(q: Array, k: Array, v: Array) -> Elliptical:
    return Elliptical(np.random.default_rng(0).random(q.shape[-1]))


def _is(layer: Elliptical, *, given: bool) -> bool:
    return (layer.metric is not None) == given


def _metric(layer: Elliptical, call: HeadCall) -> Array:
    if layer.metric is None:
        if call.previous_values is None:
            return np.ones(call.values.shape[1])
        return elliptical_metric(call.values, call.previous_values)
    rows = np.atleast_2d(layer.metric.numpy())
    return rows[call.head if len(rows) > 1 else 0]


def _solve(layer: Elliptical, call: HeadCall) -> Array:
    # Half of the metric on either side: distances are measured by its root.
    root = np.sqrt(_metric(layer, call))
    return regress_by_dot_products(call.q * root / call.q.shape[1] ** 0.5, call.k * root, call.v)


def _logits(layer: Elliptical, call: HeadCall) -> Array:
    return (call.q * _metric(layer, call)) @ call.k.T / call.q.shape[1] ** 0.5


def _logit_range(layer: Elliptical, q: Array, k: Array, v: Array) -> float:
    products = np.abs(q) @ np.abs(k).transpose(0, 2, 1)
    metric = 1.0 if layer.metric is None else float(layer.metric.max())
    return 2 * metric * float(products.max()) / q.shape[-1] ** 0.5


for name, build, context, options in (
    ("elliptical-attention", _estimated, _consecutive_values, {}),
    ("elliptical-given-metric", _given, None, {"one-metric": _given_to_all}),
):
    register(
        Twin(
            name=name,
            family="kernel_smoothing",
            relation=Identity(),
            equation="IF-31",
            source="Nielsen et al. (2024)",
            layer=Elliptical,
            build=build,
            options=options,
            solve=_solve,
            certificate=weights_certificate(_logits),
            context=context,
            covers=partial(_is, given=context is None),
            logit_range=_logit_range,
        )
    )
