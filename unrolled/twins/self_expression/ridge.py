"""Twins: least squares self-expression and ridge attention."""

from functools import partial
from typing import Any

import numpy as np
import torch
from sklearn.linear_model import Ridge as RidgeRegression
from torch import Tensor

from ....solvers import least_squares_self_expression
from ...self_expression import Ridge
from ..certificates import ridge_residual
from ..heads import HeadCall, Tensors, heads
from ..inequalities import Inequalities
from ..parameters import head_value, moved
from ..registry import Array, Twin, register
from ..relations import Bound, Identity, calls_of_heads, identity_values, layer_matrix


def build_ridge(
    q: Array,
    k: Array,
    v: Array,
    *,
    share: float = 0.01,
    zero_diagonal: bool = False,
    relative: bool = False,
    of_heads: bool = False,
) -> Ridge:
    """The penalty is a share of the largest eigenvalue of the keys' Gram matrix."""
    largest = 1.0 if relative else max(float(np.linalg.norm(keys, 2)) ** 2 for keys in k)
    settings: Any = {"zero_diagonal": zero_diagonal, "relative": relative}
    if of_heads:
        settings |= {"num_heads": len(q), "learnable": True}
    return moved(Ridge(share * largest, dtype=torch.float64, **settings))


def penalty(layer: Ridge, k: Array, head: int) -> float:
    scale = float(np.linalg.norm(k, 2)) ** 2 if layer.relative else 1.0
    return head_value(layer.lam, head) * (scale if scale > 0 else 1.0)


def solve_self(layer: Ridge, call: HeadCall) -> Array:
    k = call.k
    lam = penalty(layer, k, call.head)
    return least_squares_self_expression(k, lam=lam, zero_diagonal=layer.zero_diagonal) @ call.v


def solve_cross(layer: Ridge, call: HeadCall) -> Array:
    """Regression of the queries on the keys; one for each query where a key is left out."""
    q, k, v = call.tokens
    regression = RidgeRegression(alpha=penalty(layer, k, call.head), fit_intercept=False)
    if not layer.zero_diagonal:
        return np.atleast_2d(regression.fit(k.T, q.T).coef_) @ v
    query_places, key_places = call.places
    others = [np.flatnonzero(key_places != place) for place in query_places]
    rows = [regression.fit(k[keep].T, x).coef_ @ v[keep] for x, keep in zip(q, others, strict=True)]
    return np.stack(rows)


def _certify(twin: Twin, layer: Ridge, inputs: Tensors) -> float:
    codes = layer_matrix(twin, layer, *inputs[:2])
    residuals = [
        ridge_residual(
            C,
            call.q,
            call.k,
            lam=penalty(layer, call.k, call.head),
            zero_diagonal=layer.zero_diagonal,
        )
        for C, call in zip(codes, calls_of_heads(twin, inputs), strict=True)
    ]
    return float(np.max(residuals))


def covers(layer: Ridge, *, zero_diagonal: bool, relative: bool = False) -> bool:
    """Layers with this diagonal, and only relative penalties if `relative`."""
    return layer.zero_diagonal == zero_diagonal and (layer.relative or not relative)


def _large_lam(layer: Ridge, q: Tensor, k: Tensor, v: Tensor) -> Inequalities:
    """``|C - G / lam|_2 = s_1^4 / (lam (s_1^2 + lam))``."""
    sides = Inequalities()
    for head, (C, X) in heads((layer(q, k, identity_values(k)), k)):
        lam, square = penalty(layer, X, head), np.linalg.norm(X, 2) ** 2
        sides.attained(np.linalg.norm(C - X @ X.T / lam, 2), square**2 / (lam * (square + lam)))
    return sides


_SETTINGS: tuple[tuple[str, Any, dict[str, Any], str], ...] = (
    ("ridge-self-expression", "self", {"zero_diagonal": False}, "SE-LSR"),
    ("ridge-self-expression-zero-diagonal", "self", {"zero_diagonal": True}, "SE-LSRd"),
    ("ridge-attention", "cross", {"zero_diagonal": False}, "QK-ridge"),
    ("ridge-attention-zero-diagonal", "cross", {"zero_diagonal": True}, "QK-ridge"),
    ("ridge-relative-penalty", "cross", {"zero_diagonal": False, "relative": True}, "QK-ridge"),
)


def _options(settings: dict[str, Any]) -> dict[str, Any]:
    options = {"penalties-of-heads": partial(build_ridge, **settings, of_heads=True)}
    if not settings.get("relative"):
        options["relative"] = partial(build_ridge, **settings, relative=True)
    return options


for name, pairing, settings, equation in _SETTINGS:
    register(
        Twin(
            name=name,
            family="self_expression",
            relation=Identity(tolerance=1e-8),
            equation=equation,
            source="Lu et al. (2012); Attention: Self-Expression Is All You Need",
            layer=Ridge,
            rounded="output",
            build=partial(build_ridge, **settings),
            options=_options(settings),
            solve=solve_self if pairing == "self" else solve_cross,
            pairing=pairing,
            evidence="certificate" if pairing == "self" else "solver",
            certificate=_certify,
            covers=partial(covers, **settings),
            fitted=("lam",),
        )
    )
register(
    Twin(
        name="ridge-large-penalty",
        family="self_expression",
        relation=Bound(),
        equation="SE-14",
        source="Attention: Self-Expression Is All You Need, eq. 14",
        layer=Ridge,
        rounded="output",
        build=lambda q, k, v: build_ridge(q, k, v, share=3.0),
        solve=solve_self,
        pairing="self",
        covers=partial(covers, zero_diagonal=False),
        bound=_large_lam,
    )
)
