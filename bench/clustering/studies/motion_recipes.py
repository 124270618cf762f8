"""Recipes of motion segmentation: a model on the trajectories, and the steps to an affinity."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from sklearn.cluster import KMeans
from sklearn.neighbors import kneighbors_graph
from sklearn.preprocessing import normalize
from sklearn.utils import Bunch

from ....datasets import homogeneous_coordinates, project_trajectories
from ....solvers import (
    KSubspaces,
    MotionSegmentation,
    ThresholdingSubspaceClustering,
    least_squares_self_expression,
    locally_linear_weights,
    low_rank_self_expression,
    low_rank_sparse_self_expression,
    omp_self_expression,
    outlier_self_expression,
    robust_low_rank_self_expression,
    sparse_self_expression,
)
from ....solvers.clustering import (
    keep_l1_mass,
    low_rank_affinity,
    scale_by_row_maximum,
    symmetric_affinity,
)
from ....solvers.self_expression import (
    admm_low_rank_self_expression,
    admm_self_expression,
    lam_from_alpha,
    lam_from_gamma,
    outlier_lams_from_alpha,
)
from ....solvers.solution import Array, Solution

_ALPHA = 800.0
_GAMMA = 50.0
_DIMENSION = 4  # of the linear subspace of a rigid motion
_TOL = 1e-4


@dataclass(frozen=True)
class Recipe:
    """How a sequence is segmented, and its steps by their equation ids.

    ``affinity(sequence)`` gives what the spectral step cuts, and the largest certified gap where
    there is one; ``labels(sequence, seed)`` is for methods that make none.
    """

    name: str
    steps: str
    affinity: Callable[[Bunch], tuple[Any, float]] | None = None
    labels: Callable[[Bunch, int], Array] | None = None


def _projected(sequence: Bunch) -> Array:
    return project_trajectories(sequence.X, 4 * sequence.n_motions)


def _sparse_steps(coef: Any) -> Any:
    return symmetric_affinity(scale_by_row_maximum(keep_l1_mass(coef, 0.7)))


def _admm(X: Array, circulated: bool) -> tuple[Any, float]:
    """ADMM is stopped where the literature stops it, short of the optimum."""
    solution = admm_self_expression(
        X, lam=lam_from_alpha(X, _ALPHA), penalty=_ALPHA, affine=True, circulated=circulated
    )
    return _sparse_steps(solution.coef), _gap(solution)


def _lrr(solver: Callable[..., Solution], sequence: Bunch, **settings: float) -> tuple[Any, float]:
    """PP-3 of the transpose: the paper takes left singular vectors in its column form."""
    solution = solver(homogeneous_coordinates(sequence.X), lam=4.0, **settings)
    return low_rank_affinity(solution.coef.T, power=4), _gap(solution)


def _lrsc(sequence: Bunch) -> tuple[Any, float]:
    coef = low_rank_self_expression(_projected(sequence), lam=2 / 420)
    return low_rank_affinity(coef, power=3), np.nan


def _lsr(X: Array, zero_diagonal: bool) -> tuple[Any, float]:
    coef = least_squares_self_expression(X, lam=4.6e-3, zero_diagonal=zero_diagonal)
    return symmetric_affinity(coef), np.nan


def _sparse(sequence: Bunch, **settings: Any) -> tuple[Any, float]:
    X = sequence.X
    solution = sparse_self_expression(X, lam=lam_from_alpha(X, _ALPHA), tol=_TOL, **settings)
    return _sparse_steps(solution.coef), _gap(solution)


def _elastic_net(sequence: Bunch) -> tuple[Any, float]:
    X, ratio = normalize(homogeneous_coordinates(sequence.X)), 0.9
    lam = lam_from_gamma(X, _GAMMA) / ratio
    solution = sparse_self_expression(X, lam=lam, l1_ratio=ratio, tol=_TOL)
    return _sparse_steps(solution.coef), _gap(solution)


def _outliers(sequence: Bunch) -> tuple[Any, float]:
    lam, lam_outlier = outlier_lams_from_alpha(sequence.X, _ALPHA)
    solution = outlier_self_expression(sequence.X, lam=lam, lam_outlier=lam_outlier, tol=_TOL)
    return _sparse_steps(solution.coef), _gap(solution)


def _lrssc(sequence: Bunch) -> tuple[Any, float]:
    X = normalize(homogeneous_coordinates(sequence.X))
    solution = low_rank_sparse_self_expression(X, lam=1e-3, beta=1.0, tol=1e-2)
    return symmetric_affinity(solution.coef), _gap(solution)


def _omp(sequence: Bunch) -> tuple[Any, float]:
    X = normalize(homogeneous_coordinates(sequence.X))
    return symmetric_affinity(omp_self_expression(X, n_nonzero=_DIMENSION)), np.nan


def _locally_linear(sequence: Bunch) -> tuple[Any, float]:
    return symmetric_affinity(
        locally_linear_weights(sequence.X, n_neighbors=2 * _DIMENSION)
    ), np.nan


def _thresholding(sequence: Bunch) -> tuple[Any, float]:
    X = homogeneous_coordinates(sequence.X - sequence.X.mean(axis=0))
    model = ThresholdingSubspaceClustering(sequence.n_motions, n_neighbors=2 * _DIMENSION)
    return model.fit(X).affinity_matrix_, np.nan


def _neighbours(sequence: Bunch) -> tuple[Any, float]:
    return symmetric_affinity(kneighbors_graph(sequence.X, 2 * _DIMENSION)), np.nan


def _motion(sequence: Bunch) -> tuple[Any, float]:
    model = MotionSegmentation(sequence.n_motions, assign_labels="cluster_qr").fit(sequence.X)
    return model.affinity_matrix_, np.nan


def _kmeans(sequence: Bunch, seed: int) -> Array:
    return KMeans(sequence.n_motions, n_init=20, random_state=seed).fit_predict(sequence.X)


def _k_subspaces(sequence: Bunch, seed: int) -> Array:
    X = homogeneous_coordinates(_projected(sequence))
    return KSubspaces(sequence.n_motions, dimension=_DIMENSION, random_state=seed).fit_predict(X)


def _gap(solution: Solution) -> float:
    return float(np.max(solution.gap))


_SPARSE = "keep-mass 0.7, scale-rows"
_ADMM = f"ADMM (affine, alpha 800), {_SPARSE}"
_LOW_RANK = "low-rank-transposed 4"
_CERTIFIED = "to a gap of 1e-4"
_UNIT = "unit homogeneous coordinates"
RECIPES = {
    recipe.name: recipe
    for recipe in (
        Recipe(
            "motion segmentation",
            "low-rank (rank k + 1 to 4 k) or affine SSC (3 gammas), tightest motions; no labels",
            _motion,
        ),
        Recipe("SSC circulated 2F", f"CL-5 circulated {_ADMM}", lambda s: _admm(s.X, True)),
        Recipe(
            "SSC circulated 4n", f"CL-5 circulated {_ADMM}", lambda s: _admm(_projected(s), True)
        ),
        Recipe("SSC paper 2F", f"CL-5 {_ADMM}", lambda s: _admm(s.X, False)),
        Recipe(
            "SSC optimum 2F",
            f"CL-4 affine (alpha 800) {_CERTIFIED}, {_SPARSE}",
            partial(_sparse, affine=True),
        ),
        Recipe(
            "SSC linear optimum 2F",
            f"SE-12 (alpha 800) {_CERTIFIED}, {_SPARSE}",
            _sparse,
        ),
        Recipe(
            "SSC nonnegative optimum 2F",
            f"CL-4 affine, C >= 0 (alpha 800) {_CERTIFIED}, {_SPARSE}",
            partial(_sparse, affine=True, nonnegative=True),
        ),
        Recipe("SSC outliers 2F", f"CL-3 (alpha 800) {_CERTIFIED}, {_SPARSE}", _outliers),
        Recipe(
            "EnSC 2F + 1", f"{_UNIT}, CL-2 (gamma 50, 0.9) {_CERTIFIED}, {_SPARSE}", _elastic_net
        ),
        Recipe("OMP 2F + 1", f"{_UNIT}, CL-9 (4 non-zeros), symmetrize", _omp),
        Recipe(
            "LRR growing penalty 2F + 1",
            f"CL-6 (lam 4) by ADMM, penalty 1e-6 growing by 1.1, {_LOW_RANK}",
            partial(_lrr, admm_low_rank_self_expression),
        ),
        Recipe(
            "LRR optimum 2F + 1",
            f"CL-6 (lam 4) {_CERTIFIED}, {_LOW_RANK}",
            partial(_lrr, robust_low_rank_self_expression, tol=_TOL),
        ),
        Recipe("LRSC 4n", "CL-7 (tau 420), low-rank 3", _lrsc),
        Recipe(
            "LRSSC 2F + 1", f"{_UNIT}, CL-8 (lam 1e-3, beta 1) to a gap of 1e-2, symmetrize", _lrssc
        ),
        Recipe("LSR 2F", "SE-LSRd (lam 4.6e-3), symmetrize", lambda s: _lsr(s.X, True)),
        Recipe("LSR 4n", "SE-LSR (lam 4.6e-3), symmetrize", lambda s: _lsr(_projected(s), False)),
        Recipe("LLE weights 2F", "8 neighbours, symmetrize", _locally_linear),
        Recipe("TSC 2F + 1", "centred, CL-10 (8 neighbours), symmetrize", _thresholding),
        Recipe("kNN 2F", "8 neighbours, symmetrize", _neighbours),
        Recipe("k-subspaces 4n + 1", "CL-10 (dimension 4)", labels=_k_subspaces),
        Recipe("k-means 2F", "20 restarts", labels=_kmeans),
    )
}
