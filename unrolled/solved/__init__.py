"""Solved problems as layers: certified forward, with exact implicit gradients.

Solvers run here, so that this folder knows both wings; they are imported when first called.
"""

from .encoder import LassoEncoder
from .implicit import solve_implicitly
from .lasso import solved_lasso
from .matrices import solved_low_rank, solved_ridge
from .proof import SolvedRecord
from .rows import solved_entmax, solved_total_variation

__all__ = [
    "LassoEncoder",
    "SolvedRecord",
    "solve_implicitly",
    "solved_entmax",
    "solved_lasso",
    "solved_low_rank",
    "solved_ridge",
    "solved_total_variation",
]
