"""Sparse coding with an l1 penalty: the problem that sparse attention unrolls.

Signals and atoms are rows: ``C @ dictionary`` reconstructs the signals.
"""

from .dictionary import ksvd
from .image_patches import dct_dictionary, denoise_patches
from .iterations import coordinate_descent, fista, ista
from .lasso import sparse_code, sparse_code_path
from .patch_codes import denoise_ista, denoise_lasso, denoise_matching, denoise_pursuit
from .patch_groups import denoise_low_rank
from .problem import duality_gap, lam_max, lasso_objective

__all__ = [
    "coordinate_descent",
    "dct_dictionary",
    "denoise_ista",
    "denoise_lasso",
    "denoise_low_rank",
    "denoise_matching",
    "denoise_patches",
    "denoise_pursuit",
    "duality_gap",
    "fista",
    "ista",
    "ksvd",
    "lam_max",
    "lasso_objective",
    "sparse_code",
    "sparse_code_path",
]
