"""Twin: deep self-expression, its layers written out with ADMM for every self-expression."""

import copy
from typing import Any

import numpy as np
import torch
from scipy.linalg import eigh
from torch import Tensor, nn

from ...self_expression import DeepSelfExpression
from ..families.self_expression.unrolled import iterate_admm
from ..families.tasks import expressing
from ..heads import Array, HeadCall, as_array
from .small_models import add, drawn

_HEADS, _MIXING, _LAYERS, _SHRINKAGE = 2, 0.4, 2, 0.1


def _tokens(images: Any) -> Any:
    """The rows of all images."""
    return images.reshape(-1, images.shape[-1])


def _build(images: Array) -> nn.Module:
    layer = DeepSelfExpression(
        images.shape[-1], _LAYERS, num_heads=_HEADS, mixing=_MIXING, n_iter=3, lam=0.1
    )
    return drawn(layer)


def _apply(layer: DeepSelfExpression, images: Tensor) -> Tensor:
    """Coefficients of tokens in each other, and of the same as new points in all.

    With the losses of projections, as they are and fitted, and what fitted ones give. These are
    fitted in float64: rounding turns eigenvectors by its size over the gap of their eigenvalues.
    """
    X, fitted = _tokens(images), copy.deepcopy(layer).double()
    losses = torch.cat([layer.losses(X), X.new_tensor(fitted.fit_projections(X.double()))])
    own = fitted(X.double()).to(X.dtype)
    found = torch.cat([layer(X), layer(X.flip(0), X), own], dim=1)
    losses = losses.to(X.dtype).expand(len(images), -1)
    return torch.cat([found.reshape(len(images), -1), losses], dim=1)


def _solve(layer: DeepSelfExpression, images: Array) -> Array:
    X = _unit(_tokens(images))
    given = [as_array(projection) for projection in layer.projections]
    own, new, losses = _pass(layer, X, given)
    fitted, _, least = _pass(layer, X, None)
    found = np.hstack([own, new, fitted]).reshape(len(images), -1)
    return np.hstack([found, np.tile(losses + least, (len(images), 1))])


def _pass(
    layer: DeepSelfExpression, z: Array, projections: list[Array] | None
) -> tuple[Array, Array, list[float]]:
    """Coefficients of tokens and of new points, and losses; None fits each projection in turn."""
    queries, losses = z[::-1], []
    for block in range(_LAYERS):
        covariance = _shrunk_covariance(layer, block, z)
        W = _least(covariance) if projections is None else projections[block]
        losses.append(_loss(W, covariance))
        queries, z = (
            _block(layer.express[block], queries, z, W, zero_diagonal=False),
            _block(layer.express[block], z, z, W, zero_diagonal=True),
        )
    last = layer.express[_LAYERS]
    own = sum(_codes(last, z, z, zero_diagonal=True)) / _HEADS
    new = sum(_codes(last, queries, z, zero_diagonal=False)) / _HEADS
    return np.asarray(own), np.asarray(new), losses


def _shrunk_covariance(layer: DeepSelfExpression, block: int, z: Array) -> Array:
    """Of the residuals of all heads, with a tenth of its mean eigenvalue on the diagonal."""
    residuals = np.empty_like(z)
    for head, C in enumerate(_codes(layer.express[block], z, z, zero_diagonal=True)):
        residuals[:, head::_HEADS] = z[:, head::_HEADS] - C @ z[:, head::_HEADS]
    M = residuals.T @ residuals / len(z)
    return M + _SHRINKAGE * np.trace(M) / len(M) * np.eye(len(M))


def _least(covariance: Array) -> Array:
    """The minimum of the loss whose columns are the eigenvectors, by eigenvalue."""
    values, vectors = eigh(covariance)
    return np.asarray(vectors / np.sqrt(values))


def _loss(W: Array, covariance: Array) -> float:
    """``tr(W^T M W) / 2 - log|det W|`` for each feature."""
    fit = np.trace(W.T @ covariance @ W) / 2
    return float(fit - np.log(abs(np.linalg.det(W)))) / len(W)


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
        iterate_admm(
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


def _build_for_points(X: Array) -> nn.Module:
    return DeepSelfExpression(
        X.shape[1], _LAYERS, num_heads=_HEADS, mixing=_MIXING, n_iter=3, lam=0.1
    ).double()


def _solve_coefficients(layer: DeepSelfExpression, X: Array) -> Array:
    return _pass(layer, _unit(X), [as_array(projection) for projection in layer.projections])[0]


add(
    "deep-self-expression",
    DeepSelfExpression,
    source="Attention: Self-Expression Is All You Need, section 5",
    equation="CL-5",
    build=_build,
    apply=_apply,
    solve=_solve,
    task=expressing(_build_for_points, lambda layer, X: layer(X), _solve_coefficients),
)
