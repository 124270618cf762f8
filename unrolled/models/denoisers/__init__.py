"""Denoising networks whose layers are steps of classical methods."""

from .convex_ridge import ConvexRidgeNetwork
from .filter_diffusion import FilterDiffusionNetwork

__all__ = ["ConvexRidgeNetwork", "FilterDiffusionNetwork"]
