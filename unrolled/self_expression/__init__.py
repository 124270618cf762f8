"""Self-expression as layers: ridge and low-rank attention, learned self-expression."""

from .low_rank_attention import (
    LowRank,
)
from .ridge_attention import (
    Ridge,
)
from .self_expressive_network import (
    SelfExpressiveNetwork,
)
from .unrolled_ista import (
    UnrolledSelfExpression,
)

__all__ = [
    "LowRank",
    "Ridge",
    "SelfExpressiveNetwork",
    "UnrolledSelfExpression",
]
