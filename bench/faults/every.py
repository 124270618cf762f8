"""All faults."""

from .defaults import defaults
from .fault import Fault
from .forward import forward
from .gradients import gradients
from .heads import heads
from .masks import causal, masks
from .matrices import matrices
from .models import models
from .options import options
from .precision import precision
from .refusals import refusals
from .sizes import sizes

_KINDS = (
    forward, causal, masks, heads, options, matrices, gradients, defaults, sizes, precision,
    refusals, models,
)  # fmt: skip


def catalogue() -> list[Fault]:
    """Every fault of every kind."""
    return [fault for kind in _KINDS for fault in kind.listed]
