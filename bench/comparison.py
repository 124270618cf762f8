"""Table and figure of the rows of a study beside their baselines, for any score."""

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from .figures import legend, panels, plain, save
from .jobs import Options
from .paired import COMPARED, Paired, Verdict, judge, paired_difference
from .study import Study
from .tables import Lines, number
from .task import PLAIN

CLEAR, OPEN = "#0072B2", "#999999"  # colours of Okabe and Ito
INTERVAL = "(95 % interval; grey: neither ahead nor behind)"
CURVES = "Curves are of averaged weights on the validation {}: means over seeds, with their range."
BLANK = ("-",) * len(COMPARED)
_DEPTH = {"token_cosine": "cosine, difference", "log10_condition": "condition, difference"}
_TRAINED = ["learning_rate", "n_steps", "position_scale"]  # chosen for each row
Column = Callable[[str, Any], str]  # a cell by the name and the means of a row
RECIPE: dict[str, Column] = {
    "rate": lambda _, mean: number(mean.learning_rate, "g"),
    "steps": lambda _, mean: number(mean.n_steps, ",.0f"),
    "position scale": lambda _, mean: number(mean.get("position_scale"), "g"),
}
SIZE: dict[str, Column] = {
    "parameters": lambda _, mean: number(mean.parameters, ",.0f"),
    "MFLOPs": lambda _, mean: number(mean.flops / 1e6, ".2f"),
    "inference": lambda _, mean: number(mean.inference, ".2f"),
    "training": lambda _, mean: number(mean.training, ".2f"),
}
DEPTH: dict[str, Column] = {
    "token cosine": lambda _, mean: number(mean.get("token_cosine"), ".4f"),
    "log10 condition": lambda _, mean: number(mean.get("log10_condition"), ".1f"),
}


def compared_lines(
    table: pd.DataFrame,
    verdicts: Mapping[str, Verdict],
    before: Mapping[str, Column],
    after: Mapping[str, Column],
    unit: str = "points",
) -> Lines:
    """A line for each row: means over seeds, and the paired difference to its baseline.

    Parameters
    ----------
    table : DataFrame
        Table that `train_rows` returns.
    verdicts : mapping
        Verdicts on the differences of the rows to their baselines.
    before, after : mapping
        Columns by heading, before and after those of `COMPARED`.
    unit : str, default="points"
        Unit of the differences.
    """
    baselines = baselines_of(table)
    told = [name for name in _DEPTH if name in table and "against" in table]
    depth = {name: depth_differences(table, name) for name in told}
    lines: list[tuple[str, ...]] = []
    for row, own in table.groupby("row", sort=False):
        mean = own.mean(numeric_only=True)
        compared = verdicts[row].cells if row in verdicts else BLANK
        lines.append(
            (
                str(row), str(len(own)), *(cell(str(row), mean) for cell in before.values()),
                *compared, *(cell(str(row), mean) for cell in after.values()),
                *(str(found.get(str(row), "-")) for found in depth.values()),
                *([baselines.get(str(row), "-")] if "against" in table else []),
            )
        )  # fmt: skip
    against = ["against"] if "against" in table else []
    compared = (f"difference, {unit}", *COMPARED[1:])
    head = ("row", "seeds", *before, *compared, *after, *(_DEPTH[x] for x in told), *against)
    return head, lines


def baselines_of(table: pd.DataFrame) -> dict[str, str]:
    """The baseline of each row; in tables of old runs, that is the plain row."""
    if "against" not in table:
        return {str(row): PLAIN for row in table.row.unique() if row != PLAIN}
    known = table.drop_duplicates("row").dropna(subset="against")
    return dict(zip(known.row, known.against, strict=True))


def name_baseline(table: pd.DataFrame) -> str:
    """The name of the baseline if all rows have the same, else "the backbone"."""
    baselines = set(baselines_of(table).values())
    return baselines.pop() if len(baselines) == 1 else "the backbone"


def depth_differences(table: pd.DataFrame, measure: str) -> dict[str, Paired]:
    """Difference of each row to its baseline in a measure of the last tokens, if both have it.

    Both must also have been trained alike: rate and steps change these measures, often more than
    the part that is tested does.
    """
    by_seed = table.pivot(index="seed", columns="row", values=measure)
    return {
        row: paired_difference(by_seed[row], by_seed[baseline])
        for row, baseline in baselines_of(table).items()
        if by_seed[[row, baseline]].notna().all(axis=None) and trained_alike(table, row, baseline)
    }


