"""Partitions of tokens by routers and by clusterers, and numbers that tell how near they are."""

from itertools import combinations
from typing import Any

import numpy as np
from sklearn.cluster import KMeans
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import adjusted_rand_score, normalized_mutual_info_score
from sklearn.model_selection import GroupKFold, cross_val_predict

from ....solvers import KSubspaces, SparseSubspaceClustering, clustering_accuracy
from ....solvers.solution import Array

DIMENSION = 4  # of the subspaces
_N_INIT = 20
_PENALTY = 100.0  # inverse, of the linear classifier

Partitions = dict[str, Array]


def clusterings(X: Array, n_clusters: int, seed: int) -> Partitions:
    """Labels by k-means, twice with different restarts, k-subspaces and SSC."""
    again = np.random.SeedSequence(seed).generate_state(1)[0]
    made: dict[str, Any] = {
        "k-means": KMeans(n_clusters, n_init=_N_INIT, random_state=seed),
        "k-means again": KMeans(n_clusters, n_init=_N_INIT, random_state=int(again)),
        "k-subspaces": KSubspaces(
            n_clusters, dimension=DIMENSION, n_init=_N_INIT, random_state=seed
        ),
        "SSC": SparseSubspaceClustering(n_clusters, random_state=seed),
    }
    return {name: model.fit(X).labels_ for name, model in made.items()}


def agreements(partitions: Partitions) -> list[dict[str, Any]]:
    """How alike each two partitions are: NMI, ARI, and accuracy by the best one-to-one match."""
    return [
        {
            "kind": "agreement", "first": one, "second": other,
            "nmi": normalized_mutual_info_score(partitions[one], partitions[other]),
            "ari": adjusted_rand_score(partitions[one], partitions[other]),
            "accuracy": clustering_accuracy(partitions[one], partitions[other]),
        }
        for one, other in combinations(partitions, 2)
    ]  # fmt: skip


def partition_numbers(X: Array, labels: Array, images: Array) -> dict[str, float]:
    """What one partition leaves of the tokens, how even it is, and whether a router can tell it.

    Of tokens x, with means m and subspaces B of dimension 4 fitted to each cluster ::

        centre_residual   = sum |x - m|^2 / sum |x - mean of all|^2
        subspace_residual = sum |x - x B^T B|^2 / sum |x|^2

    ``used`` is the exponential of the entropy of the clusters' shares, and ``largest`` the largest
    share. ``linear_nmi`` is the NMI with what a linear classifier without intercept, as a router
    is, says of tokens of images that it was not fitted to.
    """
    shares = np.unique(labels, return_counts=True)[1] / len(labels)
    clusters = [X[labels == label] for label in np.unique(labels)]
    centred = sum(float(((own - own.mean(axis=0)) ** 2).sum()) for own in clusters)
    left = sum(
        float((np.linalg.svd(own, compute_uv=False)[DIMENSION:] ** 2).sum()) for own in clusters
    )
    return {
        "centre_residual": centred / float(((X - X.mean(axis=0)) ** 2).sum()),
        "subspace_residual": left / float((X**2).sum()),
        "used": float(np.exp(-(shares * np.log(shares)).sum())),
        "largest": float(shares.max()),
        "linear_nmi": _told_linearly(X, labels, images),
    }


def _told_linearly(X: Array, labels: Array, images: Array) -> float:
    """NaN where too few clusters are used to fit to."""
    model = LogisticRegression(C=_PENALTY, fit_intercept=False, max_iter=1000)
    halves = list(GroupKFold(2).split(X, groups=images))
    if any(len(np.unique(labels[fitted])) < 2 for fitted, _ in halves):
        return float("nan")
    said = cross_val_predict(model, X * np.sqrt(X.shape[1]), labels, cv=halves)
    return float(normalized_mutual_info_score(labels, said))
