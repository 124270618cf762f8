"""Boosting of attention: corrections that wrap an operator, and residual connections."""

from .boosted_filters import BoostedFilter
from .residuals import (
    GeneralizedResidual,
    Residual,
)
from .twicing_attention import (
    Twicing,
)

__all__ = [
    "BoostedFilter",
    "GeneralizedResidual",
    "Residual",
    "Twicing",
]
