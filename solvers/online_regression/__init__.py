"""Regression solved token by token: what linear attention, delta rules, Mesa and Titans compute.

Each function is the literal recurrence in float64, a loop over tokens. It defines the numbers that
fast kernels are held to; it is not fast itself.
"""

from .delta import delta_rule, proximal_point_rule
from .momentum import titans_memory
from .probe import local_linear_probe, parallax
from .ridge import mesa, mesa_by_cg
from .sums import recurrent_linear_attention

__all__ = [
    "delta_rule",
    "local_linear_probe",
    "mesa",
    "mesa_by_cg",
    "parallax",
    "proximal_point_rule",
    "recurrent_linear_attention",
    "titans_memory",
]
