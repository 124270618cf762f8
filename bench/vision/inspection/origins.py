"""A layer beside the classical problems of the tokens that reach it."""

from typing import Any, NamedTuple

import numpy as np
import torch
from scipy.spatial.distance import pdist
from torch import Tensor

from ....solvers import (
    least_squares_self_expression,
    low_rank_self_expression,
    smoother_matrix,
    sparse_self_expression,
)
from ....solvers.self_expression import lam_from_gamma
from ....solvers.solution import Array
from ....unrolled import Gaussian, Kernel, LowRank, Ridge
from ....unrolled.laws.subject import map_tensors
from ....unrolled.twins import Origin, compare, fit_origin
from .measures import Layer

_GAMMA = 10.0  # penalties are a tenth of the smallest at which a row is zero
_SHARE = 0.1  # of the largest eigenvalue of the Gram matrix
_COMPARED = ("distance", "cosine", "support_f1")
UNDETERMINED = "not determined"


def tokens_of(layer: Layer) -> Array | None:
    """Tokens (n_tokens, dim) of the first image from which queries and keys are made, if alike."""
    inputs, _ = layer.calls["shell"]
    if len(inputs) < 2 or inputs[0] is not inputs[1]:
        return None
    return inputs[0].detach().reshape(-1, *inputs[0].shape[-2:])[0].numpy()


def own_origin(layer: Layer, X: Array) -> Origin | None:
    """What the layer solves on its own queries and keys, as `fit_origin` finds it.

    A layer whose family says nothing of it, such as a correction, is held against several. None
    where a layer cannot be fitted on tokens alone, as with masks or bandwidths of positions.
    """
    if layer.masked:
        return None
    context = layer.seen.arguments.get("context")
    if context is not None:
        context = map_tensors(context, lambda name, x: x[0] if x.ndim > 2 else x)
    try:
        return fit_origin(layer.shell, X, context=context)
    except (LookupError, ValueError):
        return None


def own_columns(origin: Origin | None, head: int | None = None) -> dict[str, Any]:
    """Fitted parameters and the distance that is left; of a head the parameters alone."""
    if origin is None:
        return {}
    fitted = {
        f"fitted_{name}": float(np.mean(values)) if head is None else values[head]
        for name, values in origin.parameters.items()
        if name not in origin.at_edge
    }
    if head is not None:
        return fitted
    said = {"origin": origin.twin, "origin_distance": origin.distance, "origin_fits": origin.fits}
    return {**said, **fitted}


class Problems(NamedTuple):
    """Tokens X of a layer, and C* of classical problems on them, by name."""

    X: Array
    solved: dict[str, Array]

    @property
    def shape(self) -> tuple[int, int]:
        """Of a matrix that can be compared."""
        return len(self.X), len(self.X)

    def permuted(self) -> "Problems":
        """Of the same tokens in another order, whose C* are the same in that order."""
        order = np.random.default_rng(0).permutation(len(self.X))
        again = {name: C[np.ix_(order, order)] for name, C in self.solved.items()}
        return Problems(self.X[order], again)


def problems_of(layer: Layer) -> Problems | None:
    """The problems on the tokens of the first image; None where queries are made of others."""
    X = tokens_of(layer)
    return None if X is None else Problems(X, solutions(X))


def compared_columns(A: Array, problems: Problems) -> dict[str, Any]:
    """A head's matrix beside classical problems on the tokens themselves.

    The nearest, with the distance that is left, and that of the nearest matrix that knows nothing
    of the tokens; and each C*, as `compare` says. Residuals are ``|X - C X| / |X|``.
    """
    X = problems.X
    scale = float(np.square(X).sum(axis=1).mean()) or 1.0
    tried = [Gaussian(scale**0.5), Kernel("laplace", scale**0.5), Ridge(scale), LowRank(scale)]
    origin = fit_origin(A, X, problem=tried)
    ((name, values),) = origin.parameters.items()
    found: dict[str, Any] = {
        "nearest": origin.twin,
        "nearest_parameter": UNDETERMINED if origin.at_edge else f"{name} = {values[0]:.4g}",
        "nearest_distance": origin.distance,
        "nearest_baseline": origin.baseline,
        "nearest_fits": origin.fits,
    }
    for problem, C in problems.solved.items():
        numbers = compare(A, C, X)
        found |= {f"{problem}_{key}": numbers[key] for key in _COMPARED}
        found |= {
            "residual": numbers["residual"],
            f"{problem}_residual": numbers["residual_reference"],
        }
    return found


def solutions(X: Array) -> dict[str, Array]:
    """C* of classical problems on the tokens, (n_tokens, n_tokens) each.

    Smoothing by a Gaussian kernel, half as wide as the median distance of tokens that differ; and
    self-expression: by least squares and of low rank with ``lam = 0.1 |X|_2^2``, and sparse with
    zero diagonal and a tenth of the penalty at which a row is zero.
    """
    lam = _SHARE * float(np.linalg.norm(X, 2) ** 2)
    apart = pdist(X)
    bandwidth = float(np.median(apart[apart > 0])) / 2 if apart.any() else 1.0
    solved = {
        "gaussian": smoother_matrix(X, X, bandwidth=bandwidth),
        "least_squares": least_squares_self_expression(X, lam=lam),
        "low_rank": low_rank_self_expression(X, lam=lam),
        "sparse": sparse_self_expression(X, lam=lam_from_gamma(X, _GAMMA)).coef.toarray(),
    }
    return {name: np.asarray(C) for name, C in solved.items()}


def matrices_of(layer: Layer) -> Array:
    """The operator's matrices of the first image, (heads, n_queries, n_keys)."""
    matrix: Tensor = layer.seen.matrix.reshape(-1, *layer.seen.matrix.shape[-3:])[0]
    with torch.no_grad():
        return matrix.numpy()
