"""Which implementation of attention PyTorch dispatches to."""

from collections.abc import Callable

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
