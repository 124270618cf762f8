"""`twinsolve hopkins`: motion segmentation on Hopkins 155 by the recipes of EQUATIONS 9.2."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
from sklearn.utils import Bunch
from threadpoolctl import threadpool_limits

from ..datasets import fetch_hopkins155, homogeneous_coordinates, project_trajectories
from ..solvers import (
    admm_low_rank_self_expression,
    admm_self_expression,
    clustering_accuracy,
    keep_l1_mass,
    lam_from_alpha,
    least_squares_self_expression,
    low_rank_affinity,
    low_rank_self_expression,
    robust_low_rank_self_expression,
    scale_by_row_maximum,
    spectral_labels,
    symmetric_affinity,
)
from ..solvers.solution import Array, Solution
from .results import resume_table, source_hash

_ALPHA = 800.0
_GROUPS = {"2 motions": [2], "3 motions": [3], "all": [2, 3]}


@dataclass(frozen=True)
class Recipe:
    """How the affinity of a sequence is made, and the steps of it by their equation ids."""

    name: str
    steps: str
    affinity: Callable[[Bunch], Array]


def segment_motion(
    *,
    seed: int = 0,
    n_seeds: int = 10,
    recipes: list[str] | None = None,
    data_home: str | None = None,
    directory: Path | None = None,
    progress: Callable[[Iterable, int], Iterable] | None = None,
) -> pd.DataFrame:
    """Clustering error on every sequence of Hopkins 155, by recipe and k-means seed.

    Parameters
    ----------
    seed : int, default=0
        First seed of k-means.
    n_seeds : int, default=10
        Number of seeds, ``seed, seed + 1, ...``.
    recipes : list of str, optional
        Names of the recipes to run; None is all of them.
    data_home : str, optional
        Folder that holds ``hopkins155``, as in `fetch_hopkins155`.
    directory : Path, optional
        Folder that keeps the finished recipes: one that ran before with the same seeds and the
        same source is read instead of run.
    progress : callable, optional
        ``progress(iterable, total)`` wraps the iteration over the sequences of each recipe.

    Returns
    -------
    DataFrame
        Columns ``recipe, sequence, n_motions, seed, error``, the error in %.

    Raises
    ------
    FileNotFoundError
        If the data set is missing.
    ValueError
        If a recipe is unknown, `seed` is negative or ``n_seeds < 1``.

    Examples
    --------
    >>> from twinsolve.bench import segment_motion
    >>> table = segment_motion(recipes=["LRSC 4n"], n_seeds=1)  # doctest: +SKIP
    >>> round(table.error.mean(), 1)  # doctest: +SKIP
    3.2
    """
    if seed < 0 or n_seeds < 1:
        raise ValueError(f"seed: must be >= 0 and n_seeds >= 1, got {seed} and {n_seeds}")
    chosen = list(RECIPES) if recipes is None else recipes
    if unknown := set(chosen) - set(RECIPES):
        raise ValueError(f"recipes: must be among {list(RECIPES)}, got {sorted(unknown)}")
    sequences = fetch_hopkins155(data_home=data_home)
    seeds = range(seed, seed + n_seeds)
    tables = []
    for name in chosen:

        def run(recipe: Recipe = RECIPES[name]) -> pd.DataFrame:
            jobs = progress(sequences, len(sequences)) if progress else sequences
            with threadpool_limits(limits=1):
                return pd.DataFrame([row for job in jobs for row in _errors(recipe, job, seeds)])

        key = {"recipe": name, "seeds": list(seeds), "source": source_hash()}
        tables.append(resume_table(run, key, directory))
    return pd.concat(tables, ignore_index=True)


def summarize_motion(table: pd.DataFrame) -> pd.DataFrame:
    """Mean and median error over the sequences, on 2 motions, on 3 motions and on all.

    Parameters
    ----------
    table : DataFrame
        As returned by `segment_motion`.

    Returns
    -------
    DataFrame
        Columns ``recipe, steps, sequences, mean, median, lowest, highest``: errors in %; the mean
        over sequences and seeds, the median over sequences of the mean over seeds, and the lowest
        and highest mean over sequences among the seeds.

    Examples
    --------
    >>> import pandas as pd
    >>> from twinsolve.bench import summarize_motion
    >>> rows = {"recipe": "LRSC 4n", "sequence": ["a", "b"], "n_motions": [2, 3], "seed": 0}
    >>> summarize_motion(pd.DataFrame(rows | {"error": [1.0, 2.0]}))["mean"].tolist()
    [1.0, 2.0, 1.5]
    """
    rows = []
    for name, runs in table.groupby("recipe", sort=False):
        recipe = RECIPES[name]
        for group, motions in _GROUPS.items():
            errors = runs[runs.n_motions.isin(motions)].pivot(
                index="sequence", columns="seed", values="error"
            )
            rows.append(
                {
                    "recipe": name,
                    "steps": recipe.steps,
                    "sequences": group,
                    "mean": errors.to_numpy().mean(),
                    "median": errors.mean(axis=1).median(),
                    "lowest": errors.mean(axis=0).min(),
                    "highest": errors.mean(axis=0).max(),
                }
            )
    return pd.DataFrame(rows)


def _errors(recipe: Recipe, sequence: Bunch, seeds: Iterable[int]) -> list[dict[str, object]]:
    affinity = recipe.affinity(sequence)
    rows = []
    for seed in seeds:
        found = spectral_labels(affinity, sequence.n_motions, random_state=seed)
        rows.append(
            {
                "recipe": recipe.name,
                "sequence": sequence.name,
                "n_motions": sequence.n_motions,
                "seed": seed,
                "error": 100 * (1 - clustering_accuracy(sequence.labels, found)),
            }
        )
    return rows


def _projected(sequence: Bunch) -> Array:
    return project_trajectories(sequence.X, 4 * sequence.n_motions)


def _sparse(X: Array, circulated: bool) -> Array:
    """ADMM is stopped where the literature stops it, short of the optimum."""
    solution = admm_self_expression(
        X, lam=lam_from_alpha(X, _ALPHA), penalty=_ALPHA, affine=True, circulated=circulated
    )
    return symmetric_affinity(scale_by_row_maximum(keep_l1_mass(solution.coef, 0.7)))


def _lrr(sequence: Bunch, solver: Callable[..., Solution], **settings: float) -> Array:
    """PP-3 of the transpose: the paper takes left singular vectors in its column form."""
    solution = solver(homogeneous_coordinates(sequence.X), lam=4.0, **settings)
    return low_rank_affinity(solution.coef.T, power=4)


def _lrsc(sequence: Bunch) -> Array:
    coef = low_rank_self_expression(_projected(sequence), lam=2 / 420)
    return low_rank_affinity(coef, power=3)


def _lsr_zero_diagonal(sequence: Bunch) -> Array:
    coef = least_squares_self_expression(sequence.X, lam=4.6e-3, zero_diagonal=True)
    return symmetric_affinity(coef)


def _lsr(sequence: Bunch) -> Array:
    return symmetric_affinity(least_squares_self_expression(_projected(sequence), lam=4.6e-3))


_SPARSE = "ADMM (affine, alpha 800), PP-1 (0.7), PP-2"
_LOW_RANK = "PP-3 of C^T (power 4)"
RECIPES = {
    recipe.name: recipe
    for recipe in (
        Recipe(
            "SSC circulated 2F",
            f"CL-5 circulated {_SPARSE}",
            lambda sequence: _sparse(sequence.X, circulated=True),
        ),
        Recipe(
            "SSC circulated 4n",
            f"CL-5 circulated {_SPARSE}",
            lambda sequence: _sparse(_projected(sequence), circulated=True),
        ),
        Recipe(
            "SSC paper 2F",
            f"CL-5 {_SPARSE}",
            lambda sequence: _sparse(sequence.X, circulated=False),
        ),
        Recipe(
            "LRR growing penalty 2F + 1",
            f"CL-6 (lam 4) by ADMM, penalty 1e-6 growing by 1.1, {_LOW_RANK}",
            lambda sequence: _lrr(sequence, admm_low_rank_self_expression),
        ),
        Recipe(
            "LRR optimum 2F + 1",
            f"CL-6 (lam 4) to a gap of 1e-4, {_LOW_RANK}",
            lambda sequence: _lrr(sequence, robust_low_rank_self_expression, tol=1e-4),
        ),
        Recipe("LRSC 4n", "CL-7 (tau 420), PP-3 (power 3)", _lrsc),
        Recipe("LSR 2F", "SE-LSRd (lam 4.6e-3), PP-2a", _lsr_zero_diagonal),
        Recipe("LSR 4n", "SE-LSR (lam 4.6e-3), PP-2a", _lsr),
    )
}
