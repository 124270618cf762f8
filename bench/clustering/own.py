"""A user's own points: what is said of them, and what a run on them leaves beside the tables."""

import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd

from ...datasets.files import write_whole
from ..figures import forget
from ..jobs import Options
from .clusters import NO_STEPS, OWN, matrices_of
from .figures import draw_matrices, shown
from .problems import DATA, make_problem
from .steps import without_cut

_MOST_POINTS, _MOST_METHODS, _MOST_SECONDS = 2000, 3, 30  # of what is fitted again and drawn


def with_clusters(data: Sequence[str], n_clusters: int | None) -> tuple[list[str], str]:
    """Names of data, those of files with their number of clusters, and how each file is read.

    Raises
    ------
    ValueError
        If there is a number of clusters and none of the data is a file.
    """
    own = [name for name in data if _is_own(name)]
    if n_clusters and not own:
        raise ValueError("data: --n-clusters is for files of points")
    word = f"n_clusters={n_clusters}" if n_clusters else ""
    named = {name: f"{name}{',' if ':' in name else ':'}{word}" for name in own if word}
    about = " ".join(_reading(named.get(name, name)) for name in own)
    return [named.get(name, name) for name in data], about


def _is_own(name: str) -> bool:
    base = name.partition(":")[0]
    return base not in DATA and Path(base).is_file()


def _reading(name: str) -> str:
    """How a file is read; where no labels count the points, also what to do if that is wrong."""
    problem = make_problem(name)
    (n, d), k = problem.X.shape, problem.n_clusters
    read, other = ("columns", "rows") if "transpose=True" in name else ("rows", "columns")
    said = f"{name}: {n:,} points ({read}) of {d:,} features; {k} clusters, "
    if problem.labelled:
        return f"{said}labels."
    cure = "add" if read == "rows" else "leave out"
    return (
        f"{said}no labels, errors are not known. If the {other} are the points, {cure} "
        "transpose=True behind the colon."
    )


def write_own(table: pd.DataFrame, options: Options, directory: Path) -> None:
    """Write labels where there were none, and pictures of matrices, of the largest scores."""
    for path in list(directory.iterdir()):
        if re.fullmatch(r"labels(-\d+)?\.csv", path.name):
            path.unlink()
        elif re.fullmatch(r"matrices(-\d+)?\.png", path.name):
            forget(path)
    chosen = table[table.selection == "label-free"]
    for number, (data, rows) in enumerate(chosen.groupby("data", sort=False), start=1):
        end = f"-{number}" if chosen.data.nunique() > 1 else ""
        if "labels" in rows and rows.labels.notna().any():
            first = rows[(rows.seed == rows.seed.min()) & rows.labels.notna()]
            first = first.sort_values("selection_score", ascending=False, kind="stable")
            # The clusters to report of each method stand before those by its other chains.
            other = first.duplicated(["trial", "method"])
            first = pd.concat([first[~other], first[other]])
            by_trial = [
                _labels_of(str(data), str(trial), own, options)
                for trial, own in first.groupby("trial", sort=False)
            ]
            written = pd.concat(by_trial).drop(columns="trial" if len(by_trial) == 1 else [])
            write_whole(directory / f"labels{end}.csv", written.to_csv(index=False))
        fits = rows[~rows.steps.map(without_cut).isin([OWN, NO_STEPS])]
        fits = fits[fits.selection_score.notna()]
        small = (fits.n_points <= _MOST_POINTS) & (fits.fit_seconds <= _MOST_SECONDS)
        fits = fits[small & (fits.trial == rows.trial.iloc[0])]
        fits = fits.sort_values("selection_score", ascending=False, kind="stable")
        best = fits.drop_duplicates("method")
        found = {
            f"{_in_words(row)}\n{row.steps}{_error_of(row, rows)}": matrices_of(row, options)
            for _, row in best.head(_MOST_METHODS).iterrows()
        }
        if found:
            problem = make_problem(
                str(data), best.trial.iloc[0], seed=options.seed, data_home=options.data_home
            )
            labels = problem.labels if problem.labelled else best.labels.iloc[0]
            order = "class" if problem.labelled else "the first method's clusters"
            title = f"{shown(str(data))}: coefficients and affinities, points sorted by {order}"
            draw_matrices(found, labels, directory / f"matrices{end}.png", title)


def _error_of(row: pd.Series, rows: pd.DataFrame) -> str:
    """Where labels are known, the mean error of the trial over the seeds."""
    keys = ["trial", "method", "steps"]
    mean = rows[(rows[keys] == row[keys]).all(axis=1)].accuracy.mean()
    return "" if np.isnan(mean) else f"\nerror {100 * (1 - mean):.2f} %"


def _labels_of(data: str, trial: str, rows: pd.DataFrame, options: Options) -> pd.DataFrame:
    """The clusters of each point of a trial, a column for each row of the table.

    A point is known by its number in the whole data set, from 0.
    """
    points = make_problem(data, trial, seed=options.seed, data_home=options.data_home).rows
    named = {f"{row.method}, {row.steps}": row.labels for row in rows.itertuples()}
    return pd.DataFrame({"trial": trial, "point": points} | named)


def _in_words(row: pd.Series) -> str:
    """A method with its settings."""
    return ", ".join(filter(None, (row.method.partition(":")[0], row.settings)))
