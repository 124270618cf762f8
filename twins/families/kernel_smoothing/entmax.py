"""Twin: attention with the entmax of its logits."""

import numpy as np
import torch
from scipy.special import expit
from torch import Tensor, nn

from ....solvers.kernel_smoothing import entmax
from ....unrolled.kernel_smoothing import Entmax
from ...heads import Array, HeadCall
from ...judging.certificates import range_of, simplex_residual
from ...laws.subject import as_array, identity_values
from ...pairs import Inputs, Numerics, Pair, calls_of_heads, layer_output
from ...registry import add_twin
from ...relations import Identity
from .regression import dot_product_logits, local_bandwidth


def _order(layer: Entmax, head: int) -> float:
    """Return the alpha of a head."""
    if layer.odds.log is None:
        return layer.alpha
    log = as_array(layer.odds.log).ravel()
    return 1 + float(expit(log[head if len(log) > 1 else 0]))


def _solve(layer: Entmax, call: HeadCall) -> Array:
    logits = dot_product_logits(layer, call)
    if call.bias is not None:
        logits = logits + call.bias
    return np.asarray(entmax(logits, alpha=_order(layer, call.head)) @ call.v)


def entmax_residual(A: Array, logits: Array, alpha: float) -> float:
    """Return how far each row a of A is from the maximiser of ``a.z + H_alpha(a)``.

    There ``(a_j^(alpha - 1) - 1) / (alpha - 1)``, a logarithm of order alpha, is ``z_j - c`` where
    a is positive, and ``z_j <= c - 1 / (alpha - 1)`` elsewhere. At alpha = 1 an a_j is zero only if
    it underflows.
    """
    excess, support = alpha - 1, A > 0
    logs = np.log(np.where(support, A, 1.0))
    slack = logits - (np.expm1(excess * logs) / excess if excess else logs)
    c = (A * slack).sum(axis=1, keepdims=True)
    inside = np.where(support, A * (slack - c), 0.0)
    outside = (logits - c + 1 / excess)[~support] if excess else np.zeros(0)
    return max(simplex_residual(A), np.abs(inside).max(), float(outside.max(initial=0.0)))


def _certificate(twin: Pair, layer: nn.Module, inputs: tuple[Tensor, ...]) -> float:
    """Return the largest `entmax_residual` of a head."""
    assert isinstance(layer, Entmax)
    weights = layer_output(twin, layer, (*inputs[:2], identity_values(inputs[1])))
    return max(
        entmax_residual(A, dot_product_logits(layer, call), _order(layer, call.head))
        for A, call in zip(weights, calls_of_heads(twin, inputs), strict=True)
    )


def _build(q: Array, k: Array, v: Array, alpha: float = 1.5) -> Entmax:
    """Build at two bandwidths, where many weights are zero and others are not."""
    return Entmax(alpha, scale=(2 * local_bandwidth(q, k)) ** -2)


def _build_learned(q: Array, k: Array, v: Array) -> Entmax:
    layer = Entmax(1.3, num_heads=len(q), learnable=True, dtype=torch.float64)
    with torch.no_grad():
        assert layer.odds.log is not None
        layer.odds.log.add_(torch.linspace(-0.5, 0.5, len(q)).reshape(-1, 1, 1))
    return layer


add_twin(
    name="entmax-attention",
    family="kernel_smoothing",
    equation="EN-1",
    source="Peters, Niculae and Martins (2019); Correia, Niculae and Martins (2019)",
    relation=Identity(certificate=_certificate, evidence="solver"),
    layer=Entmax,
    build=_build,
    options={
        "learned": _build_learned,
        "softmax": lambda q, k, v: _build(q, k, v, 1.0),
        "sparsemax": lambda q, k, v: _build(q, k, v, 2.0),
    },
    solve=_solve,
    inputs=Inputs(reads_bias=True),
    numerics=Numerics(range_of(dot_product_logits), rounded="weights"),
)
