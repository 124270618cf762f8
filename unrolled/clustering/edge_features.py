"""Features of edges between points, the same for any number and dimension of points."""

from dataclasses import dataclass

import numpy as np
from scipy.sparse import csr_array, eye_array
from sklearn.neighbors import NearestNeighbors

from ...solvers.clustering import scale_by_row_maximum, symmetric_affinity, unit_rows
from ...solvers.clustering.eigenvectors import leading_eigenvectors
from ...solvers.inputs import Array
from ...solvers.self_expression import sparse_self_expression
from ...solvers.sparse_coding import lam_max
from ..block_size import block_size

PENALTIES = ((5.0, 1.0), (20.0, 0.5), (50.0, 0.5), (200.0, 0.9))  # gamma, l1_ratio
ENERGIES = (0.8, 0.9, 0.95, 0.98, 0.995)
_NEIGHBOR_ENERGIES = (0.9, 0.98)
_N_NEIGHBORS = 16
_DECAY = 5.0
_TIMES = (4, 16, 64)
_N_EIGENVECTORS = 64
_TOL = 1e-4  # of the codes: features need no more
_LOOP = 1e-6  # keeps the degree of a point without edges positive
_BLOCK = 100_000


@dataclass(frozen=True, eq=False)
class Edges:
    """Pairs of points ``i < j`` with their features, and features of the whole graph.

    Attributes
    ----------
    i, j : ndarray of int of shape (n_edges,)
    features : ndarray of shape (n_edges, n_edge_features)
        Features of the pairs; they are symmetric in i and j.
    context : ndarray of shape (n_context,)
        Features of the whole graph.
    n_points : int
    """

    i: Array
    j: Array
    features: Array
    context: Array
    n_points: int


def edge_features(X: Array) -> Edges:
    """Compute features of the pairs of points that at least one of seven graphs joins.

    The directed graphs G have entries in [0, 1]. Four hold ``|c_ij| / max_l |c_il|`` of elastic net
    codes at four penalties relative to lam_max. Three hold ``exp(-rank / 5)`` of the 16 neighbours
    with the largest ``|cos|``: among the points, and among their whitened leading principal
    coordinates with 0.9 and 0.98 of the energy. Each graph adds these features of a pair ::

        max(g_ij, g_ji),   min(g_ij, g_ji),   cos(g_i + e_i, g_j + e_j)
        cos(u_i, u_j),   U = V diag(lam)^(t / 2),   t = 4, 16, 64

    lam and V are the 64 leading eigenpairs of ``D^(-1/2) (G + G^T) D^(-1/2)``, so that the last
    line has the cosines of random walks of t steps. Further features are ``|cos|`` and the sign of
    cos, ``|cos|`` of whitened coordinates at five energies, and the larger and the smaller residual
    of the two points under the first and the last code. The context holds ``log(sum_l lam_l^t)``, a
    soft number of clusters, for each graph and t; the logarithms of the number of whitened
    coordinates divided by the number of points; and that of the number of edges divided by it.

    Parameters
    ----------
    X : ndarray of shape (n_points, n_features)
        Rows of unit norm or zero, at least 2.

    Returns
    -------
    Edges

    References
    ----------
    EQUATIONS SE-12, CL-2 for the codes; Coifman and Lafon, "Diffusion maps" (2006) for ``u``.

    Examples
    --------
    >>> import numpy as np
    >>> from twinsolve.unrolled.clustering.edge_features import edge_features
    >>> edges = edge_features(np.eye(3)[[0, 0, 1, 1]])
    >>> edges.features.shape, edges.context.shape
    ((6, 53), (27,))
    """
    X = X.astype(np.float64)
    codes = [_code_points(X, gamma, ratio) for gamma, ratio in PENALTIES]
    whitened = {energy: _whiten(X, energy) for energy in ENERGIES}
    graphs = [
        *(scale_by_row_maximum(abs(C)) for C in codes),
        *(_link_nearest(Z) for Z in (X, *(whitened[energy] for energy in _NEIGHBOR_ENERGIES))),
    ]
    i, j = _list_pairs(graphs)
    features: list[Array] = []
    context: list[float] = []
    for graph in graphs:
        features += _compare_directions(graph, i, j)
        walks, log_traces = _compare_walks(graph, i, j)
        features += walks
        context += log_traces
    cosine = _multiply_rows(X, X, i, j)
    features += [np.abs(cosine), np.sign(cosine)]
    for Z in whitened.values():
        features.append(np.abs(_multiply_rows(unit_rows(Z), unit_rows(Z), i, j)))
        context.append(np.log(Z.shape[1] / len(X)))
    for C in (codes[0], codes[-1]):
        residual = np.linalg.norm(X - C @ X, axis=1)
        features += [np.maximum(residual[i], residual[j]), np.minimum(residual[i], residual[j])]
    context.append(np.log(max(len(i), 1) / len(X)))
    return Edges(i, j, np.column_stack(features), np.array(context), len(X))


