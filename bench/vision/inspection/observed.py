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

    @property
    def masked(self) -> bool:
        """Whether some keys are hidden from some queries."""
        return any(x is not None and x is not False for x in self.seen.masks.values())


@torch.no_grad()
def observe(model: nn.Module, images: Tensor) -> list[Layer]:
    """Run a model once and keep what its attention layers did, in the order of computation.

    Raises
    ------
    ValueError
        If it holds no attention of this package.
    """
    kept: list[Observation] = []
    calls: dict[nn.Module, tuple[Any, Any]] = {}
    branches: dict[nn.Module, tuple[Tensor, Tensor, Tensor]] = {}

    def keep_call(module: nn.Module, inputs: Any, keywords: Any) -> None:
        calls[module] = inputs, keywords

    def keep_branch(module: nn.Module, inputs: Any, output: Tensor) -> None:
        branches[module] = inputs[0].detach(), inputs[1].detach(), output.detach()

    measures = {new: MEASURES[name] for name, new in _MEASURED.items()}
    with ExitStack() as stack:
        for part in model.modules():
            if isinstance(part, Attention | Block):
                hook = part.register_forward_pre_hook(keep_call, with_kwargs=True)
                stack.callback(hook.remove)
            if isinstance(part, Block):
                hook = part.attention_residual.register_forward_hook(keep_branch)
                stack.callback(hook.remove)
        rows = stack.enter_context(record(model, {**measures, "E": _energy, "": kept.append}))
        model(images)
    layers = []
    for number, seen in enumerate(kept):
        own = [row for row in rows if row["layer"] == number]
        name = own[0]["name"]
        shell, holder = (model.get_submodule(n) for n in (name, name.rpartition(".")[0]))
        layer = Layer(
            name, shell, None, seen, {row["measure"]: row["value"] for row in own},
            {"shell": calls.get(shell, ((), {}))}, None,
        )  # fmt: skip
        if isinstance(holder, Block):
            layer.block, layer.calls["block"] = holder, calls[holder]
            layer.branch = branches[holder.attention_residual]
        layers.append(layer)
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
