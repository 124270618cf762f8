"""What a call does: the attention that it reaches, what it saves, what modules are given."""

from collections.abc import Callable

import torch
from torch.profiler import ProfilerActivity, profile

FUSED = "aten::_scaled_dot_product_flash_attention_for_cpu"
BLOCKED = "_BlockedAttention"
EXPLICIT = "aten::_scaled_dot_product_attention_math"


def dispatched_attention(function: Callable[[], object]) -> set[str]:
    """The attention that runs in ``function()``: `FUSED`, `BLOCKED`, `EXPLICIT`, backward."""
    with profile(activities=[ProfilerActivity.CPU]) as record:
        function()
    names = {event.key for event in record.key_averages()}
    kernels = ("aten::_scaled_dot_product", BLOCKED)
    return {name for name in names if name.startswith(kernels)}


def saved_sizes(function: Callable[[], object]) -> list[int]:
    """How many numbers each tensor has that is kept for the backward pass."""
    sizes: list[int] = []
    with torch.autograd.graph.saved_tensors_hooks(
        lambda x: sizes.append(x.numel()) or x, lambda x: x
    ):
        function()
    return sizes


def record_calls(module: torch.nn.Module) -> list:
    """A list that every call of the module appends its arguments to, as ``args, kwargs``."""
    calls: list = []
    module.register_forward_pre_hook(
        lambda module, args, kwargs: calls.append((args, kwargs)), with_kwargs=True
    )
    return calls
