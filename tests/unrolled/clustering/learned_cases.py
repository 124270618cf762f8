"""Data and small settings that the tests of learned clusterers share."""

from typing import Any

from twinsolve.datasets import make_union_of_subspaces
from twinsolve.unrolled.clustering import (
    AttentionSubspaceClustering,
    DeepSubspaceClustering,
    LearnedAffinityClustering,
    SelfExpressiveSubspaceClustering,
    UnrolledSubspaceClustering,
)

SMALL: dict[Any, dict[str, Any]] = {
    UnrolledSubspaceClustering: {"n_layers": 5, "max_iter": 20, "batch_size": 32},
    SelfExpressiveSubspaceClustering: {
        "hidden_features": (64,),
        "width": 64,
        "max_iter": 200,
        "batch_size": 64,
        "learning_rate": 3e-3,
    },
    AttentionSubspaceClustering: {"operator": "ridge"},
    DeepSubspaceClustering: {"n_layers": 2},
    LearnedAffinityClustering: {},
}

# Enough for the checks of scikit-learn, which fit some dozens of times.
SMALLEST: dict[Any, dict[str, Any]] = {
    UnrolledSubspaceClustering: {"n_layers": 3, "max_iter": 2},
    SelfExpressiveSubspaceClustering: {"hidden_features": (16,), "width": 16, "max_iter": 20},
    AttentionSubspaceClustering: {"operator": "softmax"},
    DeepSubspaceClustering: {"n_layers": 1, "n_iter": 5},
    LearnedAffinityClustering: {},
}


def data(seed=0, **settings):
    return make_union_of_subspaces(
        **{"n_samples": 30, "n_subspaces": 3, "n_features": 20, "dimension": 3, "noise": 0.02}
        | settings,
        random_state=seed,
    )


def make(kind, n_clusters=3, **settings):
    return kind(n_clusters, **{"random_state": 0} | SMALL[kind] | settings)
