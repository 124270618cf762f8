"""Subspace clustering by unrolled self-expression: ISTA with learned steps and thresholds."""

from dataclasses import dataclass
from typing import ClassVar, Literal, get_args

import numpy as np
import torch
from scipy.sparse import csr_array, vstack
from torch import Tensor

from ...solvers import sparse_self_expression
from ...solvers.clustering.base import Auto, Choices
from ...solvers.inputs import Array
from ...solvers.sparse_coding import duality_gap, lam_max, lasso_objective
from ...validation import check_positive
from ..block_size import block_size
from ..self_expression import UnrolledSelfExpression
from .base import LearnedSubspaceClustering, warn_if_worse_than_none
from .training import draw_seed, train

TrainOn = Literal["objective", "solution", "both"]

_BLOCK_ROWS = 256
_JUDGED_ROWS = 1024


@dataclass(eq=False, repr=False, kw_only=True)
class UnrolledSubspaceClustering(LearnedSubspaceClustering):
    """Sparse subspace clustering by a few ISTA iterations with learned steps and thresholds.

    The layers of `unrolled.UnrolledSelfExpression` approximate the coefficients that solve the
    problem of `solvers.SparseSubspaceClustering` ::

        min_c  |x_i - c X|^2 + lam_i |c|_1   subject to   c_i = 0
        lam_i = 2 max_{j != i} |x_i . x_j| / gamma

    An affinity of the coefficients and the spectral step follow. Before training the layers are
    ISTA with the step ``1 / |X|_2^2``. They are trained without labels on batches of points, each
    expressed by all others. `train_on` chooses the loss, the mean over the batch of ::

        (|x_i - c_i X|^2 + lam_i |c_i|_1) / |x_i|^2      "objective"
        |c_i - c_i*|^2                                   "solution": distance to the solution c_i*
        the sum of both                                  "both"

    The loss of 1024 points is measured before training and after every 20 steps, and the state with
    the smallest loss is kept. Learned steps are longer than the safe one. They may diverge for a
    point that is unlike those of training: in `fit` and `predict` a `ConvergenceWarning` counts the
    points whose objective is larger than with coefficients of zero.

    Parameters
    ----------
    n_clusters : int or None, default=8
        None takes the number at the eigengap, at most 10 (`eigengap_n_clusters`).
    n_layers : int, default=10
        Number of iterations, each with its own step and penalty.
    gamma : float or "auto", default="auto"
        Above 1. The penalty of a point is that which makes its coefficients zero, divided by gamma:
        larger values give more non-zeros. "auto" trains for 50, 5, 20 and 200, and takes the value
        whose clusters are best separated and balanced (`solvers.choose_settings`).
    train_on : {"objective", "solution", "both"}, default="objective"
        "solution" and "both" first solve the problem with `sparse_self_expression`.
    max_iter : int, default=200
        Number of Adam steps; 0 is ISTA.
    batch_size : int, default=256
    learning_rate : float, default=0.1
        Learning rate of Adam for the logarithms of steps and penalties. It decays to zero along
        half a cosine.
    affinity : callable, default=symmetric_affinity
        Makes the affinity of the coefficients, as in `SparseSubspaceClustering`.
    assign_labels : {"kmeans", "cluster_qr"}, default="kmeans"
    random_state : int, RandomState or None
        Seeds the batches and k-means.
    device : torch.device or str, optional
        Where the layers are trained and applied. None is the CPU.

    Attributes
    ----------
    labels_ : ndarray of int of shape (n_samples,)
    coef_ : csr_array of shape (n_samples, n_samples)
        Row i represents sample i; the diagonal is zero.
    affinity_matrix_ : csr_array of shape (n_samples, n_samples)
    objective_ : ndarray of shape (n_samples,)
        ``|x_i - c_i X|^2 + lam_i |c_i|_1`` of each row of `coef_`.
    gap_ : ndarray of shape (n_samples,)
        Certified duality gap of each row of `coef_`, relative to ``|x_i|^2``.
    layers_ : UnrolledSelfExpression
        The trained layers; ``layers_(points)`` and ``layers_(queries, keys)`` code other points.
    gamma_ : float
        The given or chosen gamma.
    loss_curve_ : list of float
        Loss of each step's batch.
    n_iter_ : int
        Number of Adam steps.
    n_features_in_ : int

    Warns
    -----
    sklearn.exceptions.ConvergenceWarning
        If the graph does not tell the clusters apart, or its eigenvectors are not certified
        (`spectral_labels`).

    References
    ----------
    "Attention: Self-Expression Is All You Need", eq. 12 and 15; Ablin et al., "Learning step sizes
    for unfolded sparse coding" (2019); EQUATIONS SE-12, SE-15, CL-1, LS-2.

    Examples
    --------
    >>> from twinsolve.unrolled.clustering import UnrolledSubspaceClustering
    >>> X = [[1.0, 0.0], [2.0, 0.0], [3.0, 0.0], [0.0, 1.0], [0.0, -1.0], [0.0, 2.0]]
    >>> model = UnrolledSubspaceClustering(2, random_state=0).fit(X)
    >>> model.labels_
    array([0, 0, 0, 1, 1, 1], dtype=int32)
    >>> model.predict([[-5.0, 0.1], [0.0, 7.0]])
    array([0, 1], dtype=int32)
    """

    _choices: ClassVar[Choices] = {"gamma": (50.0, 5.0, 20.0, 200.0)}

    n_layers: int = 10
    gamma: float | Auto = "auto"
    train_on: TrainOn = "objective"
    max_iter: int = 200
    batch_size: int = 256
    learning_rate: float = 0.1

    def _represent(self, X: Array) -> csr_array:
        lam = self._penalties_of(X, X, zero_diagonal=True)
        if self.train_on not in get_args(TrainOn):
            raise ValueError(f"train_on: must be in {get_args(TrainOn)}, got {self.train_on!r}")
        points = self._to_tensor(X)
        self.layers_ = UnrolledSelfExpression(
            self.n_layers,
            1 / self.gamma_,
            relative=True,
            relative_step=_find_longest_step(points),
            device=points.device,
            dtype=points.dtype,
        )
        solved = None
        if self.train_on != "objective" and self.max_iter > 0:
            solved = sparse_self_expression(X, lam=lam).coef
        self.loss_curve_ = self._train(points, solved)
        self.n_iter_ = len(self.loss_curve_)
        coef = self._compute_coefficients(
            points, points, torch.arange(len(points), device=points.device)
        )
        self.objective_ = lasso_objective(X, X, coef, lam=lam)
        self.gap_ = duality_gap(X, X, coef, lam=lam, zero_diagonal=True)
        warn_if_worse_than_none(self.objective_, X, "lower learning_rate")
        return coef

    def _represent_new(self, X: Array) -> csr_array:
        keys = self._to_tensor(self._fit_X)
        coef = self._compute_coefficients(self._to_tensor(X).to(keys.dtype), keys, None)
        lam = self._penalties_of(X, self._fit_X, zero_diagonal=False)
        objective = lasso_objective(X, self._fit_X, coef, lam=lam)
        warn_if_worse_than_none(objective, X, "the layers learned steps that are too long for them")
        return coef

    def _train(self, points: Tensor, solved: csr_array | None) -> list[float]:
        norms = points.square().sum(dim=1)
        smallest = torch.finfo(points.dtype).tiny

        def loss(rows: Tensor) -> Tensor:
            queries = points[rows]
            codes = self.layers_(queries, points, own=rows)
            total = codes.new_zeros(())
            if self.train_on != "solution":
                objective = self.layers_.objective(queries, codes, points, own=rows)
                total = total + (objective / norms[rows].clamp(min=smallest)).mean()
            if solved is not None:
                target = torch.from_numpy(solved[rows.cpu().numpy()].toarray()).to(codes)
                total = total + (codes - target).square().sum(dim=1).mean()
            return total

        return train(
            self.layers_,
            loss,
            len(points),
            max_iter=self.max_iter,
            batch_size=self.batch_size,
            learning_rate=self.learning_rate,
            seed=draw_seed(self.random_state),
            n_judged=_JUDGED_ROWS,
        )

    @torch.no_grad()
    def _compute_coefficients(self, queries: Tensor, keys: Tensor, own: Tensor | None) -> csr_array:
        blocks, size = [], block_size(_BLOCK_ROWS)
        for start in range(0, len(queries), size):
            rows = slice(start, start + size)
            codes = self.layers_(queries[rows], keys, own=None if own is None else own[rows])
            blocks.append(csr_array(codes.cpu().numpy()))
        return vstack(blocks, format="csr")

    def _penalties_of(self, queries: Array, keys: Array, *, zero_diagonal: bool) -> Array:
        """Return lam_max of each query over gamma; without such products, 1 over gamma."""
        if check_positive(self.gamma_, "gamma") <= 1:
            raise ValueError(f"gamma: must be > 1, or all coefficients are zero; got {self.gamma_}")
        largest = lam_max(queries, keys, zero_diagonal=zero_diagonal)
        lam: Array = np.where(largest > 0, largest, 1.0) / self.gamma_
        return lam


def _find_longest_step(points: Tensor) -> float:
    """Return ``1 / |X|_2^2`` as a multiple of the safe step ``1 / |X^T X|_F``."""
    squares = torch.linalg.svdvals(points.double()).square()
    largest = float(squares[0])
    return float(squares.norm()) / largest if largest > 0 else 1.0
