"""Twins: ISTA and ADMM for self-expression, their unrolled forms, and the limits of these."""

import copy
from functools import partial
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from ....solvers import ista
from ....solvers.sparse_coding import lam_max, lasso_objective
from ....solvers.sparse_coding.penalty import Penalty
from ....unrolled.self_expression import UnrolledADMM, UnrolledSelfExpression
from ...heads import Array, HeadCall, Tensors, head_value, iteration_values
from ...laws import largest_difference
from ...laws.subject import as_array
from ...pairs import Inputs, Numerics, calls_of_heads
from ...registry import Twin, add_twin
from ...relations import Identity, Iterate, Limit, Problem, Rate
from ..lasso import certify_steps, solved_lasso

_N_LAYERS = 5


def _build(q: Array, k: Array, v: Array, **settings: Any) -> UnrolledSelfExpression:
    """Build at 3 % of the penalty that makes the median row zero; steps grow to the safe one."""
    largest = [lam_max(a, b, zero_diagonal=True) for a, b in zip(q, k, strict=True)]
    lam = 0.03 * (1.0 if settings.get("relative") else float(np.median(largest)))
    layer = UnrolledSelfExpression(_N_LAYERS, lam, dtype=torch.float64, **settings)
    with torch.no_grad():
        for t in range(_N_LAYERS):
            cast(Tensor, layer.step[t].log).sub_(0.3 * (1 - (t + 1) / _N_LAYERS))
            cast(Tensor, layer.lam[t].log).add_(0.5)
    return layer


def _build_learned(q: Array, k: Array, v: Array) -> UnrolledSelfExpression:
    """Build the layer with a feature map and with penalties that differ between iterations."""
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
    """Evaluate the layer's feature map, which may be a user's network, in float64."""
    features = copy.deepcopy(layer.features).double().eval()
    with torch.no_grad():
        return np.asarray(features(torch.from_numpy(points)).cpu())


def _steps(layer: UnrolledSelfExpression, Z: Array, n_iter: int) -> Array:
    norm = np.linalg.norm(Z.T @ Z)
    return iteration_values(layer.step, n_iter) / (norm if norm > 0 else 1.0)


def _penalties(
    layer: UnrolledSelfExpression, Q: Array, K: Array, n_iter: int, zero_diagonal: bool = True
) -> Array:
    """Return the penalties of each iteration and row, of shape (n_iter, n_rows)."""
    return iteration_values(layer.lam, n_iter)[:, None] * _scales(layer, Q, K, zero_diagonal)


def _scales(layer: UnrolledSelfExpression, Q: Array, K: Array, zero_diagonal: bool) -> Array:
    """Return the factor of the penalties for each row: its largest penalty if they are relative."""
    if not layer.relative:
        return np.ones(len(Q))
    largest = lam_max(Q, K, zero_diagonal=zero_diagonal)
    return np.where(largest > 0, largest, 1.0)


def _is_ista(layer: UnrolledSelfExpression) -> bool:
    lams = iteration_values(layer.lam, len(layer.lam))
    return bool(lams.min() == lams.max())


def _solve_recursion(layer: UnrolledSelfExpression, call: HeadCall) -> Array:
    """Iterate ``C <- S_th(Z We + C S)`` with the n x n matrix S and a zero diagonal of C."""
    Z, n = _features(layer, call.q), len(call.q)
    lams = _penalties(layer, Z, Z, layer.n_iter)[:, :, None]
    C = np.zeros((n, n))
    for step, lam in zip(_steps(layer, Z, layer.n_iter), lams, strict=True):
        pull, keep = step * Z.T, np.eye(n) - step * (Z @ Z.T)
        z = Z @ pull + C @ keep
        C = z - np.clip(z, -step * lam / 2, step * lam / 2)
        C -= np.diag(C.diagonal())
    return C @ call.v


def _cost_residual(layer: UnrolledSelfExpression, inputs: Tensors, *, zero_diagonal: bool) -> float:
    """Return the error of the layer's own objective for its codes.

    It is evaluated with the initial penalty, once as an absolute and once as a relative one.
    """
    q, k, _ = inputs
    keys = None if zero_diagonal else k
    changed, deviations = copy.deepcopy(layer), []
    with torch.no_grad():
        codes = layer(q, keys)
    for changed.relative in (False, True):
        objectives = as_array(changed.objective(q, codes, keys))
        for queries, points, C, costs in zip(q, k, codes, objectives, strict=True):
            Q, K = _features(layer, as_array(queries)), _features(layer, as_array(points))
            lam = layer.penalty * _scales(changed, Q, K, zero_diagonal)
            expected = lasso_objective(Q, K, as_array(C), lam=lam)
            deviations.append(largest_difference(costs, expected))
    return max(deviations)


