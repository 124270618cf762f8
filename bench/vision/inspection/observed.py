"""What passes through the layers of a model in one pass, kept for its measures."""

from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ....unrolled.attention import Attention, Correction, Operator
from ....unrolled.diagnostics import MEASURES, Observation, record
from ....unrolled.diagnostics.energies import kernel_energy
from ....unrolled.models import Block
from ....unrolled.nonlocal_energy import Neutreno

_MEASURED = {
    "token_similarity": "token_cosine",
    "high_frequency_share": "hc_share",
    "smoothness": "J",
}
_LAM = 0.6  # of the energy where the layer has none: that of the paper


@dataclass
class Layer:
    """An attention layer: its modules, what they got and gave, and means over the batch.

    Attributes
    ----------
    name : str
        Of the attention shell in the model.
    shell : nn.Module
    block : Block or None
        That holds the shell.
    seen : Observation
        Of its operator.
    measures : dict of str to float
    calls : dict of str to tuple
        Positional and keyword arguments of "shell" and "block".
    branch : tuple of Tensor
        Of the block: the tokens before attention, what attention adds, and the tokens after it.
    """

    name: str
    shell: Any
    block: Block | None
    seen: Observation
    measures: dict[str, float]
    calls: dict[str, tuple[Any, Any]]
    branch: tuple[Tensor, Tensor, Tensor] | None


@torch.no_grad()
def observe(model: nn.Module, images: Tensor) -> list[Layer]:
    """Run a model once and keep what its attention layers did, in the order of computation.

    Raises
    ------
    ValueError
        If it holds no attention of this package.
    """
    kept: list[Observation] = []
    names = {id(part): name for name, part in model.named_modules()}
    calls: dict[int, tuple[Any, Any]] = {}
    branches: dict[int, tuple[Tensor, Tensor, Tensor]] = {}

    def keep_call(module: nn.Module, inputs: Any, keywords: Any) -> None:
        calls[id(module)] = inputs, keywords

    def keep_branch(module: nn.Module, inputs: Any, output: Tensor) -> None:
        branches[id(module)] = inputs[0], inputs[1], output

    measures = {new: MEASURES[name] for name, new in _MEASURED.items()}
    with ExitStack() as stack:
        for part in model.modules():
            if isinstance(part, Attention | Block):
                hook = part.register_forward_pre_hook(keep_call, with_kwargs=True)
                stack.callback(hook.remove)
            if isinstance(part, Block):
                hook = part.attention_residual.register_forward_hook(keep_branch)
                stack.callback(hook.remove)
        measured = {**measures, "E": _energy, "": kept.append}
        rows = stack.enter_context(record(model, measured))
        model(images)
    values: dict[int, dict[str, float]] = {number: {} for number in range(len(kept))}
    shells = dict.fromkeys(range(len(kept)), "")
    for row in rows:
        values[row["layer"]][row["measure"]] = row["value"]
        shells[row["layer"]] = row["name"]
    layers = []
    for number, seen in enumerate(kept):
        shell = model.get_submodule(shells[number])
        holder = model.get_submodule(shells[number].rpartition(".")[0])
        block = holder if isinstance(holder, Block) else None
        found = {"shell": calls.get(id(shell), ((), {}))}
        if block is not None:
            found["block"] = calls[id(block)]
        layers.append(
            Layer(
                names[id(shell)], shell, block, seen, values[number], found,
                None if block is None else branches[id(block.attention_residual)],
            )
        )  # fmt: skip
    return layers


def _energy(seen: Observation) -> Tensor | None:
    """E towards the values of the first layer, with the layer's own lam or that of the paper."""
    operator: Operator = seen.operator
    while isinstance(operator, Correction) and not isinstance(operator, Neutreno):
        operator = operator.base
    lam = operator.lam() if isinstance(operator, Neutreno) else _LAM
    if seen.first_values.shape != seen.output.shape or "k" not in operator.reads:
        return None
    return kernel_energy(seen.output, seen.k, f=seen.first_values, lam=lam, **seen.masks)
