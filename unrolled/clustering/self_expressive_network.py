"""Subspace clustering by a self-expressive network."""

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from scipy.sparse import csr_array
from sklearn.exceptions import ConvergenceWarning

from ...solvers.clustering import nearest_rows_affinity
from ...solvers.inputs import Array
from ...solvers.sparse_coding import duality_gap, lasso_objective
from ..generators import seeded
from ..self_expression import SelfExpressiveNetwork
from .base import UnitRowClustering
from .training import draw_seed, train

_LARGEST_GRADIENT = 1e-3


@dataclass(eq=False, repr=False, kw_only=True)
class SelfExpressiveSubspaceClustering(UnitRowClustering):
    """Subspace clustering by a self-expressive network (SENet) that is trained on the points.

    `unrolled.SelfExpressiveNetwork` computes the coefficients of unit rows ``u_i = x_i / |x_i|``.
    It is trained without labels, by Adam on batches of points that are expressed by all others,
    with gradients clipped to norm 1e-3. The loss is the mean of ::

        gamma/2 |u_i - c_i U|^2 + r |c_i|_1 + (1 - r)/2 |c_i|^2,     c_i without i,   r = l1_ratio

    which is gamma/2 times the elastic net ::

        |u_i - c_i U|^2 + lam (r |c_i|_1 + (1 - r)/2 |c_i|^2),       lam = 2 / gamma

    `objective_` and `gap_` are those of this elastic net, as for `sparse_self_expression` of unit
    rows. An affinity of the coefficients and the spectral step follow. The network codes new
    points.

    Parameters
    ----------
    n_clusters : int or None, default=8
        None takes the number at the eigengap, at most 10 (`eigengap_n_clusters`).
    gamma : float, default=200.0
        Weight > 0 of the reconstruction.
    l1_ratio : float, default=0.9
        r in (0, 1].
    hidden_features : sequence of int, default=(256, 256)
        Hidden widths of the perceptrons for queries and keys. The paper has three of 1024.
    width : int, default=256
        Width of queries and keys; 1024 in the paper.
    max_iter : int, default=1000
        Number of Adam steps.
    batch_size : int, default=100
    learning_rate : float, default=1e-3
        It decays to zero along half a cosine.
    affinity : callable, default=nearest_rows_affinity
        Makes the affinity of the coefficients; the default is the paper's.
    assign_labels : {"kmeans", "cluster_qr"}, default="kmeans"
    random_state : int, RandomState or None
        Seeds the weights, the batches and k-means.
    device : torch.device or str, optional
        Where the network is trained and applied. None is the CPU.

    Attributes
    ----------
    labels_ : ndarray of int of shape (n_samples,)
    coef_ : csr_array of shape (n_samples, n_samples)
        Row i represents the unit row of sample i; the diagonal is zero.
    affinity_matrix_ : csr_array of shape (n_samples, n_samples)
    objective_ : ndarray of shape (n_samples,)
        Elastic net objective of each row of `coef_`.
    gap_ : ndarray of shape (n_samples,)
        Certified duality gap of each row of `coef_` for the elastic net.
    network_ : SelfExpressiveNetwork
        The trained network, in float32.
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
    Zhang, You, Vidal and Li, "Learning a Self-Expressive Network for Subspace Clustering" (2021);
    EQUATIONS CL-11, CL-2.

    Examples
    --------
    >>> from twinsolve.solvers.clustering import symmetric_affinity
    >>> from twinsolve.unrolled.clustering import SelfExpressiveSubspaceClustering
    >>> X = [[1.0, 0.0], [2.0, 0.0], [3.0, 0.0], [0.0, 1.0], [0.0, -1.0], [0.0, 2.0]]
    >>> model = SelfExpressiveSubspaceClustering(
    ...     2, hidden_features=(32,), width=32, max_iter=300, affinity=symmetric_affinity,
    ...     random_state=0)
    >>> model.fit_predict(X)
    array([0, 0, 0, 1, 1, 1], dtype=int32)
    """

    gamma: float = 200.0
    l1_ratio: float = 0.9
    hidden_features: Sequence[int] = (256, 256)
    width: int = 256
    max_iter: int = 1000
    batch_size: int = 100
    learning_rate: float = 1e-3
    affinity: Callable[[Any], Any] = nearest_rows_affinity

    def _represent(self, X: Array) -> csr_array:
        coef = csr_array(super()._represent(X))
        problem: dict[str, Any] = {"lam": 2 / self.gamma, "l1_ratio": self.l1_ratio}
        self.objective_ = lasso_objective(X, X, coef, **problem)
        self.gap_ = duality_gap(X, X, coef, zero_diagonal=True, **problem)
        if X.any() and (coef.nnz == 0 or self.objective_.sum() > (X**2).sum()):
            warnings.warn(
                "coefficients of the network are no better than zeros; raise gamma or max_iter, or "
                "lower learning_rate",
                ConvergenceWarning,
                stacklevel=3,
            )
        return coef

    def _train(self, X: Array) -> None:
        seed = draw_seed(self.random_state)
        with seeded(seed):
            network = SelfExpressiveNetwork(
                X.shape[1],
                hidden_features=self.hidden_features,
                width=self.width,
                gamma=self.gamma,
                l1_ratio=self.l1_ratio,
            )
        self.network_ = network.to(self.device)
        points = self._to_tensor(X).float()
        self.loss_curve_ = train(
            self.network_,
            lambda rows: self.network_.loss(points, rows),
            len(points),
            max_iter=self.max_iter,
            batch_size=self.batch_size,
            learning_rate=self.learning_rate,
            seed=seed,
            clip=_LARGEST_GRADIENT,
        )
        self.n_iter_ = len(self.loss_curve_)

    def _compute_coefficients(self, queries: Array, keys: Array | None) -> csr_array:
        key_points = None if keys is None else self._to_tensor(keys).float()
        coef = self.network_.coefficients(self._to_tensor(queries).float(), key_points)
        return coef.astype(queries.dtype)