def _rate(layer: UnrolledSelfExpression, Z: Array, coef: Array) -> float:
    """Return ``|C*|_F^2 / min step``, proved if no step exceeds ``1 / |Z|_2^2`` (SE-15)."""
    steps = _steps(layer, Z, len(layer.step))
    if steps.max() * np.linalg.norm(Z, 2) ** 2 > 1 + 1e-12:
        return float("inf")
    return float((coef**2).sum() / steps.min())


def _logit_range(layer: UnrolledSelfExpression, q: Array, k: Array, v: Array) -> float:
    """Return the largest range of products times steps."""
    return max(
        float(np.ptp(Q @ K.T)) * _steps(layer, K, len(layer.step)).max()
        for Q, K in ((_features(layer, a), _features(layer, b)) for a, b in zip(q, k, strict=True))
    )


def _build_mapped(q: Array, k: Array, v: Array) -> UnrolledSelfExpression:
    """Build the layer with a user's feature map and half the safe step."""
    return _build(q, k, v, features=torch.nn.Tanh(), relative=True, relative_step=0.5)


def _solve(layer: UnrolledSelfExpression, call: HeadCall, *, zero_diagonal: bool = True) -> Array:
    """Solve by the solver's ISTA with the layer's steps."""
    Q, K = _features(layer, call.q), _features(layer, call.k)
    steps, lam = _steps(layer, K, layer.n_iter), _penalties(layer, Q, K, 1, zero_diagonal)[0]
    codes = ista(Q, K, lam=lam, n_iter=layer.n_iter, step=steps, zero_diagonal=zero_diagonal)
    return codes.coef @ call.v


def _certify(
    twin: Twin, layer: UnrolledSelfExpression, inputs: Tensors, *, zero_diagonal: bool = True
) -> float:
    """Judge the steps as those of ISTA, and the layer's own objective of its codes."""
    features = [
        (_features(layer, call.q), _features(layer, call.k))
        for call in calls_of_heads(twin, inputs)
    ]
    residual = certify_steps(
        twin,
        layer,
        inputs,
        features,
        step=lambda head, t: _steps(layer, features[head][1], layer.n_iter)[t],
        lam=lambda head, t: _penalties(layer, *features[head], layer.n_iter, zero_diagonal)[t],
        zero_diagonal=zero_diagonal,
    )
    return max(residual, _cost_residual(layer, inputs, zero_diagonal=zero_diagonal))


def _problem(layer: UnrolledSelfExpression, call: HeadCall) -> Problem:
    Z = _features(layer, call.q)
    lam = _penalties(layer, Z, Z, 1)[0]
    return solved_lasso(Z, Z, rate=lambda coef: _rate(layer, Z, coef), lam=lam, zero_diagonal=True)


def _build_admm(q: Array, k: Array, v: Array, **settings: Any) -> UnrolledADMM:
    return UnrolledADMM(10, 0.1, dtype=torch.float64, **{"l1_ratio": 0.7} | settings)


def _elastic_net(layer: UnrolledADMM, call: HeadCall, *, zero_diagonal: bool) -> Problem:
    """Solve with the positive penalty lam on ``r |c|_1 + (1 - r) / 2 |c|^2``, r the `l1_ratio`."""
    largest = lam_max(call.q, call.k, zero_diagonal=zero_diagonal)
    lam = head_value(layer.lam, call.head) * largest / layer.l1_ratio
    return solved_lasso(
        call.q,
        call.k,
        zero_diagonal=zero_diagonal,
        lam=np.maximum(lam, np.finfo(np.float64).tiny),
        l1_ratio=layer.l1_ratio,
    )


