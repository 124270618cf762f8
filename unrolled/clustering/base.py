"""Base classes of the learned clusterers: their device, and the unit rows that some code."""

import warnings
from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from scipy.sparse import csr_array, diags_array
from sklearn.exceptions import ConvergenceWarning
from torch import Tensor

from ...solvers.clustering import unit_rows
from ...solvers.clustering.base import SubspaceClustering
from ...solvers.inputs import Array

_MARGIN = 1.01  # allows for rounding in float32


@dataclass(eq=False, repr=False, kw_only=True)
class LearnedSubspaceClustering(SubspaceClustering):
    """A `SubspaceClustering` with coefficients from a module of torch on `device`."""

    device: torch.device | str | None = None

    _needs_features: ClassVar[str] = "a network reads single features"

    def _to_tensor(self, X: Array) -> Tensor:
        return torch.tensor(X, device=self.device)


class UnitRowClustering(LearnedSubspaceClustering):
    """A clusterer that represents unit rows; zero rows get, and give, no coefficients."""

    def _prepare(self, X: Array) -> Array:
        return unit_rows(X)

    def _represent(self, X: Array) -> Array | csr_array:
        self._train(X)
        return _drop_zero_rows(self._compute_coefficients(X, None), X, X)

    def _represent_new(self, X: Array) -> Array | csr_array:
        return _drop_zero_rows(self._compute_coefficients(X, self._fit_X), X, self._fit_X)

    @abstractmethod
    def _train(self, X: Array) -> None:
        """Train the module that computes coefficients."""

    @abstractmethod
    def _compute_coefficients(self, queries: Array, keys: Array | None) -> Array | csr_array:
        """Return coefficients of queries in keys; without keys, of each query in all others."""


def warn_if_worse_than_none(objective: Array, points: Array, advice: str) -> None:
    """Warn if the objective of some points is above ``|x_i|^2``, that of zero coefficients."""
    worse = int((objective > _MARGIN * (points**2).sum(axis=1)).sum())
    if worse:
        warnings.warn(
            f"coefficients of {worse} of {len(points)} points are worse than zeros; {advice}",
            ConvergenceWarning,
            stacklevel=4,
        )


def _drop_zero_rows(coef: Array | csr_array, queries: Array, keys: Array) -> Array | csr_array:
    """Set the coefficients of zero queries and on zero keys to zero."""
    rows, columns = (np.asarray(points.any(axis=1)) for points in (queries, keys))
    if rows.all() and columns.all():
        return coef
    if not isinstance(coef, csr_array):
        return np.where(rows[:, None] & columns, coef, 0)
    diagonals = (diags_array(mask.astype(coef.dtype)) for mask in (rows, columns))
    coef = csr_array(next(diagonals) @ coef @ next(diagonals))
    coef.eliminate_zeros()
    return coef
