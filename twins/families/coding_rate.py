"""Twins of coding rates: token statistics, the exact step, subspace self-attention.

Token statistics are certified by differences of the rate, whose gradient they are. The first two
lower their rate by what is proved. Subspace self-attention is a mean of tokens, which raises the
rate by a factor at most; its linear form points uphill.
"""

from functools import partial
from typing import Any

import numpy as np
import torch
from sklearn.linear_model import Ridge as RidgeRegression
from torch import Tensor

from ...solvers.coding_rate import (
    coding_rate,
    coding_rate_gradient,
    coding_rate_step,
    mixing_rate_bound,
    subspace_memberships,
    subspace_rate,
    token_statistics,
    variational_rate,
    variational_rate_step,
)
from ...unrolled.coding_rate import CodingRate, SubspaceSelfAttention, TokenStatistics
from ...unrolled.kernel_smoothing import Linear
from ..heads import AllHeads, Array, HeadCall, Tensors, head_value, heads, move_parameters
from ..judging.certificates import smoothing_residual
from ..laws.subject import as_array
from ..pairs import Inputs, Numerics, layer_output
from ..registry import Twin, add_twin
from ..relations import Bound, Identity, Inequalities
from .kernel_smoothing.kernels import solve_linear
from .kernel_smoothing.regression import (
    dot_product_logits,
    dot_product_range,
    local_bandwidth,
    regress_by_dot_products,
    scale_of,
)
from .self_expression.closed_forms import penalty

_SMALL = 1e-7  # of tokens at which a rate is its quadratic part, to the square of it
_STEPS = (0.3, 1.0, 1.6)  # times the scale of the rate; it falls up to 2
_SHARES = (0.4, 1.0)  # of the way from the tokens to their means


def _build(
    q: Array, k: Array, v: Array, *, c: float = 1.5, of_heads: bool = False
) -> TokenStatistics:
    """Build with memberships in a range of exp(2), unless all tokens are zero."""
    largest = float(np.square(v).sum(axis=-1).max()) or 1.0
    settings: Any = {"num_heads": len(v), "learnable": True} if of_heads else {}
    return move_parameters(TokenStatistics(2 / largest, c=c, **settings, dtype=torch.float64))


def _sharpness(layer: TokenStatistics, n_heads: int) -> Array:
    return np.array([head_value(layer.sharpness, head) for head in range(n_heads)])


def _side_by_side(values: Array) -> Array:
    """Return the tokens of all heads as one matrix; each head is then a part of the features."""
    return np.hstack(list(values))


def _precision(layer: TokenStatistics, X: Array) -> float:
    """Return the eps at which the scale ``n_features / eps^2`` is the layer's."""
    return float((X.shape[1] / layer.c) ** 0.5)


def _members(layer: TokenStatistics, X: Array, seen: Array) -> Array:
    """Return the memberships of tokens in the heads that do not hide them."""
    n_heads = seen.shape[1]
    sharpness = _sharpness(layer, n_heads)
    Pi = subspace_memberships(X, np.eye(X.shape[1]), n_heads, sharpness=sharpness) * seen
    return Pi / Pi.sum(axis=1, keepdims=True)


def _direction(layer: TokenStatistics, values: Array, seen: Array) -> Array:
    """Return token statistics (heads, n, e) of the tokens, each of which a head at least sees."""
    X = _side_by_side(np.where(seen.T[:, :, None], values, 0))
    Pi = _members(layer, X, seen)
    out = token_statistics(X, np.eye(X.shape[1]), Pi, eps=_precision(layer, X))
    return np.stack(np.hsplit(out, len(values)))


