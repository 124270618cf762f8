"""Lines of the table of `twinsolve classify`, and what it says of its claims."""

from collections.abc import Iterable

import pandas as pd

from ...tables import Lines, number
from ..paired import paired_difference
from .study import PLAIN

_ROBUST = "255|noise|blur|contrast"
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
    """Mean top-1 on attacked and corrupted images, if they were measured."""
    columns = list(table.filter(regex=_ROBUST).columns)
    if not columns:
        return None
    means = table.groupby("row", sort=False)[["top1", *columns]].mean()
    lines = [(str(row), *(number(x, ".1f") for x in found)) for row, found in means.iterrows()]
    return ("row", "clean", *columns), lines


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


def notes(columns: Iterable[str]) -> list[str]:
    """How to read the tables."""
    text = [
        "Means over seeds, on test images that chose nothing; learning rate, steps and scale of "
        "positions of each row are the best of the same few on the validation images. Differences "
        "to the plain row are over paired seeds, with 95 % t intervals, none of them corrected for "
        "their number. Inference and training are ratios of throughput to the plain row, in "
        "processor time of one run, so "
        "above 1 is faster. Tokens are those of the last layer before the final norm, in float64; "
        "a condition number beyond its resolution counts as that bound."
    ]
    if any("255" in column for column in columns):
        text.append(
            "Budgets are of levels in [0, 1], on the first 256 test images; FGSM is one step of "
            "the budget, PGD five steps of half of it, from the image itself."
        )
    return text
