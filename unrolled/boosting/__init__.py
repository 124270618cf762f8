"""Boosting of attention: corrections that wrap an operator, and residual connections."""

from .residuals import (
    GeneralizedResidual,
    Residual,
)
from .twicing_attention import (
    Twicing,
)

__all__ = [
    "GeneralizedResidual",
    "Residual",
    "Twicing",
]
