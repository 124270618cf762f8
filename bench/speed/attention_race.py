"""Operators beside scaled dot-product attention on the same tokens."""

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from ...unrolled import Context, Operator, make_operator
from .attention_cost import floating_point_operations, profile_run
from .rounds import timing

REFERENCE = "scaled_dot_product_attention"
_SECONDS = 0.02  # at least, of a measurement


@dataclass(frozen=True)
class Setting:
    """Shape (batch, heads, tokens, head_dim), dtype, device and seed of a comparison."""

    shape: tuple[int, int, int, int]
    dtype: str = "float32"
    device: str = "cpu"
    seed: int = 0

    def randn(self, *shape: int, requires_grad: bool = False) -> Tensor:
        generator = torch.Generator().manual_seed(self.seed + sum(shape))
        x = torch.randn(shape, generator=generator).to(self.device, getattr(torch, self.dtype))
        return x.requires_grad_(requires_grad)

    def synchronize(self) -> None:
        if self.device == "cuda":
            torch.cuda.synchronize()


class Attending:
    """One way to attend, with inputs of its own: forward alone, and forward with backward."""

    def __init__(self, name: str, form: str, setting: Setting) -> None:
        self.name, self.form, self.setting = name, form, setting
        _, heads, _, width = setting.shape
        self.inputs = [setting.randn(*setting.shape, requires_grad=True) for _ in range(3)]
        if name == REFERENCE:
            self.operator: Operator | None = None
        else:
            operator = make_operator(name, num_heads=heads, head_dim=width)
            self.operator = operator.to(setting.device, getattr(torch, setting.dtype))
            if form == "stored":
                self.operator = getattr(operator, "precompute")(self.context)  # noqa: B009
        self.times: dict[str, list[float]] = {"inference": [], "training": []}

    @cached_property
    def context(self) -> Context:
        """Everything that an operator may read; projected positions have gradients."""
        setting = self.setting
        _, heads, tokens, width = setting.shape
        rows = math.isqrt(tokens)
        projected = setting.randn(*setting.shape, requires_grad=True)
        return Context(
            positions=setting.randn(tokens, heads * width),
            grid=(rows, tokens // rows),
            n_class_tokens=tokens % rows,
            projected_positions=(projected, projected.detach().clone().requires_grad_()),
            values=self.inputs[2],
            first_values=setting.randn(*setting.shape),
            previous_values=setting.randn(*setting.shape) + 1,
        )

    def attend(self) -> Tensor:
        q, k, v = self.inputs
        if self.operator is None:
            return F.scaled_dot_product_attention(q, k, v)
        if self.form == "explicit":
            return self.operator.matrix(q, k, context=self.context) @ v
        return self.operator(q, k, v, context=self.context)

    def infer(self) -> None:
        with torch.no_grad():
            self.attend()

    def train(self) -> None:
        self._forget()
        self.attend().sum().backward()

    def _forget(self) -> None:
        leaves = [*self.inputs, *(self.context.projected_positions or ())]
        parameters = [] if self.operator is None else list(self.operator.parameters())
        for x in (*leaves, *parameters):
            x.grad = None

    def runs(self) -> Iterator[tuple[str, Callable[[], None]]]:
        yield "inference", self.infer
        if self.form != "stored":  # what is stored is not trained
            yield "training", self.train

    def facts(self) -> dict[str, Any]:
        """Operations, parameters, and memory and kernel of a forward and backward pass."""
        row = {f"gflop_{mode}": floating_point_operations(run) / 1e9 for mode, run in self.runs()}
        self._forget()
        memory, kernels = profile_run(self.train, self.setting.device)
        parameters = [] if self.operator is None else list(self.operator.parameters())
        return row | {
            "parameters": sum(x.numel() for x in parameters),
            "memory_mib": memory / 2**20,
            "kernel": ", ".join(sorted(kernels)),
        }


def race(name: str, form: str, setting: Setting, rounds: int) -> dict[str, Any]:
    """Times of a way to attend and of the reference in turns, and what else it costs."""
    ours, reference = Attending(name, form, setting), Attending(REFERENCE, "fused", setting)
    row = ours.facts()
    reference.train()
    repeats = {
        (way, mode): max(1, math.ceil(_SECONDS / _seconds(run, setting, 1)))
        for way in (ours, reference)
        for mode, run in way.runs()
    }
    for i in range(rounds):
        for way in (ours, reference) if i % 2 else (reference, ours):
            for mode, run in way.runs():
                way.times[mode].append(1000 * _seconds(run, setting, repeats[way, mode]))
    for mode, _ in ours.runs():
        measured = timing(ours.times[mode], reference.times[mode])
        row |= {f"{mode}_{key}": value for key, value in measured.items()}
    return row


def _seconds(run: Callable[[], None], setting: Setting, repeats: int) -> float:
    setting.synchronize()
    start = time.perf_counter()
    for _ in range(repeats):
        run()
    setting.synchronize()
    return (time.perf_counter() - start) / repeats
