"""What the twins of whole models share: weights drawn anew, a small batch, and registration."""

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ...attention import Operator
from ..heads import Array, as_array
from ..pairs import Inputs, Numerics
from ..registry import Twin, register
from ..relations import Identity

DIM, HEADS = 12, 3


def drawn(module: nn.Module, size: float = 0.2) -> nn.Module:
    """All parameters and running statistics moved at random, so that none is 0 or 1."""
    generator = torch.Generator().manual_seed(0)

    def noise(x: Tensor) -> Tensor:
        return torch.randn(x.shape, generator=generator, dtype=torch.float64)

    module.double()
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(size * noise(parameter))
        for name, buffer in module.named_buffers():
            if name.endswith(("running_mean", "running_var")):
                buffer += 0.5 * noise(buffer).abs()
    return module


def sequences(images: Tensor) -> Tensor:
    """Each image as a few tokens of width `DIM`, centred, by wrapping its pixels."""
    n_tokens = images[0].numel() // DIM
    tokens = images.flatten(1)[:, : n_tokens * DIM].unflatten(1, (n_tokens, DIM))
    return 2 * (tokens - tokens.mean(dim=(1, 2), keepdim=True))


def hidden_tokens(images: Tensor, n_tokens: int) -> Tensor:
    """Padding of another length in each sequence: the last one to three tokens."""
    counts = torch.arange(len(images)) % 3 + 1
    return torch.arange(n_tokens) >= n_tokens - counts[:, None]


def hidden_pairs(n: int) -> Array:
    """Pairs, others in each head; all tokens see themselves."""
    heads, rows, columns = np.indices((HEADS, n, n))
    return ((3 * rows + 5 * columns + heads) % 4 == 1) & (rows != columns)


def joined(*outputs: Tensor | None) -> Tensor:
    """Outputs of a batch side by side, one row each."""
    return torch.cat([x.flatten(1) for x in outputs if x is not None], dim=1)


def logit_range(apply: Callable[..., Tensor]) -> Callable[..., float]:
    """For `Twin.logit_range`: ``2 |q| |k| / sqrt(d)``, the largest of all operators in a pass."""

    def largest(model: nn.Module, *inputs: Array) -> float:
        found = [1.0]

        def keep(operator: Operator, tensors: tuple[Tensor, ...], output: Tensor) -> None:
            q, k = (x.detach().norm(dim=-1).max() for x in tensors[:2])
            found.append(2 * float(q * k) / tensors[0].shape[-1] ** 0.5)

        exact = copy.deepcopy(model).double()
        for part in exact.modules():
            if isinstance(part, Operator):
                part.register_forward_hook(keep)
        with torch.no_grad():
            apply(exact, *map(torch.from_numpy, inputs))
        return max(found)

    return largest


def over_batch(
    solve: Callable[..., tuple[Array, ...]], inputs: Callable[[Tensor], tuple[Tensor, ...]]
) -> Callable[[Any, Array], Array]:
    """The solver of a batch: `solve` gives the outputs of each member, which stand in its row."""

    def of_batch(model: Any, images: Array) -> Array:
        members = zip(*(as_array(x) for x in inputs(torch.from_numpy(images))), strict=True)
        rows = [np.concatenate([x.ravel() for x in solve(model, *one)]) for one in members]
        return np.stack(rows)

    return of_batch


def add(name: str, layer: type[nn.Module], *, source: str, equation: str, **sides: Any) -> None:
    """Register a twin of the family "models"; `sides` are `build`, `apply` and `solve`."""
    fields = grouped({"inputs": "model", "logit_range": lambda layer, *arrays: 1.0} | sides)
    fields["task"] = grouped(fields.get("task", {}))
    register(
        Twin(
            name=name,
            family="models",
            relation=Identity(),
            equation=equation,
            source=source,
            layer=layer,
            covers=lambda layer: False,  # a user's model is judged layer by layer
            **fields,
        )
    )


def grouped(sides: Any) -> dict[str, Any]:
    """Fields of a twin of what a model takes and gives."""
    fields = dict(sides)
    if isinstance(fields.get("inputs"), str):
        fields["inputs"] = Inputs(fields["inputs"], apply=fields.pop("apply"))
    if "logit_range" in fields:
        fields["numerics"] = Numerics(fields.pop("logit_range"), passes=lambda layer: 4)
    return fields
