"""Devices: found by name, of a network, for a batch, and shared by processes."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn


def find_device(name: str) -> torch.device:
    """The torch device of a name; "auto" is the first GPU, or the CPU where there is none.

    Raises
    ------
    ValueError
        If there is no such device, or it holds no numbers, as "meta".
    """
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        number = torch.zeros(1, device=name)
        number.cpu()
    except (AssertionError, RuntimeError) as error:
        raise ValueError(f"device: {name!r} cannot be used ({error})") from error
    return number.device


def device_of(model: nn.Module) -> torch.device:
    """The device of a network's parameters; the CPU without any."""
    return next(model.parameters(), torch.empty(0)).device


def move_to(batch: Any, device: torch.device) -> Any:
    """A tensor, or a tuple of tensors, on a device."""
    if isinstance(batch, Tensor):
        return batch.to(device)
    return tuple(part.to(device) for part in batch)


@contextmanager
def processes(device: str = "auto") -> Iterator[torch.device]:
    """Join the processes of ``torchrun``, if it runs, and yield the device of this process.

    Processes share the GPUs, one each, where `device` is "cuda", or "auto" and there are GPUs.

    Raises
    ------
    ValueError
        If there is no such device.
    """
    joined = "TORCHELASTIC_RUN_ID" in os.environ
    own = find_device(device)
    if joined and device in ("auto", "cuda") and own.type == "cuda":
        own = find_device(f"cuda:{os.environ['LOCAL_RANK']}")
    if own.type == "cuda":
        torch.cuda.set_device(own)
    if not joined:
        yield own
        return
    dist.init_process_group("nccl" if own.type == "cuda" else "gloo")
    try:
        yield own
    finally:
        dist.destroy_process_group()
