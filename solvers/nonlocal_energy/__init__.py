"""Energies of tokens with weights between them, and of images with responses to filters."""

from .analysis_sparsity import l1_analysis, total_variation
from .convergence import neutreno_lam_limit, neutreno_spectral_radius
from .filter_banks import FilterBank, NonlocalFilterBank, Potentials, dct_filters
from .filter_diffusion import filter_diffusion_step, filter_energy, filter_energy_gradient
from .flow import exact_gradient_flow, gradient_flow
from .functionals import energy_gradient, regularized_energy, smoothness, smoothness_gradient
from .minimizer import minimize_energy
from .neutreno import neutreno_fixed_point, neutreno_iteration
from .random_walk import (
    random_walk_limit,
    random_walk_rate,
    random_walk_values,
    stationary_distribution,
)
from .ridge_regularizer import convex_ridge, minimize_convex_ridge
from .segments import signal_variation

__all__ = [
    "FilterBank",
    "NonlocalFilterBank",
    "Potentials",
    "convex_ridge",
    "dct_filters",
    "energy_gradient",
    "exact_gradient_flow",
    "filter_diffusion_step",
    "filter_energy",
    "filter_energy_gradient",
    "gradient_flow",
    "l1_analysis",
    "minimize_convex_ridge",
    "minimize_energy",
    "neutreno_fixed_point",
    "neutreno_iteration",
    "neutreno_lam_limit",
    "neutreno_spectral_radius",
    "random_walk_limit",
    "random_walk_rate",
    "random_walk_values",
    "regularized_energy",
    "signal_variation",
    "smoothness",
    "smoothness_gradient",
    "stationary_distribution",
    "total_variation",
]
