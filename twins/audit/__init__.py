"""Hold networks that others wrote to laws: `audit`, and what it takes and returns."""

from . import equations as equations
from .auditing import audit
from .functions import Adapter
from .laws import LAWS, NetworkLaw
from .model import Convention
from .report import Report, Row
from .weights import draw_weights

__all__ = ["LAWS", "Adapter", "Convention", "NetworkLaw", "Report", "Row", "audit", "draw_weights"]
