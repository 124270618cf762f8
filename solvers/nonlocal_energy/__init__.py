"""Smoothness and energy on tokens: the classical side of symmetric and of NeuTRENO attention."""

from .convergence import neutreno_lam_limit, neutreno_spectral_radius
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

__all__ = [
    "energy_gradient",
    "exact_gradient_flow",
    "gradient_flow",
    "minimize_energy",
    "neutreno_fixed_point",
    "neutreno_iteration",
    "neutreno_lam_limit",
    "neutreno_spectral_radius",
    "random_walk_limit",
    "random_walk_rate",
    "random_walk_values",
    "regularized_energy",
    "smoothness",
    "smoothness_gradient",
    "stationary_distribution",
]
