"""
Plot coefficients and affinities
================================

Sorted by class, good coefficients are blocks on the diagonal. The figure follows the points of
three subspaces from the coefficients of four problems to the affinities that are cut.
"""

# %%
# Four problems on the same points
# --------------------------------

import matplotlib.pyplot as plt
import numpy as np

from twinsolve.datasets import make_union_of_subspaces
from twinsolve.solvers import (
    least_squares_self_expression,
    low_rank_self_expression,
    omp_self_expression,
    sparse_self_expression,
)
from twinsolve.solvers.clustering import low_rank_affinity, symmetric_affinity
from twinsolve.solvers.metrics import subspace_preserving_error
from twinsolve.solvers.self_expression import lam_from_gamma

X, y = make_union_of_subspaces(
    30, n_subspaces=3, dimension=4, n_features=15, noise=0.3, random_state=0
)
X, y = X[np.argsort(y)], np.sort(y)
coefficients = {
    "sparse": sparse_self_expression(X, lam=lam_from_gamma(X, 20)).coef.toarray(),
    "matching pursuit": omp_self_expression(X, n_nonzero=4).toarray(),
    "ridge": least_squares_self_expression(X, lam=0.5, zero_diagonal=True),
    "low rank": low_rank_self_expression(X, lam=0.5),
}

# %%
# Coefficients above, affinities below
# ------------------------------------
# Low-rank coefficients have their own affinity, from the angles between their singular vectors. The
# others take :math:`|C| + |C^T|`. The colour scale of a panel ends at the 99 % quantile off the
# diagonal: single large entries would hide the rest.

off_diagonal = ~np.eye(len(X), dtype=bool)
figure, axes = plt.subplots(2, 4, figsize=(11, 5.6), layout="constrained")
for (above, below), (name, C) in zip(axes.T, coefficients.items(), strict=True):
    affinity = (low_rank_affinity if name == "low rank" else symmetric_affinity)(C)
    for ax, matrix in ((above, np.abs(C)), (below, affinity)):
        largest = np.quantile(matrix[off_diagonal], 0.99)
        ax.imshow(matrix, cmap="magma", vmin=0, vmax=largest)
        for edge in np.flatnonzero(np.diff(y)) + 0.5:
            ax.axhline(edge, color="white", linewidth=0.5)
            ax.axvline(edge, color="white", linewidth=0.5)
        ax.set_xticks([])
        ax.set_yticks([])
    above.set_title(f"{name}\n{100 * subspace_preserving_error(C, y):.0f} % on other subspaces")
axes[0, 0].set_ylabel("coefficients")
axes[1, 0].set_ylabel("affinity")
plt.show()

# %%
# Sorted coefficients
# -------------------
# How fast a row's coefficients decay, and how much of what remains belongs to other subspaces.

figure, axes = plt.subplots(1, 4, figsize=(11, 2.8), sharey=True, layout="constrained")
other = y[:, None] != y[None, :]
for ax, (name, C) in zip(axes, coefficients.items(), strict=True):
    size = np.abs(C) / np.abs(C).max(axis=1, keepdims=True)
    order = np.argsort(-size, axis=1)
    ranked = np.take_along_axis(size, order, axis=1).mean(axis=0)
    wrong = np.take_along_axis(other, order, axis=1).mean(axis=0)
    own = ranked * (1 - wrong)
    ax.bar(range(1, 21), own[:20], label="own subspace")
    ax.bar(range(1, 21), (ranked - own)[:20], bottom=own[:20], label="other subspaces")
    ax.set_title(name)
    ax.set_xlabel("rank of the coefficient")
axes[0].set_ylabel("mean size, largest = 1")
axes[-1].legend()
plt.show()
