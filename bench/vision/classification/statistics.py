"""Differences over paired seeds."""

from collections.abc import Sequence

import numpy as np
from scipy.stats import t as student


def paired_difference(
    values: Sequence[float], plain: Sequence[float], level: float = 0.95
) -> tuple[float, float]:
    """Mean of ``values - plain`` and half the width of its t interval; NaN with one pair.

    Examples
    --------
    >>> from twinsolve.bench.vision.classification.statistics import paired_difference
    >>> mean, half = paired_difference([1.0, 3.0], [0.0, 0.0])
    >>> round(mean, 3), round(half, 3)
    (2.0, 12.706)
    """
    differences = np.subtract(values, plain)
    n = len(differences)
    if n < 2:
        return float(differences.mean()), float("nan")
    error = differences.std(ddof=1) / np.sqrt(n)
    return float(differences.mean()), float(student.ppf((1 + level) / 2, n - 1) * error)


def said(mean: float, half: float, n: int) -> str:
    """A difference in words: what an interval that holds zero allows is nothing."""
    if np.isnan(half):
        return f"{mean:+.2f}, one seed"
    if abs(mean) <= half:
        return f"inconclusive at ± {half:.2f} points with {n} seeds"
    return f"{mean:+.2f} ± {half:.2f}"
