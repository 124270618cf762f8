"""Features of edges against their definition, of all pairs."""

import math

import numpy as np
from numpy.testing import assert_allclose
from scipy.linalg import eigh

from twinsolve.datasets import make_union_of_subspaces
from twinsolve.solvers import sparse_self_expression
from twinsolve.solvers.clustering import unit_rows
from twinsolve.unrolled.clustering.edge_features import edge_features


def points(seed=0, n=20):
    X, _ = make_union_of_subspaces(
        n, n_subspaces=3, n_features=8, dimension=3, noise=0.2, random_state=seed
    )
    return unit_rows(X)


def cosines(Z):
    unit = Z / np.linalg.norm(Z, axis=1, keepdims=True)
    return unit @ unit.T


def code_graph(X, gamma, l1_ratio):
    """Sizes of the codes over the largest of the row, and the residuals of the points."""
    largest = 2 * np.abs(X @ X.T - np.diag((X**2).sum(axis=1))).max(axis=1)
    lam = largest / (gamma * l1_ratio)
    C = sparse_self_expression(X, lam=lam, l1_ratio=l1_ratio, tol=1e-4).coef.toarray()
    graph = np.abs(C) / np.abs(C).max(axis=1, keepdims=True)
    return graph, np.linalg.norm(X - C @ X, axis=1)


def neighbor_graph(Z):
    graph = np.zeros((len(Z), len(Z)))
    for i, sizes in enumerate(np.abs(cosines(Z))):
        nearest = [j for j in np.argsort(-sizes) if j != i][:16]
        graph[i, nearest] = np.exp(-np.arange(1, 1 + len(nearest)) / 5)
    return graph


def coordinates(X, energy):
    U, s, _ = np.linalg.svd(X, full_matrices=False)
    rank = next(r for r in range(1, len(s) + 1) if (s[:r] ** 2).sum() >= energy * (s**2).sum())
    return U[:, :rank]


def eigenpairs(graph):
    A = graph + graph.T + 1e-6 * np.eye(len(graph))
    degree = A.sum(axis=1)
    values, vectors = eigh(A / np.sqrt(np.outer(degree, degree)))
    leading = np.argsort(-values)[:64]
    return np.clip(values[leading], 0, 1), vectors[:, leading]


def literal(X):
    """Pairs, their features and the context, one column after the other."""
    codes = [code_graph(X, *given) for given in ((5, 1.0), (20, 0.5), (50, 0.5), (200, 0.9))]
    whitened = [coordinates(X, energy) for energy in (0.8, 0.9, 0.95, 0.98, 0.995)]
    neighbors = [neighbor_graph(Z) for Z in (X, whitened[1], whitened[3])]
    graphs = [graph for graph, _ in codes] + neighbors
    spectra = [eigenpairs(graph) for graph in graphs]
    i, j = np.nonzero(np.triu(sum(graphs) + sum(graphs).T, 1))
    columns = []
    for graph, (values, vectors) in zip(graphs, spectra, strict=True):
        there, back = graph[i, j], graph[j, i]
        columns += [np.maximum(there, back), np.minimum(there, back)]
        columns.append(cosines(graph + np.eye(len(X)))[i, j])
        columns += [cosines(vectors * values ** (t / 2))[i, j] for t in (4, 16, 64)]
    products = (X @ X.T)[i, j]
    columns += [np.abs(products), np.sign(products)]
    columns += [np.abs(cosines(Z))[i, j] for Z in whitened]
    for _, residual in (codes[0], codes[-1]):
        columns += [np.maximum(residual[i], residual[j]), np.minimum(residual[i], residual[j])]
    context = [math.log((values**t).sum()) for values, _ in spectra for t in (4, 16, 64)]
    context += [math.log(Z.shape[1] / len(X)) for Z in whitened]
    pairs = list(zip(i, j, strict=True))
    return pairs, np.stack(columns, axis=1), np.array([*context, math.log(len(pairs) / len(X))])


def test_features_are_those_of_the_definition():
    X = points()
    pairs, features, context = literal(X)
    edges = edge_features(X)
    order = np.lexsort((edges.j, edges.i))
    assert list(zip(edges.i[order], edges.j[order], strict=True)) == pairs
    assert_allclose(edges.features[order], features, atol=1e-6)
    assert_allclose(edges.context, context, atol=1e-9)


def test_degenerate_points_have_finite_features():
    for X in (np.zeros((4, 3)), np.eye(3), np.ones((5, 2)) / math.sqrt(2)):
        edges = edge_features(X)
        assert np.isfinite(edges.features).all()
        assert np.isfinite(edges.context).all()
