"""Twins: ISTA for sparse self-expression, and its unrolled form on features."""

import copy
from functools import partial
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from ....solvers import ista, sparse_self_expression
from ....solvers.sparse_coding import lam_max, lasso_objective
from ...self_expression import UnrolledSelfExpression
from ..certificates import first_and_last, proximal_residual
from ..heads import HeadCall, Tensors, as_array
from ..parameters import iteration_values
from ..registry import Array, Problem, Twin, register
from ..relations import (
    Identity,
    Iterate,
    Limit,
    Rate,
    calls_of_heads,
    largest_difference,
    layer_matrix,
    with_n_iter,
)

_N_LAYERS = 5
_TOL = 1e-11


def _build(q: Array, k: Array, v: Array, **settings: Any) -> UnrolledSelfExpression:
    """Some percent of the penalty that makes the median row zero; steps grow to the safe one."""
    largest = [lam_max(a, b, zero_diagonal=True) for a, b in zip(q, k, strict=True)]
    lam = 0.03 * (1.0 if settings.get("relative") else float(np.median(largest)))
    layer = UnrolledSelfExpression(_N_LAYERS, lam, dtype=torch.float64, **settings)
    with torch.no_grad():
        for t in range(_N_LAYERS):
            cast(Tensor, layer.step[t].log).sub_(0.3 * (1 - (t + 1) / _N_LAYERS))
            cast(Tensor, layer.lam[t].log).add_(0.5)
    return layer


def _build_learned(q: Array, k: Array, v: Array) -> UnrolledSelfExpression:
    """A feature map, and penalties that differ from iteration to iteration."""
    layer, generator = _build(q, k, v), torch.Generator().manual_seed(0)
    features = torch.nn.Linear(q.shape[-1], q.shape[-1], dtype=torch.float64)
    with torch.no_grad():
        for parameter in features.parameters():
            parameter.normal_(std=q.shape[-1] ** -0.5, generator=generator)
        for t in range(_N_LAYERS):
            cast(Tensor, layer.lam[t].log).add_(0.5 * t)
    layer.features = features
    return layer


def _features(layer: UnrolledSelfExpression, points: Array) -> Array:
    """A network of the user's own, evaluated in float64."""
    features = copy.deepcopy(layer.features).double().eval()
    with torch.no_grad():
        return np.asarray(features(torch.from_numpy(points)).cpu())


def _steps(layer: UnrolledSelfExpression, Z: Array, n_iter: int) -> Array:
    norm = np.linalg.norm(Z.T @ Z)
    return iteration_values(layer.step, n_iter) / (norm if norm > 0 else 1.0)


def _lams(
    layer: UnrolledSelfExpression, Q: Array, K: Array, n_iter: int, zero_diagonal: bool = True
) -> Array:
    """Penalties of each iteration and row, of shape (n_iter, n_rows)."""
    return iteration_values(layer.lam, n_iter)[:, None] * _scales(layer, Q, K, zero_diagonal)


def _scales(layer: UnrolledSelfExpression, Q: Array, K: Array, zero_diagonal: bool) -> Array:
    """What penalties are relative to, for each row."""
    if not layer.relative:
        return np.ones(len(Q))
    largest = lam_max(Q, K, zero_diagonal=zero_diagonal)
    return np.where(largest > 0, largest, 1.0)


def _is_ista(layer: UnrolledSelfExpression) -> bool:
    lams = iteration_values(layer.lam, len(layer.lam))
    return bool(lams.min() == lams.max())


def _solve(layer: UnrolledSelfExpression, call: HeadCall) -> Array:
    Z = _features(layer, call.q)
    steps = _steps(layer, Z, layer.n_iter)
    codes = ista(
        Z, Z, lam=_lams(layer, Z, Z, 1)[0], n_iter=layer.n_iter, step=steps, zero_diagonal=True
    )
    return codes.coef @ call.v


def _solve_new_points(layer: UnrolledSelfExpression, call: HeadCall) -> Array:
    Q, K = _features(layer, call.q), _features(layer, call.k)
    steps = _steps(layer, K, layer.n_iter)
    lam = _lams(layer, Q, K, 1, zero_diagonal=False)[0]
    return ista(Q, K, lam=lam, n_iter=layer.n_iter, step=steps).coef @ call.v


def _solve_recursion(layer: UnrolledSelfExpression, call: HeadCall) -> Array:
    """``C <- S_th(Z We + C S)`` with the n x n matrix S, a column of C after the other."""
    Z, n = _features(layer, call.q), len(call.q)
    lams = _lams(layer, Z, Z, layer.n_iter)[:, :, None]
    C = np.zeros((n, n))
    for step, lam in zip(_steps(layer, Z, layer.n_iter), lams, strict=True):
        pull, keep = step * Z.T, np.eye(n) - step * (Z @ Z.T)
        z = Z @ pull + C @ keep
        C = z - np.clip(z, -step * lam / 2, step * lam / 2)
        C -= np.diag(C.diagonal())
    return C @ call.v


