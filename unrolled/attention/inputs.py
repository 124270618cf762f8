"""Checks of inputs, whose errors name the input at fault."""

from typing import Any

import torch
from numpy.typing import ArrayLike
from torch import Tensor

from .context import Context
from .precision import autocast_dtype

_MASK_DTYPES = torch.bool, torch.float16, torch.bfloat16, torch.float32, torch.float64


def check_tokens(**tensors: Any) -> None:
    """Refuse queries, keys and values that scaled_dot_product_attention would not take together.

    Parameters
    ----------
    **tensors : Tensor of shape (..., tokens, width)
        By name, the queries first, then the keys; values have the keys' tokens, in any width.

    Raises
    ------
    ValueError
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
    """Refuse masks that are neither boolean nor of floating point, or that lie elsewhere.

    Raises
    ------
    ValueError
    """
    if not isinstance(mask, Tensor):
        raise ValueError(f"{name}: must be a Tensor, got {type(mask).__name__}")
    if mask.dtype not in _MASK_DTYPES:
        kinds = ", ".join(str(dtype).removeprefix("torch.") for dtype in _MASK_DTYPES)
        raise ValueError(f"{name}: must be one of {kinds}, got {mask.dtype}")
    if mask.device != like.device:
        raise ValueError(f"{name}: must be on {like.device} as the tokens, got {mask.device}")


def check_mask_shape(mask: Tensor, *tensors: Tensor) -> None:
    """Refuse masks that do not broadcast with the pairs of the queries and keys, which come first.

    Raises
    ------
    ValueError
    """
    pairs, batch = (tensors[0].shape[-2], tensors[1].shape[-2]), common_batch(None, *tensors)
    if not _mask_fits(mask.shape[-2:], pairs) or not _shapes_broadcast(mask.shape[:-2], batch):
        raise ValueError(
            f"mask: must broadcast to (..., {pairs[0]}, {pairs[1]}) with the batch and heads "
            f"{tuple(batch)} in front, got {tuple(mask.shape)}"
        )


def check_is_context(context: Any) -> None:
    """Refuse what is neither a `Context` nor None.

    Raises
    ------
    ValueError
    """
    if context is not None and not isinstance(context, Context):
        raise ValueError(f"context: must be a Context, got {type(context).__name__}")


def check_context(context: Any, needs: tuple[str, ...], k: Tensor, kind: str) -> None:
    """Refuse contexts that lack what an operator needs, or hold tensors of other tokens.

    Raises
    ------
    ValueError
    """
    check_is_context(context)
    for field in needs:
        name, held = f"context.{field}", getattr(context, field, None)
        if held is None and field != "previous_values":
            raise ValueError(f"context: {kind} needs {field}; pass context=Context({field}=...)")
        if held is None:
            continue
        if field == "projected_positions":
            if not isinstance(held, tuple) or len(held) != 2:
                raise ValueError(f"{name}: must be a pair of Tensors, got {type(held).__name__}")
            _check_field(f"{name}[0]", held[0], k)
            held = held[1]
        _check_field(name, held, k)
        if field.endswith("values"):
            check_kind(name, held, "the keys", k)
        if field != "first_tokens" and held.shape[-2] != k.shape[-2]:
            raise ValueError(
                f"{name}: must have as many tokens as the keys, {k.shape[-2]}, got "
                f"{tuple(held.shape)}"
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
    """Refuse a tensor that a layer with this weight cannot take.

    Parameters
    ----------
    x : Tensor
    name : str
    shape : tuple
        Sizes. A name stands for any size, and "..." in front for any number of axes.
    weight : Tensor
        Of the layer's device and dtype.

    Raises
    ------
    ValueError
    """
    if not isinstance(x, Tensor):
        raise ValueError(f"{name}: must be a Tensor, got {type(x).__name__}")
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
    """Refuse inputs that a multi-head layer cannot take.

    Parameters
    ----------
    tensors : dict of str to Tensor of shape (batch, tokens, width) or (tokens, width)
        Query, key and value, by the names that errors use.
    widths : tuple of int
    num_heads : int
    key_padding_mask, attn_mask : Tensor, optional
    weight : Tensor
        Of the layer's device and dtype.

    Raises
    ------
    ValueError
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
        count, n_queries, n_keys = (*batch, 1)[0], query.shape[-2], key.shape[-2]
        pairs, whole = (n_queries, n_keys), (count, num_heads, n_queries, n_keys)
        stacked = attn_mask.ndim == 3
        if (stacked and attn_mask.shape[0] != count * num_heads) or not _mask_fits(
            attn_mask.shape[-2:] if stacked else attn_mask.shape, pairs if stacked else whole
        ):
            raise ValueError(
                f"attn_mask: must be ({n_queries}, {n_keys}), (batch * num_heads, {n_queries}, "
                f"{n_keys}) with batch * num_heads = {count} * {num_heads}, or one that broadcasts "
                f"to (batch, num_heads, {n_queries}, {n_keys}); got {tuple(attn_mask.shape)}"
            )


