"""Twin: deep self-expression, its layers written out with ADMM for every self-expression."""

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ...self_expression import DeepSelfExpression
from ..heads import HeadCall, as_array
from ..registry import Array
from ..self_expression.unrolled_admm import iterate
from .small_models import add, drawn

_HEADS, _MIXING, _LAYERS = 2, 0.4, 2


def _tokens(images: Any) -> Any:
    """The rows of all images."""
    return images.reshape(-1, images.shape[-1])


def _build(images: Array) -> nn.Module:
    layer = DeepSelfExpression(
        images.shape[-1], _LAYERS, num_heads=_HEADS, mixing=_MIXING, n_iter=3, lam=0.1
    )
    return drawn(layer)


def _apply(layer: DeepSelfExpression, images: Tensor) -> Tensor:
    """Coefficients of tokens in each other, and of the same as new points in all."""
    X = _tokens(images)
    return torch.cat([layer(X), layer(X.flip(0), X)], dim=1).reshape(len(images), -1)


def _solve(layer: DeepSelfExpression, images: Array) -> Array:
    z = _unit(_tokens(images))
    queries = z[::-1]
    for block, projection in enumerate(layer.projections):
        W = as_array(projection)
        queries, z = (
            _block(layer.express[block], queries, z, W, zero_diagonal=False),
            _block(layer.express[block], z, z, W, zero_diagonal=True),
        )
    last = layer.express[_LAYERS]
    own = sum(_codes(last, z, z, zero_diagonal=True)) / _HEADS
    new = sum(_codes(last, queries, z, zero_diagonal=False)) / _HEADS
    return np.hstack([own, new]).reshape(len(images), -1)


def _block(express: Any, z: Array, k: Array, W: Array, *, zero_diagonal: bool) -> Array:
    """``norm((1 - mixing) norm(Z W) + mixing sum_h C_h Y_h)``, Y_h of the keys' columns h."""
    scale = _norms(k @ W)
    attended = sum(
        C @ (k[:, head::_HEADS] @ W[head::_HEADS] / scale)
        for head, C in enumerate(_codes(express, z, k, zero_diagonal=zero_diagonal))
    )
    return _unit((1 - _MIXING) * _unit(z @ W) + _MIXING * attended)


def _codes(express: Any, z: Array, k: Array, *, zero_diagonal: bool) -> list[Array]:
    return [
        iterate(
            express,
            HeadCall(z[:, head::_HEADS], k[:, head::_HEADS], np.eye(len(k))),
            zero_diagonal=zero_diagonal,
        )
        for head in range(_HEADS)
    ]


def _norms(z: Array) -> Array:
    """The norm of a row in the head of each column: heads hold every `_HEADS`-th column."""
    norms = np.empty_like(z)
    for head in range(_HEADS):
        own = z[:, head::_HEADS]
        norms[:, head::_HEADS] = np.linalg.norm(own, axis=1, keepdims=True)
    return np.maximum(norms, 1e-12)


def _unit(z: Array) -> Array:
    return z / _norms(z)


add(
    "deep-self-expression",
    DeepSelfExpression,
    source="Attention: Self-Expression Is All You Need, section 5",
    equation="CL-5",
    build=_build,
    apply=_apply,
    solve=_solve,
)
