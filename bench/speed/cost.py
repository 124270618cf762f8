"""What a run of torch code costs: peak memory, floating-point operations, the kernel it reached."""

import os
from collections.abc import Callable
from typing import Any, NamedTuple

os.environ.setdefault("KINETO_LOG_LEVEL", "9")  # read at import; the profiler logs every start

import torch
from torch.profiler import ProfilerActivity, profile
from torch.utils.flop_counter import (
    FlopCounterMode,
    sdpa_backward_flop_count,
    sdpa_flop_count,
)

_KERNELS = torch.ops.aten


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
    prefix = "_scaled_dot_product_"
    kernels = {
        name.removeprefix(prefix)
        for name in names
        if name.startswith(prefix) and not name.endswith("backward")
    }
    if "_BlockedAttention" in names:
        kernels.add("blocked_attention")
    if device == "cuda":
        return Profile(torch.cuda.max_memory_allocated() - before, kernels)
    events = profiler.profiler.kineto_results.events()
    sizes = sorted((e.start_ns(), e.nbytes()) for e in events if e.name() == "[memory]")
    held = peak = 0
    for _, size in sizes:
        held += size
        peak = max(peak, held)
    return Profile(peak, kernels)


def floating_point_operations(run: Callable[[], Any]) -> int:
    """Operations of matrix products, convolutions and attention kernels."""
    mapping = {
        _KERNELS._scaled_dot_product_flash_attention_for_cpu: _forward,
        _KERNELS._scaled_dot_product_flash_attention_for_cpu_backward: _backward,
    }
    with FlopCounterMode(display=False, custom_mapping=mapping) as counter:
        run()
    return counter.get_total_flops()


def _forward(q: Any, k: Any, v: Any, *_: Any, **__: Any) -> int:
    return sdpa_flop_count(q, k, v)


def _backward(gradient: Any, q: Any, k: Any, v: Any, *_: Any, **__: Any) -> int:
    return sdpa_backward_flop_count(gradient, q, k, v)
