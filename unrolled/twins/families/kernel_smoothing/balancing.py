"""Twins: Sinkhorn balancing, its iterates, its limit and the rate of its convergence.

Iterates are a formula: rows and columns are divided by their sums, on the entries instead of the
logarithms. The limit alone is a projection.
"""

import copy
from functools import partial

import numpy as np
import torch
from scipy.spatial.distance import cdist
from torch import Tensor

from .....solvers import sinkhorn
from ....kernel_smoothing import FeatureKernel, Gaussian, Sinkhorn, Softmax
from ....laws.subject import identity_values
from ...certificates import balanced_residual, weights_certificate
from ...heads import Array, HeadCall, heads
from ...pairs import Derivatives, Inputs, solve_head
from ...registry import add_twin, exact_twin, numerics_of_base
from ...relations import Bound, FixedPointLimit, Inequalities, Iterate
from .regression import build_gaussian, dot_product_range, gaussian_logits

_TOL = 1e-12
_SHIFT = 0.01  # of two keys, by which two tokens are out of balance


def _build(q: Array, k: Array, v: Array, *, share: float = 0.5) -> Sinkhorn:
    """On logits that differ by 2 at most: balancing takes a few iterations, but more than one."""
    spread = max(float(cdist(a, b).max()) for a, b in zip(q, k, strict=True))
    return Sinkhorn(Gaussian(share * spread, dtype=torch.float64))


def _base_matrix(layer: Sinkhorn, call: HeadCall) -> Array:
    return solve_head(exact_twin(layer.base), layer.base, call.of_identity())


def _solve_iterates(layer: Sinkhorn, call: HeadCall) -> Array:
    """The scaling written out, on the entries of the visible tokens, which are its queries too.

    A hidden query weighs the visible keys as they are scaled for the others.
    """
    seen = _visible_tokens(call)
    P = _base_matrix(layer, call)[:, seen]
    for _ in range(layer.n_iter):
        P = P / P[seen].sum(axis=0)
        P = P / P.sum(axis=1, keepdims=True)
    return P @ call.v[seen]


def _solve_limit(layer: Sinkhorn, call: HeadCall) -> Array:
    """The limit of the visible tokens; a hidden query has the row that their columns leave it."""
    seen = _visible_tokens(call)
    A = _base_matrix(layer, call)[:, seen]
    with np.errstate(divide="ignore"):
        balanced = sinkhorn(np.log(A[seen]), tol=_TOL)
    scales = (balanced / A[seen]).mean(axis=0)
    rows = A * scales
    rows /= rows.sum(axis=1, keepdims=True)
    rows[seen] = balanced
    return rows @ call.v[seen]


def _visible_tokens(call: HeadCall) -> Array:
    """Keys that a mask does not hide."""
    if call.visible is None:
        return np.arange(len(call.k))
    return np.flatnonzero(call.visible.any(axis=0))


def _logits(layer: Sinkhorn, call: HeadCall) -> Array:
    if isinstance(layer.base, Gaussian):
        return gaussian_logits(layer.base, call)
    return np.asarray(np.log(_base_matrix(layer, call)))


def _rate(layer: Sinkhorn, q: Tensor, k: Tensor, v: Tensor) -> Inequalities:
    """Hilbert's distance ``d(A) = osc(log A - log P)`` to the limit P: ``d(A_n) <= t^2n d(A)``.

    The theorem of Birkhoff and Hopf, with ``t = tanh(max osc(log A_i - log A_m) / 4)`` over pairs
    of rows and osc the range over keys, the same for every query. Two tokens near balance attain
    it up to the square of how far they are from it.
    """
    sides = Inequalities()
    _contract(sides, layer, q, k)
    close = copy.deepcopy(layer)
    close.base = Gaussian(1.0)
    # At q = k = +-x without the shift, t = tanh(x^2): such that a quarter of the distance is left.
    x = np.sqrt(np.arctanh(0.25 ** (0.5 / max(layer.n_iter, 1))))
    pair = torch.tensor([[[x], [-x]]], dtype=q.dtype)
    _contract(sides, close, pair, pair + _SHIFT, share=1 - _SHIFT)
    return sides


def _contract(
    sides: Inequalities, layer: Sinkhorn, q: Tensor, k: Tensor, share: float | None = None
) -> None:
    """Both distances of each query, and that rows sum to 1; a `share` of the bound is reached."""
    for head, (a, b, found) in heads((q, k, layer(q, k, identity_values(k)))):
        with np.errstate(divide="ignore", invalid="ignore"):
            matrix = _base_matrix(layer, HeadCall(a, b, b, head))
            start, reached = np.log(matrix), np.log(found)
            limit = np.log(sinkhorn(start, tol=_TOL))
            widest = max(
                float(np.ptp(start[i:] - row, axis=1).max()) for i, row in enumerate(start)
            )
            before, after = (np.ptp(x - limit, axis=1) for x in (start, reached))
        rate, scale = np.tanh(widest / 4) ** (2 * layer.n_iter), 1 + widest
        if share is None:
            sides.at_most(after, rate * before, scale=scale)
        else:
            sides.attained(after, rate * before, share=share, scale=scale)
        sides.attained(found.sum(axis=1), 1.0)


_add = partial(
    add_twin,
    family="kernel_smoothing",
    equation="QK-Sinkhorn",
    source="Sinkhorn and Knopp (1967); Franklin and Lorenz (1989)",
    layer=Sinkhorn,
    inputs=Inputs(by_rows=False),
    numerics=numerics_of_base(2),  # a potential of rows, and one of columns
    derivatives=Derivatives(twice=("torch.func",)),  # see `squared_distances`
)
_OPTIONS = {
    "dot-products": lambda q, k, v: Sinkhorn(Softmax(2 / dot_product_range(1.0, q, k)), n_iter=3),
    "features": lambda q, k, v: Sinkhorn(FeatureKernel(), n_iter=3),
}
_LOCAL = partial(_build, share=0.25)  # as local as still converges in a hundred iterations
_projected = partial(FixedPointLimit, certificate=weights_certificate(_logits, balanced_residual))
_add(
    name="sinkhorn-iterates",
    relation=Iterate(),
    build=lambda q, k, v: Sinkhorn(build_gaussian(q, k, v)),
    options=_OPTIONS,
    solve=_solve_iterates,
)
_add(
    name="sinkhorn-limit",
    relation=_projected(n_iter=40),  # rows of logarithms differ by 4 at most: tanh(1)^80 < 1e-9
    build=_build,
    options=_OPTIONS,
    solve=_solve_limit,
    task={"build": _LOCAL, "relation": _projected(n_iter=100)},
)
_add(
    name="sinkhorn-rate",
    relation=Bound(sides=_rate),
    build=_build,
    solve=_solve_iterates,
    task={"build": _LOCAL},
)
