"""Regression solved token by token: what linear attention, delta rules, Mesa and Titans compute.

Each function is the literal recurrence in float64, a loop over tokens. It defines the numbers that
fast kernels are held to; it is not fast itself.
"""

from .batches import mini_batch_rule
from .delta import delta_rule, proximal_point_rule
from .momentum import titans_memory
from .passes import kaczmarz_passes
from .probe import local_linear_probe, parallax
from .recursive import recursive_least_squares
from .ridge import mesa, mesa_by_cg, mesa_error_bound
from .sums import recurrent_linear_attention

__all__ = [
    "delta_rule",
    "kaczmarz_passes",
    "local_linear_probe",
    "mesa",
    "mesa_by_cg",
    "mesa_error_bound",
    "mini_batch_rule",
    "parallax",
    "proximal_point_rule",
    "recurrent_linear_attention",
    "recursive_least_squares",
    "titans_memory",
]
