"""Lines of the table of `twinsolve classify`, and what it says of its claims."""

from itertools import pairwise
from statistics import fmean

import pandas as pd

from ...tables import Lines, number
from ..paired import (
    COMPARED,
    Paired,
    Verdict,
    judge,
    n_determined,
    note_on_verdicts,
    paired_difference,
)
from .adaptation import RATES
from .robustness import ATTACKS, CLEAN, N_ATTACKED, accuracy, conditions, hits, matched_difference
from .study import CLAIMS, PATH, PLAIN

_HEAD = (
    "row", "seeds", "top-1 %", *COMPARED, "claimed", "top-5 %", "rate", "steps", "position scale",
    "parameters", "MFLOPs", "inference", "training", "token cosine", "log10 condition",
)  # fmt: skip
_ADAPTED = (
    "row", "seeds", "trained plain", "replaced, 0 steps", "trained on", *COMPARED, "rate"
)  # fmt: skip
_BLANK = ("-",) * len(COMPARED)


def lines_of(table: pd.DataFrame) -> Lines:
    """A line for each row: means over seeds, and differences to the plain row, seed by seed."""
    verdicts = judge(differences(table))
    lines: list[tuple[str, ...]] = []
    for row, own in table.groupby("row", sort=False):
        mean = own.mean(numeric_only=True)
        compared = verdicts[row].cells if row in verdicts else _BLANK
        lines.append(
            (
                str(row), str(len(own)), number(mean.top1, ".2f"), *compared,
                number(CLAIMS.get(str(row), {}).get("points"), "+g"), number(mean.top5, ".2f"),
                number(mean.learning_rate, "g"),
                number(mean.n_steps, ",.0f"), number(mean.position_scale, "g"),
                number(mean.parameters, ",.0f"), number(mean.flops / 1e6, ".2f"),
                number(mean.inference, ".2f"), number(mean.training, ".2f"),
                number(mean.get("token_cosine"), ".4f"),
                number(mean.get("log10_condition"), ".1f"),
            )
        )  # fmt: skip
    return _HEAD, lines


def differences(table: pd.DataFrame) -> dict[str, Paired]:
    """Of each row to the plain one."""
    plain = hits(table, PLAIN)
    rows = [str(row) for row in table.row.unique() if row != PLAIN]
    return {row: paired_difference(hits(table, row), plain) for row in rows}


def steps_of_path(table: pd.DataFrame) -> dict[str, Paired]:
    """Of each row of the path to the one before."""
    found = {row: hits(table, row) for row in PATH}
    return {row: paired_difference(found[row], found[b]) for b, row in pairwise(found)}


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
    """Differences to the plain row on images that both get right as they are.

    In brackets where they are neither ahead nor behind, corrected for all of the table.
    """
    names = conditions(table)
    rows = [str(row) for row in table.row.unique() if row != PLAIN]
    verdicts = judge(matched_differences(table))
    lines = [(row, *(_brief(verdicts[row, name]) for name in names)) for row in rows]
    return ("row", *names), lines


def matched_differences(table: pd.DataFrame) -> dict[tuple[str, str], Paired]:
    """By row and condition."""
    rows = [str(row) for row in table.row.unique() if row != PLAIN]
    return {
        (row, name): matched_difference(table, row, PLAIN, name)
        for row in rows
        for name in conditions(table)
    }


def _brief(verdict: Verdict) -> str:
    apart = verdict.apart
    if not apart.determined:
        return f"({apart.mean:+.1f})"
    text = f"{apart.mean:+.1f} ± {apart.half_width:.1f}"
    return text if verdict.words in ("ahead", "behind") else f"({text})"


def path_lines(table: pd.DataFrame) -> Lines | None:
    """Differences of each row of the path to the one before, if all were run."""
    if not set(PATH) <= set(table.row):
        return None
    means = table.groupby("row").top1.mean()
    verdicts = judge(steps_of_path(table))
    lines: list[tuple[str, ...]] = [
        (row, number(means[row], ".2f"), *(verdicts[row].cells if row in verdicts else _BLANK))
        for row in PATH
    ]
    return ("row", "top-1 %", *COMPARED), lines


def remarks(table: pd.DataFrame) -> list[str]:
    """What holds in every seed of what is claimed, and what does not."""
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
    """How to read the tables."""
    text = [
        "Means over seeds, on test images that chose nothing; learning rate, steps and scale of "
        "positions of each row are the best of the same few on the validation images. Inference "
        "and training are ratios of throughput to the plain row, in processor time of one run, so "
        "above 1 is faster. Tokens are those of the last layer before the final norm, in float64; "
        "a condition number beyond its resolution counts as that bound.",
        note_on_verdicts(differences(table)),
    ]
    if set(PATH) <= set(table.row):
        n_steps = n_determined(steps_of_path(table))
        text.append(f"Verdicts part by part are corrected for their own {n_steps} comparisons.")
    claims = [f"{row} {CLAIMS[row]['source']}" for row in table.row.unique() if row in CLAIMS]
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


def adapted_lines(table: pd.DataFrame) -> Lines:
    """A line for each row: means over seeds, and differences to the plain row trained on."""
    verdicts = judge(differences(table))
    lines: list[tuple[str, ...]] = []
    for row, own in table.groupby("row", sort=False):
        mean = own.mean(numeric_only=True)
        accuracy = (number(mean[name], ".2f") for name in ("plain", "start", "top1"))
        compared = verdicts[row].cells if row in verdicts else _BLANK
        rate = number(mean.learning_rate, ".2g")
        lines.append((str(row), str(len(own)), *accuracy, *compared, rate))
    return _ADAPTED, lines


def adapted_notes(table: pd.DataFrame) -> list[str]:
    """How to read the table of adapted networks."""
    steps, extra = table.steps.iloc[0], table.extra_steps.iloc[0]
    shares = ", ".join(f"{share:g}" for share in RATES)
    return [
        f"Top-1 in percent on test images, means over seeds: of the plain network after {steps} "
        "steps, of the row with its weights before any step of its own, and after "
        f"{extra} steps more. Differences are to {PLAIN} trained on as long on the same batches. "
        "The learning rate of the extra steps is the best on validation images, over all seeds, of "
        f"{shares} times that of the plain network.",
        note_on_verdicts(differences(table)),
    ]
