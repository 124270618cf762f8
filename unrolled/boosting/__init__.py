"""Boosting of attention: corrections that wrap an operator, and residual connections."""

from .twicing_attention import Twicing

__all__ = [
    "Twicing",
]