def _solve(layer: TokenStatistics, call: HeadCall) -> Array:
    """Solve for all tokens together or, where each query sees others, for each query alone."""
    given = call.all_heads or AllHeads(call.q[None], call.k[None])
    values = call.v[None] if given.values is None else given.values
    n_heads, n_keys, places = len(values), len(call.k), call.places[0]
    visible = given.visible
    if visible is None:
        seen = np.ones((n_keys, n_heads), dtype=bool)
        return _direction(layer, values, seen)[call.head][places]
    out = np.zeros((len(call.q), call.v.shape[1]))
    patterns, of_row = np.unique(visible.transpose(1, 2, 0), axis=0, return_inverse=True)
    for index, seen in enumerate(patterns):
        tokens = np.flatnonzero(seen.any(axis=1))
        if len(tokens) > 0:
            rows = np.flatnonzero((of_row.ravel() == index) & np.isin(places, tokens))
            found = _direction(layer, values[:, tokens], seen[tokens])[call.head]
            out[rows] = found[np.searchsorted(tokens, places[rows])]
    return out


def _certify(twin: Twin, layer: TokenStatistics, inputs: Tensors) -> float:
    """Compare the output with slopes of the rate along random directions, memberships kept.

    The slopes are differences of sixth order, whose errors are some 1e-12 of the rate.
    """
    values = as_array(inputs[2])
    X, out = _side_by_side(values), _side_by_side(layer_output(twin, layer, inputs))
    Pi = _members(layer, X, np.ones((len(X), len(values)), dtype=bool))
    rate = partial(
        variational_rate, basis=np.eye(X.shape[1]), memberships=Pi, eps=_precision(layer, X)
    )
    residuals = []
    for seed in range(3):
        step = 1e-3 * np.random.default_rng(seed).standard_normal(X.shape) * np.abs(X).max()
        near, far, farthest = (rate(X + h * step) - rate(X - h * step) for h in (1, 2, 3))
        slope = -len(X) * (45 * near - 9 * far + farthest) / 60
        expected = float((out * step).sum())
        size = np.linalg.norm(out) * np.linalg.norm(step)
        residuals.append(abs(slope - expected) / max(float(size), np.finfo(np.float64).tiny))
    return max(residuals)


def _range(layer: TokenStatistics, q: Array, k: Array, v: Array) -> float:
    """Return the largest difference of the logits of two heads of a token, and at least 1."""
    logits = _sharpness(layer, len(v))[:, None] * np.square(v).sum(axis=-1)
    return 1 + float(np.ptp(logits, axis=0).max())


def _bound_statistics(layer: TokenStatistics, q: Tensor, k: Tensor, v: Tensor) -> Inequalities:
    """Compare the proved decrease of the variational rate with that of a step along the output.

    Both are equal, in the limit, for small tokens of a single head.
    """
    sides = Inequalities()
    for values, attained in ((v, False), (_SMALL * v[:1] / v.abs().max(), True)):
        tokens = as_array(values)
        X, out = _side_by_side(tokens), _side_by_side(as_array(layer(values, values, values)))
        basis, eps = np.eye(X.shape[1]), _precision(layer, X)
        Pi = _members(layer, X, np.ones((len(X), len(tokens)), dtype=bool))
        before = variational_rate(X, basis, Pi, eps=eps)
        for share in _STEPS:
            step = share / layer.c
            proved = variational_rate_step(X, basis, Pi, eps=eps, step=step).decrease
            fallen = before - variational_rate(X + step * out, basis, Pi, eps=eps)
            (sides.attained if attained else sides.at_most)(proved, fallen, scale=before)
    return sides


def _build_coding_rate(
    q: Array, k: Array, v: Array, *, of_heads: bool = False, relative: bool = False
) -> CodingRate:
    """Build with a hundredth of the largest eigenvalue of the tokens' Gram matrix as penalty."""
    largest = 1.0 if relative else max(float(np.linalg.norm(x, 2)) ** 2 for x in v) or 1.0
    settings: Any = {"num_heads": len(v), "learnable": True} if of_heads else {}
    layer = CodingRate(0.01 * largest, relative=relative, **settings, dtype=torch.float64)
    return move_parameters(layer)


def _solve_coding_rate(layer: CodingRate, call: HeadCall) -> Array:
    """Regress the tokens of the queries on all tokens, with a squared penalty."""
    lam, v, askers = penalty(layer.ridge, call.v, call.head), call.v, _askers(call)
    regression = RidgeRegression(alpha=lam, fit_intercept=False).fit(v.T, askers.T)
    found: Array = np.reshape(regression.coef_, (len(askers), len(v))) @ v
    return found


