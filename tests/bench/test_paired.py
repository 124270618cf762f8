"""Differences over shared seeds and images, and the verdicts on them."""

from itertools import combinations

import numpy as np
import pandas as pd
import pytest
from scipy.integrate import quad
from scipy.stats import chi, norm, t, ttest_rel

from twinsolve.bench.comparison import compared_lines
from twinsolve.bench.paired import (
    MARGIN,
    Paired,
    judge,
    n_determined,
    note_on_verdicts,
    paired_difference,
)


def test_interval_over_seeds_alone_is_that_of_the_paired_t_test():
    rng = np.random.default_rng(0)
    a, b = (pd.Series(rng.standard_normal(6)) for _ in range(2))
    found, expected = paired_difference(a, b), ttest_rel(a, b)
    interval = [found.mean - found.half_width, found.mean + found.half_width]
    np.testing.assert_allclose(interval, expected.confidence_interval(0.95))
    assert found.p == pytest.approx(expected.pvalue)


def test_intervals_cover_other_images_where_those_over_seeds_alone_do_not():
    """The true difference is zero; images differ far more than seeds."""
    rng = np.random.default_rng(0)
    covered = []
    for _ in range(400):
        seeds, images = 0.3 * rng.standard_normal((5, 1)), 15 * rng.standard_normal((1, 60))
        apart = pd.DataFrame(seeds + images + 15 * rng.standard_normal((5, 60)))
        whole, alone = paired_difference(apart), paired_difference(apart.mean(axis=1))
        assert whole.half_width >= alone.half_width
        covered.append([abs(x.mean) <= x.half_width for x in (whole, alone)])
    shares = np.mean(covered, axis=0)
    assert shares[0] > 0.95
    assert shares[1] < 0.8


def test_the_error_is_that_of_a_sum_of_seeds_and_images():
    """Of numbers a_i + b_j the error is that of both means together, at any scale of either."""
    rng = np.random.default_rng(1)
    a, b = 3 * rng.standard_normal(4), rng.standard_normal(50)
    found = paired_difference(pd.DataFrame(a[:, None] + b))
    expected = a.var(ddof=1) / 4 + b.var(ddof=1) / 50
    assert found.error**2 == pytest.approx(expected)


def test_only_common_seeds_count_and_what_has_no_spread_is_not_determined():
    a, b = pd.Series({0: 1.0, 1: 2.0, 2: 9.0}), pd.Series({1: 1.0, 0: 2.0, 5: 3.0})
    assert str(paired_difference(a, b)) == "+0.00 ± 12.71"
    assert str(paired_difference(a[:1], b)) == "-1.00, one pair"
    assert str(paired_difference(a[:0], b)) == "-"
    same = paired_difference(a[:2] * 0 + 100 / 359)
    assert str(same) == "+0.28 ± not determined"
    one_image = pd.DataFrame([[100.0] + [0.0] * 358] * 2)  # the same in both seeds
    found = paired_difference(one_image)
    assert found.mean == pytest.approx(100 / 359)
    assert found.error == pytest.approx(100 / 359)
    verdicts = judge({"same": same, "image": found, "seed": paired_difference(a[:1], b)})
    words = [verdict.words for verdict in verdicts.values()]
    assert words == ["not determined", "inconclusive at ± 3.54", "-"]
    assert verdicts["same"].cells == ("+0.28 ± not determined", "-", "not determined", "-")


@pytest.mark.parametrize("half", [3.0, 0.05, 0.0051, 0.0049, 4e-7])
@pytest.mark.parametrize("digits", [1, 2])
def test_an_interval_is_never_written_as_of_zero_width(half, digits):
    apart = with_half_width(0.01, half)
    mean, width = apart.write(digits).split(" ± ")
    places = len(width.partition(".")[2])
    assert 0 < float(width) == pytest.approx(half, abs=0.501 * 10**-places)
    assert len(mean.partition(".")[2]) == places >= digits


def with_half_width(mean, half, n=5):
    return Paired(mean, half / Paired(mean, 1.0, n).half_width, n)


def with_p(mean, p, n=5):
    """A difference of a mean and a p of no difference."""
    return Paired(mean, abs(mean) / t.isf(p / 2, n - 1), n)


