"""Coding rates: how many nats the tokens need at a given precision, and steps that lower them."""

from .mixing import mixing_rate_bound
from .rate import (
    RateStep,
    coding_rate,
    coding_rate_gradient,
    coding_rate_step,
    subspace_rate,
    subspace_rate_gradient,
)
from .reduction import RateOptimum, rate_reduction, rate_reduction_optimum
from .variational import (
    subspace_memberships,
    token_statistics,
    variational_rate,
    variational_rate_step,
)

__all__ = [
    "RateOptimum",
    "RateStep",
    "coding_rate",
    "coding_rate_gradient",
    "coding_rate_step",
    "mixing_rate_bound",
    "rate_reduction",
    "rate_reduction_optimum",
    "subspace_memberships",
    "subspace_rate",
    "subspace_rate_gradient",
    "token_statistics",
    "variational_rate",
    "variational_rate_step",
]
