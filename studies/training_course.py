"""Loss and condition numbers while networks train: without skips, and with token graying.

``python studies/training_course.py`` trains networks of 12 layers on digits.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from shared.script import run_script
from shared.seeded_rows import measure_rows
from torch import Tensor

from twinsolve.bench.figures import panels, plain, save
from twinsolve.bench.paired import Paired, paired_difference
from twinsolve.bench.paired_training import placed, recipe_of, train_kept
from twinsolve.bench.run_folder import read_metrics
from twinsolve.bench.tables import Lines, Results, number, write_table
from twinsolve.bench.task import PLAIN, row_options
from twinsolve.bench.vision.classification.data import load_splits
from twinsolve.bench.vision.classification.study import IMAGES, build
from twinsolve.bench.vision.inspection.measures import condition_numbers

SKIPS = ("no attention skip", "ViT:feed_forward_skip=False")
GRAYING = tuple(
    f"ViT:token_graying={kind}:eps={eps}"
    for kind, values in (("svd", (0.9, 0.7, 0.5)), ("dct", (0.95, 0.9, 0.5)))
    for eps in values
)
DEPTH = 12
_N_IMAGES = 32  # whose tokens are measured
_N_TOLD = 12  # times that a run is measured
_RESOLVED = -float(np.log10(np.finfo(np.float64).eps))  # the largest log10 condition of float64


def mean_conditions(model: Any, images: Tensor) -> dict[str, float]:
    """Mean log10 condition number over layers: of what attention gives, and behind its skip."""
    found = condition_numbers(model, images)
    return {
        part: float(
            np.mean([min(x, _RESOLVED) for name, x in found.items() if f"_{part} " in name])
        )
        for part in ("branch", "after")
    }


def follow_training(
    data: str, data_home: str | None, directory: str, settings: dict[str, Any], row: str, seed: int
) -> list[dict[str, Any]]:
    """Train one network; a line for each time that it is measured."""
    splits, options = load_splits(data, data_home), row_options(IMAGES, row)
    candidate = settings["candidates"][0]
    images = splits.validation.levels[:_N_IMAGES]
    task = replace(IMAGES, validate=lambda model, _: mean_conditions(model, images))
    recipe = recipe_of(settings, candidate, seed)
    recipe = replace(recipe, validate_every=max(1, candidate["n_steps"] // _N_TOLD))
    _, folder = train_kept(
        task, build(splits, settings, placed(options, candidate), seed), splits, settings, recipe,
        {"data": data, "of": "course"}, directory, options=options,
    )  # fmt: skip
    names = ("step", "loss", "branch", "after")
    about = {"row": row, "seed": seed}
    return [about | {name: told[name] for name in names} for told in read_metrics(folder)]


def differences(table: pd.DataFrame, column: str, step: int) -> dict[str, Paired]:
    """Of each row to the plain one at a step, over seeds."""
    at = table[table.step == step].set_index("seed")
    plain_row = at[at.row == PLAIN][column]
    return {
        str(row): paired_difference(own[column], plain_row)
        for row, own in at[at.row != PLAIN].groupby("row", sort=False)
    }


def shown_steps(table: pd.DataFrame) -> list[int]:
    """About a twelfth, a quarter, the half and all of the steps."""
    steps = sorted(table.step[table.step > 0].unique())
    return [int(steps[max(0, len(steps) // part - 1)]) for part in (len(steps), 4, 2, 1)]


def course_lines(table: pd.DataFrame, column: str) -> Lines:
    """A line for each row: means at four steps, and in how many steps it is below the plain row."""
    means = table[table.step > 0].groupby(["row", "step"], sort=False)[column].mean().unstack()
    steps = shown_steps(table)
    last = differences(table, column, steps[-1])
    lines = [
        (
            str(row), *(number(own[step], ".2f") for step in steps),
            str(last.get(str(row), "-")),
            "-" if row == PLAIN else f"{int((own < means.loc[PLAIN]).sum())} of {len(own)}",
        )
        for row, own in means.iterrows()
    ]  # fmt: skip
    heads = (f"step {step}" for step in steps)
    return ("row", *heads, "difference at the end", "below softmax"), lines


def draw_course(table: pd.DataFrame, path: Path) -> None:
    """Draw the loss of rows without skips, and the conditions of those with graying."""
    figure, axes = panels(3, (3.6, 3.6))
    skips = table[~table.row.str.contains("token_graying")]
    grayed = table[table.row.str.contains("token_graying") | (table.row == PLAIN)]
    _draw_means(axes[0], skips, "loss")
    axes[0].set_title("training loss")
    for own, kind in zip(axes[1:], ("svd", "dct"), strict=True):
        _draw_means(own, grayed[grayed.row.str.contains(kind) | (grayed.row == PLAIN)], "branch")
        own.set_title(f"log10 condition of attention, {kind.upper()}")
    axes[2].sharey(axes[1])
    for own in axes:
        own.set_xlabel("step")
        own.legend(loc="upper center", bbox_to_anchor=(0.5, -0.2), fontsize=8, frameon=False)
        plain(own)
    save(figure, path)


def _draw_means(axes: Axes, table: pd.DataFrame, column: str) -> None:
    for row, own in table.groupby("row", sort=False):
        mean = own[own.step > 0].groupby("step")[column].mean()
        colour: dict[str, Any] = {"color": "0.3", "lw": 2} if row == PLAIN else {}
        axes.plot(mean.index, mean, label=str(row).removeprefix("ViT:"), **colour)


def notes(table: pd.DataFrame) -> Iterator[str]:
    """How to read the tables."""
    yield (
        f"Networks have {DEPTH} layers unless the recipe says otherwise, and all take one learning "
        "rate. The loss is the mean of the training steps since the last measurement, with label "
        "smoothing. Condition numbers are log10, medians over "
        f"{_N_IMAGES} validation images and means over layers, of averaged weights in float64, and "
        f"at most {_RESOLVED:.2f}, which float64 resolves. "
        "Differences are to softmax over seeds, with 95 % intervals that are not corrected."
    )


def compare_rows(
    results: Results, rows: Sequence[str] | None, *, data: str = "digits",
    recipe: Mapping[str, Any], **given: Any,
) -> None:  # fmt: skip
    """Train the rows, and write their losses and condition numbers by step."""
    recipe = {"depth": DEPTH} | dict(recipe)
    table = measure_rows(follow_training, rows or SKIPS + GRAYING, data, recipe=recipe, **given)
    write_table(table, results.directory)
    for title, column in (
        ("Training loss", "loss"),
        ("Condition of what attention gives", "branch"),
        ("Condition behind the skip", "after"),
    ):
        results.add_table(title, course_lines(table, column))
    results.add_sentences(notes(table))
    draw_course(table, results.directory / "course.png")
    results.write(["course"])


if __name__ == "__main__":
    run_script(__file__)
