"""The study of motion segmentation: Hopkins 155 by the recipes of EQUATIONS PP-R, and by others.

Clustering error in % on Hopkins 155: mean and median over the sequences, and the range of the mean
over the seeds of k-means. The processor time up to the affinity is the median ratio to SSC
circulated 2F on the same sequence; the gap is the largest that was certified. The recipe motion
segmentation takes its settings from the geometry of each sequence. Its rule was designed with the
labels of a random third of the sequences in sight, after an earlier design had been measured on all
of them, and its form was fixed after three of them had been. All other settings are those of the
literature or defaults.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from scipy.optimize import linear_sum_assignment
from sklearn.metrics import confusion_matrix

from ....solvers import MotionSegmentation
from ....solvers.clustering import spectral_labels
from ...jobs import Options
from ...tables import Lines
from ..figures import draw_dots
from ..lines import Cell, folded, lines_of, over_seeds
from ..problems import load_sequences, trials_of
from ..study import Study, of_jobs, prose
from .figures import draw_motions
from .recipes import load_recipes, run_recipes

_TRAJECTORIES = (
    "2F: trajectories over F frames as they are. 4n: their leading coordinates, four a motion.\n"
    "+ 1: with a constant 1."
)
_GROUPS = {"2 motions": [2], "3 motions": [3], "all": [2, 3]}
_REFERENCE = "SSC circulated 2F"
_SHOWN = ("1R2RCT_A", "cars2B", "cars9", "2T3RCRT_g23")
_OURS = "motion segmentation"
RECIPES = load_recipes("hopkins")


def motion_study(recipes: Sequence[str] | None = None) -> Study:
    """Clustering error on every sequence of Hopkins 155, by recipe and seed of k-means.

    The table has the columns ``recipe, steps, sequence, n_motions, seed, error`` (in %), the
    ``seconds`` up to the affinity and the largest certified ``gap`` where there is one.

    Raises
    ------
    ValueError
        If a recipe is unknown; the message lists what is allowed.
    """
    chosen = list(RECIPES) if recipes is None else recipes
    if unknown := set(chosen) - set(RECIPES):
        raise ValueError(f"recipes: must be among {list(RECIPES)}, got {sorted(unknown)}")

    def run(options: Options) -> pd.DataFrame:
        sequences = trials_of("hopkins", data_home=options.data_home)
        problems = [("hopkins", sequences, [RECIPES[name] for name in chosen])]
        table = run_recipes(problems, options).drop(columns="tuned")
        return table.rename(columns={"n_clusters": "n_motions", "trial": "sequence"})

    return Study("motion", prose(__doc__), run, motion_lines, {"errors.png": _draw_errors})


def frames_study(sequences: Sequence[str] = _SHOWN) -> Study:
    """Points of the first frame of a few sequences with their true and found motions, drawn."""
    jobs = [{"sequence": name} for name in sequences]
    return Study(
        "frames",
        f"Sequences segmented by the recipe {_OURS}, drawn over the points of the first frame.",
        of_jobs(segmented_points, jobs, ["hopkins"]),
        _frame_lines,
        {"motions.png": draw_motions},
    )


def segmented_points(sequence: str, data_home: str | None, seed: int = 0) -> list[dict[str, Any]]:
    """A row for each point: where it is in the first frame, its motion and the one found."""
    known = load_sequences(data_home)
    if sequence not in known:
        raise ValueError(f"sequences: Hopkins 155 has no {sequence!r}")
    data = known[sequence]
    model = MotionSegmentation(data.n_motions, assign_labels="cluster_qr").fit(data.X)
    labels = spectral_labels(model.affinity_matrix_, data.n_motions, random_state=seed)
    true, name = linear_sum_assignment(confusion_matrix(data.labels, labels), maximize=True)
    found = true[np.argsort(name)][labels]  # by the names that agree best with the true ones
    width, height = data.width or 2, data.height or 2
    x, y = ((data.X[:, :2] + 1) * (width / 2, height / 2)).T
    points = pd.DataFrame({"sequence": sequence, "x": x, "y": y, "true": data.labels})
    points = points.assign(found=found, width=width, height=height)
    return points.to_dict(orient="records")


def motion_lines(table: pd.DataFrame) -> Lines:
    """A line for each recipe on 2 motions, on 3 motions and on all."""
    reference = table[table.recipe == _REFERENCE].groupby("sequence").seconds.mean()
    table = _grouped(table.assign(ratio=table.seconds / table.sequence.map(reference)))
    cells: dict[str, Cell] = {
        "recipe": "recipe",
        "steps": "steps",
        "sequences": "group",
        "mean": folded("error", "mean", ".2f"),
        "median": lambda rows: f"{rows.groupby('sequence').error.mean().median():.2f}",
        "over seeds": over_seeds("error"),
        "time ratio": folded("ratio", "median", ".2f", "-"),
        "gap": folded("gap", "max", ".0e", "-"),
    }
    return lines_of(table, ["recipe", "group"], cells)


def _grouped(table: pd.DataFrame) -> pd.DataFrame:
    """The sequences of 2 motions, of 3 motions, and all once more, recipe by recipe."""
    groups = [table[table.n_motions.isin(n)].assign(group=name) for name, n in _GROUPS.items()]
    together = pd.concat(groups)
    order = pd.Categorical(together.recipe, dict.fromkeys(table.recipe)).codes
    return together.iloc[np.argsort(order, kind="stable")]


def _draw_errors(table: pd.DataFrame, path: Path) -> None:
    """Mean error of each recipe over all sequences, on 2 and on 3 motions, the best on top."""
    means = _grouped(table).groupby(["recipe", "group", "seed"]).error.mean().reset_index()
    order = table.groupby("recipe").error.mean().sort_values().index
    means = means.assign(panel="").sort_values("recipe", key=order.get_indexer, kind="stable")
    words = "mean clustering error in %, std over seeds"
    draw_dots(
        means,
        path,
        value="error",
        words=words,
        row="recipe",
        series="group",
        scale="symlog",
        note=_TRAJECTORIES,
    )


def _frame_lines(table: pd.DataFrame) -> Lines:
    cells: dict[str, Cell] = {
        "sequence": "sequence",
        "motions": lambda points: str(points.true.nunique()),
        "points": lambda points: str(len(points)),
        "in the wrong motion": lambda points: str((points.true != points.found).sum()),
    }
    return lines_of(table, ["sequence"], cells)
