"""Twins: token graying by SVD and by cosine transform.

The evidence is a formula: graying is a power of singular values or of coefficients.
"""

import math
from functools import partial

import numpy as np
from torch import Tensor

from ...solvers import gray_tokens
from ...solvers.conditioning import condition_number
from ...unrolled.conditioning import TokenGraying
from ..heads import Array
from ..laws.subject import as_array
from ..pairs import Derivatives, Inputs, Numerics
from ..registry import add_twin, having
from ..relations import Bound, Identity, Inequalities


def _build(X: Array, *, transform: str, eps: float) -> TokenGraying:
    """Build the layer with this transform and power."""
    return TokenGraying(transform, eps=eps)  # type: ignore[arg-type]


def _solve(layer: TokenGraying, X: Array) -> Array:
    """Solve by the solver for token graying."""
    return gray_tokens(X, eps=layer.eps, transform=layer.transform)


def _of_full_rank(X: Array) -> Array:
    """Drop the features that are zero in all tokens: they make the condition number infinite."""
    return X[:, (X != 0).any(axis=0)]


def _condition_bound(layer: TokenGraying, X: Tensor) -> Inequalities:
    """Compare ``kappa(X~)`` with ``kappa(X)^eps``, and s_1 and s_d along their singular vectors."""
    sides, tokens = Inequalities(), _of_full_rank(as_array(X))
    grayed = as_array(layer(X[:, (X != 0).any(dim=0)]))
    sides.attained(condition_number(grayed), condition_number(tokens) ** layer.eps)
    U, s, Rt = np.linalg.svd(tokens, full_matrices=False)
    new = ((U.T @ grayed) * Rt).sum(axis=1)[[0, -1]]
    sides.attained(new, s[0] * (s / s[0])[[0, -1]] ** layer.eps)
    return sides


def _condition_range(layer: TokenGraying, X: Array) -> float:
    """Return the condition number: rounding moves it by about kappa eps, relatively."""
    return float(condition_number(_of_full_rank(X)))


def _power_slope(layer: TokenGraying, X: Array) -> float:
    """Return the slope of the power law at the smallest coefficient above rounding of float32."""
    least = math.log2(2 * X.size) * float(np.finfo(np.float32).eps)
    return layer.eps * least ** (layer.eps - 1)


_add = partial(
    add_twin,
    family="conditioning",
    source="Always Skip Attention",
    layer=TokenGraying,
    solve=_solve,
    inputs=Inputs("features"),
)
# The power of the task weakens the brightest direction without making noise as strong.
for transform, equation, eps in (("svd", "SK-A1", 0.5), ("dct", "SK-A2", 0.8)):
    build = partial(_build, transform=transform)
    _add(
        name=f"token-graying-{transform}",
        relation=Identity(),
        equation=equation,
        build=partial(build, eps=0.7),
        task={"build": partial(build, eps=eps)},
        options={"little": partial(build, eps=0.95), "nothing": partial(build, eps=1.0)},
        covers=having(transform=transform),
        derivatives=Derivatives(twice=()) if transform == "svd" else Derivatives(),
        numerics=Numerics() if transform == "svd" else Numerics(logit_range=_power_slope),
    )
_add(
    name="token-graying-condition",
    relation=Bound(sides=_condition_bound),
    equation="SK-A1",
    build=partial(_build, transform="svd", eps=0.5),
    covers=having(transform="svd"),
    numerics=Numerics(logit_range=_condition_range),
)
