"""What a run of torch code costs: peak memory, floating-point operations, the kernel it reached."""

import os
from collections.abc import Callable
from itertools import accumulate
from typing import Any, NamedTuple

os.environ.setdefault("KINETO_LOG_LEVEL", "9")  # read at import; the profiler logs every start

import torch
from torch.profiler import ProfilerActivity, profile
from torch.utils.flop_counter import FlopCounterMode, sdpa_backward_flop_count, sdpa_flop_count

_PREFIX = "_scaled_dot_product_"
_FLOPS = {  # which torch counts on other devices alone
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu: lambda q, k, v, *_, **__: (
        sdpa_flop_count(q, k, v)
    ),
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward: (
        lambda gradient, q, k, v, *_, **__: sdpa_backward_flop_count(gradient, q, k, v)
    ),
}


class Profile(NamedTuple):
    """Peak memory in bytes beyond what was there before, and the attention kernels reached."""

    peak_memory: int
    kernels: set[str]


def profile_run(run: Callable[[], Any], device: str) -> Profile:
    """Run once under the profiler.

    Memory on the CPU is that of the allocator's own events, the same every time.
    """
    if device == "cuda":
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        run()
    names = {event.key.removeprefix("aten::") for event in profiler.key_averages()}
    kernels = {
        name.removeprefix(_PREFIX)
        for name in names
        if name.startswith(_PREFIX) and not name.endswith("backward")
    } | ({"blocked_attention"} if "_BlockedAttention" in names else set())
    if device == "cuda":
        return Profile(torch.cuda.max_memory_allocated() - before, kernels)
    events = profiler.profiler.kineto_results.events()
    sizes = sorted((e.start_ns(), e.nbytes()) for e in events if e.name() == "[memory]")
    return Profile(max(accumulate((size for _, size in sizes), initial=0)), kernels)


def floating_point_operations(run: Callable[[], Any]) -> int:
    """Operations of matrix products, convolutions and attention kernels."""
    with FlopCounterMode(display=False, custom_mapping=_FLOPS) as counter:
        run()
    return counter.get_total_flops()
