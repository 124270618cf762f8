"""Laws that every attention layer must satisfy, each written once, as a function.

A law takes a `Subject`, a layer with what it needs to be called and what it declares, and yields
`Finding`s, each of which is measured when asked. `LAWS` lists all laws: every function in a module
of this folder that `law` or `operator_law` decorates.

Examples
--------
>>> import numpy as np
>>> from twinsolve.unrolled import Softmax
>>> from twinsolve.unrolled.laws import Subject, draw_inputs, findings
>>> layer = Softmax().double()
>>> inputs = draw_inputs("tokens", np.random.default_rng(0), same=False)
>>> found = {x.name: x.measure() for x in findings(Subject(layer, inputs, declared=layer))}
>>> found["leaks, causal"].passed, all(x.passed for x in found.values())
(True, True)
"""

from . import gradients, outputs, precision, refusals, shapes, visibility  # noqa: F401
from .finding import LAWS, Finding, Law, findings, law, operator_law
from .masks import NO_MASKS, Masks
from .measurement import Measurement, largest_difference, rounding, worst
from .subject import Accuracy, Declared, Reference, Subject, draw_inputs

__all__ = [
    "LAWS",
    "NO_MASKS",
    "Accuracy",
    "Declared",
    "Finding",
    "Law",
    "Masks",
    "Measurement",
    "Reference",
    "Subject",
    "draw_inputs",
    "findings",
    "largest_difference",
    "law",
    "operator_law",
    "rounding",
    "worst",
]
