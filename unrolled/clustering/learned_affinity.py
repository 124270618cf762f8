"""Clustering by an affinity that a network has learned on other data."""

from copy import deepcopy
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from scipy.sparse import csr_array

from ...solvers.inputs import Array
from ...solvers.sparse_coding import lam_max, sparse_code
from .affinity_network import AffinityNetwork, load_affinity_network
from .base import UnitRowClustering
from .edge_features import PENALTIES, edge_features


@dataclass(eq=False, repr=False, kw_only=True)
class LearnedAffinityClustering(UnitRowClustering):
    """Spectral clustering of a graph; a network that was trained on other data weighs its edges.

    The edges join pairs of unit rows that are connected by sparse codes at several penalties or by
    nearest neighbours. `AffinityNetwork` computes the weight of an edge from `edge_features`:
    features of the pair from the codes, the neighbours and random walks, and features of the whole
    graph. The network was trained once, on generated unions of subspaces, manifolds, rigid motions,
    lit surfaces, turning objects and outputs of random networks, so that random walks on the graph
    spread over a cluster and stay in it. A fit trains nothing and uses no labels. New points are
    coded in the training points by the elastic net with the most non-zeros.

    Parameters
    ----------
    n_clusters : int or None, default=8
        None takes the number at the eigengap, at most 10 (`eigengap_n_clusters`).
    network : AffinityNetwork or None, default=None
        None is the packaged network.
    affinity : callable, default=symmetric_affinity
        Turns the weights into the affinity, as in `SparseSubspaceClustering`.
    assign_labels : {"kmeans", "cluster_qr"}, default="kmeans"
    random_state : int, RandomState or None
        Seeds k-means; the weights are deterministic.
    device : torch.device or str, optional
        Where the network is applied. None is the CPU.

    Attributes
    ----------
    labels_ : ndarray of int of shape (n_samples,)
    coef_ : csr_array of shape (n_samples, n_samples)
        Weights of the edges: symmetric, in [0, 1].
    affinity_matrix_ : csr_array of shape (n_samples, n_samples)
    network_ : AffinityNetwork
        A copy of the network that computed the weights.
    n_features_in_ : int

    Warns
    -----
    sklearn.exceptions.ConvergenceWarning
        If the graph does not tell the clusters apart, or its eigenvectors are not certified
        (`spectral_labels`).

    Notes
    -----
    The network was trained only on generated data. But its features and the kinds of training data
    were chosen with knowledge of the labels of Extended Yale B (subjects 1 to 19), COIL-20 (objects
    1 to 10), handwritten digits, and generated subspaces and curves.

    References
    ----------
    EQUATIONS SE-12, CL-2 for the codes.

    Examples
    --------
    >>> from twinsolve.datasets import make_union_of_subspaces
    >>> from twinsolve.solvers import clustering_accuracy
    >>> from twinsolve.unrolled.clustering import LearnedAffinityClustering
    >>> X, y = make_union_of_subspaces(30, n_subspaces=3, noise=0.1, random_state=0)
    >>> model = LearnedAffinityClustering(3, random_state=0).fit(X)
    >>> clustering_accuracy(y, model.labels_)
    1.0
    """

    network: AffinityNetwork | None = None

    def _train(self, X: Array) -> None:
        if not isinstance(self.network, AffinityNetwork | None):
            raise TypeError(f"network: must be an AffinityNetwork or None, got {self.network!r}")
        network = _load_packaged_network() if self.network is None else self.network
        self.network_ = deepcopy(network).to(self.device or "cpu")

    def _compute_coefficients(self, queries: Array, keys: Array | None) -> csr_array:
        if keys is None:
            weights = self.network_.affinity(edge_features(queries))
            return weights.astype(queries.dtype)
        gamma, l1_ratio = PENALTIES[-1]
        largest = lam_max(queries, keys)
        lam = np.where(largest > 0, largest, 1.0) / (gamma * l1_ratio)
        return sparse_code(queries, keys, lam=lam, l1_ratio=l1_ratio).coef


@lru_cache(maxsize=1)
def _load_packaged_network() -> AffinityNetwork:
    return load_affinity_network()
