"""Lines of the table of `twinsolve classify`, and what it says of its claims."""

from statistics import fmean

import pandas as pd

from ...tables import Lines, number
from ..paired import Paired, paired_difference
from .robustness import ATTACKS, CLEAN, N_ATTACKED, accuracy, conditions, matched_difference
from .study import PATH, PLAIN

_HEAD = (
    "row", "seeds", "top-1 %", "difference, points", "top-5 %", "rate", "steps", "position scale",
    "parameters", "MFLOPs", "inference", "training", "token cosine", "log10 condition",
)  # fmt: skip


def lines_of(table: pd.DataFrame) -> Lines:
    """A line for each row: means over seeds, and differences to the plain row, seed by seed."""
    lines: list[tuple[str, ...]] = []
    for row, own in table.groupby("row", sort=False):
        mean = own.mean(numeric_only=True)
        lines.append(
            (
                str(row), str(len(own)), number(mean.top1, ".2f"), difference(table, str(row)),
                number(mean.top5, ".2f"), number(mean.learning_rate, "g"),
                number(mean.n_steps, ",.0f"), number(mean.position_scale, "g"),
                number(mean.parameters, ",.0f"), number(mean.flops / 1e6, ".2f"),
                number(mean.inference, ".2f"), number(mean.training, ".2f"),
                number(mean.get("token_cosine"), ".4f"),
                number(mean.get("log10_condition"), ".1f"),
            )
        )  # fmt: skip
    return _HEAD, lines


def robust_lines(table: pd.DataFrame) -> Lines | None:
    """Mean top-1 on attacked and corrupted images, if they were tried."""
    names = conditions(table)
    if not names:
        return None
    lines = []
    for row, own in table.groupby("row", sort=False):
        runs = own.to_dict("records")
        means = (fmean(accuracy(run, name) for run in runs) for name in names)
        lines.append((str(row), *(number(x, ".1f") for x in (own.top1.mean(), *means))))
    return ("row", CLEAN, *names), lines


def matched_lines(table: pd.DataFrame) -> Lines:
    """Differences to the plain row on images that both get right as they are."""
    names = conditions(table)
    rows = [str(row) for row in table.row.unique() if row != PLAIN]
    lines = [
        (row, *(_brief(matched_difference(table, row, PLAIN, name)) for name in names))
        for row in rows
    ]
    return ("row", *names), lines


def _brief(apart: Paired) -> str:
    """A difference in brackets where its interval holds zero."""
    if apart.n < 2:
        return number(apart.mean, "+.1f")
    text = f"{apart.mean:+.1f} ± {apart.half_width:.1f}"
    return text if abs(apart.mean) > apart.half_width else f"({text})"


def path_lines(table: pd.DataFrame) -> Lines | None:
    """Differences of each row of the path to the one before, if all were run."""
    rows = list(PATH)
    if not set(rows) <= set(table.row):
        return None
    means = table.groupby("row").top1.mean()
    lines: list[tuple[str, ...]] = [
        (row, number(means[row], ".2f"), difference(table, row, before) if before else "-")
        for before, row in zip(["", *rows], rows, strict=False)
    ]
    return ("row", "top-1 %", "difference to the row before, points"), lines


def difference(table: pd.DataFrame, row: str, to: str = PLAIN, column: str = "top1") -> str:
    """Mean difference of paired seeds with its 95 % interval, in words."""
    if row == to:
        return "-"
    values = table.pivot(index="seed", columns="row", values=column)
    return str(paired_difference(values[row], values[to]))


def remarks(table: pd.DataFrame) -> list[str]:
    """What holds in every seed of what is claimed, and what does not."""
    rows = set(table.row)
    found = []
    if "no attention skip" in rows:
        own = table[table.row == "no attention skip"]
        held = (own.token_cosine > 0.999) & (own.log10_condition > 7)
        found.append(
            "Without skip around attention, the last layer's tokens have cosine over 0.999 and "
            f"log10 condition over 7 in {held.sum()} of {len(own)} seeds (least: "
            f"{own.token_cosine.min():.6f}, {own.log10_condition.min():.1f})."
        )
    pair = ["ConvMixer, no skip", "ConvMixer"]
    if rows.issuperset(pair):
        means = table.groupby("row").top1.mean()
        apart = means[pair[0]] - means[pair[1]]
        words = "within 2 points" if abs(apart) <= 2 else "not within 2 points"
        found.append(
            f"ConvMixer without skips is {words} of itself with skips: {apart:+.2f}, over paired "
            f"seeds {difference(table, *pair)}."
        )
    return found


def notes(table: pd.DataFrame) -> list[str]:
    """How to read the tables."""
    text = [
        "Means over seeds, on test images that chose nothing; learning rate, steps and scale of "
        "positions of each row are the best of the same few on the validation images. Differences "
        "to the plain row are over paired seeds, with 95 % t intervals, none of them corrected for "
        "their number. Inference and training are ratios of throughput to the plain row, in "
        "processor time of one run, so above 1 is faster. Tokens are those of the last layer "
        "before the final norm, in float64; a condition number beyond its resolution counts as "
        "that bound."
    ]
    if set(ATTACKS) & set(conditions(table)):
        text.append(
            "Budgets are of levels in [0, 1]. Each network is attacked through its own gradients, "
            f"on the first {N_ATTACKED} test images; FGSM is one step of the budget, PGD five "
            "steps of half of it, from the image itself."
        )
    return text
