"""Denoisers whose layers are steps of a classical solver, at which they start exactly."""

from .convex_ridge import ConvexRidgeDenoiser
from .filter_diffusion import FilterDiffusionDenoiser, NonlocalFilterDiffusionDenoiser
from .mixture_of_experts import MixtureOfExpertsDenoiser
from .noise_level import NoiseLevelDiffusionDenoiser
from .nonlocal_means import NonLocalMeansDenoiser
from .patch_coding import GroupCodingDenoiser, PatchCodingDenoiser

__all__ = [
    "ConvexRidgeDenoiser",
    "FilterDiffusionDenoiser",
    "GroupCodingDenoiser",
    "MixtureOfExpertsDenoiser",
    "NoiseLevelDiffusionDenoiser",
    "NonLocalMeansDenoiser",
    "NonlocalFilterDiffusionDenoiser",
    "PatchCodingDenoiser",
]
