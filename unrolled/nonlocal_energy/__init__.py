"""Layers of energies: NeuTRENO's steps on tokens, and learned filters on images."""

from .convex_ridge import ConvexRidge
from .energy_step import NonlocalEnergyStep
from .filter_banks import filter_gradient
from .filter_diffusion import FilterDiffusion
from .neutreno import Neutreno, own_rows
from .nonlocal_filter_diffusion import NonlocalFilterDiffusion

__all__ = [
    "ConvexRidge",
    "FilterDiffusion",
    "Neutreno",
    "NonlocalEnergyStep",
    "NonlocalFilterDiffusion",
    "filter_gradient",
    "own_rows",
]
