"""A user's own points: how their file is read, and the labels and figures of their clusters."""

import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd
from scipy.sparse import csr_array

from ...datasets.files import write_whole
from ...solvers.inputs import Array
from ..jobs import Options, Part, resume_parts
from ..names import split_settings
from ..sources import code
from .data import Data, find_data
from .features import Points, load_features
from .figures import describe_data, draw_matrices
from .fitting import fit
from .matrix_files import write_matrices
from .methods import code_of, find_method
from .steps import NO_STEPS, OWN, affinity_of, without_cut

_MOST_POINTS, _MOST_METHODS, _MOST_SECONDS = 2000, 3, 30  # limits of fits that are drawn


def with_clusters(data: Sequence[str], n_clusters: int | None) -> tuple[list[str], str]:
    """Add the number of clusters to names of files, and say how each file is read.

    Raises
    ------
    ValueError
        If a number of clusters is given, but no file.
    """
    found = [find_data(name) for name in data]
    if n_clusters and not any(one.own for one in found):
        raise ValueError("data: --n-clusters is for files of points")
    if n_clusters:
        ends = [f"{',' if ':' in x.name else ':'}n_clusters={n_clusters}" * x.own for x in found]
        found = [find_data(x.name + end) for x, end in zip(found, ends, strict=True)]
    about = " ".join(_describe_reading(one) for one in found if one.own)
    return [one.name for one in found], about


def _describe_reading(data: Data) -> str:
    """Say how a file is read; without labels, also what to do if rows and columns are swapped."""
    problem = data.problem()
    (n, d), k = problem.X.shape, problem.n_clusters
    read, other = ("columns", "rows") if data.settings.get("transpose") else ("rows", "columns")
    reading = f"{data.name}: {n:,} points ({read}) of {d:,} features, {k} clusters; {data.found}."
    if problem.labelled:
        return reading
    reading = f"{reading} Without labels, errors are not known."
    if not data.turnable:
        return reading
    cure = "add" if read == "rows" else "leave out"
    return f"{reading} If the {other} are the points, {cure} transpose=True behind the colon."


def write_own(table: pd.DataFrame, options: Options, directory: Path) -> list[str]:
    """Write the clusters of points without labels, and figures of the best coefficients.

    Returns a sentence for each file of clusters, which says whose they are.
    """
    forget_own(directory)
    said, chosen = [], table[table.selection == "label-free"]
    for number, (_, rows) in enumerate(chosen.groupby("data", sort=False), start=1):
        end = f"-{number}" if chosen.data.nunique() > 1 else ""
        rows = rows[rows.trial == rows.trial.iloc[0]]
        best = rows.sort_values("selection_score", ascending=False, kind="stable")
        clusters = None
        if "labels" in rows and rows.labels.notna().any():
            first = best[(best.seed == best.seed.min()) & best.labels.notna()].iloc[0]
            clusters = np.array(first.labels)
            _write_clusters(first, clusters, options, directory / f"labels{end}.csv")
            said.append(
                f"labels{end}.csv: the clusters by {_name_row(first)}, {first.steps}"
                f"{', of largest score' * pd.notna(first.selection_score)}; those of all rows are "
                "in clusters.json.gz."
            )
        draw_best(best, clusters, options, directory / f"matrices{end}.png")
    return said


def forget_own(directory: Path) -> None:
    """Remove the clusters and the matrices of an earlier run."""
    for path in list(directory.iterdir()):
        if re.fullmatch(r"labels(-\d+)?\.csv|matrices(-\d+)?\.(png|pdf|npz)", path.name):
            path.unlink()


def _write_clusters(row: pd.Series, clusters: Array, options: Options, path: Path) -> None:
    """Write the clusters of a row beside the numbers of the points in the whole data set."""
    problem = find_data(row.data, options.data_home).problem(row.trial, options.seed)
    written = pd.DataFrame({"point": problem.rows, "cluster": clusters})
    write_whole(path, written.to_csv(index=False))


def draw_best(rows: pd.DataFrame, clusters: Array | None, options: Options, path: Path) -> None:
    """Draw the coefficients and the affinity of the first row of each of three methods.

    Points are sorted by class or, without labels, by `clusters`. Rows without coefficients or
    score, and those of many points or slow fits, are not drawn. A file ``.npz`` beside the figure
    keeps the largest entries and the points, for `twinsolve report`.
    """
    fits = rows[~rows.steps.map(without_cut).isin([OWN, NO_STEPS])]
    fits = fits[fits.selection_score.notna()]
    fits = fits[(fits.n_points <= _MOST_POINTS) & (fits.fit_seconds <= _MOST_SECONDS)]
    best = fits.drop_duplicates("method").head(_MOST_METHODS)
    if best.empty:
        return
    data, seed = find_data(best.data.iloc[0], options.data_home), options.seed
    found = {}
    for _, row in best.iterrows():
        name = f"{_name_row(row)}\n{row.steps}{_describe_error(row, rows)}"
        points = Points(data, row.trial, row.features, seed)
        found[name] = _compute_matrices(points, row, options.directory)
    problem = data.problem(best.trial.iloc[0], seed)
    labels, word = problem.labels, "class"
    if clusters is not None and not problem.labelled:
        labels, word = clusters, "cluster"
    title = f"{describe_data(data.name)}: coefficients and affinities, points sorted by {word}"
    draw_matrices(found, labels, path, title)
    kept = path.with_suffix(".npz")
    write_matrices(found, np.asarray(labels), problem, title=title, word=word, path=kept)


def _compute_matrices(
    points: Points, row: pd.Series, directory: Path | None
) -> tuple[Array, Array]:
    """Coefficients and affinity of a row of the table, read if kept, else fitted again."""
    way = find_method(row.method)

    def make() -> list[Part]:
        problem, X = load_features(points)
        settings = split_settings(f":{row.settings}".replace(", ", ","), "settings")[1]
        coef = fit(way, X, problem.n_clusters, row.fit_seed, settings).coef
        made = affinity_of(without_cut(row.steps), coef, problem.n_clusters)
        return [({}, {"coef": csr_array(coef).toarray(), "affinity": csr_array(made).toarray()})]

    about = {name: str(row[name]) for name in ("method", "settings", "steps", "fit_seed")}
    key = {
        "study": "matrices",
        "points": points,
        "method code": code_of(way),
        **about,
    }
    folder = directory and directory / "matrices"
    ((_, arrays),) = resume_parts(make, key | code(__name__), folder)
    return arrays["coef"], arrays["affinity"]


def _describe_error(row: pd.Series, rows: pd.DataFrame) -> str:
    """The trial's mean error over the seeds as a line of text; empty without labels."""
    keys = ["trial", "method", "settings", "steps"]
    mean = rows[(rows[keys] == row[keys]).all(axis=1)].accuracy.mean()
    return "" if np.isnan(mean) else f"\nerror {100 * (1 - mean):.2f} %"


def _name_row(row: pd.Series) -> str:
    """A method with its settings, in words."""
    return ", ".join(filter(None, (row.method.partition(":")[0], row.settings)))
