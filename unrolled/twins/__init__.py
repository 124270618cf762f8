"""The bridge between layers and solvers: which twin each layer has, and checks against it.

A family adds a file here whose twins `register` themselves; `catalogue` finds all such files.
"""

from .heads import HeadCall
from .inequalities import Inequalities
from .model_check import ModelReport
from .origin import Origin, fit_origin
from .parameters import head_value
from .registry import (
    Problem,
    Twin,
    catalogue,
    exact_twin,
    judging_twin,
    register,
    twins_of,
    unregister,
)
from .relations import (
    Bound,
    FixedPointLimit,
    Identity,
    Init,
    Iterate,
    Limit,
    Measurement,
    Rate,
    Relation,
)
from .report import Report, check, compare
from .subjects import findings_of

__all__ = [
    "Bound",
    "FixedPointLimit",
    "HeadCall",
    "Identity",
    "Inequalities",
    "Init",
    "Iterate",
    "Limit",
    "Measurement",
    "ModelReport",
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