def test_verdicts_are_corrected_by_holm_for_those_that_have_an_interval():
    apart = {
        "b": with_p(2.0, 0.03), "a": with_p(-2.0, 0.01), "none": Paired(1.0, np.nan, 5),
        "c": with_p(5.0, 0.2), "d": with_p(2.0, 0.011),
    }  # fmt: skip
    assert n_determined(apart) == 4
    verdicts = judge(apart)
    assert list(verdicts) == list(apart)
    found = [verdicts[name].p for name in "abcd"]
    np.testing.assert_allclose(found, [0.04, 0.06, 0.2, 0.04])
    assert [verdicts[name].words.split()[0] for name in "adbc"] == [
        "behind", "ahead", "inconclusive", "inconclusive",
    ]  # fmt: skip
    assert judge({"b": apart["b"]})["b"].words == "ahead"


@pytest.mark.parametrize("seed", range(30))
def test_corrected_p_follow_the_definition_of_holm(seed):
    """With equal ones, with missing ones, and with none at all."""
    rng = np.random.default_rng(seed)
    p = rng.random(seed) ** rng.integers(1, 9)
    p[rng.random(seed) < 0.2] = np.nan
    p = rng.choice(p, seed) if seed % 3 == 0 and seed else p
    known = p[~np.isnan(p)]
    verdicts = judge(
        {("row", place): with_p(1.0, each) for place, each in enumerate(p)}  # NaN has no interval
    )
    for place, each in enumerate(p):
        below = [min(1, each_below * (known >= each_below).sum()) for each_below in known]
        expected = max((x for x, y in zip(below, known, strict=True) if y <= each), default=np.nan)
        assert verdicts["row", place].p == pytest.approx(expected, rel=1e-9, nan_ok=True)


def test_equal_is_said_where_both_one_sided_tests_reject_and_not_for_want_of_seeds():
    rng = np.random.default_rng(2)
    d = pd.Series(0.1 * rng.standard_normal(6) + 0.2)
    one_sided = [
        ttest_rel(d, d * 0 + side, alternative=way).pvalue
        for side, way in ((-1, "greater"), (1, "less"))
    ]
    assert paired_difference(d).p_of_margin(1) == pytest.approx(max(one_sided))
    tight, loose = Paired(0.1, 0.2, 5), Paired(0.0, 0.6, 5)
    assert judge({0: tight})[0].words == "equal within 1"
    assert judge({0: tight}, margin=0)[0].words.startswith("inconclusive")
    assert judge({0: loose})[0].words.startswith("inconclusive")
    assert judge(dict.fromkeys(range(22), tight))[0].words.startswith("inconclusive")


@pytest.mark.parametrize("n_compared", [1, 5])
def test_four_in_five_differences_as_large_as_said_are_found(n_compared):
    rng = np.random.default_rng(3)
    effect = Paired(0.0, 1 / np.sqrt(5), 5).detectable(n_compared)  # of seeds that deviate by 1
    draws = [paired_difference(pd.Series(effect + rng.standard_normal(5))) for _ in range(2000)]
    found = np.mean([draw.p * n_compared <= 0.05 for draw in draws])
    assert found == pytest.approx(0.8, abs=0.03)


# Held to formulas that are written otherwise


@pytest.mark.parametrize("of_images", [0.0, 0.3, 1.0, 10.0])
@pytest.mark.parametrize(("n", "m"), [(2, 3), (5, 7), (3, 40)])
def test_the_error_is_that_of_the_variance_components(n, m, of_images):
    """From mean squares over pairs of seeds and of images: the rest is in images once, not twice.

    Half of the squared difference of two numbers is, in the mean, the variance of one.
    """
    rng = np.random.default_rng([n, m])
    images = of_images * rng.standard_normal(m)
    d = rng.standard_normal((n, 1)) + images + 2 * rng.standard_normal((n, m))

    def half_of_squares(x):
        return np.mean([(a - b) ** 2 / 2 for a, b in combinations(x, 2)])

    pairs = [d[i] - d[j] for i, j in combinations(range(n), 2)]
    rest = np.mean([half_of_squares(pair) for pair in pairs]) / 2  # seeds and images drop out
    seeds = half_of_squares([row.mean() for row in d]) - rest / m
    images = max(half_of_squares(list(d.T.mean(axis=1))) - rest / n, 0)
    found = paired_difference(pd.DataFrame(d))
    assert found.error**2 == pytest.approx(seeds / n + images / m + rest / (n * m), rel=1e-9)
    assert (found.mean, found.n) == (pytest.approx(d.mean()), n)


