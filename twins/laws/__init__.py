"""Laws that every attention layer must satisfy: one function for each law.

A law takes a `Subject`: a layer, its inputs and what it declares. It yields `Trial`s, which are
measured on request. `LAWS` lists all laws: the functions in this folder with the decorator `law` or
`operator_law`.

Examples
--------
>>> import numpy as np
>>> from twinsolve.unrolled import Softmax
>>> from twinsolve.twins.laws import Subject, draw_inputs, trials
>>> layer = Softmax().double()
>>> inputs = draw_inputs("tokens", np.random.default_rng(0), same=False)
>>> measured = {x.name: x.measure() for x in trials(Subject(layer, inputs, declared=layer))}
>>> measured["leaks, causal"].holds, all(x.holds for x in measured.values())
(True, True)
"""

from . import (  # noqa: F401
    gradients,
    magnitudes,
    mask_dtypes,
    outputs,
    precision,
    refusals,
    shapes,
    visibility,
)
from .masks import NO_MASKS, Masks
from .measurement import Measurement, largest_difference, rounding, worst
from .subject import Accuracy, Declared, Reference, Subject, draw_inputs
from .trial import LAWS, Law, Trial, law, operator_law, trials

__all__ = [
    "LAWS",
    "NO_MASKS",
    "Accuracy",
    "Declared",
    "Law",
    "Masks",
    "Measurement",
    "Reference",
    "Subject",
    "Trial",
    "draw_inputs",
    "largest_difference",
    "law",
    "operator_law",
    "rounding",
    "trials",
    "worst",
]
