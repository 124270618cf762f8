"""Layers of energies: NeuTRENO's steps on tokens, and learned filters on images."""

from .convex_ridge import ConvexRidge
from .filter_banks import filter_gradient
from .filter_diffusion import FilterDiffusion, NonlocalFilterDiffusion
from .neutreno import Neutreno, NonlocalEnergyStep, own_rows
from .noise_level_diffusion import NoiseLevelFilterDiffusion

__all__ = [
    "ConvexRidge",
    "FilterDiffusion",
    "Neutreno",
    "NoiseLevelFilterDiffusion",
    "NonlocalEnergyStep",
    "NonlocalFilterDiffusion",
    "filter_gradient",
    "own_rows",
]
