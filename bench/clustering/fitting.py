"""Fit methods, measure time and memory, and score clusters and coefficients.

Points labelled -1 are outliers or of unknown cluster, and do not count.
"""

import time
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from scipy.sparse import csr_array, diags_array, issparse
from sklearn.metrics import adjusted_rand_score, normalized_mutual_info_score
from sklearn.preprocessing import normalize
from sklearn.utils import gen_batches

from ...datasets import make_union_of_subspaces
from ...solvers import clustering_accuracy, sparse_self_expression
from ...solvers.clustering.base import SubspaceClustering
from ...solvers.inputs import Array
from ...solvers.metrics import coefficient_distance, connectivity, subspace_preserving_error
from ...solvers.sparse_coding import lasso_objective
from ..terminal import progress_in_lines
from ..timing import measured
from .estimate import LARGE, tell_seconds
from .methods import Method, find_method
from .steps import DENSE_ROWS

QUALITY = (
    "fit_seconds", "memory_mib", "objective", "gap_max", "gap_mean", "nonzeros", "subspace_error",
)  # fmt: skip
_DISTANCES = ("distance", "cosine", "support_f1")
_BLOCK = 1000


@dataclass(frozen=True, eq=False)
class Fitted:
    """A fitted estimator with its labels, time and memory."""

    model: Any
    labels: Array
    seconds: float
    memory_mib: float

    @property
    def coef(self) -> Any:
        return getattr(self.model, "coef_", None)

    @property
    def affinity(self) -> Any:
        return getattr(self.model, "affinity_matrix_", None)


def fit(
    method: Method,
    X: Array,
    n_clusters: int,
    random_state: int,
    settings: dict[str, Any],
    directory: Path | None = None,
) -> Fitted:
    """Fit a method; a `SubspaceClustering` computes only its coefficients.

    Seconds are processor time, which other processes do not lengthen. With a `directory`, a fit
    of over 30 s first says about how long it takes. If a method supports it, a long fit continues
    an interrupted fit from there; time and memory are then unknown. It says how much time is left.
    """
    model = method.make(n_clusters=n_clusters, random_state=random_state, n_jobs=1, **settings)
    begun = False
    if isinstance(model, SubspaceClustering):
        model.set_params(affinity=make_empty_affinity)
    if directory and method.family != "user":
        words = f"{method.name}, {X.shape[0]:,} points"
        tell_seconds(words, model, X, n_clusters, method.family)
        if X.shape[0] > LARGE and "directory" in model.get_params():
            begun = directory.exists()
            model.set_params(directory=directory, progress=progress_in_lines(words))

    def timed() -> tuple[Any, float]:
        start = time.process_time()
        labels = model.fit_predict(X)
        return labels, time.process_time() - start

    (labels, seconds), memory = measured(timed)
    if begun:
        seconds = memory = np.nan
    return Fitted(model, np.asarray(labels), seconds, memory)


def make_empty_affinity(coef: Any) -> csr_array:
    """An affinity without entries, for which the spectral step costs nothing."""
    return csr_array(coef.shape)


@lru_cache
def warm_up(method: str) -> None:
    """Compile the kernels of a solver before it is timed."""
    way = find_method(method)
    if way.family in ("solved", "baseline"):
        X, _ = make_union_of_subspaces(20, n_subspaces=2, random_state=0)
        fit(way, X, 2, 0, way.settings[0])


def quality(method: Method, fitted: Fitted, X: Array, labels: Array) -> dict[str, Any]:
    """Measures of a fit: time, memory, certificate, and quality of the coefficients."""
    gap, objective = (
        np.asarray(getattr(fitted.model, name, np.nan), dtype=np.float64)
        for name in ("gap_", "objective_")
    )
    nonzeros = error = np.nan
    if fitted.coef is not None:
        count = fitted.coef.nnz if issparse(fitted.coef) else np.count_nonzero(fitted.coef)
        nonzeros, error = count / X.shape[0], subspace_error_of(fitted.coef, labels)
    costs = (fitted.seconds, fitted.memory_mib, objective.sum(), gap.max(), gap.mean())
    row = dict(zip(QUALITY, map(float, (*costs, nonzeros, error)), strict=True))
    return row | distance_to_certified(method, fitted.model, X)


def distance_to_certified(method: Method, model: Any, X: Array) -> dict[str, float]:
    """ME-4 of the model's coefficients; NaN if the method approximates no solved problem."""
    if method.problem is None or X.shape[0] > DENSE_ROWS:
        return dict.fromkeys((*_DISTANCES, "objective_gap"), np.nan)
    X = normalize(X) if method.unit_rows else X
    problem = method.problem(model, X)
    solution = sparse_self_expression(X, **problem)
    found = coefficient_distance(model.coef_, solution.coef)
    excess = lasso_objective(X, X, model.coef_, **problem) - solution.objective
    double = X.astype(np.float64)
    squares = np.asarray((double * double).sum(axis=1))
    gaps = excess / np.where(squares > 0, squares, 1)
    return {name: found[name] for name in _DISTANCES} | {"objective_gap": float(gaps.mean())}


def scores(true: Array, found: Array) -> dict[str, float]:
    """ME-1 over the points that are not outliers."""
    known = true >= 0
    if not known.any():
        return dict.fromkeys(("accuracy", "nmi", "ari"), np.nan)
    true, found = true[known], found[known]
    return {
        "accuracy": clustering_accuracy(true, found),
        "nmi": float(normalized_mutual_info_score(true, found)),
        "ari": float(adjusted_rand_score(true, found)),
    }


def connectivity_of(affinity: Any, labels: Array) -> float:
    """ME-3 of the graph of the points that are not outliers."""
    known = np.flatnonzero(labels >= 0)
    if not len(known):
        return np.nan
    return connectivity(affinity[known][:, known], labels[known])


def subspace_error_of(coef: Any, labels: Array) -> float:
    """ME-2 over the points that are not outliers; coefficients on outliers count as errors."""
    known = labels >= 0
    if not known.any():
        return np.nan
    rows = diags_array(known.astype(np.float64)) @ csr_array(coef)
    return subspace_preserving_error(rows, labels) / float(known.mean())


def split_rows(n_points: int, n_fit: int | None, seed: int) -> tuple[Array, Array]:
    """Indices of `n_fit` random points and of the others; None, or too large, is all points."""
    if n_fit is None or n_fit >= n_points:
        return np.arange(n_points), np.arange(0)
    order = np.random.default_rng(seed).permutation(n_points)
    return np.sort(order[:n_fit]), np.sort(order[n_fit:])


def held_out_labels(model: Any, X: Array, labellings: list[Array]) -> tuple[list[Array], float]:
    """Labels of new points for each labelling of the fitted points, and seconds of their codes.

    A clusterer without coefficients predicts once, whatever the labelling.
    """
    found = [np.empty(X.shape[0], dtype=int) for _ in labellings]
    seconds = 0.0
    for batch in gen_batches(X.shape[0], _BLOCK):
        start = time.process_time()
        coded = hasattr(model, "coefficients")
        codes = model.coefficients(X[batch]) if coded else model.predict(X[batch])
        seconds += time.process_time() - start
        for labels, new in zip(labellings, found, strict=True):
            new[batch] = model.assign(X[batch], codes, labels) if coded else codes
    return found, seconds
