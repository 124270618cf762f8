"""Points of the learned-against-solved studies, in the order by which they are split."""

import numpy as np

from ....solvers.solution import Array
from ..features import features_of
from ..problems import make_problem, trials_of

SUBSPACES = "synthetic:n_samples=180,n_subspaces=8,dimension=5,noise=0.2"
NOISY = "synthetic:n_samples=180,n_subspaces=8,dimension=5,noise=0.6"
FEATURES = "unit-pca-100"
CERTIFIED = "SSC, certified"  # the method that times are held against


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