def _certify_coding_rate(twin: Twin, layer: CodingRate, inputs: Tensors) -> float:
    """Return how far ``(X - output) / lam`` is from the gradient of the rate, for its largest."""
    outputs = torch.from_numpy(layer_output(twin, layer, inputs))
    residuals = []
    for head, (X, out) in heads((inputs[2], outputs)):
        lam = penalty(layer.ridge, X, head)
        eps = float((X.shape[1] * lam / len(X)) ** 0.5)
        gap = X - out - lam * coding_rate_gradient(X, eps=eps)
        residuals.append(np.linalg.norm(gap) / max(np.linalg.norm(X), np.finfo(np.float64).tiny))
    return float(np.max(residuals))


def _bound_coding_rate(layer: CodingRate, q: Tensor, k: Tensor, v: Tensor) -> Inequalities:
    """Compare the proved decrease of the coding rate with that of a step to the output.

    ``X + share (C X - X)`` is a gradient step; `share` is the step times the scale be of the rate,
    and ``lam = 1 / be``. What is proved is also computed from the output. Both decreases are equal,
    in the limit, for small tokens.
    """
    sides = Inequalities()
    for tokens, attained in ((v, False), (_SMALL * v / v.abs().max(), True)):
        for head, (X, expressed) in heads((tokens, layer(tokens, tokens, tokens))):
            lam, basis = penalty(layer.ridge, X, head), np.eye(X.shape[1])
            eps = float((X.shape[1] * lam / len(X)) ** 0.5)
            before = subspace_rate(X, basis, 1, eps=eps)
            for share in _STEPS:
                proved = coding_rate_step(X, basis, 1, eps=eps, step=share * lam).decrease
                own = share * (1 - share / 2) * np.square(X - expressed).sum() / lam
                sides.attained(own, proved, scale=before)
                after = X + share * (expressed - X)
                fallen = before - subspace_rate(after, basis, 1, eps=eps)
                (sides.attained if attained else sides.at_most)(proved, fallen, scale=before)
    return sides


def _askers(call: HeadCall) -> Array:
    """Return the tokens of the queries, with zeros for those that no query sees."""
    given = call.all_heads or AllHeads(call.q[None], call.k[None])
    tokens = call.v if given.values is None else given.values[call.head]
    if given.visible is not None:
        tokens = np.where(given.visible[call.head].any(axis=0)[:, None], tokens, 0)
    return tokens[call.places[0]]


def _solve_mixing(layer: SubspaceSelfAttention, call: HeadCall) -> Array:
    """Regress the tokens on themselves, by their products."""
    v = call.v
    return regress_by_dot_products(_askers(call), v, v, scale_of(layer, v), call.bias)


def _certify_mixing(twin: Twin, layer: SubspaceSelfAttention, inputs: Tensors) -> float:
    """Return how far outputs are from the weighted means of the tokens, by their energies."""
    outputs = torch.from_numpy(layer_output(twin, layer, inputs))
    residuals = [
        smoothing_residual(u, dot_product_logits(layer, HeadCall(v, v, v)), v)
        for _, (v, u) in heads((inputs[2], outputs))
    ]
    return float(np.max(residuals))


def _bound_mixing(layer: SubspaceSelfAttention, q: Tensor, k: Tensor, v: Tensor) -> Inequalities:
    """Compare the rate of tokens that move towards the output with `mixing_rate_bound`.

    Both are equal for tokens that are all equal.
    """
    sides = Inequalities()
    for tokens, attained in ((v, False), (v[:, :1].expand_as(v), True)):
        for _, (X, mixed) in heads((tokens, layer(tokens, tokens, tokens))):
            A = regress_by_dot_products(X, X, np.eye(len(X)), scale_of(layer, X))
            eps = _relative_precision(X)
            for share in _SHARES:
                bound = mixing_rate_bound(X, A, eps=eps, share=share)
                rate = coding_rate(X + share * (mixed - X), eps=eps)
                (sides.attained if attained else sides.at_most)(rate, bound, scale=bound)
    return sides


