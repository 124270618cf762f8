"""Locally linear embedding: the classical counterpart of masked affine attention."""

from .embedding import Embedding, locally_linear_embedding
from .estimator import LocallyLinearEmbedding
from .weights import locally_linear_residual, locally_linear_weights

__all__ = [
    "Embedding",
    "LocallyLinearEmbedding",
    "locally_linear_embedding",
    "locally_linear_residual",
    "locally_linear_weights",
]
