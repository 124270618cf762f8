"""Formulas that the statements on conditioning share with the tests of its solvers."""

import numpy as np


def cosines(n):
    """The orthonormal transform, entry by entry (SK-8)."""
    scale = [np.sqrt((1 if k == 0 else 2) / n) for k in range(n)]
    angle = np.pi / (2 * n)
    return np.array(
        [[scale[k] * np.cos(angle * (2 * i + 1) * k) for i in range(n)] for k in range(n)]
    )
