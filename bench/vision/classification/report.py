"""What `twinsolve classify` says of its table, and the picture of its differences."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean

import pandas as pd
from matplotlib.axes import Axes

from ...figures import panels, plain, save
from ...tables import Lines, Report, number, write_table
from ..paired import (
    COMPARED,
    Paired,
    Verdict,
    judge,
    n_determined,
    note_on_verdicts,
    paired_difference,
)
from .measures import ATTACKS, CLEAN, N_ATTACKED, accuracy, conditions, hits, matched_difference
from .study import PLAIN

_HEAD = (
    "row", "seeds", "top-1 %", *COMPARED, "claimed", "top-5 %", "rate", "steps", "position scale",
    "parameters", "MFLOPs", "inference", "training", "token cosine", "log10 condition",
)  # fmt: skip
# What papers state of top-1, in points to their plain network, on other data and at other sizes;
# quoted, not measured by us.
_CLAIMS: dict[str, tuple[float, str]] = {
    "AttnScale": (1.1, "up to +1.1 on ImageNet (Wang et al. 2022)"),
    "FeatScale": (1.1, "up to +1.1 on ImageNet (Wang et al. 2022)"),
    "token graying": (0.3, "up to +0.3 on ImageNet (Ji et al. 2025, as quoted by others)"),
    "no attention skip": (-22, "-22 on CIFAR-10 (Ji et al. 2025, as quoted by others)"),
}
CLEAR, OPEN = "#0072B2", "#999999"  # of Okabe and Ito
INTERVAL = "(95 % interval; grey: neither ahead nor behind)"
_DEPTH = {"token_cosine": "cosine, difference", "log10_condition": "condition, difference"}
BLANK = ("-",) * len(COMPARED)


def write_report(
    table: pd.DataFrame,
    report: Report,
    *,
    parts: Mapping[str, Lines] | None = None,
    sentences: Sequence[str] = (),
    pictures: Sequence[str] = (),
) -> None:
    """Print and write what was found, and further `parts`, `sentences` and `pictures` of it.

    Differences are drawn unless there is a picture of them.
    """
    write_table(table, report.directory)
    report.add_table(str(report.settings["data"]), lines_of(table), heading="", file="means")
    for title, lines in (parts or {}).items():
        report.add_table(title, lines)
    if robust := robust_lines(table):
        report.add_table("Attacked and corrupted images, top-1 %", robust, file="robust")
        title = f"Difference to {name_baseline(table)} on images that both get right as they are"
        report.add_table(f"{title}, points", matched_lines(table))
    report.add_sentences([*remarks(table), *notes(table), *sentences])
    if "differences" not in pictures:
        draw_differences(table, report.directory)
    report.write(["differences", *pictures])


def lines_of(table: pd.DataFrame) -> Lines:
    """A line for each row: means over seeds, and differences to its baseline, seed by seed."""
    verdicts, baselines = judge(differences(table)), baselines_of(table)
    depth = {name: depth_differences(table, name) for name in _DEPTH if "against" in table}
    lines: list[tuple[str, ...]] = []
    for row, own in table.groupby("row", sort=False):
        mean = own.mean(numeric_only=True)
        compared = verdicts[row].cells if row in verdicts else BLANK
        lines.append(
            (
                str(row), str(len(own)), number(mean.top1, ".2f"), *compared,
                number(_CLAIMS.get(str(row), (None,))[0], "+g"), number(mean.top5, ".2f"),
                number(mean.learning_rate, "g"),
                number(mean.n_steps, ",.0f"), number(mean.position_scale, "g"),
                number(mean.parameters, ",.0f"), number(mean.flops / 1e6, ".2f"),
                number(mean.inference, ".2f"), number(mean.training, ".2f"),
                number(mean.get("token_cosine"), ".4f"),
                number(mean.get("log10_condition"), ".1f"),
                *(str(apart.get(row, "-")) for apart in depth.values()),
                *([baselines.get(str(row), "-")] if depth else []),
            )
        )  # fmt: skip
    return (*_HEAD, *(_DEPTH[name] for name in depth), *(["against"] if depth else [])), lines


def baselines_of(table: pd.DataFrame) -> dict[str, str]:
    """The row that each is compared with; tables of old runs compare all with the plain one."""
    if "against" not in table:
        return {str(row): PLAIN for row in table.row.unique() if row != PLAIN}
    known = table.drop_duplicates("row").dropna(subset="against")
    return dict(zip(known.row, known.against, strict=True))


def name_baseline(table: pd.DataFrame) -> str:
    """The row that all others are compared with, if it is one."""
    baselines = set(baselines_of(table).values())
    return baselines.pop() if len(baselines) == 1 else "the baseline"


def depth_differences(table: pd.DataFrame, measure: str) -> dict[str, Paired]:
    """Of a measure of the last tokens, of each row to its baseline, where both have it."""
    by_seed = table.pivot(index="seed", columns="row", values=measure)
    return {
        row: paired_difference(by_seed[row], by_seed[baseline])
        for row, baseline in baselines_of(table).items()
        if by_seed[[row, baseline]].notna().all(axis=None)
    }


def differences(table: pd.DataFrame) -> dict[str, Paired]:
    """Of each row to its baseline."""
    found = {row: hits(table, row) for row in table.row.unique()}
    return {
        row: paired_difference(found[row], found[baseline])
        for row, baseline in baselines_of(table).items()
    }


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
    """Differences to its baseline on images that both get right as they are.

    In brackets where they are neither ahead nor behind, corrected for all of the table.
    """
    names, rows = conditions(table), baselines_of(table)
    verdicts = judge(matched_differences(table))
    lines = [(row, *(_write_briefly(verdicts[row, name]) for name in names)) for row in rows]
    return ("row", *names), lines


def matched_differences(table: pd.DataFrame) -> dict[tuple[str, str], Paired]:
    """By row and condition."""
    return {
        (row, name): matched_difference(table, row, baseline, name)
        for row, baseline in baselines_of(table).items()
        for name in conditions(table)
    }


def _write_briefly(verdict: Verdict) -> str:
    apart = verdict.apart
    if not apart.determined:
        return f"({apart.mean:+.1f})"
    text = f"{apart.mean:+.1f} ± {apart.half_width:.1f}"
    return text if verdict.words in ("ahead", "behind") else f"({text})"


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
    if "against" in table:
        text.append(
            "Differences are to the row under against; those of the mean cosine and of the log10 "
            "condition are over seeds, with 95 % intervals that are not corrected."
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


def draw_differences(table: pd.DataFrame, directory: Path) -> None:
    """Draw differences.png: intervals and token cosines of the rows."""
    apart = differences(table)
    if apart:
        order = sorted(apart, key=lambda row: apart[row].mean)
        figure, (left, right) = panels(2, (4.5, 1.2 + 0.24 * len(order)), sharey=True)
        draw_intervals(left, judge(apart), order)
        left.set_xlabel(f"top-1, points to {name_baseline(table)}\n{INTERVAL}")
        draw_cosines(right, table, order)
        save(figure, directory / "differences.png")


def draw_intervals(axes: Axes, verdicts: Mapping[str, Verdict], order: list[str]) -> None:
    """Mean differences with their intervals, from below, coloured by their verdicts."""
    for row, verdict in verdicts.items():
        colour = CLEAR if verdict.words in ("ahead", "behind") else OPEN
        half = verdict.apart.half_width if verdict.apart.determined else None
        axes.errorbar(
            verdict.apart.mean, order.index(row), xerr=half, fmt="o", color=colour, capsize=2
        )
    axes.axvline(0, color="black", linewidth=0.8)
    axes.set_yticks(range(len(order)), order, fontsize=8)
    plain(axes)


def draw_cosines(axes: Axes, table: pd.DataFrame, order: list[str]) -> None:
    cosines = table.groupby("row").token_cosine.mean() if "token_cosine" in table else {}
    for place, row in enumerate(order):
        if row in cosines:
            axes.plot(cosines[row], place, "o", color=CLEAR)
    if PLAIN in cosines:
        axes.axvline(cosines[PLAIN], color="black", linewidth=0.8)
    axes.set_xlabel(f"mean cosine of the last layer's tokens\n(line: {PLAIN})")
    plain(axes)
