"""Twins: the projection on the simplex and sparsemax attention."""

from ....solvers import sparsemax
from ...kernel_smoothing import Sparsemax
from ..certificates import projection_residual, weights_certificate
from ..heads import HeadCall
from ..registry import Array, Twin, register
from ..relations import Identity
from .lifted_points import dot_product_logits, dot_product_range, scale_of
from .regression import local_bandwidth


def build_sparsemax(q: Array, k: Array, v: Array) -> Sparsemax:
    """At three bandwidths, as the weights end where those of a Gaussian fall to a third or so."""
    return Sparsemax(scale=(3 * local_bandwidth(q, k)) ** -2)


def _solve(layer: Sparsemax, call: HeadCall) -> Array:
    logits = scale_of(layer, call.q) * call.q @ call.k.T
    if call.bias is not None:
        logits = logits + call.bias
    return sparsemax(logits) @ call.v


def _logit_range(layer: Sparsemax, q: Array, k: Array, v: Array) -> float:
    return dot_product_range(scale_of(layer, q), q, k)


register(
    Twin(
        name="sparsemax-attention",
        family="kernel_smoothing",
        relation=Identity(),
        equation="SE-SPM",
        source="Martins and Astudillo (2016)",
        layer=Sparsemax,
        rounded="weights",
        build=build_sparsemax,
        options={"default-scale": lambda q, k, v: Sparsemax()},
        solve=_solve,
        reads_bias=True,
        certificate=weights_certificate(dot_product_logits, projection_residual),
        logit_range=_logit_range,
    )
)
