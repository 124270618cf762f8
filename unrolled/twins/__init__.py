"""The bridge between layers and solvers: the twins of each layer, and checks against them.

A family adds a file to `families` that registers its twins; `catalogue` imports all these files.
"""

from ..laws import Measurement
from .heads import HeadCall, head_value
from .model_check import ModelReport
from .origin import Origin, fit_origin
from .pairs import Derivatives, Inputs, Numerics
from .registry import Twin, catalogue, exact_twin, judging_twin, register, twins_of, unregister
from .relations import (
    Bound,
    FixedPointLimit,
    Identity,
    Inequalities,
    Init,
    Iterate,
    Limit,
    Problem,
    Rate,
    Relation,
)
from .report import Report, check, compare
from .subjects import findings_of

__all__ = [
    "Bound",
    "Derivatives",
    "FixedPointLimit",
    "HeadCall",
    "Identity",
    "Inequalities",
    "Init",
    "Inputs",
    "Iterate",
    "Limit",
    "Measurement",
    "ModelReport",
    "Numerics",
    "Origin",
    "Problem",
    "Rate",
    "Relation",
    "Report",
    "Twin",
    "catalogue",
    "check",
    "compare",
    "exact_twin",
    "findings_of",
    "fit_origin",
    "head_value",
    "judging_twin",
    "register",
    "twins_of",
    "unregister",
]
