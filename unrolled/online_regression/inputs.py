"""Checks of sequences, gates and states."""

import torch
from torch import Tensor

from ...validation import check_integer
from ..attention.inputs import check_tokens, common_batch, read_state


def read_sequences(
    q: Tensor, k: Tensor, v: Tensor, state: Tensor | None, chunk: int, **gates: Tensor | None
) -> tuple[Tensor, ...]:
    """Return q, k, v and the state in float32 at least, with common leading axes.

    The state is zeros by default. `gates` are only checked: (..., tokens, 1) or (..., tokens, d).

    Raises
    ------
    ValueError
        If shapes, dtypes or devices do not fit, or `chunk` is below 1.
    """
    check_integer(chunk, "chunk", 1)
    check_tokens(q=q, k=k, v=v)
    if q.shape[-2] != k.shape[-2]:
        raise ValueError(f"q: must have as many tokens as k, {k.shape[-2]}, got {q.shape[-2]}")
    for name, x in gates.items():
        if x is not None:
            _check_gate(name, x, k)
    wide = torch.promote_types(v.dtype, torch.float32)
    batch = common_batch(None, q, k, v)
    q, k, v = (x.to(wide).expand(*batch, *x.shape[-2:]) for x in (q, k, v))
    return q, k, v, read_state(state, (*batch, k.shape[-1], v.shape[-1]), k)


def _check_gate(name: str, x: Tensor, k: Tensor) -> None:
    if x.ndim < 2 or x.shape[-2] != k.shape[-2] or x.shape[-1] not in (1, k.shape[-1]):
        raise ValueError(
            f"{name}: must have one number, or {k.shape[-1]}, for each of the {k.shape[-2]} "
            f"tokens, got shape {tuple(x.shape)}"
        )
    if not x.is_floating_point() or x.device != k.device:
        raise ValueError(f"{name}: must be floating point on {k.device}, got {x.dtype}")
