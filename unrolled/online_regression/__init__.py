"""Layers that learn at test time: regression on the tokens so far, solved as they come."""

from .batches import MiniBatch, chunked_mini_batch
from .delta import DeltaRule, ProximalPoint, chunked_delta_rule
from .momentum import HeavyBall, chunked_heavy_ball
from .probe import LocalLinear
from .ridge import Mesa, chunked_mesa
from .sums import GatedLinear, chunked_linear_attention

__all__ = [
    "DeltaRule",
    "GatedLinear",
    "HeavyBall",
    "LocalLinear",
    "Mesa",
    "MiniBatch",
    "ProximalPoint",
    "chunked_delta_rule",
    "chunked_heavy_ball",
    "chunked_linear_attention",
    "chunked_mesa",
    "chunked_mini_batch",
]
