"""Turns that are fair, and what is said of the times they took."""

from collections.abc import Iterator, Sequence
from typing import Any, TypeVar

import numpy as np
from numpy.typing import ArrayLike

_T = TypeVar("_T")


def in_turns(racers: Sequence[_T], rounds: int) -> Iterator[tuple[_T, bool]]:
    """Each racer once a round, in turns the first; and whether it is its last time."""
    for i in range(rounds):
        shift = i % len(racers)
        for racer in (*racers[shift:], *racers[:shift]):
            yield racer, i == rounds - 1


def timing(ms: ArrayLike, ours: ArrayLike) -> dict[str, Any]:
    """Median, lowest and highest of the times of the rounds and of their ratios to ours."""
    times, ratio = np.asarray(ms), np.asarray(ms) / np.asarray(ours)
    return {
        "ms": np.median(times),
        "ms_lowest": times.min(),
        "ms_highest": times.max(),
        "ratio": np.median(ratio),
        "ratio_lowest": ratio.min(),
        "ratio_highest": ratio.max(),
    }
