"""Learned clusterers for the studies: a few unrolled iterations, and a self-expressive network."""

from collections.abc import Callable
from typing import Any, Literal

import numpy as np
import torch
from scipy.sparse import csr_array
from sklearn.utils import check_random_state
from torch import Tensor

from ...solvers import lam_max, symmetric_affinity
from ...solvers.clustering.base import SubspaceClustering
from ...unrolled import SelfExpressiveNetwork, UnrolledSelfExpression
from .training import train

Array = np.ndarray


class UnrolledClustering(SubspaceClustering):
    """SSC by `n_layers` ISTA iterations whose steps and penalties are trained on the objective.

    The penalty of all points is ``lam_``, the median of ``2 max_{j != i} |x_i . x_j|`` over gamma.
    Each batch of points is coded in all others; nothing is labelled. ``max_iter=0`` is ISTA.
    """

    def __init__(
        self,
        n_clusters: int | None = 8,
        *,
        n_layers: int = 10,
        gamma: float = 50.0,
        max_iter: int = 100,
        affinity: Callable[[Any], Any] = symmetric_affinity,
        assign_labels: Literal["kmeans", "cluster_qr"] = "kmeans",
        random_state: int | None = None,
    ) -> None:
        self.n_clusters = n_clusters
        self.n_layers = n_layers
        self.gamma = gamma
        self.max_iter = max_iter
        self.affinity = affinity
        self.assign_labels = assign_labels
        self.random_state = random_state

    def _represent(self, X: Array) -> csr_array:
        points = _tensor(X)
        self.lam_ = float(np.median(lam_max(X, X, zero_diagonal=True))) / self.gamma
        self.layers_ = UnrolledSelfExpression(self.n_layers, self.lam_)
        if self.max_iter > 0:
            train(
                self.layers_,
                lambda rows: held_out_loss(self.layers_, points, rows),
                len(points),
                n_steps=self.max_iter,
                seed=_seed(self.random_state),
            )
        with torch.inference_mode():
            return csr_array(self.layers_(points).numpy())

    def _represent_new(self, X: Array) -> csr_array:
        with torch.inference_mode():
            return csr_array(self.layers_(_tensor(X), _tensor(self._fit_X)).numpy())


class SelfExpressiveClustering(SubspaceClustering):
    """SENet trained on the elastic net of self-expression at ``lam = 2 / gamma`` (CL-11)."""

    def __init__(
        self,
        n_clusters: int | None = 8,
        *,
        gamma: float = 200.0,
        l1_ratio: float = 0.9,
        hidden_features: tuple[int, ...] = (256, 256),
        width: int = 256,
        max_iter: int = 500,
        affinity: Callable[[Any], Any] = symmetric_affinity,
        assign_labels: Literal["kmeans", "cluster_qr"] = "kmeans",
        random_state: int | None = None,
    ) -> None:
        self.n_clusters = n_clusters
        self.gamma = gamma
        self.l1_ratio = l1_ratio
        self.hidden_features = hidden_features
        self.width = width
        self.max_iter = max_iter
        self.affinity = affinity
        self.assign_labels = assign_labels
        self.random_state = random_state

    def _represent(self, X: Array) -> csr_array:
        seed, points = _seed(self.random_state), _tensor(X)
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            self.network_ = SelfExpressiveNetwork(
                X.shape[1],
                hidden_features=self.hidden_features,
                width=self.width,
                gamma=self.gamma,
                l1_ratio=self.l1_ratio,
            )
        train(
            self.network_,
            lambda rows: self.network_.loss(points, rows),
            len(points),
            n_steps=self.max_iter,
            seed=seed,
            scalar_rate=1e-3,
            clip=1e-3,
        )
        return self.network_.coefficients(points)

    def _represent_new(self, X: Array) -> csr_array:
        return self.network_.coefficients(_tensor(X), _tensor(self._fit_X))


def held_out_loss(layer: UnrolledSelfExpression, points: Tensor, rows: Tensor) -> Tensor:
    """Mean objective of a batch of points, coded in those that are not in it."""
    others = torch.ones(len(points), dtype=torch.bool).index_fill(0, rows, False)
    batch, keys = points[rows], points[others]
    return layer.objective(batch, layer(batch, keys), keys).mean()


def _seed(random_state: int | np.random.RandomState | None) -> int:
    if isinstance(random_state, int):
        return random_state
    return int(check_random_state(random_state).randint(2**31 - 1))


def _tensor(X: Array) -> Tensor:
    return torch.from_numpy(X.astype(np.float32))
