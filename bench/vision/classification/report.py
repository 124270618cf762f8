"""Report of `twinsolve classify`: tables, sentences, and a figure of differences."""

from functools import partial
from statistics import fmean
from typing import Any

import pandas as pd

from ...comparison import (
    CURVES,
    DEPTH,
    RECIPE,
    SIZE,
    Column,
    baselines_of,
    compared_lines,
    rows_study,
)
from ...paired import (
    Paired,
    Verdict,
    judge,
    n_determined,
    note_on_verdicts,
    paired_difference,
)
from ...study import Study
from ...tables import Lines, number
from ...task import PLAIN
from .measures import ATTACKS, CLEAN, N_ATTACKED, accuracy, conditions, hits, matched_difference
from .study import classify

# Gains in top-1 that papers state, in points over their plain networks, on other data and at other
# sizes; quoted, not measured by us.
_CLAIMS: dict[str, tuple[float, str]] = {
    "AttnScale": (0.9, "up to +0.9 on ImageNet (Wang et al. 2022)"),
    "FeatScale": (1.1, "up to +1.1 on ImageNet (Wang et al. 2022)"),
    "token graying": (0.3, "up to +0.3 on ImageNet (Ji et al. 2025)"),
    "no attention skip": (-22, "-22 on CIFAR-10 (Ji et al. 2025)"),
}


_MATCHED = "Difference to the baseline on images that both get right as they are, points"
_BEFORE: dict[str, Column] = {"top-1 %": lambda _, mean: number(mean.top1, ".2f")}
_AFTER: dict[str, Column] = {
    "claimed": lambda row, _: number(_CLAIMS.get(row, (None,))[0], "+g"),
    "top-5 %": lambda _, mean: number(mean.top5, ".2f"),
    **RECIPE, **SIZE, **DEPTH,
}  # fmt: skip


def images_study(data: str, **options: Any) -> Study:
    """The study of image classifiers, with options of `classify`."""
    more = {"Attacked and corrupted images, top-1 %": robust_lines, _MATCHED: matched_lines}
    return rows_study(
        data, partial(classify, data, **options), lines_of, differences, score="top-1, points to",
        curve="top-1 on validation images, %", more=more, notes=said,
    )  # fmt: skip


def said(table: pd.DataFrame) -> list[str]:
    """All sentences below the tables."""
    curves = [CURVES.format("images")] if "curve" in table else []
    return [*remarks(table), *notes(table), *curves]


def lines_of(table: pd.DataFrame) -> Lines:
    """A line for each row: means over seeds, and the paired difference to its baseline."""
    return compared_lines(table, judge(differences(table)), _BEFORE, _AFTER)


def differences(table: pd.DataFrame) -> dict[str, Paired]:
    """Difference of each row to its baseline."""
    found = {row: hits(table, row) for row in table.row.unique()}
    return {
        row: paired_difference(found[row], found[baseline])
        for row, baseline in baselines_of(table).items()
    }


def robust_lines(table: pd.DataFrame) -> Lines:
    """Mean top-1 on attacked and corrupted images; no lines if there are no results."""
    names, lines = conditions(table), []
    for row, own in table.groupby("row", sort=False) if names else ():
        runs = own.to_dict("records")
        means = (fmean(accuracy(run, name) for run in runs) for name in names)
        lines.append((str(row), *(number(x, ".1f") for x in (own.top1.mean(), *means))))
    return ("row", CLEAN, *names), lines


def matched_lines(table: pd.DataFrame) -> Lines:
    """Differences of rows to their baselines on images that both get right when clean.

    A difference in brackets is neither ahead nor behind, corrected for the whole table.
    """
    names = conditions(table)
    rows = baselines_of(table) if names else ()
    verdicts = judge(matched_differences(table))
    lines = [(row, *(_write_briefly(verdicts[row, name]) for name in names)) for row in rows]
    return ("row", *names), lines


def matched_differences(table: pd.DataFrame) -> dict[tuple[str, str], Paired]:
    """`matched_difference` of each row to its baseline, by row and condition."""
    return {
        (row, name): matched_difference(table, row, baseline, name)
        for row, baseline in baselines_of(table).items()
        for name in conditions(table)
    }


def _write_briefly(verdict: Verdict) -> str:
    apart = verdict.apart
    if not apart.determined:
        return f"({apart.mean:+.1f})"
    text = apart.write(digits=1)
    return text if verdict.words in ("ahead", "behind") else f"({text})"


def remarks(table: pd.DataFrame) -> list[str]:
    """Sentences on claims of papers: in how many seeds they hold."""
    rows = set(table.row)
    found = []
    if "no attention skip" in rows:
        held = table[(table.token_cosine > 0.999) & (table.log10_condition > 7)].row
        own = table[table.row == "no attention skip"]
        found.append(
            "Without skip around attention, the last layer's tokens have cosine over 0.999 and "
            f"log10 condition over 7 in {(held == 'no attention skip').sum()} of {len(own)} seeds "
            f"(least: {own.token_cosine.min():.6f}, {own.log10_condition.min():.1f}); with it, "
            f"{PLAIN} has both in {(held == PLAIN).sum()} of {(table.row == PLAIN).sum()}."
        )
    pair = ["ConvMixer, no skip", "ConvMixer"]
    if rows.issuperset(pair):
        one = judge({0: paired_difference(*(hits(table, row) for row in pair))})[0]
        found.append(
            f"ConvMixer without skips beside itself with them, a single comparison: {one.apart} "
            f"points, {one.words}; 80 % power at {one.detectable:.2f}."
        )
    return found


def notes(table: pd.DataFrame) -> list[str]:
    """Sentences on how to read the tables."""
    text = [
        "Means over seeds, on test images that chose no setting; learning rate, steps and scale of "
        "positions of each row are the best of the same few on the validation images. Inference "
        "and training are ratios of throughput to the plain row, in processor time of one run, so "
        "above 1 is faster. Tokens are those of the last layer before the final norm, in float64; "
        "a condition number beyond its resolution counts as that bound.",
        note_on_verdicts(differences(table)),
    ]
    if "parts" in table and table.parts[0]:
        text.insert(0, f"Images by part: {table.parts[0]}.")
    if "against" in table:
        text.append(
            "Differences are to the row under against; those of the mean cosine and of the log10 "
            "condition are over seeds, with 95 % intervals that are not corrected. They are left "
            "out where rate, steps or scale of positions differ, since these change both."
        )
    claims = [f"{row} {_CLAIMS[row][1]}" for row in table.row.unique() if row in _CLAIMS]
    if claims:
        text.append(f"Claimed are points of top-1 that papers state: {'; '.join(claims)}.")
    if conditions(table):
        n_matched = n_determined(matched_differences(table))
        text.append(
            "On images that both get right as they are, a difference is in brackets where it is "
            f"neither ahead nor behind, corrected for the {n_matched} comparisons of that table; "
            "without ± none is determined, as all pairs differ by the same."
        )
    if set(ATTACKS) & set(conditions(table)):
        text.append(
            "Budgets are of levels in [0, 1]. Each network is attacked through its own gradients, "
            f"on the first {N_ATTACKED} test images; FGSM is one step of the budget, PGD five "
            "steps of half of it, from the image itself."
        )
    return text
