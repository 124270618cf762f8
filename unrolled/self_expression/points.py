"""Points to be expressed in others, or each in the others of its own kind."""

import torch
from torch import Tensor


def check_pair(queries: Tensor, keys: Tensor | None) -> Tensor:
    """Return the keys, which are the queries if None, if both hold rows of one width.

    Raises
    ------
    ValueError
    """
    other = queries if keys is None else keys
    if min(queries.ndim, other.ndim) < 2 or other.shape[-1] != queries.shape[-1]:
        shape = None if keys is None else tuple(keys.shape)
        raise ValueError(
            f"queries: must be (..., n_queries, d) and keys (..., n_keys, d), got "
            f"{tuple(queries.shape)} and {shape}"
        )
    return other


def own_keys(own: Tensor | None, start: int, rows: Tensor, k: Tensor) -> Tensor | None:
    """Where a key is the query itself, for a block of queries that begins at `start`."""
    if own is None:
        return None
    index = own[start : start + rows.shape[-2], None]
    return index == torch.arange(k.shape[-2], device=rows.device)
