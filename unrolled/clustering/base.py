"""What the learned clusterers share: a device, and coefficients of new points."""

import numpy as np
import torch
from numpy.typing import ArrayLike
from scipy.sparse import csr_array
from sklearn.utils.validation import check_is_fitted, validate_data
from torch import Tensor

from ...solvers.clustering.base import SubspaceClustering
from ...solvers.solution import Array


class LearnedSubspaceClustering(SubspaceClustering):
    """A `SubspaceClustering` whose coefficients a module of torch gives."""

    device: torch.device | str | None

    def coefficients(self, X: ArrayLike) -> Array | csr_array:
        """Coefficients of new points in the training points, without training anew.

        Parameters
        ----------
        X : array-like of shape (n_points, n_features)

        Returns
        -------
        ndarray or csr_array of shape (n_points, n_samples)
            No training point is left out, not even one that equals a new point.

        Raises
        ------
        ValueError
            On NaN, infinity or a wrong number of features.
        """
        check_is_fitted(self)
        points = validate_data(self, X, dtype=[np.float64, np.float32], reset=False)
        return self._represent_new(self._prepare(points))

    def _tensor(self, X: Array) -> Tensor:
        return torch.tensor(X, device=self.device)
