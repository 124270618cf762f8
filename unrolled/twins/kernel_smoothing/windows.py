"""The task of layers with one output for all queries: a patch's pixels are one sequence."""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ..heads import HeadCall, as_array
from ..registry import Array

Points = Callable[[Tensor], Tensor]


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
    bound: Callable[..., Any] | None = None,
) -> dict[str, Any]:
    """A patch as its own smoothing gives it: queries and keys are `points`, values the levels.

    `build`, `solve`, `apply` and `bound` are those of a twin of tokens; all heads of the layer are
    the same.
    """

    def tensors(X: Tensor) -> tuple[Tensor, ...]:
        return points(X), points(X), levels(X)

    def arrays(X: Array) -> tuple[Array, ...]:
        return tuple(as_array(x) for x in tensors(torch.from_numpy(X)))

    def solved(layer: nn.Module, X: Array) -> Array:
        return np.stack(
            [solve(layer, HeadCall(*one)).ravel() for one in zip(*arrays(X), strict=True)]
        )

    return {
        "inputs": "patches",
        "build": lambda X: build(*arrays(X)),
        "apply": lambda layer, X: apply(layer, *tensors(X))[..., 0],
        "solve": solved,
        "certificate": None,
        "logit_range": lambda layer, X: 10.0,
    } | ({} if bound is None else {"bound": lambda layer, X: bound(layer, *tensors(X))})
