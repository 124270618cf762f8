"""Global random generators of torch, NumPy and Python: seeded inside a block, given back after."""

import random
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch


@contextmanager
def kept_generators() -> Iterator[None]:
    """Give the global generators back after the block as they were before it.

    Layers draw their weights from torch's, as those of torch do. What builds or runs layers for a
    caller does so inside this block, or as a function under this decorator, so that the caller's
    random numbers do not depend on it.

    Examples
    --------
    >>> import torch
    >>> from twinsolve.unrolled.generators import kept_generators
    >>> _ = torch.manual_seed(0)
    >>> with kept_generators():
    ...     first = torch.rand(2)
    >>> torch.equal(first, torch.rand(2))
    True
    """
    words, numbers = random.getstate(), np.random.get_state()  # noqa: NPY002
    try:
        with torch.random.fork_rng(devices=_used_devices()):
            yield
    finally:
        random.setstate(words)
        np.random.set_state(numbers)  # noqa: NPY002


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Seed the global generators inside the block, as a decorator inside the function.

    Examples
    --------
    >>> import torch
    >>> from twinsolve.unrolled.generators import seeded
    >>> with seeded(0):
    ...     first = torch.nn.Linear(2, 2)
    >>> with seeded(0):
    ...     again = torch.nn.Linear(2, 2)
    >>> torch.equal(first.weight, again.weight)
    True
    """
    with kept_generators():
        random.seed(seed)
        np.random.seed(seed % 2**32)  # noqa: NPY002
        seed_torch(seed)
        yield


def seed_torch(seed: int) -> None:
    """Seed torch's generators of the CPU and of the devices in use, within `kept_generators`.

    Unlike `torch.manual_seed`, it leaves no seed for devices that are used later.
    """
    torch.default_generator.manual_seed(seed)
    if _used_devices():
        torch.cuda.manual_seed_all(seed)


def _used_devices() -> list[int]:
    return list(range(torch.cuda.device_count())) if torch.cuda.is_initialized() else []
