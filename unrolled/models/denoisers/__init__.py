"""Denoisers whose layers are steps of a classical solver, at which they start exactly."""

from .mixture_of_experts import (
    MixtureOfExpertsDenoiser,
)
from .patch_coding import (
    GroupCodingDenoiser,
    PatchCodingDenoiser,
)

__all__ = [
    "GroupCodingDenoiser",
    "MixtureOfExpertsDenoiser",
    "PatchCodingDenoiser",
]
