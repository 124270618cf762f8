"""Self-expression as layers: ridge and low-rank attention, learned self-expression."""

from .self_expressive_network import SelfExpressiveNetwork
from .unrolled_ista import UnrolledSelfExpression

__all__ = [
    "SelfExpressiveNetwork",
    "UnrolledSelfExpression",
]
