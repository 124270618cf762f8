"""Clusters from affinities: the spectral step and the number of clusters."""

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike
from scipy.linalg import qr, svd
from scipy.sparse import csr_array
from sklearn.exceptions import ConvergenceWarning
from sklearn.preprocessing import normalize

from ...validation import check_integer
from ..inputs import Array, check_dense_or_sparse
from .eigenvectors import components, leading_eigenpairs
from .kmeans import RepeatedKMeans
from .krylov import EigenPairs

_MAX_CLUSTERS = 10
_UNSURE = 1e-3  # share of the gap behind the embedding that errors may have
_ROUNDING = 1e-14  # that the affinity itself brings into eigenvalues
_ASYMMETRY = 1e-5


def spectral_labels(
    affinity: ArrayLike | csr_array,
    n_clusters: int | None,
    *,
    assign_labels: Literal["kmeans", "cluster_qr"] = "kmeans",
    random_state: int | np.random.RandomState | None = None,
) -> Array:
    """Cluster the points of a graph by the leading eigenvectors of its normalised affinity.

    The embedding of the points is the rows of the `n_clusters` leading eigenvectors of
    ``D^(-1/2) A D^(-1/2)``, ``D = diag(A 1)``. K-means with 20 restarts clusters these rows after
    scaling them to unit norm; pivoted QR clusters them unscaled. A sparse affinity stays sparse.

    If the graph has at least `n_clusters` connected components (isolated points not counted), the
    largest components are the clusters. The points of other components, and isolated points, join
    the largest cluster, as nothing tells where they belong. There are fewer clusters if fewer than
    `n_clusters` points are connected.

    Parameters
    ----------
    affinity : array-like or csr_array of shape (n_samples, n_samples)
        Symmetric and nonnegative.
    n_clusters : int or None
        In [1, n_samples]. None takes the number at the eigengap, at most 10
        (`eigengap_n_clusters`).
    assign_labels : {"kmeans", "cluster_qr"}, default="kmeans"
        Published numbers use k-means; ``cluster_qr`` is deterministic.
    random_state : int, RandomState or None
        Seeds k-means.

    Returns
    -------
    ndarray of int of shape (n_samples,)

    Raises
    ------
    ValueError
        If `affinity` is not square, symmetric, finite and nonnegative, or an argument is outside
        its range.

    Warns
    -----
    sklearn.exceptions.ConvergenceWarning
        If the embedding is arbitrary: eigenvalue `n_clusters` cannot be told from the next, as in a
        graph of more separate groups than clusters. Or if the eigenvectors of a sparse graph of
        over 4,000 points could not be certified: one may be missing, so that two clusters may be
        one in the answer.

    Notes
    -----
    LAPACK finds the eigenvectors of small graphs, up to 500 points if sparse and 2,000 if dense. An
    iterative search finds those of larger ones, and checks them: residuals bound their errors, and
    a second search from random vectors looks for what the first has missed. This certificate is
    probabilistic. A missed eigenvector escapes it only if the random vectors all but lack its
    direction. The random vectors are the same at every call.

    References
    ----------
    Ng, Jordan and Weiss, "On Spectral Clustering" (2001); Damle, Minden and Ying, "Simple, direct
    and efficient multi-way spectral clustering" (2019) for ``cluster_qr``; EQUATIONS PP-SC.

    Examples
    --------
    >>> from twinsolve.solvers.clustering import spectral_labels
    >>> spectral_labels([[0.0, 2.0, 0.0, 0.1], [2.0, 0.0, 0.0, 0.0],
    ...                  [0.0, 0.0, 0.0, 1.0], [0.1, 0.0, 1.0, 0.0]], 2, random_state=0)
    array([1, 1, 0, 0], dtype=int32)
    """
    if assign_labels not in ("kmeans", "cluster_qr"):
        raise ValueError(f"assign_labels: must be 'kmeans' or 'cluster_qr', got {assign_labels!r}")
    graph = embed_graph(affinity, n_clusters)
    return graph.kmeans(random_state) if assign_labels == "kmeans" else graph.cluster_qr()


