"""How many rows, keys, tiles or images are worked on at once, and how to make that fewer."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager

_largest = sys.maxsize


def block_size(usual: int) -> int:
    """How many to take at once: `usual`, or what `small_blocks` allows if that is less."""
    return min(usual, _largest)


@contextmanager
def small_blocks(largest: int) -> Iterator[None]:
    """Let no block be larger, in the forward and backward passes inside the ``with`` block.

    What a layer gives does not change but for rounding: a check of blocks needs no large inputs.

    Parameters
    ----------
    largest : int
        At least 1.

    Examples
    --------
    >>> import torch
    >>> from twinsolve.unrolled import Local
    >>> from twinsolve.unrolled.block_size import small_blocks
    >>> q, local = torch.randn(7, 4), Local(1)
    >>> with small_blocks(2):
    ...     in_four_blocks = local(q, q, q)
    >>> torch.allclose(in_four_blocks, local(q, q, q), atol=1e-6)
    True
    """
    global _largest
    before, _largest = _largest, largest
    try:
        yield
    finally:
        _largest = before
