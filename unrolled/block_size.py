"""Block sizes: how many rows, keys, tiles or images are computed at once, and how to limit that."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager

_largest = sys.maxsize


def block_size(usual: int) -> int:
    """Return the size of a block: `usual`, or the limit of `small_blocks` if that is smaller."""
    return min(usual, _largest)


@contextmanager
def small_blocks(largest: int) -> Iterator[None]:
    """Limit the size of blocks, in the forward and backward passes inside the ``with`` block.

    Only the rounding of outputs changes. So a check of blocks needs no large inputs.

    Parameters
    ----------
    largest : int
        Largest block, at least 1.

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
