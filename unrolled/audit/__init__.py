"""Hold networks that others wrote to laws: `audit`, and what it takes and returns."""

from .auditing import audit
from .laws import LAWS, NetworkLaw
from .model import Convention
from .report import Report, Row
from .weights import draw_weights

__all__ = ["LAWS", "Convention", "NetworkLaw", "Report", "Row", "audit", "draw_weights"]
