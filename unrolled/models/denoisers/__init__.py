"""Denoising networks whose layers are steps of classical methods."""

from .filter_diffusion import FilterDiffusionNetwork

__all__ = ["FilterDiffusionNetwork"]