def _certify(
    twin: Twin, layer: UnrolledSelfExpression, inputs: Tensors, *, zero_diagonal: bool
) -> float:
    """Iterates minimise the model of the Lasso around the ones before: the first and the last."""
    features = [(_features(layer, call.q), _features(layer, call.k))
                for call in calls_of_heads(twin, inputs)]  # fmt: skip

    def codes(n_iter: int) -> Array:
        return layer_matrix(twin, with_n_iter(layer, n_iter), *inputs[:2])

    residuals = [
        proximal_residual(
            after[head],
            before[head],
            Q,
            K,
            step=_steps(layer, K, layer.n_iter)[t],
            lam=_lams(layer, Q, K, layer.n_iter, zero_diagonal)[t],
            zero_diagonal=zero_diagonal,
        )
        for t, before, after in first_and_last(codes, layer.n_iter)
        for head, (Q, K) in enumerate(features)
    ]
    return max(*residuals, _cost_residual(layer, inputs, zero_diagonal=zero_diagonal))


def _cost_residual(layer: UnrolledSelfExpression, inputs: Tensors, *, zero_diagonal: bool) -> float:
    """Of the objective that is stated of the layer's codes, at an absolute penalty and a relative.

    Penalties are those that the layer was given.
    """
    q, k, _ = inputs
    keys = None if zero_diagonal else k
    stating, deviations = copy.deepcopy(layer), []
    with torch.no_grad():
        codes = layer(q, keys)
    for stating.relative in (False, True):
        found = as_array(stating.objective(q, codes, keys))
        for queries, points, C, costs in zip(q, k, codes, found, strict=True):
            Q, K = _features(layer, as_array(queries)), _features(layer, as_array(points))
            lam = layer.penalty * _scales(stating, Q, K, zero_diagonal)
            expected = lasso_objective(Q, K, as_array(C), lam=lam)
            deviations.append(largest_difference(costs, expected))
    return max(deviations)


def _problem(layer: UnrolledSelfExpression, call: HeadCall) -> Problem:
    Z = _features(layer, call.q)
    lam = _lams(layer, Z, Z, 1)[0]
    solution = sparse_self_expression(Z, lam=lam, tol=_TOL)

    def objective(codes: Array) -> float:
        if np.diagonal(codes).any():
            return float("inf")
        return float(lasso_objective(Z, Z, codes, lam=lam).sum())

    coef = solution.coef.toarray()
    lower_bound = float((solution.objective - solution.gap * (Z**2).sum(axis=1)).sum())
    return Problem(coef, objective, lower_bound, _rate(layer, Z, coef))


def _rate(layer: UnrolledSelfExpression, Z: Array, coef: Array) -> float:
    """``|C*|_F^2`` over the shortest step, proved if none exceeds ``1 / |Z|_2^2`` (SE-15)."""
    steps = _steps(layer, Z, len(layer.step))
    if steps.max() * np.linalg.norm(Z, 2) ** 2 > 1 + 1e-12:
        return float("inf")
    return float((coef**2).sum() / steps.min())


def _logit_range(layer: UnrolledSelfExpression, q: Array, k: Array, v: Array) -> float:
    return max(
        float(np.ptp(Q @ K.T)) * _steps(layer, K, len(layer.step)).max()
        for Q, K in ((_features(layer, a), _features(layer, b)) for a, b in zip(q, k, strict=True))
    )


def _build_mapped(q: Array, k: Array, v: Array) -> UnrolledSelfExpression:
    """The user's own features, and half the steps."""
    return _build(q, k, v, features=torch.nn.Tanh(), relative=True, relative_step=0.5)


_OPTIONS = {"relative": partial(_build, relative=True), "features": _build_mapped}
_SELF = {"pairing": "self", "apply": lambda layer, q, k, v: layer(q) @ v}
_CROSS = {"pairing": "cross", "apply": lambda layer, q, k, v: layer(q, k) @ v}
_certify_self = partial(_certify, zero_diagonal=True)
_AS_ISTA = {"build": _build, "covers": _is_ista, "problem": _problem, "fitted": ("lam",)}

for name, equation, relation, settings in (
    ("iterates", "SE-15", Iterate(),
     {"solve": _solve, "options": _OPTIONS, "certificate": _certify_self, **_SELF, **_AS_ISTA}),
    ("rate", "SE-15", Rate(), {"solve": _solve, **_SELF, **_AS_ISTA}),
    ("limit", "SE-12", Limit(), {"solve": _solve, **_SELF, **_AS_ISTA}),
    ("recursion", "SE-15L", Identity(),
     {"solve": _solve_recursion, "build": _build_learned, "problem": _problem, "fitted": ("lam",),
      "options": _OPTIONS, "certificate": _certify_self, **_SELF}),
    ("new-points", "SE-18", Iterate(),
     {"solve": _solve_new_points, "build": _build, "options": _OPTIONS, "covers": _is_ista,
      "certificate": partial(_certify, zero_diagonal=False), **_CROSS}),
):  # fmt: skip
    register(
        Twin(
            name=f"unrolled-self-expression-{name}",
            family="self_expression",
            relation=relation,
            equation=equation,
            source="Attention: Self-Expression Is All You Need, eq. 12 and 15",
            layer=UnrolledSelfExpression,
            logit_range=_logit_range,
            passes=lambda layer: max(layer.n_iter, 1),
            **settings,  # type: ignore[arg-type]
        )
    )