def test_the_squared_error_is_in_the_mean_the_variance_of_the_mean():
    """Over draws whose variances are known; an estimate cut at zero would be above it."""
    rng = np.random.default_rng(4)
    n, m, (seed, image, rest) = 6, 8, (0.5, 2.0, 3.0)
    draws = [
        paired_difference(
            pd.DataFrame(
                seed * rng.standard_normal((n, 1))
                + image * rng.standard_normal((1, m))
                + rest * rng.standard_normal((n, m))
            )
        )
        for _ in range(1500)
    ]
    true = seed**2 / n + image**2 / m + rest**2 / (n * m)
    assert np.mean([x.error**2 for x in draws]) == pytest.approx(true, rel=0.06)  # 2 % by chance
    assert np.var([x.mean for x in draws]) == pytest.approx(true, rel=0.12)


def power(effect, n, level):
    """Share of seeds for which a t test of this level finds an effect in standard errors."""
    least, df = t.isf(level / 2, n - 1), n - 1

    def found(s):
        return norm.sf(least * s / np.sqrt(df) - effect) * chi.pdf(s, df)

    return quad(found, 0, 10 * np.sqrt(df), limit=200)[0]


@pytest.mark.parametrize("n", [3, 5, 20])
@pytest.mark.parametrize("n_compared", [1, 2, 24])
def test_what_is_detectable_is_found_by_four_in_five_of_all_comparisons(n, n_compared):
    """At the level of Bonferroni for all that have an interval, for which `judge` corrects."""
    apart = dict(enumerate([Paired(0.3, 0.7, n)] * n_compared))
    apart |= {"one": Paired(1.0, np.nan, 1), "same": Paired(1.0, np.nan, n)}
    found = judge(apart)
    effect = found[0].detectable / 0.7
    assert power(effect, n, 0.05 / n_compared) == pytest.approx(0.8, abs=1e-4)
    assert np.isnan(found["one"].detectable)
    assert f"here {n_compared}:" in note_on_verdicts(apart)


def closed(p):
    """The largest Bonferroni p of all hypotheses together that contain this one."""
    names, found = list(p), dict.fromkeys(p, 0.0)
    for size in range(1, len(names) + 1):
        for subset in combinations(names, size):
            together = min(1.0, size * min(p[name] for name in subset))
            found.update({name: max(found[name], together) for name in subset})
    return found


@pytest.mark.parametrize("margin", [0.5, MARGIN, 3.0])
def test_verdicts_are_those_of_closed_tests_of_both_hypotheses(margin):
    assert MARGIN == 1
    rng, seen = np.random.default_rng(5), set()
    for _ in range(16):
        data = {
            name: pd.Series(rng.choice([0, 0.3, 4]) + rng.choice([0.02, 0.3, 2]) * x)
            for name, x in zip("abcd", rng.standard_normal((4, 5)), strict=True)
        }
        data["e"] = data["a"].copy()  # ties
        none = closed({name: ttest_rel(x, 0 * x).pvalue for name, x in data.items()})
        sides = {name: (x - margin, x + margin) for name, x in data.items()}
        equal = closed(
            {
                name: max(
                    ttest_rel(low, 0 * low, alternative="less").pvalue,
                    ttest_rel(high, 0 * high, alternative="greater").pvalue,
                )
                for name, (low, high) in sides.items()
            }
        )
        found = judge({name: paired_difference(x) for name, x in data.items()}, margin)
        for name, verdict in found.items():
            assert verdict.p == pytest.approx(none[name], rel=1e-9)
            side = "ahead" if data[name].mean() > 0 else "behind"
            words = f"equal within {margin:g}" if equal[name] <= 0.05 else "inconclusive at"
            expected = side if none[name] <= 0.05 else words
            assert verdict.words.startswith(expected)
            seen.add(expected.split()[0])
    assert seen >= {"ahead", "inconclusive", "equal"}


def test_a_table_writes_the_verdicts_for_all_of_its_rows():
    apart = {"a": with_p(2.0, 0.03), "b": with_p(-2.0, 0.0001), "c": Paired(0.01, 0.1, 5)}
    rows = [{"row": row, "seed": seed} for row in ("plain", *apart) for seed in range(5)]
    head, lines = compared_lines(pd.DataFrame(rows), judge(apart), {}, {})
    found = {line[0]: dict(zip(head, line, strict=True)) for line in lines}
    assert {row: x["verdict"].split()[0] for row, x in found.items()} == {
        "plain": "-", "a": "inconclusive", "b": "behind", "c": "equal",
    }  # fmt: skip
    assert [found[row]["p, corrected"] for row in "abc"] == ["0.060", "< 0.001", "0.925"]
    for row, each in apart.items():
        effect = float(found[row]["seen with 80 % power"]) / each.error
        assert power(effect, 5, 0.05 / 3) == pytest.approx(0.8, abs=0.05)
