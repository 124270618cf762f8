"""Checks of inputs, whose errors name the input at fault."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from .context import Context
from .precision import autocast_dtype

_MASK_DTYPES = torch.bool, torch.float16, torch.bfloat16, torch.float32, torch.float64


def check_tokens(**tensors: Any) -> None:
    """Raise a ValueError unless tensors fit together as queries, keys and values.

    `tensors` are (..., tokens, width) by name: first queries, then keys, then any number of values,
    which have as many tokens as the keys and any width.
    """
    for name, x in tensors.items():
        if not isinstance(x, Tensor):
            raise ValueError(f"{name}: must be a Tensor, got {type(x).__name__}")
        if x.ndim < 2:
            raise ValueError(f"{name}: must be (..., tokens, width), got {tuple(x.shape)}")
        if not x.is_floating_point():
            raise ValueError(f"{name}: must be floating point, got {x.dtype}")
    (first, q), (second, k), *rest = tensors.items()
    batch: tuple[int, ...] = q.shape[:-2]
    for name, x in ((second, k), *rest):
        check_kind(name, x, first, q)
        if not _shapes_broadcast(x.shape[:-2], batch):
            raise ValueError(
                f"{name}: batch and heads must be those of the others, {tuple(batch)}, or 1; got "
                f"{tuple(x.shape[:-2])} in shape {tuple(x.shape)}"
            )
        batch = _broadcast_shapes(batch, x.shape[:-2])
    if q.shape[-1] == 0 or q.shape[-1] != k.shape[-1]:
        raise ValueError(
            f"{second}: must have the width of {first}, which is at least 1; got "
            f"{k.shape[-1]} and {q.shape[-1]}"
        )
    for name, v in rest:
        if v.shape[-2] != k.shape[-2]:
            raise ValueError(
                f"{name}: must have as many tokens as {second}, {k.shape[-2]}, got {v.shape[-2]}"
            )


def check_mask(mask: Any, name: str, like: Tensor) -> None:
    """Raise a ValueError unless a mask is boolean or floating point, on the device of `like`."""
    if not isinstance(mask, Tensor):
        raise ValueError(f"{name}: must be a Tensor, got {type(mask).__name__}")
    if mask.dtype not in _MASK_DTYPES:
        kinds = ", ".join(str(dtype).removeprefix("torch.") for dtype in _MASK_DTYPES)
        raise ValueError(f"{name}: must be one of {kinds}, got {mask.dtype}")
    if mask.device != like.device:
        raise ValueError(f"{name}: must be on {like.device} as the tokens, got {mask.device}")


def check_mask_shape(mask: Tensor, *tensors: Tensor) -> None:
    """Raise a ValueError unless a mask broadcasts to (n_queries, n_keys) of `tensors` q, k, ..."""
    pairs, batch = (tensors[0].shape[-2], tensors[1].shape[-2]), common_batch(None, *tensors)
    if not _mask_fits(mask.shape[-2:], pairs) or not _shapes_broadcast(mask.shape[:-2], batch):
        raise ValueError(
            f"mask: must broadcast to (..., {pairs[0]}, {pairs[1]}) with the batch and heads "
            f"{tuple(batch)} in front, got {tuple(mask.shape)}"
        )


def check_is_context(context: Any) -> None:
    """Raise a ValueError unless `context` is a `Context` or None."""
    if context is not None and not isinstance(context, Context):
        raise ValueError(f"context: must be a Context, got {type(context).__name__}")


def check_context(context: Any, needs: tuple[str, ...], k: Tensor, kind: str) -> None:
    """Raise a ValueError unless a context has the fields `needs`, of as many tokens as the keys."""
    check_is_context(context)
    for field in needs:
        name, value = f"context.{field}", getattr(context, field, None)
        if value is None and field != "previous_values":
            raise ValueError(f"context: {kind} needs {field}; pass context=Context({field}=...)")
        if value is None:
            continue
        if field == "projected_positions":
            if not isinstance(value, tuple) or len(value) != 2:
                raise ValueError(f"{name}: must be a pair of Tensors, got {type(value).__name__}")
            _check_field(f"{name}[0]", value[0], k)
            value = value[1]
        _check_field(name, value, k)
        if field.endswith("values"):
            check_kind(name, value, "the keys", k)
        if field != "first_tokens" and value.shape[-2] != k.shape[-2]:
            raise ValueError(
                f"{name}: must have as many tokens as the keys, {k.shape[-2]}, got "
                f"{tuple(value.shape)}"
            )


def check_gates(
    context: Any, field: str, widths: dict[str, int], x: Tensor, batch: tuple[int, ...], kind: str
) -> None:
    """Raise a ValueError unless the context's gates of the tokens x, if it has any, fit.

    Tokens and gates have the leading axes `batch`, or some of length 1.
    """
    gates = None if context is None or not widths else getattr(context, field)
    if gates is None:
        return
    name, width = f"context.{field}", sum(widths.values())
    _check_field(name, gates, x)
    if gates.shape[-2] != x.shape[-2]:
        of = "queries" if field == "query_gates" else "keys"
        raise ValueError(
            f"{name}: must have as many tokens as the {of}, {x.shape[-2]}, got {tuple(gates.shape)}"
        )
    if gates.shape[-1] != width or not broadcasts_to(gates.shape[:-2], batch):
        raise ValueError(
            f"{name}: {kind} needs {width} numbers a token, with the leading axes {tuple(batch)} "
            f"or 1; got shape {tuple(gates.shape)}"
        )


def _check_field(name: str, x: Any, k: Tensor) -> None:
    if not isinstance(x, Tensor):
        raise ValueError(f"{name}: must be a Tensor, got {type(x).__name__}")
    if x.ndim < 2:
        raise ValueError(f"{name}: must be (..., tokens, width), got {tuple(x.shape)}")
    if not x.is_floating_point() or x.device != k.device:
        raise ValueError(
            f"{name}: must be floating point on {k.device}, got {x.dtype} on {x.device}"
        )


def check_input(x: Any, name: str, shape: tuple[int | str, ...], weight: Tensor) -> None:
    """Raise a ValueError unless x has this shape and the device and dtype of `weight`.

    In `shape`, a name stands for any size, and "..." in front for any number of axes.
    """
    if not isinstance(x, Tensor):
        raise ValueError(f"{name}: must be a Tensor, got {type(x).__name__}")
    if x.is_nested:
        raise ValueError(
            f"{name}: must not be a nested tensor; replace the attention of a whole "
            "TransformerEncoder, or build it with enable_nested_tensor=False"
        )
    sizes = shape[1:] if shape[0] == "..." else shape
    fits = x.ndim >= len(sizes) if shape[0] == "..." else x.ndim == len(sizes)
    last = x.shape[x.ndim - len(sizes) :] if fits else ()
    if not fits or any(n != m for m, n in zip(last, sizes, strict=True) if isinstance(n, int)):
        raise ValueError(f"{name}: must be ({', '.join(map(str, shape))}), got {tuple(x.shape)}")
    check_kind(name, x, "the weights", weight)


def check_shell(
    tensors: dict[str, Any],
    widths: tuple[int, int, int],
    num_heads: int,
    key_padding_mask: Tensor | None,
    attn_mask: Tensor | None,
    weight: Tensor,
) -> None:
    """Raise a ValueError unless a multi-head layer can take these inputs and masks.

    `tensors` are query, key and value, (batch, tokens, width) or (tokens, width), by the names that
    errors use; `weight` has the layer's device and dtype.
    """
    query, key, value = tensors.values()
    front = ("tokens",) if getattr(query, "ndim", 3) == 2 else ("batch", "tokens")
    batch: tuple[int, ...] = (1,) * (len(front) - 1)
    for (name, x), width in zip(tensors.items(), widths, strict=True):
        check_input(x, name, (*front, width), weight)
        if not _shapes_broadcast(x.shape[:-2], batch):
            raise ValueError(f"{name}: must be a batch of {batch[0]} or 1, got {tuple(x.shape)}")
        batch = _broadcast_shapes(batch, x.shape[:-2])
    if value.shape[-2] != key.shape[-2]:
        raise ValueError(
            f"value: must have as many tokens as key, {key.shape[-2]}, got {value.shape[-2]}"
        )
    if key_padding_mask is not None:
        check_mask(key_padding_mask, "key_padding_mask", query)
        if key_padding_mask.shape != key.shape[:-1]:
            raise ValueError(
                f"key_padding_mask: must have shape {tuple(key.shape[:-1])}, got "
                f"{tuple(key_padding_mask.shape)}"
            )
    if attn_mask is not None:
        check_mask(attn_mask, "attn_mask", query)
        n_samples, n_queries, n_keys = (*batch, 1)[0], query.shape[-2], key.shape[-2]
        pairs, all_pairs = (n_queries, n_keys), (n_samples, num_heads, n_queries, n_keys)
        stacked = attn_mask.ndim == 3
        if (stacked and attn_mask.shape[0] != n_samples * num_heads) or not _mask_fits(
            attn_mask.shape[-2:] if stacked else attn_mask.shape, pairs if stacked else all_pairs
        ):
            raise ValueError(
                f"attn_mask: must be ({n_queries}, {n_keys}), (batch * num_heads, {n_queries}, "
                f"{n_keys}) with batch * num_heads = {n_samples} * {num_heads}, or one that "
                f"broadcasts to (batch, num_heads, {n_queries}, {n_keys}); got "
                f"{tuple(attn_mask.shape)}"
            )


def check_kind(name: str, x: Tensor, first: str, like: Tensor) -> None:
    """Raise a ValueError unless x is on the device of `like` and has its dtype.

    Under autocast, and beside quantised weights, any dtype is allowed. `first` names `like`.
    """
    if x.device != like.device:
        raise ValueError(f"{name}: must be on {like.device} as {first}, got {x.device}")
    quantised = not like.is_floating_point() or like.dtype.itemsize == 1
    if x.dtype != like.dtype and not quantised and not autocast_dtype(like):
        raise ValueError(f"{name}: must be {like.dtype} as {first}, got {x.dtype}")


def common_batch(mask: Tensor | None, *tensors: Tensor) -> tuple[int, ...]:
    """Return the leading axes to which tensors (..., tokens, width) and their mask broadcast."""
    batch: tuple[int, ...] = ()
    for x in tensors if mask is None else (*tensors, mask):
        batch = _broadcast_shapes(batch, x.shape[:-2])
    return batch


def of_common_batch(mask: Tensor | None, *tensors: Tensor) -> tuple[Tensor, ...]:
    """Return the tensors, each expanded to the leading axes of all (`common_batch`)."""
    batch = common_batch(mask, *tensors)
    expanded = (x if x.shape[:-2] == batch else x.expand(*batch, *x.shape[-2:]) for x in tensors)
    return tuple(expanded)


def read_state(state: Tensor | None, shape: tuple[int, ...], k: Tensor) -> Tensor:
    """Return a state of this shape in the dtype of the keys, zeros by default.

    Raises
    ------
    ValueError
        If its shape or device does not fit, or it is complex.
    """
    if state is None:
        return k.new_zeros(shape)
    if not isinstance(state, Tensor) or state.is_complex():
        got = state.dtype if isinstance(state, Tensor) else type(state).__name__
        raise ValueError(f"state: must be a real Tensor, got {got}")
    if state.shape != shape or state.device != k.device:
        raise ValueError(
            f"state: must have shape {tuple(shape)} on {k.device}, got {tuple(state.shape)} on "
            f"{state.device}"
        )
    return state.to(k.dtype)


def pair_of_states(state: Any) -> tuple[Any, Any]:
    """Return both parts of a state, None by default; raise a ValueError unless it is a pair."""
    if state is None:
        return None, None
    if not isinstance(state, tuple) or len(state) != 2:
        raise ValueError(f"state: must be a pair, got {type(state).__name__}")
    return state


def _mask_fits(mask: tuple[int, ...], shape: tuple[int, ...]) -> bool:
    """Whether a mask has at least two dimensions and broadcasts to the shape."""
    return len(mask) >= 2 and broadcasts_to(mask, shape)


def broadcasts_to(given: Sequence[int], shape: Sequence[int]) -> bool:
    """Whether a tensor of the given shape can be expanded to a shape."""
    sizes = zip(reversed(given), reversed(shape), strict=False)
    return len(given) <= len(shape) and all(m in (1, n) for m, n in sizes)


def _broadcast_shapes(a: tuple[int, ...], b: tuple[int, ...]) -> tuple[int, ...]:
    """Broadcast two shapes; ``torch.broadcast_shapes`` would fix sizes left free in an export."""
    longer, shorter = (a, b) if len(a) >= len(b) else (b, a)
    front = len(longer) - len(shorter)
    pairs = zip(longer[front:], shorter, strict=True)
    return (*longer[:front], *(n if m == 1 else m for m, n in pairs))


def _shapes_broadcast(a: tuple[int, ...], b: tuple[int, ...]) -> bool:
    pairs = zip(reversed(a), reversed(b), strict=False)
    return all(m == n or 1 in (m, n) for m, n in pairs)


def own_copy(x: ArrayLike | Tensor, dtype: torch.dtype | None = None) -> Tensor:
    """Return a Tensor that shares no memory with x, which may be a read-only array.

    A layer that kept the caller's array would change it when it loads a state.
    """
    if isinstance(x, Tensor):
        return x.detach().to(dtype=dtype, copy=True)
    if isinstance(x, np.ndarray):  # torch takes bytes in the order of this machine alone
        x = x.astype(x.dtype.newbyteorder("="), copy=False)
    return torch.tensor(x, dtype=dtype)
