"""Twins: ridge self-expression with a large penalty and linear attention."""

import numpy as np
from torch import Tensor

from ....solvers import least_squares_self_expression
from ...kernel_smoothing import Linear
from ..heads import HeadCall, heads
from ..inequalities import Inequalities
from ..registry import Array, Twin, register
from ..relations import Bound, Identity, layer_matrix

_FAR = 1e13  # times s_1^2: the limit up to 1e-13


def _solve(layer: Linear, call: HeadCall) -> Array:
    """The limit ``lam C -> X X^T`` on queries and keys together, of which one block is q k^T."""
    X = np.concatenate([call.q, call.k])
    lam = _FAR * max(float(np.linalg.norm(X, 2)) ** 2, 1e-300)
    products = lam * least_squares_self_expression(X, lam=lam)[: len(call.q), len(call.q) :]
    return layer.scale * products @ call.v


def _bound(layer: Linear, q: Tensor, k: Tensor, v: Tensor) -> Inequalities:
    """``|C - G / lam|_2 = s_1^4 / (lam (s_1^2 + lam))`` at the penalty of the layer."""
    sides, lam = Inequalities(), 1 / layer.scale
    for (_, (X,)), A in zip(heads((k,)), layer_matrix(_ridge_bound, layer, k, k), strict=True):
        top = float(np.linalg.norm(X, 2)) ** 2
        C = least_squares_self_expression(X, lam=lam)
        sides.attained(np.linalg.norm(A - C, 2), top**2 / (lam * (top + lam)))
    return sides


def _build_bound(q: Array, k: Array, v: Array) -> Linear:
    """The penalty is twice the largest s_1^2 of a head: G / lam is 3/2 of C there."""
    return Linear(scale=0.5 / max(float(np.linalg.norm(x, 2)) ** 2 for x in k))


register(
    Twin(
        name="linear-attention",
        family="kernel_smoothing",
        relation=Identity(),
        equation="SE-14, FF-11",
        source="Attention: Self-Expression Is All You Need, eq. 14",
        layer=Linear,
        rounded="output",
        build=lambda q, k, v: Linear(),
        options={"own-scale": lambda q, k, v: Linear(0.5)},
        solve=_solve,
        evidence="solver",
    )
)
_ridge_bound = register(
    Twin(
        name="linear-attention-ridge-bound",
        family="kernel_smoothing",
        relation=Bound(),
        equation="SE-14",
        source="Attention: Self-Expression Is All You Need, eq. 14",
        layer=Linear,
        rounded="output",
        build=_build_bound,
        solve=_solve,
        pairing="self",
        bound=_bound,
    )
)
