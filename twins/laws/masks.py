"""Masks as arguments of an operator, with their meaning."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from .measurement import Array


@dataclass(frozen=True)
class Masks:
    """Masks as arguments of an operator, and their meaning.

    Attributes
    ----------
    name : str
    given : dict
        Arguments of the layer.
    visible : ndarray of bool, optional
        Which keys each query sees, broadcastable to (heads, n_queries, n_keys); all by default.
    bias : ndarray, optional
        Numbers that are added to the logits.
    """

    name: str
    given: dict[str, Any] = field(default_factory=dict)
    visible: Array | None = None
    bias: Array | None = None

    def hiding(self, visible: Array, name: str) -> Masks:
        """Return these masks combined with a boolean mask."""
        visible_pairs = visible if self.visible is None else self.visible & visible
        return Masks(name, self.given | {"mask": torch.from_numpy(visible)}, visible_pairs)


NO_MASKS = Masks("no mask")


def hiding(visible: Array, name: str = "") -> Masks:
    """Return a boolean mask."""
    return NO_MASKS.hiding(visible, name)


def causal(n_queries: int, n_keys: int) -> Masks:
    """Return the causal mask; the queries are the last tokens."""
    visible = np.tri(n_queries, n_keys, k=n_keys - n_queries, dtype=bool)
    return Masks("causal", {"is_causal": True}, visible)
