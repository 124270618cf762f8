"""The bridge between layers and solvers: the twins of each layer, and checks against them.

A family adds a file to `families` that registers its twins; `catalogue` imports all these files.
"""

from .heads import HeadCall, head_value
from .judging.comparison import compare
from .judging.layer_check import check
from .judging.origin import Origin, fit_origin
from .judging.subjects import trials_of
from .laws import Measurement
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
from .report import Finding, Report

__all__ = [
    "Bound",
    "Derivatives",
    "Finding",
    "FixedPointLimit",
    "HeadCall",
    "Identity",
    "Inequalities",
    "Init",
    "Inputs",
    "Iterate",
    "Limit",
    "Measurement",
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
    "fit_origin",
    "head_value",
    "judging_twin",
    "register",
    "trials_of",
    "twins_of",
    "unregister",
]
