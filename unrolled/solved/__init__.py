"""Solved problems as layers: certified forward, with exact implicit gradients.

Solvers run here, so that this folder knows both wings; they are imported when first called.
"""

from .encoder import LassoEncoder
from .implicit import solve_implicitly
from .lasso import LassoRecord, solved_lasso

__all__ = ["LassoEncoder", "LassoRecord", "solve_implicitly", "solved_lasso"]
