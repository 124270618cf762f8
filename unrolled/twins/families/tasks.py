"""Tasks of layers that cluster or denoise in another way than by their outputs."""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ...laws.subject import as_array
from ..heads import Array, HeadCall
from ..pairs import Inputs, Numerics
from ..relations import Bound, Identity, Inequalities, Relation

Points = Callable[[Tensor], Tensor]
PATCHES = Numerics(logit_range=lambda layer, *arrays: 10.0)  # of grey levels


def expressing(
    build: Callable[[Array], nn.Module],
    coefficients: Callable[[Any, Tensor], Tensor],
    solve: Callable[[Any, Array], Array],
) -> dict[str, Any]:
    """Fields of a twin whose layer takes points alone, for tokens as points: ``C v``.

    `coefficients` are the layer's and `solve` gives the solver's, of the points in each other.
    """

    def solved(layer: nn.Module, call: HeadCall) -> Array:
        return solve(layer, call.q) @ call.v

    return {
        "relation": Identity(),
        "inputs": Inputs(
            pairing="self",
            by_rows=False,
            apply=lambda layer, q, k, v: (coefficients(layer, q[0]) @ v[0])[None],
        ),
        "build": lambda q, k, v: build(q[0]),
        "solve": solved,
    }


def levels(X: Tensor) -> Tensor:
    """Of the pixels of each patch, (n_patches, n_pixels, 1)."""
    return X[..., None]


def distances(X: Tensor) -> Tensor:
    """Squared distances of pixels to the middle of their square patch, (n_patches, n_pixels, 1)."""
    side = round(X.shape[1] ** 0.5)
    along = (torch.arange(side, dtype=X.dtype) - (side - 1) / 2) ** 2
    return (along[:, None] + along).reshape(-1, 1).expand(len(X), -1, 1)


def filtering(
    build: Callable[..., nn.Module],
    solve: Callable[[Any, HeadCall], Array],
    apply: Callable[..., Tensor] = lambda layer, *tensors: layer(*tensors),
    *,
    points: Points = levels,
    relation: Relation | None = None,
    sides: Callable[..., Inequalities] | None = None,
) -> dict[str, Any]:
    """A patch as its own smoothing gives it: queries and keys are `points`, values the levels.

    `build`, `solve`, `apply` and `sides` are those of a twin of tokens; all heads of the layer are
    the same.
    """

    def tensors(X: Tensor) -> tuple[Tensor, ...]:
        return points(X), points(X), levels(X)

    def arrays(X: Array) -> tuple[Array, ...]:
        return tuple(as_array(x) for x in tensors(torch.from_numpy(X)))

    if sides is not None:
        relation = Bound(sides=lambda layer, X: sides(layer, *tensors(X)))

    def solved(layer: nn.Module, X: Array) -> Array:
        return np.stack(
            [solve(layer, HeadCall(*one)).ravel() for one in zip(*arrays(X), strict=True)]
        )

    return {
        "relation": relation or Identity(),
        "inputs": Inputs("patches", apply=lambda layer, X: apply(layer, *tensors(X))[..., 0]),
        "build": lambda X: build(*arrays(X)),
        "solve": solved,
        "numerics": PATCHES,
    }
