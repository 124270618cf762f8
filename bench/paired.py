"""Differences between runs that share seeds and test images, with intervals and verdicts."""

import gc
from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import pandas as pd
from scipy.optimize import brentq
from scipy.stats import nct, t
from statsmodels.stats.multitest import multipletests

from .tables import number

MARGIN = 1.0  # points: a smaller difference counts as none
COMPARED = ("difference, points", "p, corrected", "verdict", "seen with 80 % power")
_LEVEL, _POWER = 0.05, 0.8
_NOTHING = 1e-18  # squared points: a smaller variance is rounding
Name = TypeVar("Name", bound=Hashable)


@dataclass(frozen=True)
class Paired:
    """A mean difference over pairs, with its standard error.

    Attributes
    ----------
    mean, error : float
        Mean and standard error; NaN without pairs. The error is also NaN for one pair, or if all
        pairs have the same difference.
    n : int
        Number of pairs: seeds, or images of a network that was trained once.
    """

    mean: float
    error: float
    n: int

    @property
    def determined(self) -> bool:
        """Whether the difference has an interval."""
        return not np.isnan(self.error)

    @property
    def half_width(self) -> float:
        """Half the width of the 95 % interval, by Student's t."""
        return float(t.ppf(1 - _LEVEL / 2, self.n - 1) * self.error)

    @property
    def p(self) -> float:
        """Two-sided p of the hypothesis of no difference."""
        return float(2 * t.sf(abs(self.mean) / self.error, self.n - 1))

    def p_of_margin(self, margin: float) -> float:
        """The larger p of two one-sided tests of a difference of `margin` or more."""
        return float(t.sf((margin - abs(self.mean)) / self.error, self.n - 1))

    def detectable(self, n_compared: int) -> float:
        """Difference found with 80 % power, corrected for `n_compared` comparisons."""
        if not self.determined:
            return np.nan
        least = t.ppf(1 - _LEVEL / 2 / n_compared, self.n - 1)
        errors = brentq(lambda x: nct.sf(least, self.n - 1, x) - _POWER, 0, 10 * least)
        return float(errors * self.error)

    def __str__(self) -> str:
        if self.n < 2:
            return f"{self.mean:+.2f}, one pair" if self.n else "-"
        return self.write() if self.determined else f"{self.mean:+.2f} ± not determined"

    def write(self, digits: int = 2) -> str:
        """Mean and half width with `digits` decimals, or with more so that the width is not 0."""
        half = self.half_width
        digits = max(digits, int(np.ceil(-np.log10(2 * half))))
        return f"{self.mean:+.{digits}f} ± {half:.{digits}f}"


def paired_difference(values: Any, reference: Any = 0.0) -> Paired:
    """Mean of ``values - reference`` over common seeds and images, both taken as random.

    With the differences d_ij of n seeds on m images ::

        S = m sum_i (d_i. - d)^2 / (n - 1)
        T = n sum_j (d_.j - d)^2 / (m - 1)
        R = sum_ij (d_ij - d_i. - d_.j + d)^2 / ((n - 1) (m - 1))
        error^2 = (S + max(T - R, 0)) / (n m)

    as Dorfman, Berbaum and Metz (1992) compare readers on cases, where both are random. For one
    image, it is the error of the paired t test over seeds. There are n - 1 degrees of freedom, as
    for seeds alone, which makes no interval narrower than over seeds: Satterthwaite's degrees of
    freedom reject too often in the tails that a correction for many comparisons needs.

    Parameters
    ----------
    values, reference : Series or DataFrame
        Numbers by seed, or by seed (rows) and image (columns). If a score is no mean over images,
        the numbers are pseudo-values of the images, whose mean is the score.

    Examples
    --------
    >>> import pandas as pd
    >>> from twinsolve.bench.paired import paired_difference
    >>> print(paired_difference(pd.Series([3.0, 5.0, 4.0]), pd.Series([1.0, 3.0, 1.0])))
    +2.33 ± 1.43
    """
    apart = (values - reference).dropna().to_numpy(dtype=np.float64)
    n = len(apart)
    if n < 2:
        return Paired(float(apart.mean()) if n else np.nan, np.nan, n)
    d = apart.reshape(n, -1)
    m, mean = d.shape[1], float(d.mean())
    by_seed, by_image = d.mean(axis=1), d.mean(axis=0)
    of_seeds, of_images = m * by_seed.var(ddof=1), 0.0
    if m > 1:
        rest = d - by_seed[:, None] - by_image + mean
        of_rest = np.square(rest).sum() / ((n - 1) * (m - 1))
        of_images = max(n * by_image.var(ddof=1) - of_rest, 0.0)
    total = of_seeds + of_images
    return Paired(mean, float(np.sqrt(total / (n * m))) if total > _NOTHING else np.nan, n)


