"""Twins: twicing and twicing attention.

Evidence is a formula: twicing is defined by its two passes, and minimises nothing for weights that
are not symmetric.
"""

from dataclasses import replace

from ....solvers import twicing
from ...boosting import Twicing
from ...kernel_smoothing import Local, Softmax
from ..heads import HeadCall, solve_head
from ..kernel_smoothing.regression import build_gaussian, build_gaussian_heads
from ..registry import Array, Twin, exact_twin, register
from ..relations import Identity


def _solve(layer: Twicing, call: HeadCall) -> Array:
    base = exact_twin(layer.base)
    return twicing(lambda values: solve_head(base, layer.base, replace(call, v=values)), call.v)


def _logit_range(layer: Twicing, q: Array, k: Array, v: Array) -> float:
    return exact_twin(layer.base).logit_range(layer.base, q, k, v)


register(
    Twin(
        name="twicing-attention",
        family="boosting",
        relation=Identity(),
        equation="IF-TW",
        source="Revisiting Transformers with Insights from Image Filtering; Tukey (1977)",
        layer=Twicing,
        build=lambda q, k, v: Twicing(build_gaussian(q, k, v)),
        options={
            "bandwidths-of-heads": lambda q, k, v: Twicing(build_gaussian_heads(q, k, v)),
            "dot-products": lambda q, k, v: Twicing(Softmax()),
            "window": lambda q, k, v: Twicing(Local(3)),
        },
        solve=_solve,
        by_rows=False,
        logit_range=_logit_range,
        passes=lambda layer: 2 * exact_twin(layer.base).passes(layer.base),
    )
)
