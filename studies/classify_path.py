"""From non-local means to a vision transformer, one part a row; beside it, layers of one problem.

``python studies/classify_path.py`` trains them as ``twinsolve classify`` does.
"""

from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

import pandas as pd
from shared.script import run_script

from twinsolve.bench.comparison import BLANK, CLEAR, INTERVAL, draw_cosines, draw_intervals
from twinsolve.bench.figures import panels, plain, save
from twinsolve.bench.paired import (
    COMPARED,
    Paired,
    judge,
    n_determined,
    paired_difference,
)
from twinsolve.bench.tables import Lines, Results, number
from twinsolve.bench.task import PLAIN
from twinsolve.bench.vision.classification.measures import hits
from twinsolve.bench.vision.classification.report import differences, images_study
from twinsolve.bench.vision.classification.study import classify

# From the whole network down, what a row lacks that the row above it has.
_LACKED: list[tuple[str, dict[str, Any]]] = [
    ("dot products", {}),
    ("+ heads", {"operator": "Gaussian:bandwidth=2.0,learnable=True"}),
    ("+ positions", {"num_heads": 1}),
    ("+ feed-forward", {"positions": False}),
    ("+ norms", {"feed_forward": False}),
    ("+ skip", {"identity": ["norms"]}),
    ("+ projections", {"attention_skip": False}),
    ("+ embedding", {"identity": ["projections", "norms"]}),
    ("non-local means", {"identity": ["embedding", "projections", "norms"]}),
]
_ROWS = accumulate(_LACKED, lambda above, row: (row[0], above[1] | row[1]))
PATH = dict(reversed([("+ class token", {"pool": "class"}), *_ROWS]))
# Layers that are the ISTA steps of one problem, or of a problem each.
ISTA: dict[str, dict[str, Any]] = {
    "one ISTA step a layer": {"architecture": "SelfExpression"},
    "ISTA anew in each layer": {"operator": "sparse_coding"},
}


def steps_of_path(table: pd.DataFrame) -> dict[str, Paired]:
    """Of each row of the path to the one before."""
    found = {row: hits(table, row) for row in PATH}
    return {row: paired_difference(found[row], found[b]) for b, row in pairwise(found)}


def path_lines(table: pd.DataFrame) -> Lines:
    """Differences of each row of the path to the one before."""
    means = table.groupby("row").top1.mean()
    verdicts = judge(steps_of_path(table))
    lines: list[tuple[str, ...]] = [
        (row, number(means[row], ".2f"), *(verdicts[row].cells if row in verdicts else BLANK))
        for row in PATH
    ]
    return ("row", "top-1 %", *COMPARED), lines


def notes_of_path(table: pd.DataFrame) -> list[str]:
    n_steps = n_determined(steps_of_path(table))
    return [f"Verdicts part by part are corrected for their own {n_steps} comparisons."]


def draw_path(table: pd.DataFrame, path: Path) -> None:
    """Top-1, the difference that each part makes, and cosines, in the order of the path.

    Rows that are no step of it come below a line, compared with the plain row.
    """
    beside = [row for row in table.row.unique() if row not in (*PATH, PLAIN)]
    order = [*reversed(beside), *reversed(PATH)]
    to_plain = judge(differences(table))
    figure, axes = panels(3, (3.9, 1.3 + 0.26 * len(order)), sharey=True)
    left, middle, right = axes
    for place, row in enumerate(order):
        seeds = table[table.row == row].top1
        left.plot(seeds, [place] * len(seeds), "o", color=CLEAR, alpha=0.4, markersize=4)
        left.plot(seeds.mean(), place, "|", color="black", markersize=13)
    left.set_xlabel("top-1, %\n(a dot a seed, a bar their mean)")
    left.tick_params(axis="y", labelsize=8)
    plain(left)
    verdicts = judge(steps_of_path(table)) | {row: to_plain[row] for row in beside}
    draw_intervals(middle, verdicts, order)
    below = f"\n(below the line: to {PLAIN})" if beside else ""
    middle.set_xlabel(f"top-1, points to the row before{below}\n{INTERVAL}")
    draw_cosines(right, table, order)
    for own in axes if beside else ():
        own.axhline(len(beside) - 0.5, color="black", linewidth=0.8)
    save(figure, path)


def compare_rows(results: Results, rows: Sequence[str] | None, **given: Any) -> None:
    """Train the rows, and write the path."""
    table = classify(rows=rows or PATH | ISTA, against=PLAIN, **given)
    study, whole = images_study(given["data"]), set(PATH) <= set(table.row)
    if whole:
        study = replace(study, figures={**study.figures, "differences.png": draw_path})
    study.write(table, results)
    if whole:
        results.add_table("Part by part", path_lines(table))
        results.add_sentences(notes_of_path(table))
    results.write()


if __name__ == "__main__":
    run_script(__file__)
