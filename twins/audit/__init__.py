"""Hold networks that others wrote to laws: `audit`, and what it takes and returns."""

from . import equations as equations
from .auditing import audit
from .functions import Adapter
from .laws import LAWS, NetworkLaw
from .model import Convention
from .weights import draw_weights

__all__ = ["LAWS", "Adapter", "Convention", "NetworkLaw", "audit", "draw_weights"]
