"""A user's own points: what is said of them, and what a run on them leaves beside the tables."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from ...datasets.files import write_whole
from ...solvers.solution import Array
from ..figures import forget
from ..jobs import Options
from .clusters import NO_STEPS, OWN, matrices_of
from .figures import draw_matrices, shown
from .problems import DATA, make_problem
from .steps import without_cut

_SMALLEST_SIDE, _MOST_COLUMNS = 4, 200  # of images looked for, and what is looked at
_MOST_POINTS, _MOST_METHODS, _MOST_SECONDS = 2000, 3, 30  # of what is fitted again and drawn


def with_settings(data: Sequence[str], settings: dict[str, Any]) -> list[str]:
    """The same names with the settings added to those that are files.

    Raises
    ------
    ValueError
        If there are settings and none of the data is a file.
    """
    words = ",".join(f"{name}={value!r}" for name, value in settings.items() if value)
    if not words:
        return list(data)
    own = [name for name in data if _is_own(name)]
    if not own:
        raise ValueError("data: keys, --transpose and --n-clusters are for files of points")
    return [f"{name}{',' if ':' in name else ':'}{words}" if name in own else name for name in data]


def _is_own(name: str) -> bool:
    base = name.partition(":")[0]
    return base not in DATA and Path(base).is_file()


def readings(data: Sequence[str]) -> list[str]:
    """How each file is read, and what to do where that looks wrong."""
    lines = []
    for name in filter(_is_own, data):
        problem = make_problem(name)
        (n, d), k = problem.X.shape, problem.n_clusters
        read = "columns" if "transpose=True" in name else "rows"
        of = "labels" if problem.labelled else "no labels, errors are not known"
        lines.append(f"{name}: {n:,} points ({read}) of {d:,} features; {k} clusters, {of}.")
        if not problem.labelled:
            lines += _doubts(problem.X, read)
    return lines


def _doubts(X: Array, read: str) -> list[str]:
    """What speaks for points the other way round, where no labels count them."""
    other, cure = ("columns", "add") if read == "rows" else ("rows", "leave out")
    pixels, others = images_in_columns(X), images_in_columns(X.T)
    if pixels and (others is None or pixels[0] > others[0]):
        _, high, wide = pixels
        return [
            f"Warning: the {read} look like the pixels of {high} x {wide} images, as neighbours "
            f"are alike: {cure} --transpose to take the {other} as points."
        ]
    if not others and X.shape[0] < X.shape[1]:
        return [
            f"Warning: fewer {read} than {other}: {cure} --transpose if the {other} are points."
        ]
    return []


def images_in_columns(X: Array) -> tuple[float, int, int] | None:
    """If rows of X seem to be pixels of h x w images: their correlation across h, and h and w.

    Pixels that are neighbours are alike, and those half an image apart are not: for a side h, rows
    h apart correlate by 1/4 more than rows h / 2 apart, and by 3/4 of what rows side by side do.
    """
    kept = np.linspace(0, X.shape[1] - 1, min(X.shape[1], _MOST_COLUMNS)).astype(int)
    rows = X[:, kept] - X[:, kept].mean(axis=1, keepdims=True)
    norms = np.linalg.norm(rows, axis=1, keepdims=True)
    rows = rows / np.where(norms > 0, norms, 1)

    def correlation(lag: int) -> float:
        return float(np.einsum("ij,ij->i", rows[lag:], rows[:-lag]).mean())

    n = len(rows)
    sides = [h for h in range(_SMALLEST_SIDE, n // _SMALLEST_SIDE + 1) if n % h == 0]
    contrast = {h: correlation(h) - correlation(h // 2) for h in sides}
    best = max(sides, key=contrast.__getitem__, default=0)
    if not best or contrast[best] < 0.25 or correlation(best) < 0.75 * correlation(1):
        return None
    return correlation(best), best, n // best


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