@dataclass(frozen=True)
class Verdict:
    """The verdict on a difference: in words, with the corrected p."""

    apart: Paired
    p: float
    words: str
    detectable: float

    @property
    def cells(self) -> tuple[str, ...]:
        """Cells under the headings `COMPARED`."""
        p = "< 0.001" if self.p < 0.001 else number(self.p, ".3f")
        return str(self.apart), p, self.words, number(self.detectable, ".2f")


def judge(differences: Mapping[Name, Paired], margin: float = MARGIN) -> dict[Name, Verdict]:
    """Verdict on each difference, corrected for their number by Holm (1979).

    A row is ahead or behind if the corrected p of no difference is at most 0.05; equal if two
    one-sided tests (TOST), corrected as well, reject a difference of `margin` or more. With a
    margin of 0, none is equal.

    Examples
    --------
    >>> from twinsolve.bench import Paired, judge
    >>> found = judge({"a": Paired(2.0, 0.1, 5), "b": Paired(0.1, 0.1, 5)})
    >>> {name: verdict.words for name, verdict in found.items()}
    {'a': 'ahead', 'b': 'equal within 1'}
    """
    p = _correct({name: each.p for name, each in differences.items()})
    p_of_margin = _correct({name: each.p_of_margin(margin) for name, each in differences.items()})
    n_compared = n_determined(differences)
    return {
        name: Verdict(
            each,
            p[name],
            _choose_words(each, p[name], p_of_margin[name], margin),
            each.detectable(n_compared),
        )
        for name, each in differences.items()
    }


def n_determined(differences: Mapping[Name, Paired]) -> int:
    """Number of differences that have an interval, for which p is corrected."""
    return sum(each.determined for each in differences.values())


def _correct(p: Mapping[Name, float]) -> "pd.Series[float]":
    found = pd.Series(p, dtype=float)
    known = found.notna()
    if known.any():
        gc.freeze()  # `multipletests` collects garbage, up to a second where much is in memory
        try:
            found[known] = multipletests(found[known].to_numpy(), method="holm")[1]
        finally:
            gc.unfreeze()
    return found


def _choose_words(apart: Paired, p: float, p_of_margin: float, margin: float) -> str:
    if apart.n < 2:
        return "-"
    if not apart.determined:
        return "not determined"
    if p <= _LEVEL:
        return "ahead" if apart.mean > 0 else "behind"
    if p_of_margin <= _LEVEL:
        return f"equal within {margin:g}"
    return f"inconclusive at {apart.write().partition(' ')[2]}"


def note_on_verdicts(
    differences: Mapping[Name, Paired], of: str = "seeds and test images", margin: float = MARGIN
) -> str:
    """Sentences on how to read the cells of `COMPARED`; `of` says what the intervals cover."""
    equal = (
        "equal where two one-sided tests, corrected as well, reject a difference of "
        f"{margin:g} point; "
    )
    return (
        f"Differences are means over pairs; their 95 % intervals cover {of} and are not corrected. "
        "Verdicts are, by Holm for all comparisons of the table, here "
        f"{n_determined(differences)}: ahead or behind where the corrected p is at most 0.05; "
        f"{equal if margin else ''}else inconclusive. Of differences as large as those seen with "
        "80 % power, four in five would be found."
    )