def trained_alike(table: pd.DataFrame, row: str, other: str) -> bool:
    """Whether what is chosen for each row is the same for both."""
    chosen = table.drop_duplicates("row").set_index("row").reindex(columns=_TRAINED)
    return chosen.loc[row].equals(chosen.loc[other])


def draw_differences(
    table: pd.DataFrame,
    path: Path,
    *,
    differences: Callable[[pd.DataFrame], Mapping[str, Paired]],
    score: str,
) -> None:
    """Draw differences with intervals, and token cosines where they are known."""
    if apart := differences(table):
        order = sorted(apart, key=lambda row: apart[row].mean)
        told = "token_cosine" in table
        figure, (left, *right) = panels(1 + told, (4.5, 1.4 + 0.3 * len(order)), sharey=True)
        draw_intervals(left, judge(apart), order)
        left.set_xlabel(f"{score} {name_baseline(table)}\n{INTERVAL}")
        for axes in right:
            draw_cosines(axes, table, order)
        save(figure, path)


def draw_intervals(axes: Axes, verdicts: Mapping[str, Verdict], order: list[str]) -> None:
    """Draw mean differences with intervals in this order from below, coloured by verdict."""
    for row, verdict in verdicts.items():
        colour = CLEAR if verdict.words in ("ahead", "behind") else OPEN
        half = verdict.apart.half_width if verdict.apart.determined else None
        axes.errorbar(
            verdict.apart.mean, order.index(row), xerr=half, fmt="o", color=colour, capsize=2
        )
    axes.axvline(0, color="black", linewidth=0.8)
    axes.set_yticks(range(len(order)), order, fontsize=8)
    axes.set_ylim(-0.6, len(order) - 0.4)
    axes.locator_params(axis="x", nbins=6)
    plain(axes)


def draw_cosines(axes: Axes, table: pd.DataFrame, order: list[str]) -> None:
    """Draw the mean token cosine of each row in this order from below."""
    cosines = table.groupby("row").token_cosine.mean()
    for place, row in enumerate(order):
        if row in cosines:
            axes.plot(cosines[row], place, "o", color=CLEAR)
    if PLAIN in cosines:
        axes.axvline(cosines[PLAIN], color="black", linewidth=0.8)
    axes.set_xlabel(f"mean cosine of the last layer's tokens\n(line: {PLAIN})")
    axes.locator_params(axis="x", nbins=6)
    plain(axes)


def draw_curves(table: pd.DataFrame, path: Path, *, score: str) -> None:
    """Draw the score on the validation part against steps, and the share of the largest class."""
    if "curve" not in table:
        return
    figure, (axes,) = panels(1, (5, 3.6), margin=1.6)
    for place, (row, runs) in enumerate(table.groupby("row", sort=False)):
        curves = np.array(runs.curve.to_list())  # (seeds, points, 2)
        steps, scores = curves[0, :, 0], curves[:, :, 1]
        style = ("-", "--", ":")[place // 10 % 3]  # colours repeat after ten
        (line,) = axes.plot(steps, scores.mean(axis=0), style, label=str(row))
        axes.fill_between(
            steps, scores.min(axis=0), scores.max(axis=0), color=line.get_color(), alpha=0.2
        )
    if "most_frequent" in table:
        level = table.most_frequent.iloc[0]
        axes.axhline(level, color="black", linewidth=0.8, label="most frequent class")
    axes.set_xlabel("steps")
    axes.set_ylabel(score)
    plain(axes)
    legend(figure, "right upper")
    save(figure, path)


def rows_study(
    about: str,
    train: Callable[..., pd.DataFrame],
    lines: Callable[[pd.DataFrame], Lines],
    differences: Callable[[pd.DataFrame], Mapping[str, Paired]],
    *,
    score: str,
    curve: str = "",
    **told: Any,
) -> Study:
    """The study of rows of networks: intervals and, with words for the score, curves are drawn.

    ``train(seeds=, n_jobs=, ...)`` returns the table; `told` are further fields of the study.
    """
    figures = {"differences.png": partial(draw_differences, differences=differences, score=score)}
    if curve:
        figures["curves.png"] = partial(draw_curves, score=curve)

    def run(given: Options) -> pd.DataFrame:
        return train(seeds=given.seeds, **given.shared)

    return Study("", about, run, lines, figures | told.pop("figures", {}), **told)
