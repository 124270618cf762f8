"""Masks of every kind that a layer declares to take, and queries to judge."""

from collections.abc import Iterator

import numpy as np
import torch

from .masks import Masks, causal, hiding
from .measurement import Array
from .subject import Declared, Subject

_N_HIDDEN, _SHARE_SEEN = 3, 0.6


def masks_of(subject: Subject) -> list[Masks]:
    """Return the masks that the layer declares to take: padding first, the hardest mask last."""
    if subject.declared is None:
        return []
    return list(_draw_masks(subject, subject.declared, subject.rng("masks")))


def _draw_masks(subject: Subject, declared: Declared, rng: np.random.Generator) -> Iterator[Masks]:
    """Yield the masks that the layer declares to take."""
    heads, n = subject.inputs[1].shape[-3:-1]
    padding = np.ones((1, n), dtype=bool)
    padding[0, [0, *rng.choice(np.arange(1, n), _N_HIDDEN, replace=False)]] = False
    yield hiding(padding, "padding")
    hidden = torch.zeros(1, n, dtype=torch.float64)
    hidden[~torch.from_numpy(padding)] = -torch.inf
    yield Masks("additive mask", {"mask": hidden}, padding)
    if declared.causal:
        yield causal(n, n)
        yield causal(n, n).hiding(padding, "causal, padding")
    if not declared.pair_masks:
        yield hiding(np.stack([np.roll(padding, i, axis=1) for i in range(heads)]), "mask per head")
        return
    if declared.additive_masks:
        bias = rng.standard_normal((n, n))
        yield Masks("additive bias", {"mask": torch.from_numpy(bias)}, bias=bias)
    pairs = rng.random((3, n))[rng.integers(0, 3, n)] < _SHARE_SEEN
    pairs = pairs | np.eye(n, dtype=bool)
    yield hiding(pairs, "pairs")
    per_head = np.stack([pairs, pairs[::-1, ::-1], pairs.T])
    yield hiding(per_head[np.arange(heads) % 3], "mask per head")
    if declared.causal:
        yield causal(n, n).hiding(pairs, "causal, pairs")


def some_rows(
    subject: Subject,
    masks: Masks,
    rng: np.random.Generator,
    n_rows: int = 4,
    *,
    with_last: bool = False,
) -> Array:
    """Draw the queries to judge; if queries are keys, they must see themselves in every head."""
    heads, n_queries = subject.inputs[0].shape[-3:-1]
    n_keys = subject.inputs[1].shape[-2]
    rows = np.arange(n_queries)
    if subject.same_points and masks.visible is not None:
        visible = np.broadcast_to(masks.visible, (heads, n_queries, n_keys))
        rows = np.flatnonzero(np.diagonal(visible, axis1=1, axis2=2).all(axis=0))
    drawn = rng.choice(rows, min(n_rows, len(rows)), replace=False)
    return np.union1d(drawn, rows[-1:]) if with_last else np.sort(drawn)
