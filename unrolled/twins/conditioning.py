"""Twins: token graying by SVD and by cosine transform.

Evidence is a formula: a power of singular values or of coefficients is all that graying is.
"""

from functools import partial

import numpy as np
from torch import Tensor

from ...solvers import gray_tokens
from ...solvers.conditioning import condition_number
from ..conditioning import TokenGraying
from .inequalities import Inequalities
from .registry import Array, Twin, register
from .relations import Bound, Identity

_SOURCE = "Always Skip Attention"


def _build(X: Array, *, transform: str, eps: float) -> TokenGraying:
    return TokenGraying(transform, eps=eps)  # type: ignore[arg-type]


def _uses(layer: TokenGraying, *, transform: str) -> bool:
    return layer.transform == transform


def _solve(layer: TokenGraying, X: Array) -> Array:
    return gray_tokens(X, eps=layer.eps, transform=layer.transform)


def _of_full_rank(X: Array) -> Array:
    """Without features that are zero in all tokens, which make the condition number infinite."""
    return X[:, (X != 0).any(axis=0)]


def _condition_bound(layer: TokenGraying, X: Tensor) -> Inequalities:
    """``kappa(X~) = kappa(X)^eps``, and what is left of s_1 and s_d along their own vectors."""
    sides, tokens = Inequalities(), _of_full_rank(X.double().numpy())
    grayed = layer(X[:, (X != 0).any(dim=0)]).double().numpy()
    sides.attained(condition_number(grayed), condition_number(tokens) ** layer.eps)
    U, s, Rt = np.linalg.svd(tokens, full_matrices=False)
    left = ((U.T @ grayed) * Rt).sum(axis=1)[[0, -1]]
    sides.attained(left, s[0] * (s / s[0])[[0, -1]] ** layer.eps)
    return sides


def _condition_range(layer: TokenGraying, X: Array) -> float:
    """Rounding moves a condition number by a share of about kappa times machine precision."""
    return float(condition_number(_of_full_rank(X)))


# The power of the task makes less of the brightest direction, and not yet as much of noise.
for transform, equation, eps in (("svd", "SK-A1", 0.5), ("dct", "SK-A2", 0.8)):
    register(
        Twin(
            name=f"token-graying-{transform}",
            family="conditioning",
            relation=Identity(),
            equation=equation,
            source=_SOURCE,
            layer=TokenGraying,
            build=partial(_build, transform=transform, eps=0.7),
            task={"build": partial(_build, transform=transform, eps=eps)},
            options={
                "little": partial(_build, transform=transform, eps=0.95),
                "nothing": partial(_build, transform=transform, eps=1.0),
            },
            solve=_solve,
            inputs="features",
            covers=partial(_uses, transform=transform),
            differentiable_twice=() if transform == "svd" else ("backward", "torch.func"),
        )
    )

register(
    Twin(
        name="token-graying-condition",
        family="conditioning",
        relation=Bound(),
        equation="SK-A1",
        source=_SOURCE,
        layer=TokenGraying,
        build=partial(_build, transform="svd", eps=0.5),
        solve=_solve,
        inputs="features",
        covers=partial(_uses, transform="svd"),
        bound=_condition_bound,
        logit_range=_condition_range,
    )
)
