"""Denoisers whose layers are steps of a classical solver, at which they start exactly."""

from .nonlocal_means import NonLocalMeansDenoiser

__all__ = ["NonLocalMeansDenoiser"]