def _relative_precision(X: Array) -> float:
    """Return the eps at which the largest eigenvalue of the scaled Gram matrix is 100."""
    lam = 0.01 * float(np.linalg.norm(X, 2)) ** 2 or 1.0
    return float((X.shape[1] * lam / len(X)) ** 0.5)


def _build_linear(q: Array, k: Array, v: Array) -> Linear:
    """Build with the scale be of a rate at which the products of the keys are 1 in some head."""
    return Linear(1 / (max(float(np.linalg.norm(keys, 2)) ** 2 for keys in k) or 1.0))


def _bound_ascent(layer: Linear, q: Tensor, k: Tensor, v: Tensor) -> Inequalities:
    """Compare ``|X|_F^2 / (1 + |X|_2)`` with the slope of the rate along the output ``X W``.

    ``X = be W W^T`` for the tokens W of a head. Both are equal for a single token.
    """
    sides = Inequalities()
    for tokens, attained in ((k, False), (k[:, :1], True)):
        for _, (W, out) in heads((tokens, layer(tokens, tokens, tokens))):
            be = scale_of(layer, W)
            X = be * W @ W.T
            slope = (coding_rate_gradient(W, eps=(W.shape[1] / (len(W) * be)) ** 0.5) * out).sum()
            least = np.linalg.norm(X) ** 2 / (1 + np.linalg.norm(X, 2))
            (sides.attained if attained else sides.at_most)(least, slope)
    return sides


_statistics = partial(
    add_twin,
    family="coding_rate",
    source="Wu et al. (2025)",
    layer=TokenStatistics,
    build=_build,
    solve=_solve,
    inputs=Inputs(by_rows=False),
    numerics=Numerics(_range, rounded="output"),
)
_statistics(
    name="token-statistics",
    relation=Identity(certificate=_certify),
    equation="CR-5, CR-5m",
    options={
        "sharpness-of-heads": partial(_build, of_heads=True),
        "larger-c": partial(_build, c=20.0),
        "default-c": lambda q, k, v: TokenStatistics(0.3, dtype=torch.float64),
    },
)
_statistics(
    name="token-statistics-descent", relation=Bound(sides=_bound_statistics), equation="CR-5"
)
_coding_rate = partial(
    add_twin,
    family="coding_rate",
    source="Yu et al. (2023)",
    layer=CodingRate,
    equation="CR-2",
    build=_build_coding_rate,
    solve=_solve_coding_rate,
    inputs=Inputs(),
)
_coding_rate(
    name="coding-rate-attention",
    relation=Identity(certificate=_certify_coding_rate),
    options={
        "penalties-of-heads": partial(_build_coding_rate, of_heads=True),
        "relative": partial(_build_coding_rate, relative=True),
    },
)
_coding_rate(name="coding-rate-descent", relation=Bound(sides=_bound_coding_rate))
_mixing = partial(
    add_twin,
    family="coding_rate",
    source="Yu et al. (2023)",
    layer=SubspaceSelfAttention,
    build=lambda q, k, v: SubspaceSelfAttention(local_bandwidth(v, v) ** -2),
    solve=_solve_mixing,
    inputs=Inputs(reads_bias=True),
    numerics=Numerics(lambda layer, q, k, v: dot_product_range(scale_of(layer, v), v, v)),
)
_mixing(
    name="subspace-self-attention",
    relation=Identity(certificate=_certify_mixing),
    equation="CR-3",
    options={"default-scale": lambda q, k, v: SubspaceSelfAttention()},
)
_mixing(name="subspace-self-attention-rate", relation=Bound(sides=_bound_mixing), equation="CR-3m")
add_twin(
    name="linear-attention-rate-ascent",
    family="coding_rate",
    source="Yu et al. (2023)",
    layer=Linear,
    relation=Bound(sides=_bound_ascent),
    equation="CR-3",
    build=_build_linear,
    solve=solve_linear,
    inputs=Inputs(pairing="self"),
    numerics=Numerics(rounded="output"),
)
