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

    `tightness` says how tight a proved bound is. Where terms cancel, the deviation of the output
    has been divided by `relief`; see `twinsolve.twins.relations.measure_difference`.
    """

    deviation: float
    tolerance: float
    tightness: float | None = None
    relief: float = 1.0

    @property
    def holds(self) -> bool:
        return bool(self.deviation <= self.tolerance)

    @property
    def coarse(self) -> bool:
        """Whether the tolerance is so large that a pass proves little: above 1e-3."""
        return not self.tolerance * self.relief <= _COARSEST


def dtype_name(dtype: torch.dtype) -> str:
    """Return the name of a dtype, such as "float32"."""
    return str(dtype).removeprefix("torch.")


def largest_difference(found: Array, expected: Array) -> float:
    """Return the largest difference divided by the largest expected entry."""
    with np.errstate(invalid="ignore", over="ignore"):  # the layer may diverge
        difference = np.abs(found - expected).max(initial=0.0)
        return float(difference / np.abs(expected).max(initial=_TINY))


def worst(measurements: list[Measurement]) -> Measurement:
    """Return the measurement with the largest ratio of deviation to tolerance; NaN is largest."""

    def excess(measurement: Measurement) -> float:
        if measurement.deviation == 0:
            return 0.0
        with np.errstate(divide="ignore", over="ignore"):
            ratio = float(np.float64(measurement.deviation) / measurement.tolerance)
        return ratio if ratio == ratio else float("inf")

    return max(measurements, key=excess)


def rounding(dtype: torch.dtype, passes: int, logit_range: float) -> float:
    """Return the tolerance for rounding in this dtype: ``32 eps * passes * logit range``."""
    return 32 * torch.finfo(dtype).eps * passes * max(1.0, logit_range)
