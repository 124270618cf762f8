"""A deviation and its tolerance."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch

Array = np.ndarray

_COARSEST = 1e-3
_TINY = np.finfo(np.float64).tiny


class Measurement(NamedTuple):
    """A deviation and its tolerance.

    For a proved bound `tightness` says how tight it is. Where terms cancel, the deviation is that
    of the output over `relief`; see `twinsolve.unrolled.twins.relations.measure_difference`.
    """

    deviation: float
    tolerance: float
    tightness: float | None = None
    relief: float = 1.0

    @property
    def passed(self) -> bool:
        return bool(self.deviation <= self.tolerance)

    @property
    def coarse(self) -> bool:
        """Whether rounding would excuse so much that a pass shows little."""
        return not self.tolerance * self.relief <= _COARSEST


def dtype_name(dtype: torch.dtype) -> str:
    """Return the name of a dtype, such as "float32"."""
    return str(dtype).removeprefix("torch.")


def largest_difference(found: Array, expected: Array) -> float:
    """Largest difference over the largest entry that is expected."""
    with np.errstate(invalid="ignore", over="ignore"):  # a layer that diverges
        difference = np.abs(found - expected).max(initial=0.0)
        return float(difference / np.abs(expected).max(initial=_TINY))


def worst(measurements: list[Measurement]) -> Measurement:
    """The one that exceeds its tolerance most, or comes closest; NaN exceeds any."""

    def excess(measurement: Measurement) -> float:
        if measurement.deviation == 0:
            return 0.0
        with np.errstate(divide="ignore", over="ignore"):
            ratio = float(np.float64(measurement.deviation) / measurement.tolerance)
        return ratio if ratio == ratio else float("inf")

    return max(measurements, key=excess)


def rounding(dtype: torch.dtype, passes: int, logit_range: float) -> float:
    """How far outputs may be off by rounding: ``32 eps * passes * logit range``."""
    return 32 * torch.finfo(dtype).eps * passes * max(1.0, logit_range)
