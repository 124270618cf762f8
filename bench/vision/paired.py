"""Differences between runs that share their seeds."""

from dataclasses import dataclass

import numpy as np
import pandas as pd
from scipy.stats import t


@dataclass(frozen=True)
class Paired:
    """A mean difference over pairs, and half the width of its confidence interval.

    Attributes
    ----------
    mean, half_width : float
        NaN where there are too few pairs for one.
    n : int
        Pairs.
    """

    mean: float
    half_width: float
    n: int

    def __str__(self) -> str:
        if self.n < 2:
            return f"{self.mean:+.2f}, one seed" if self.n else "-"
        if abs(self.mean) <= self.half_width:
            return f"inconclusive at ± {self.half_width:.2f} points with {self.n} seeds"
        return f"{self.mean:+.2f} ± {self.half_width:.2f}"


def paired_difference(
    values: pd.Series, reference: pd.Series, *, confidence: float = 0.95
) -> Paired:
    """Mean of ``values - reference`` over the seeds that both have, by Student's t.

    Parameters
    ----------
    values, reference : Series
        Numbers, indexed by seed.
    confidence : float, default=0.95

    Examples
    --------
    >>> import pandas as pd
    >>> from twinsolve.bench.vision.paired import paired_difference
    >>> print(paired_difference(pd.Series([3.0, 5.0, 4.0]), pd.Series([1.0, 3.0, 1.0])))
    +2.33 ± 1.43
    """
    apart = (values - reference).dropna().to_numpy(dtype=np.float64)
    n = len(apart)
    if n < 2:
        return Paired(float(apart[0]) if n else float("nan"), float("nan"), n)
    spread = apart.std(ddof=1) / np.sqrt(n)
    return Paired(float(apart.mean()), float(t.ppf((1 + confidence) / 2, n - 1) * spread), n)
