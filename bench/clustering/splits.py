"""Points of the learned-against-solved studies, in the order by which they are split."""

from collections.abc import Sequence
from textwrap import wrap

import numpy as np

from ...solvers.solution import Array
from .features import features_of
from .problems import content_of, is_at_hand, make_problem, trials_of

SUBSPACES = "synthetic:n_samples=180,n_subspaces=8,dimension=5,noise=0.2"
NOISY = "synthetic:n_samples=180,n_subspaces=8,dimension=5,noise=0.6"
FEATURES = "unit-pca-100"
_WIDTH = 36


def shuffled_points(data: str, *, seed: int, data_home: str | None = None) -> tuple[Array, Array]:
    """Features `FEATURES` and labels of a data set's first trial, in random order.

    Raises
    ------
    FileNotFoundError
        If its files are missing.
    """
    trial = trials_of(data, seed=seed, data_home=data_home)[0]
    problem = make_problem(data, trial, seed=seed, data_home=data_home)
    order = np.random.default_rng(seed).permutation(len(problem.X))
    return features_of(FEATURES, problem)[order], problem.labels[order]


def at_hand(names: Sequence[str], data_home: str | None) -> list[str]:
    """Those of the data sets whose files are there."""
    return [name for name in names if is_at_hand(name, data_home)]


def contents(names: Sequence[str], data_home: str | None) -> dict[str, str | None]:
    """What tells the files of data sets from others: a hash for each."""
    return {name: content_of(name, data_home) for name in names}


def shown(data: str) -> str:
    """A name as figures show it: settings on lines of their own, short enough for a panel."""
    name, _, settings = data.partition(":")
    return "\n".join([name, *wrap(settings.replace(",", ", "), _WIDTH)])
