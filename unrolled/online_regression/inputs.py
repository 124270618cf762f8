"""Checks of sequences, gates and states."""

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from ...validation import check_integer, check_positive
from ..attention.inputs import broadcasts_to, check_tokens, common_batch, read_state
from ..attention.tracing import has_no_values, is_transformed


def read_sequences(
    q: Tensor, k: Tensor, v: Tensor, state: Tensor | None, chunk: int, **gates: Tensor | None
) -> tuple[Any, ...]:
    """Return q, k, v, the state and the gates in float32 at least.

    q, k and v get common leading axes, and the state is zeros by default. A gate is (..., tokens,
    1) or (..., tokens, d); one that is None stays so.

    Raises
    ------
    ValueError
        If shapes, dtypes or devices do not fit, or `chunk` is below 1.
    """
    check_integer(chunk, "chunk", 1)
    check_tokens(q=q, k=k, v=v)
    if q.shape[-2] != k.shape[-2]:
        raise ValueError(f"q: must have as many tokens as k, {k.shape[-2]}, got {q.shape[-2]}")
    wide = torch.promote_types(v.dtype, torch.float32)
    batch = common_batch(None, q, k, v)
    q, k, v = (x.to(wide).expand(*batch, *x.shape[-2:]) for x in (q, k, v))
    state = read_state(state, (*batch, k.shape[-1], v.shape[-1]), k)
    return q, k, v, state, *(_read_gate(name, x, k) for name, x in gates.items())


def by_token(x: Tensor, name: str) -> Tensor:
    """Return one number for each token as (..., tokens, 1).

    Raises
    ------
    ValueError
        If it is no Tensor, or a single number.
    """
    if not isinstance(x, Tensor) or x.ndim == 0:
        raise ValueError(f"{name}: must be a Tensor with a number for each token, got {x!r:.60}")
    return x[..., None]


def read_penalty(lam: Tensor | float, k: Tensor) -> Tensor:
    """Return penalties that broadcast to (..., 1, d), in the dtype of the keys.

    Raises
    ------
    ValueError
        If they do not, are on another device, or are not above 0 where this costs no waiting.
    """
    if not isinstance(lam, Tensor):
        return k.new_tensor(check_positive(lam, "lam"))
    is_known = lam.is_cpu and not (has_no_values(lam) or is_transformed())
    if is_known and not bool((lam > 0).all()):
        raise ValueError(f"lam: must be > 0, got {float(lam.min()):g}")
    shape = (*k.shape[:-2], 1, k.shape[-1])
    if not broadcasts_to(lam.shape, shape) or lam.device != k.device:
        raise ValueError(
            f"lam: must broadcast to {shape} on {k.device}, got {tuple(lam.shape)} on {lam.device}"
        )
    return lam.to(k.dtype)


def read_visible(visible: Tensor | None, k: Tensor) -> Tensor | None:
    """Return which tokens are not skipped, (..., tokens, 1).

    Raises
    ------
    ValueError
        If it is not boolean, or does not fit the keys.
    """
    if visible is None:
        return None
    if visible.dtype != torch.bool or not broadcasts_to(visible.shape, k.shape[:-1]):
        raise ValueError(
            f"visible: must be bool and broadcast to {tuple(k.shape[:-1])}, got {visible.dtype} of "
            f"shape {tuple(visible.shape)}"
        )
    return visible.expand(k.shape[:-1])[..., None]


def packed_sequences(visible: Tensor) -> tuple[Tensor, Tensor | None] | None:
    """Return which tokens there are, and which begin a sequence, each (..., tokens, 1).

    None if pairs (..., tokens, tokens) hide no later tokens, or are not those of sequences one
    after another, or if no values can be looked at. Rows of hidden tokens may be anything. Nothing
    begins where there is one sequence.
    """
    if has_no_values(visible) or bool((visible != visible.tril()).any()):
        return None
    there = visible.diagonal(dim1=-2, dim2=-1)
    place = torch.arange(there.shape[-1], device=there.device)
    last = torch.where(there, place, -1).cummax(dim=-1).values
    before = F.pad(last[..., :-1], (1, 0), value=-1)[..., None]
    sees = visible.take_along_dim(before.clamp(min=0), dim=-1) & (before >= 0)
    begins = there & ~sees[..., 0]
    number = begins.cumsum(dim=-1)
    together = there[..., None, :] & (number[..., :, None] == number[..., None, :])
    is_other = ((together.tril() != visible) & there[..., :, None]).any(dim=(-1, -2))
    if bool((is_other | (~there.any(dim=-1) & visible.any(dim=(-1, -2)))).any()):
        return None
    return there[..., None], begins[..., None] if bool((number > 1).any()) else None


def _read_gate(name: str, x: Tensor | None, k: Tensor) -> Tensor | None:
    if x is None:
        return None
    if not isinstance(x, Tensor):
        raise ValueError(f"{name}: must be a Tensor, got {type(x).__name__}")
    if x.ndim < 2 or x.shape[-2] != k.shape[-2] or x.shape[-1] not in (1, k.shape[-1]):
        raise ValueError(
            f"{name}: must have one number, or {k.shape[-1]}, for each of the {k.shape[-2]} "
            f"tokens, got shape {tuple(x.shape)}"
        )
    if not broadcasts_to(x.shape, k.shape):
        raise ValueError(
            f"{name}: must have the leading axes {tuple(k.shape[:-2])} or 1, got shape "
            f"{tuple(x.shape)}"
        )
    if not x.is_floating_point() or x.device != k.device:
        raise ValueError(f"{name}: must be floating point on {k.device}, got {x.dtype}")
    return x.to(k.dtype)
