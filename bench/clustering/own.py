"""A user's own points: what is said of them, and what a run on them leaves beside the tables."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from ..jobs import Options
from .clusters import NO_STEPS, OWN, matrices_of
from .figures import draw_matrices
from .problems import DATA, make_problem

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
        of = "labels" if problem.labelled else "no labels, errors are not known"
        lines.append(f"{name}: {n:,} points (rows) of {d:,} features; {k} clusters, {of}.")
        if n < d and not problem.labelled and "transpose" not in name:
            lines.append("Warning: fewer rows than columns: add --transpose if columns are points.")
    return lines


def write_own(table: pd.DataFrame, options: Options, directory: Path) -> None:
    """Write labels where there were none, and pictures of the best methods' matrices."""
    chosen = table[table.selection == "label-free"]
    for number, (data, rows) in enumerate(chosen.groupby("data", sort=False), start=1):
        end = f"-{number}" if chosen.data.nunique() > 1 else ""
        if "labels" in rows and rows.labels.notna().any():
            first = rows[(rows.seed == rows.seed.min()) & rows.labels.notna()]
            named = {f"{row.method}, {row.steps}": row.labels for row in first.itertuples()}
            pd.DataFrame(named).to_csv(directory / f"labels{end}.csv", index=False)
        score = "accuracy" if rows.accuracy.notna().any() else "selection_score"
        fits = rows[~rows.steps.isin([OWN, NO_STEPS]) & rows[score].notna()]
        small = (fits.n_points <= _MOST_POINTS) & (fits.fit_seconds <= _MOST_SECONDS)
        fits = fits[small & (fits.trial == rows.trial.iloc[0])]
        best = fits.sort_values(score, ascending=False, kind="stable").drop_duplicates("method")
        found = {
            f"{row.method}\n{row.settings}\n{row.steps}": matrices_of(row, options)
            for _, row in best.head(_MOST_METHODS).iterrows()
        }
        if found:
            problem = make_problem(
                str(data), best.trial.iloc[0], seed=options.seed, data_home=options.data_home
            )
            labels = problem.labels if problem.labelled else best.labels.iloc[0]
            draw_matrices(found, labels, directory / f"matrices{end}.png", str(data))