def iterate_admm(layer: UnrolledADMM, call: HeadCall, *, zero_diagonal: bool) -> Array:
    """Iterate over-relaxed ADMM; the SVD of the keys solves its ridge problems."""
    q, k = call.q, call.k
    ratio, relaxation = layer.l1_ratio, 1.6
    lam = head_value(layer.lam, call.head) * lam_max(q, k, zero_diagonal=zero_diagonal)
    penalty = Penalty(lam / ratio, ratio, own=np.arange(len(q)) if zero_diagonal else None)
    beta = _beta(layer, k, call.head)
    left, singular, _ = np.linalg.svd(k, full_matrices=False)
    shrunk = singular**2 + beta / 2
    codes = dual = np.zeros((len(q), len(k)))
    for _ in range(layer.n_iter):
        center = codes - dual
        along = (q @ k.T + beta / 2 * center) @ left / shrunk
        ridge = center + (along - center @ left) @ left.T
        relaxed = relaxation * ridge + (1 - relaxation) * codes
        codes = penalty.prox(relaxed + dual, 2 / beta)
        dual = dual + relaxed - codes
    return codes @ call.v


def _beta(layer: UnrolledADMM, k: Array, head: int) -> float:
    scale = 2 * head_value(layer.lam, head) / head_value(layer.threshold, head)
    return scale * float((k**2).sum(axis=1).mean())


def _admm_range(layer: UnrolledADMM, q: Array, k: Array, v: Array) -> float:
    """Return a bound of the growth of rounding in ``Q - B K``: |K| |(K^T K + beta/2 I)^-1 K^T|."""
    return max(
        np.linalg.norm(keys, 2) / (2 * np.sqrt(_beta(layer, keys, head) / 2))
        for head, keys in enumerate(k)
    )


def _solve_admm(layer: UnrolledADMM, call: HeadCall, *, zero_diagonal: bool) -> Array:
    return _elastic_net(layer, call, zero_diagonal=zero_diagonal).coef @ call.v


def _express_tokens(layer: Any, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    output: Tensor = layer(q) @ v
    return output


def _express_in_keys(layer: Any, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    output: Tensor = layer(q, k) @ v
    return output


_SELF = Inputs(pairing="self", apply=_express_tokens)
_CROSS = Inputs(pairing="cross", apply=_express_in_keys)
_ista = partial(
    add_twin,
    family="self_expression",
    source="Attention: Self-Expression Is All You Need, eq. 12 and 15",
    layer=UnrolledSelfExpression,
    build=_build,
    solve=_solve,
    inputs=_SELF,
    covers=_is_ista,
    fitted={"lam": None},
    numerics=Numerics(_logit_range, lambda layer: max(layer.n_iter, 1)),
)
_OPTIONS = {"relative": partial(_build, relative=True), "features": _build_mapped}
_ista(
    name="unrolled-self-expression-iterates",
    relation=Iterate(problem=_problem, certificate=_certify),
    equation="SE-15",
    options=_OPTIONS,
)
_ista(name="unrolled-self-expression-rate", relation=Rate(problem=_problem), equation="SE-15")
_ista(name="unrolled-self-expression-limit", relation=Limit(problem=_problem), equation="SE-12")
_ista(
    name="unrolled-self-expression-recursion",
    relation=Identity(problem=_problem, certificate=_certify),
    equation="SE-15L",
    build=_build_learned,
    options=_OPTIONS,
    solve=_solve_recursion,
    covers=lambda layer: True,
)
_ista(
    name="unrolled-self-expression-new-points",
    relation=Iterate(certificate=partial(_certify, zero_diagonal=False)),
    equation="SE-18",
    options=_OPTIONS,
    solve=partial(_solve, zero_diagonal=False),
    inputs=_CROSS,
    fitted={},
)

for suffix, zero_diagonal, inputs in (("", True, _SELF), ("-new-points", False, _CROSS)):
    problem = partial(_elastic_net, zero_diagonal=zero_diagonal)
    for ending, relation, solve in (
        ("", Iterate(n_iter=(1, 2, 5), problem=problem), iterate_admm),
        ("-limit", Limit(n_iter=2000, problem=problem), _solve_admm),
    ):
        add_twin(
            name=f"unrolled-admm{suffix}{ending}",
            family="self_expression",
            relation=relation,
            equation="CL-2",
            source="Elhamifar and Vidal (2013); Attention: Self-Expression Is All You Need",
            layer=UnrolledADMM,
            build=_build_admm,
            options={"lasso": partial(_build_admm, l1_ratio=1.0, threshold=0.1)},
            solve=partial(solve, zero_diagonal=zero_diagonal),
            fitted={"lam": None},
            inputs=inputs,
            numerics=Numerics(_admm_range, lambda layer: layer.n_iter),
        )