def eigengap_n_clusters(
    affinity: ArrayLike | csr_array, *, max_clusters: int = _MAX_CLUSTERS
) -> int:
    """Number of clusters at the largest gap between eigenvalues of the normalised affinity.

    It is ``argmax_k mu_k - mu_{k+1}`` over ``1 <= k <= max_clusters``. Here ``mu_1 >= mu_2 >= ...``
    are the eigenvalues of ``D^(-1/2) A D^(-1/2)``, ``D = diag(A 1)``. Isolated points are ignored.
    Gaps within the errors of the eigenvalues do not count. Of gaps that are equal up to these
    errors, the first counts.

    Parameters
    ----------
    affinity : array-like or csr_array of shape (n_samples, n_samples)
        Symmetric and nonnegative.
    max_clusters : int, default=10
        Largest number considered. It is the answer if the graph has at least as many connected
        components, and if no gap counts.

    Returns
    -------
    int

    Raises
    ------
    ValueError
        If `affinity` is not square, symmetric, finite and nonnegative, or ``max_clusters < 1``.

    Warns
    -----
    sklearn.exceptions.ConvergenceWarning
        If the gap is too small to tell a number, as in a graph of more separate groups than
        `max_clusters`: raise it. Or if the eigenvalues could not be certified, see
        `spectral_labels`.

    References
    ----------
    von Luxburg, "A tutorial on spectral clustering" (2007), section 8.3.

    Examples
    --------
    >>> from twinsolve.solvers.clustering import eigengap_n_clusters
    >>> eigengap_n_clusters([[0.0, 2.0, 0.0, 0.1], [2.0, 0.0, 0.0, 0.0],
    ...                      [0.0, 0.0, 0.0, 1.0], [0.1, 0.0, 1.0, 0.0]])
    2
    """
    A = check_affinity(affinity)
    max_clusters = check_integer(max_clusters, "max_clusters", minimum=1)
    number, pairs = _eigengap(*_drop_isolated_points(A)[1:], max_clusters)
    _warn_of_ties(pairs, number, "Raise max_clusters")
    return number


@dataclass(frozen=True, eq=False)
class EmbeddedGraph:
    """A graph ready for clustering: an `embedding` of its `connected` points, or their components.

    `part` numbers the component of each connected point. `tied` says that the embedding is
    arbitrary: its last eigenvalue cannot be told from the next.
    """

    n_clusters: int
    connected: Array
    embedding: Array | None
    part: Array
    tied: bool = False

    @classmethod
    def from_arrays(cls, arrays: dict[str, Array]) -> "EmbeddedGraph":
        """Return the graph that `arrays` stores."""
        known = {"n_clusters": int(arrays["n_clusters"]), "tied": bool(arrays["tied"])}
        return cls(**{"embedding": None} | arrays | known)  # type: ignore[arg-type]

    def arrays(self) -> dict[str, Array]:
        """Return the graph as arrays, which can be stored."""
        arrays = {"n_clusters": np.array(self.n_clusters), "connected": self.connected}
        arrays |= {} if self.embedding is None else {"embedding": self.embedding}
        return arrays | {"part": self.part, "tied": np.array(self.tied)}

    def labels(self, cut: Callable[[Array], Array]) -> Array:
        """Labels of all points; ``cut(embedding)`` gives those of the connected points.

        Without an embedding, the components are the clusters.
        """
        if self.embedding is None:
            clusters = _largest_parts(self.part, self.n_clusters)
        else:
            clusters = cut(self.embedding)
        largest = np.bincount(clusters, minlength=1).argmax()
        labels = np.full(len(self.connected), largest, dtype=np.int32)
        labels[self.connected] = clusters
        return labels

    def kmeans(self, random_state: int | np.random.RandomState | None) -> Array:
        """Labels of all points by k-means of the unit rows of the embedding."""
        return self.labels(lambda _: self._shared_kmeans.labels(random_state))

    def cluster_qr(self) -> Array:
        """Labels of all points by pivoted QR of the embedding."""
        return self.labels(_cluster_qr)

    @cached_property
    def _shared_kmeans(self) -> RepeatedKMeans:
        """k-means of the unit rows, for many seeds."""
        return RepeatedKMeans(normalize(self.embedding), self.n_clusters)


def embed_graph(affinity: ArrayLike | csr_array, n_clusters: int | None) -> EmbeddedGraph:
    """Embed the points of a graph by its leading eigenvectors.

    A graph with at least `n_clusters` components gets no embedding. None takes the number of
    clusters at the eigengap.
    """
    A = check_affinity(affinity)
    if n_clusters is not None:
        check_n_clusters(n_clusters, A.shape[0])
    connected, A, part = _drop_isolated_points(A)
    pairs = None
    if n_clusters is None:
        n_clusters, pairs = _eigengap(A, part, _MAX_CLUSTERS)
    k = min(n_clusters, len(part))
    if k == 0 or part.max() + 1 >= k:
        return EmbeddedGraph(k, connected, None, part)
    pairs = leading_eigenpairs(A, k) if pairs is None else pairs
    return embed_by(pairs, k, connected, part)