def check_kind(name: str, x: Tensor, first: str, like: Tensor) -> None:
    """Refuse a tensor on another device than `like` or, except under autocast, of another dtype.

    Raises
    ------
    ValueError
    """
    if x.device != like.device:
        raise ValueError(f"{name}: must be on {like.device} as {first}, got {x.device}")
    quantised = not like.is_floating_point() or like.dtype.itemsize == 1
    if x.dtype != like.dtype and not quantised and not autocast_dtype(like):
        raise ValueError(f"{name}: must be {like.dtype} as {first}, got {x.dtype}")


def common_batch(mask: Tensor | None, *tensors: Tensor) -> tuple[int, ...]:
    """The batch and heads that tensors (..., tokens, width) and their mask broadcast to."""
    batch: tuple[int, ...] = ()
    for x in tensors if mask is None else (*tensors, mask):
        batch = _broadcast_shapes(batch, x.shape[:-2])
    return batch


def of_common_batch(mask: Tensor | None, *tensors: Tensor) -> tuple[Tensor, ...]:
    """The tensors, each expanded to the batch and heads of all, so that operators see one batch."""
    batch = common_batch(mask, *tensors)
    same = (x if x.shape[:-2] == batch else x.expand(*batch, *x.shape[-2:]) for x in tensors)
    return tuple(same)


def _mask_fits(mask: tuple[int, ...], shape: tuple[int, ...]) -> bool:
    """Whether a mask has at least two dimensions and broadcasts to the shape."""
    wanted = shape[len(shape) - len(mask) :]
    return 2 <= len(mask) <= len(shape) and all(
        m in (1, n) for m, n in zip(mask, wanted, strict=True)
    )


def _broadcast_shapes(a: tuple[int, ...], b: tuple[int, ...]) -> tuple[int, ...]:
    """The common shape; ``torch.broadcast_shapes`` would fix sizes that an export leaves free."""
    longer, shorter = (a, b) if len(a) >= len(b) else (b, a)
    front = len(longer) - len(shorter)
    pairs = zip(longer[front:], shorter, strict=True)
    return (*longer[:front], *(n if m == 1 else m for m, n in pairs))


def _shapes_broadcast(a: tuple[int, ...], b: tuple[int, ...]) -> bool:
    pairs = zip(reversed(a), reversed(b), strict=False)
    return all(m == n or 1 in (m, n) for m, n in pairs)


def own_copy(x: ArrayLike | Tensor, dtype: torch.dtype | None = None) -> Tensor:
    """A tensor that shares no memory with what it is given, which may be read-only.

    A layer that kept the caller's array would change it when it loads a state.
    """
    if isinstance(x, Tensor):
        return x.detach().to(dtype=dtype, copy=True)
    return torch.tensor(x, dtype=dtype)
