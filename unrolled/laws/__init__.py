"""What every attention layer must hold, written once: each law is one function.

A law takes a `Subject`, a layer with what it needs to be called and what it declares, and yields
`Finding`s, each of which is measured when asked. `LAWS` is the list that everybody walks; a law
that `law` decorates, in a module of this folder, is in it.
"""

from . import gradients, outputs, precision, refusals, shapes, visibility  # noqa: F401
from .finding import LAWS, Finding, Law, findings, law
from .masks import NO_MASKS, Masks
from .measurement import Measurement, largest_difference, rounding, worst
from .subject import Declared, Numerics, Reference, Subject, draw_inputs

__all__ = [
    "LAWS",
    "NO_MASKS",
    "Declared",
    "Finding",
    "Law",
    "Masks",
    "Measurement",
    "Numerics",
    "Reference",
    "Subject",
    "draw_inputs",
    "findings",
    "largest_difference",
    "law",
    "rounding",
    "worst",
]
