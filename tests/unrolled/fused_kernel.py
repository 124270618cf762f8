"""Which implementation of attention PyTorch dispatches to."""

from collections.abc import Callable

from torch.profiler import ProfilerActivity, profile

FUSED = "aten::_scaled_dot_product_flash_attention_for_cpu"
EXPLICIT = "aten::_scaled_dot_product_attention_math"


def dispatched_attention(function: Callable[[], object]) -> set[str]:
    """Names of the attention kernels that run in ``function()``: `FUSED`, `EXPLICIT`, backward."""
    with profile(activities=[ProfilerActivity.CPU]) as record:
        function()
    names = {event.key for event in record.key_averages() if event.key.startswith("aten::")}
    return {name for name in names if "_scaled_dot_product" in name} - {"aten::_fused_sdp_choice"}