def embed_by(pairs: EigenPairs, k: int, connected: Array, part: Array) -> EmbeddedGraph:
    """Embed the connected points, of components `part`, by the first k eigenpairs."""
    tied = _warn_of_ties(pairs, k, "Take another number of clusters")
    return EmbeddedGraph(k, connected, pairs.vectors[:, :k], part, tied)


def _warn_of_ties(pairs: EigenPairs | None, k: int, remedy: str) -> bool:
    """Warn if eigenvector k cannot be told from the next: the embedding is then arbitrary."""
    if pairs is None or not pairs.certified:
        return False
    gap = pairs.values[k - 1] - (pairs.values[k] if k < len(pairs.values) else pairs.behind)
    tied = bool(pairs.error > _UNSURE * gap)
    if tied:
        warnings.warn(
            f"affinity: eigenvalues {k} and {k + 1} differ by {gap:.1e}, where eigenvectors have "
            f"residuals of {pairs.error:.1e}: nothing tells which of them separates clusters. "
            f"{remedy}",
            ConvergenceWarning,
            stacklevel=5,
        )
    return tied


def _eigengap(A: Array | csr_array, part: Array, most: int) -> tuple[int, EigenPairs | None]:
    """Return the number of clusters at the largest gap, and the eigenpairs if computed."""
    n_values = min(most + 1, len(part))
    if n_values < 2:
        return 1, None
    if part.max() + 1 >= most:
        return most, None
    pairs = leading_eigenpairs(A, n_values)
    gaps = pairs.values[:-1] - pairs.values[1:]
    noise = max(2 * pairs.error, _ROUNDING)
    if gaps.max() <= noise:
        return len(gaps), pairs
    return int(np.argmax(gaps >= gaps.max() - noise)) + 1, pairs


def check_affinity(affinity: ArrayLike | csr_array) -> Array | csr_array:
    """Return `affinity` as an ndarray or csr_array if it is square, finite, nonnegative, symmetric.

    Raises
    ------
    ValueError
        Otherwise; the message starts with its name.
    """
    A = check_dense_or_sparse(affinity, "affinity")
    if A.shape[0] != A.shape[1]:
        raise ValueError(f"affinity: must be square, got shape {A.shape}")
    if A.min() < 0:
        raise ValueError(f"affinity: must be nonnegative, got {A.min()}")
    if not A.max() <= np.finfo(A.dtype).max / A.shape[0] ** 2:
        raise ValueError("affinity: sums of its entries overflow; divide it by the largest")
    if abs(A - A.T).max() > _ASYMMETRY * A.max():
        raise ValueError("affinity: must be symmetric; take symmetric_affinity of coefficients")
    return A


def check_n_clusters(
    n_clusters: int | None, n_samples: int, *, why_not_none: str | None = None
) -> int:
    """Return `n_clusters` as an int if it is a whole number from 1 to `n_samples`.

    `why_not_none` is the reason why a clusterer cannot take the number at the eigengap.

    Raises
    ------
    ValueError
        Otherwise; the message starts with its name.
    """
    if n_clusters is None and why_not_none:
        raise ValueError(f"n_clusters: must be a number, not None: {why_not_none}")
    number = check_integer(n_clusters, "n_clusters", minimum=1)  # type: ignore[arg-type]
    if number > n_samples:
        raise ValueError(f"n_clusters: must be at most n_samples={n_samples}, got {number}")
    return number


def _drop_isolated_points(A: Array | csr_array) -> tuple[Array, Array | csr_array, Array]:
    """Return a mask of the points with edges, their affinity, and their components."""
    part = components(A)
    connected = np.bincount(part)[part] > 1
    if connected.all():
        return connected, A, part
    inside = np.flatnonzero(connected)
    part = np.unique(part[connected], return_inverse=True)[1]
    return connected, A[inside][:, inside], part


def _largest_parts(part: Array, k: int) -> Array:
    """Return clusters 0 to k - 1: the k largest components; other points join the largest."""
    rank = np.argsort(np.argsort(-np.bincount(part), kind="stable"))[part]
    return np.where(rank < k, rank, 0)


def _cluster_qr(embedding: Array) -> Array:
    """Label rows by the nearest axis, after a rotation that brings k spread rows near the axes.

    The rows are not scaled to unit norm: all would tie for the first pivot, and the order of the
    points would decide.
    """
    k = embedding.shape[1]
    pivots = qr(embedding.T, pivoting=True, mode="economic")[2][:k]
    # gesdd, the default, does not converge for some finite matrices.
    left, _, right = svd(embedding[pivots].T, lapack_driver="gesvd")
    return np.abs(embedding @ (left @ right)).argmax(axis=1)
