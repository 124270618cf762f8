"""What a network promises, as its behaviour shows."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any
from unittest import mock

import torch
from torch import Tensor

from .laws.packing import restart, withhold_cache
from .laws.padding import hide, read_texts_alone

if TYPE_CHECKING:
    from .model import Model


def grows(model: Model, n: int) -> bool:
    """Whether 2 n tokens make every part of the cache twice as large as n do.

    If not, the cache has a window, which counts padding, or a state, which takes it in.
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


def ignores_gaps(model: Model) -> bool:
    """Whether padding between tokens changes nothing in one call: in a window it counts."""
    inputs = model.inputs.clone()
    padded, mask, positions = hide(inputs, inputs.shape[1] // 2 - 4, 4)
    try:
        found = model(padded, mask=mask, positions=positions)[0][mask == 1][None]
        return _is_near(model, found, read_texts_alone(model, inputs, 4))
    except Exception:  # whatever the network raises: the law will tell
        return True


def keeps_texts_apart(model: Model) -> bool:
    """Whether positions that start anew, without a mask, part the texts of a row.

    In transformers that is so where masks of attention are made from them, and there are no states.
    In other networks it is so if the first tokens reach most tokens after them, and none of those
    of a later text.
    """
    try:
        return (_makes_packed_masks(model) and grows(model, 2)) or _parts_texts(model)
    except Exception:  # whatever the network raises
        return False


def _makes_packed_masks(model: Model) -> bool:
    if model.config is None:
        return False
    from transformers import masking_utils

    name = "find_packed_sequence_indices"
    with mock.patch.object(masking_utils, name, wraps=getattr(masking_utils, name)) as spied:
        inputs = model.inputs.clone()
        withhold_cache(model)(inputs, positions=restart(inputs, (inputs.shape[1] // 2,)))
    return bool(spied.called)


def _parts_texts(model: Model) -> bool:
    inputs, single = model.inputs.clone(), withhold_cache(model)
    half, third = inputs.shape[1] // 2, inputs.shape[1] // 3
    changed = torch.cat([inputs[:, -third:], inputs[:, third:]], 1)
    reached = []
    for starts in ((half,), ()):
        positions = restart(inputs, starts)
        outputs = [single(x, positions=positions)[0][:, half:] for x in (inputs, changed)]
        moved = (outputs[0] - outputs[1]).abs().amax((0, -1))
        reached.append(moved > model.tolerance[0] * outputs[0].abs().max())
    parted, whole = reached
    return not parted.any() and bool(whole.double().mean() >= 0.5)


def _is_near(model: Model, found: Tensor, expected: Tensor) -> bool:
    from .model import difference

    return difference(found, expected) <= model.tolerance[0]


def _tensors(x: Any) -> Iterator[Tensor]:
    """The tensors of floats in a cache."""
    if isinstance(x, Tensor):
        yield from [x] if x.is_floating_point() else []
        return
    parts = x.values() if isinstance(x, dict) else x if isinstance(x, list | tuple) else ()
    for part in parts or vars(x).values() if hasattr(x, "__dict__") else parts:
        yield from _tensors(part)
