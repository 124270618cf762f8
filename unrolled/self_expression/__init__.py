"""Self-expression as layers: ridge and low-rank attention, learned self-expression."""

from .deep_self_expression import DeepSelfExpression
from .low_rank_attention import LowRank
from .ridge_attention import Ridge
from .self_expressive_network import SelfExpressiveNetwork
from .unrolled_admm import UnrolledADMM
from .unrolled_ista import UnrolledSelfExpression

__all__ = [
    "DeepSelfExpression",
    "LowRank",
    "Ridge",
    "SelfExpressiveNetwork",
    "UnrolledADMM",
    "UnrolledSelfExpression",
]
