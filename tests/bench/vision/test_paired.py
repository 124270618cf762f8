"""Differences over shared seeds."""

import numpy as np
import pandas as pd
from scipy.stats import ttest_rel

from twinsolve.bench.vision.paired import paired_difference


def test_interval_is_that_of_the_paired_t_test():
    rng = np.random.default_rng(0)
    a, b = (pd.Series(rng.standard_normal(6)) for _ in range(2))
    found = paired_difference(a, b, confidence=0.9)
    expected = ttest_rel(a, b).confidence_interval(0.9)
    np.testing.assert_allclose(
        [found.mean - found.half_width, found.mean + found.half_width], expected
    )


def test_only_common_seeds_count_and_intervals_that_hold_zero_say_so():
    a, b = pd.Series({0: 1.0, 1: 2.0, 2: 9.0}), pd.Series({1: 1.0, 0: 2.0, 5: 3.0})
    assert paired_difference(a, b).n == 2
    assert str(paired_difference(a, b)) == "inconclusive at ± 12.71 points with 2 seeds"
    assert str(paired_difference(a[:1], b)) == "-1.00, one seed"
    assert str(paired_difference(a[:0], b)) == "-"
