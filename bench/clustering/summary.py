"""The study of clusters in few lines: what the clusters are worth, and what the solvers cost."""

from typing import Any

import numpy as np
import pandas as pd

from .study import Lines

REFERENCE = "SSC"
_CASE = ["data", "features", "method", "settings"]
_CLUSTER_HEADINGS = (
    "data", "features", "method", "settings", "steps", "error %", "std", "range", "NMI", "ARI",
    "ME-3", "score",
)  # fmt: skip
_QUALITY_HEADINGS = (
    "data", "features", "method", "settings", "time / SSC", "s", "MiB", "objective", "gap mean",
    "gap max", "non-zeros", "ME-2",
)  # fmt: skip
_DISTANCE_HEADINGS = (
    "data", "features", "method", "settings", "distance", "cosine", "support F1", "objective gap",
)  # fmt: skip
_TUNED = " (labels)"


def cluster_lines(table: pd.DataFrame) -> Lines:
    """A line for each method and chain of steps: the error, its spread over seeds, the graph."""
    rows = []
    chosen = table[table.selection != ""]
    groups = chosen.groupby([*_CASE, "steps", "selection"], sort=False)
    for (data, features, method, settings, steps, selection), group in groups:
        name = method + _TUNED if selection == "labels" else method
        about = (data, features, name, settings or "-", steps)
        if group.accuracy.isna().all():
            rows.append((*about, group.note.iloc[0], *["-"] * (len(_CLUSTER_HEADINGS) - 6)))
            continue
        errors = 100 * (1 - group.groupby(["fit_seed", "seed"]).accuracy.mean())
        rows.append(
            (
                *about,
                f"{errors.mean():.2f}",
                f"{errors.std(ddof=0):.2f}",
                f"{errors.min():.2f} to {errors.max():.2f}",
                *(_mean(group, column, ".3f") for column in ("nmi", "ari")),
                _mean(group, "connectivity", ".4f"),
                _mean(group, "selection_score", ".3f"),
            )
        )
    return _CLUSTER_HEADINGS, rows


def quality_lines(table: pd.DataFrame) -> Lines:
    """A line for each method with a setting that was chosen: cost, certificate, coefficients."""
    fits = _fits(table)
    reference = fits[fits.method == REFERENCE].groupby(["data", "features", "trial"]).fit_seconds
    seconds = reference.mean().rename("reference")
    fits = fits.join(seconds, on=["data", "features", "trial"])
    fits["ratio"] = fits.fit_seconds / fits.reference
    rows = [
        (
            *(data, features, method, settings or "-"),
            _middle(group.ratio, ".2f"),
            _middle(group.fit_seconds, ".3f"),
            _middle(group.memory_mib, ".0f"),
            *(_mean(group, column, ".3g") for column in ("objective", "gap_mean")),
            _number(group.gap_max.max(), ".1e"),
            _mean(group, "nonzeros", ".1f"),
            _mean(group, "subspace_error", ".3f"),
        )
        for (data, features, method, settings), group in fits.groupby(_CASE, sort=False)
    ]
    return _QUALITY_HEADINGS, rows


def distance_lines(table: pd.DataFrame) -> Lines:
    """ME-4 of the methods that approximate a solved problem."""
    fits = _fits(table)
    rows = [
        (
            *(data, features, method, settings or "-"),
            *(_mean(group, name, ".3f") for name in ("distance", "cosine", "support_f1")),
            _mean(group, "objective_gap", ".1e"),
        )
        for (data, features, method, settings), group in fits.groupby(_CASE, sort=False)
        if group.distance.notna().any()
    ]
    return _DISTANCE_HEADINGS, rows


def held_out_lines(table: pd.DataFrame) -> Lines:
    """A line for each method and chain of steps: fitted points, others, and time for one of these.

    Means and deviations are over the seeds.
    """
    headings = (
        "data", "features", "method", "settings", "steps", "error fitted %", "error held out %",
        "ms a point held out",
    )  # fmt: skip
    rows = []
    chosen = table[table.selection == "label-free"]
    for about, group in chosen.groupby([*_CASE, "steps"], sort=False):
        if "accuracy_new" not in group or group.accuracy_new.isna().all():
            continue
        errors = 100 * (1 - group[["accuracy_fit", "accuracy_new"]])
        cells = [f"{errors[name].mean():.2f} ± {errors[name].std(ddof=0):.2f}" for name in errors]
        rows.append((*map(str, about), *cells, _middle(group.new_ms, ".3f")))
    return headings, rows


def _fits(table: pd.DataFrame) -> pd.DataFrame:
    """A row for each fit with a setting that was chosen."""
    return table[table.selection != ""].drop_duplicates([*_CASE, "trial", "fit_seed"])


def _mean(group: pd.DataFrame, column: str, form: str) -> str:
    return _number(group[column].mean() if column in group else np.nan, form)


def _middle(values: pd.Series, form: str) -> str:
    return _number(values.median(), form)


def _number(value: Any, form: str) -> str:
    return "-" if pd.isna(value) else format(value, form)
