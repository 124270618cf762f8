"""What a network promises, as its behaviour shows."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch import Tensor

from .inputs import count_positions, difference, hide, read_texts_alone, restart, withhold_cache


def grows(model: Any, n: int) -> bool:
    """Whether 2 n tokens make every part of the cache twice as large as n do.

    If not, the cache has a window, in which padding counts, or a state, which takes padding in.
    """
    sizes = []
    try:
        for length in (n, 2 * n):
            cache = model(model.inputs[:, :length].clone())[1]
            cache = getattr(cache, "self_attention_cache", cache)
            sizes.append([x.numel() for x in _tensors(cache)])
    except Exception:  # whatever the network raises, or a cache that holds itself
        return False
    short, long = sizes
    return len(short) == len(long) and all(2 * a == b for a, b in zip(short, long, strict=True))


def ignores_gaps(model: Any) -> bool:
    """Whether padding between tokens changes nothing in one call; in a window it would count."""
    inputs = model.inputs.clone()
    padded, mask, positions = hide(inputs, inputs.shape[1] // 2 - 4, 4)
    try:
        output = model(padded, mask=mask, positions=positions)[0][mask == 1][None]
        return _is_near(model, output, read_texts_alone(model, inputs, 4))
    except Exception:  # whatever the network raises: the law will tell
        return True


def parts_texts(model: Any) -> bool:
    """Whether positions tell tokens which text of a row they belong to.

    Then positions of one token change the outputs of others, and where the first text starts to
    count changes nothing in the second. States that go on through all texts change neither.
    """
    inputs = model.inputs.clone()
    half, single = inputs.shape[1] // 2, withhold_cache(model)
    counted, restarted = count_positions(inputs), restart(inputs, (half,))
    single_zero, shifted = counted.clone(), restarted.clone()
    single_zero[:, half] = 0
    shifted[:, :half] += 3
    try:
        restarted_output, shifted_output = (
            single(inputs, positions=x)[0][:, half:] for x in (restarted, shifted)
        )
        counted_output, zeroed_output = (
            single(inputs, positions=x)[0][:, half + 1 :] for x in (counted, single_zero)
        )
    except Exception:  # whatever the network raises
        return False
    return _is_near(model, shifted_output, restarted_output) and not _is_near(
        model, zeroed_output, counted_output
    )


def _is_near(model: Any, found: Tensor, expected: Tensor) -> bool:
    return difference(found, expected) <= model.tolerance[0]


def _tensors(x: Any) -> Iterator[Tensor]:
    """Yield the floating-point tensors in a cache."""
    if isinstance(x, Tensor):
        yield from [x] if x.is_floating_point() else []
        return
    parts = x.values() if isinstance(x, dict) else x if isinstance(x, list | tuple) else ()
    for part in parts or vars(x).values() if hasattr(x, "__dict__") else parts:
        yield from _tensors(part)
