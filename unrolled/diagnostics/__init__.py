"""Measures of what layers do to tokens, and hooks that record them."""

from .block_bounds import BoundSides, condition_bounds, high_frequency_bounds
from .energies import attention_energy, attention_smoothness, gradient_cosine, kernel_energy
from .hooks import ARRAYS, MEASURES, Observation, record
from .measures import (
    LogitParts,
    attention_spectrum,
    condition_number,
    high_frequency_share,
    jacobian_spectrum,
    lipschitz_constant,
    logit_parts,
    map_similarity,
    method_noise_share,
    nonzero_share,
    token_similarity,
)

__all__ = [
    "ARRAYS",
    "MEASURES",
    "BoundSides",
    "LogitParts",
    "Observation",
    "attention_energy",
    "attention_smoothness",
    "attention_spectrum",
    "condition_bounds",
    "condition_number",
    "gradient_cosine",
    "high_frequency_bounds",
    "high_frequency_share",
    "jacobian_spectrum",
    "kernel_energy",
    "lipschitz_constant",
    "logit_parts",
    "map_similarity",
    "method_noise_share",
    "nonzero_share",
    "record",
    "token_similarity",
]
