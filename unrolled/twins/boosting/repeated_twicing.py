"""Twins: L2 boosting, and twicing of twicing.

Evidence is a formula: boosting stops before any minimum, after steps that define it.
"""

from dataclasses import replace
from typing import Any

import torch

from ....solvers import l2_boosting
from ...boosting import Twicing
from ...kernel_smoothing import Softmax
from ..heads import HeadCall, solve_head
from ..kernel_smoothing.regression import build_gaussian
from ..registry import Array, Twin, exact_twin, register
from ..relations import Identity


def _innermost(layer: Any) -> tuple[Any, int]:
    """The smoother under nested twicing, and the steps of boosting, ``2^depth``."""
    steps = 1
    while isinstance(layer, Twicing):
        layer, steps = layer.base, 2 * steps
    return layer, steps


def _solve(layer: Twicing, call: HeadCall) -> Array:
    smoother, steps = _innermost(layer)
    base = exact_twin(smoother)
    return l2_boosting(
        lambda values: solve_head(base, smoother, replace(call, v=values)),
        call.v,
        n_iter=steps,
    )


def _logit_range(layer: Twicing, q: Array, k: Array, v: Array) -> float:
    smoother, _ = _innermost(layer)
    return exact_twin(smoother).logit_range(smoother, q, k, v)


register(
    Twin(
        name="twicing-of-twicing",
        family="boosting",
        relation=Identity(),
        equation="IF-TW",
        source="Bühlmann and Yu (2003): I - (I - A)^4 is four steps of boosting",
        layer=Twicing,
        build=lambda q, k, v: Twicing(Twicing(build_gaussian(q, k, v).to(torch.float64))),
        options={"three-times": lambda q, k, v: Twicing(Twicing(Twicing(Softmax())))},
        solve=_solve,
        by_rows=False,
        covers=lambda layer: isinstance(layer.base, Twicing),
        logit_range=_logit_range,
        passes=lambda layer: _innermost(layer)[1],
    )
)
