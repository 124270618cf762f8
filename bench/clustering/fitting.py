"""Fits of a method: what they give, what they cost, and what their coefficients are worth."""

import time
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from scipy.sparse import csr_array, issparse

from ...datasets import make_union_of_subspaces
from ...solvers.clustering.base import SubspaceClustering
from ...solvers.solution import Array
from ..speed.memory import release, reset_peak, resident
from .distances import distance_to_certified
from .judging import subspace_error_of
from .methods import Method, find_method

QUALITY = (
    "fit_seconds", "memory_mib", "objective", "gap_max", "gap_mean", "nonzeros", "subspace_error",
)  # fmt: skip


@dataclass(frozen=True, eq=False)
class Fitted:
    """An estimator with what its fit gave and cost; coefficients and affinity where it has them."""

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
    method: Method, X: Array, n_clusters: int, random_state: int, settings: dict[str, Any]
) -> Fitted:
    """Fit a method; one that is a `SubspaceClustering` without its own affinity and its cut.

    Seconds are those of the processor, which other processes do not lengthen.
    """
    model = method.make(n_clusters=n_clusters, random_state=random_state, n_jobs=1, **settings)
    if isinstance(model, SubspaceClustering):
        model.set_params(affinity=edgeless)
    release()
    before = resident("VmRSS") if reset_peak() else np.nan
    start = time.process_time()
    labels = model.fit_predict(X)
    seconds = time.process_time() - start
    return Fitted(model, np.asarray(labels), seconds, resident("VmHWM") - before)


def edgeless(coef: Any) -> csr_array:
    """An affinity that leaves the spectral step nothing to do."""
    return csr_array(coef.shape)


@lru_cache
def warm_up(method: str) -> None:
    """Have the kernels of a solver compiled before one is timed."""
    way = find_method(method)
    if way.family in ("solved", "baseline"):
        X, _ = make_union_of_subspaces(20, n_subspaces=2, random_state=0)
        fit(way, X, 2, 0, {})


def quality(method: Method, fitted: Fitted, X: Array, labels: Array) -> dict[str, Any]:
    """What the fit cost, and what its coefficients are worth."""
    gap, objective = (
        np.asarray(getattr(fitted.model, name, np.nan), dtype=np.float64)
        for name in ("gap_", "objective_")
    )
    nonzeros = error = np.nan
    if fitted.coef is not None:
        count = fitted.coef.nnz if issparse(fitted.coef) else np.count_nonzero(fitted.coef)
        nonzeros, error = count / len(X), subspace_error_of(fitted.coef, labels)
    costs = (fitted.seconds, fitted.memory_mib, objective.sum(), gap.max(), gap.mean())
    row = dict(zip(QUALITY, map(float, (*costs, nonzeros, error)), strict=True))
    return row | distance_to_certified(method, fitted.model, X)