def _code_points(X: Array, gamma: float, l1_ratio: float) -> csr_array:
    """Return elastic net codes of the points in each other, at the penalty lam_max / gamma."""
    largest = lam_max(X, X, zero_diagonal=True)
    lam = np.where(largest > 0, largest, 1.0) / (gamma * l1_ratio)
    return sparse_self_expression(X, lam=lam, l1_ratio=l1_ratio, tol=_TOL).coef


def _whiten(X: Array, energy: float) -> Array:
    """Return the fewest leading left singular vectors that hold this share of the energy."""
    values, vectors = np.linalg.eigh(X.T @ X)
    values, vectors = np.maximum(values[::-1], 0), vectors[:, ::-1]
    energies = np.cumsum(values)
    rank = 1 + int(np.searchsorted(energies, energy * energies[-1]))
    rank = max(1, min(rank, int((values > 1e-12 * values[0]).sum())))
    scale = np.sqrt(values[:rank])
    return X @ vectors[:, :rank] / np.where(scale > 0, scale, 1)


def _link_nearest(Z: Array) -> csr_array:
    """Return the graph of the neighbours with the largest ``|cos|``, weighted by their rank."""
    Z = unit_rows(Z)
    n = len(Z)
    count = min(_N_NEIGHBORS, n - 1)
    # Only one of a point and its mirror image is near, unless both are at right angles.
    search = NearestNeighbors(n_neighbors=count + 1).fit(np.vstack([Z, -Z]))
    neighbors = search.kneighbors(Z, return_distance=False) % n
    rows, ranks = np.nonzero(neighbors != np.arange(n)[:, None])
    weights = np.exp(-ranks / _DECAY)
    graph = csr_array((weights, (rows, neighbors[rows, ranks])), shape=(n, n))
    graph.data = np.minimum(graph.data, 1)
    return graph


def _list_pairs(graphs: list[csr_array]) -> tuple[Array, Array]:
    """Return the points i < j of all pairs that at least one of the graphs joins."""
    total = sum(graphs[1:], graphs[0])
    pairs = csr_array(total + total.T).tocoo()
    above = (pairs.row < pairs.col) & (pairs.data > 0)
    return pairs.row[above].astype(np.int64), pairs.col[above].astype(np.int64)


def _compare_directions(graph: csr_array, i: Array, j: Array) -> list[Array]:
    """Return the larger and smaller of g_ij and g_ji, and the cosine of the rows of G + I."""
    forward, backward = _get_entries(graph, i, j), _get_entries(graph, j, i)
    neighbours = unit_rows(csr_array(graph + eye_array(graph.shape[0], format="csr")))
    cosine = np.concatenate(
        [
            np.asarray(neighbours[i[block]].multiply(neighbours[j[block]]).sum(axis=1)).ravel()
            for block in _split_blocks(len(i))
        ]
    )
    return [np.maximum(forward, backward), np.minimum(forward, backward), cosine]


def _compare_walks(graph: csr_array, i: Array, j: Array) -> tuple[list[Array], list[float]]:
    """Return the cosines of random walks from i and j, and the graph's log traces, for each t."""
    n = graph.shape[0]
    affinity = csr_array(symmetric_affinity(graph) + _LOOP * eye_array(n, format="csr"))
    values, vectors = leading_eigenvectors(affinity, min(_N_EIGENVECTORS, n))
    values = np.clip(values, 0, 1)
    walks = [unit_rows(vectors * values ** (t / 2)) for t in _TIMES]
    log_traces = [float(np.log((values**t).sum())) for t in _TIMES]
    return [_multiply_rows(U, U, i, j) for U in walks], log_traces


def _get_entries(graph: csr_array, i: Array, j: Array) -> Array:
    return np.concatenate(
        [np.asarray(graph[i[block], j[block]]).ravel() for block in _split_blocks(len(i))]
    )


def _multiply_rows(left: Array, right: Array, i: Array, j: Array) -> Array:
    return np.concatenate(
        [np.einsum("ed,ed->e", left[i[block]], right[j[block]]) for block in _split_blocks(len(i))]
    )


def _split_blocks(n: int) -> list[slice]:
    size = block_size(_BLOCK)
    return [slice(start, start + size) for start in range(0, max(n, 1), size)]
