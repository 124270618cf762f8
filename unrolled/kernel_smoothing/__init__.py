"""Attention as kernel regression of the values."""

from .gaussian import Gaussian, gaussian_attention
from .softmax import Softmax

__all__ = [
    "Gaussian",
    "Softmax",
    "gaussian_attention",
]
