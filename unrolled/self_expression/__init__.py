"""Self-expression as layers: ridge and low-rank attention, learned self-expression."""

from .low_rank_attention import (
    LowRank,
)
from .ridge_attention import (
    Ridge,
)

__all__ = [
    "LowRank",
    "Ridge",
]
