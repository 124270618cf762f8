"""Task fields of twins whose layers do not cluster or denoise by their plain outputs."""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ..heads import Array, HeadCall
from ..laws.subject import as_array
from ..pairs import Inputs, Numerics
from ..relations import Bound, Identity, Inequalities, Relation

Points = Callable[[Tensor], Tensor]
PATCHES = Numerics(logit_range=lambda layer, *arrays: 10.0)  # of grey levels


def expressing(
    build: Callable[[Array], nn.Module],
    coefficients: Callable[[Any, Tensor], Tensor],
    solve: Callable[[Any, Array], Array],
) -> dict[str, Any]:
    """Return the fields of a task in which a layer on points expresses tokens: its output is C v.

    `coefficients` computes the layer's coefficients C of the points in each other, and `solve` the
    solver's.
    """

    def solve_head(layer: nn.Module, call: HeadCall) -> Array:
        return solve(layer, call.q) @ call.v

    return {
        "relation": Identity(),
        "inputs": Inputs(
            pairing="self",
            by_rows=False,
            apply=lambda layer, q, k, v: (coefficients(layer, q[0]) @ v[0])[None],
        ),
        "build": lambda q, k, v: build(q[0]),
        "solve": solve_head,
    }


def levels(X: Tensor) -> Tensor:
    """Return the grey levels of the pixels of each patch, of shape (n_patches, n_pixels, 1)."""
    return X[..., None]


def distances(X: Tensor) -> Tensor:
    """Return squared distances of pixels to the middle of their patch, in the shape of `levels`."""
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
    """Return the fields of a task in which a layer on tokens smooths each patch of an image.

    Queries and keys are the `points` of the patch, values its grey levels. `build`, `solve`,
    `apply` and `sides` are those of a twin of tokens; all heads of the layer are equal.
    """

    def tensors(X: Tensor) -> tuple[Tensor, ...]:
        return points(X), points(X), levels(X)

    def arrays(X: Array) -> tuple[Array, ...]:
        return tuple(as_array(x) for x in tensors(torch.from_numpy(X)))

    if sides is not None:
        relation = Bound(sides=lambda layer, X: sides(layer, *tensors(X)))

    def solve_patches(layer: nn.Module, X: Array) -> Array:
        patches = zip(*arrays(X), strict=True)
        return np.stack([solve(layer, HeadCall(*patch)).ravel() for patch in patches])

    return {
        "relation": relation or Identity(),
        "inputs": Inputs("patches", apply=lambda layer, X: apply(layer, *tensors(X))[..., 0]),
        "build": lambda X: build(*arrays(X)),
        "solve": solve_patches,
        "numerics": PATCHES,
    }
