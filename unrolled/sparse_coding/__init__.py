"""Sparse codes as layers: attention by unrolled ISTA, learned solvers, mixtures of experts."""

from .code_blocks import ista_attention
from .ista_block import ISTABlock
from .iterations import (
    SparsePenalty,
    accelerated,
    at_iteration,
    curvature,
    lam_max_of,
    positive_per_iteration,
    proximal_map,
    proximal_step,
    repeated,
    safe_step,
    soft_threshold,
    support_step,
)
from .learned_ista import LISTA, analytic_step, analytic_weights
from .mixture_of_experts import SparseMixtureOfExperts
from .patch_sparse_coding import PatchSparseCoding
from .sparse_attention import SparseCoding

__all__ = [
    "LISTA",
    "ISTABlock",
    "PatchSparseCoding",
    "SparseCoding",
    "SparseMixtureOfExperts",
    "SparsePenalty",
    "accelerated",
    "analytic_step",
    "analytic_weights",
    "at_iteration",
    "curvature",
    "ista_attention",
    "lam_max_of",
    "positive_per_iteration",
    "proximal_map",
    "proximal_step",
    "repeated",
    "safe_step",
    "soft_threshold",
    "support_step",
]
