"""
Choose the penalty of self-expression
=====================================

Too large a penalty leaves points without coefficients, too small a one lets other subspaces in.
No fixed value of lambda suits all points; one relative to each point's own largest correlation
does.
"""

# %%
# A relative penalty
# ------------------
# A row of :math:`|x_i - c X|^2 + \lambda |c|_1` is zero from
# :math:`\lambda = 2 \max_{j \ne i} |x_i \cdot x_j|` on. `gamma` divides that: 1 gives zeros,
# 50 is the estimator's default, and large values approach the noiseless problem. `lam_from_gamma`
# gives the penalty of each row.

import matplotlib.pyplot as plt
import pandas as pd

from twinsolve.datasets import make_union_of_subspaces
from twinsolve.solvers import SparseSubspaceClustering, sparse_self_expression
from twinsolve.solvers.clustering import selection_score
from twinsolve.solvers.metrics import (
    clustering_accuracy,
    connectivity,
    subspace_preserving_error,
)
from twinsolve.solvers.self_expression import lam_from_alpha, lam_from_gamma

X, y = make_union_of_subspaces(
    40, n_subspaces=5, dimension=6, n_features=12, noise=0.2, random_state=0
)
lam = lam_from_gamma(X, gamma=20)
print(f"penalties of the rows at gamma = 20: {lam.min():.3f} to {lam.max():.3f}")
print(f"one for all rows, as in the SSC paper at alpha = 20: {lam_from_alpha(X, 20):.3f}")
solution = sparse_self_expression(X, lam=lam)
print(f"non-zeros a row: {solution.coef.nnz / len(X):.1f}, gap {solution.gap.max():.0e}")

# %%
# What gamma trades
# -----------------
# The error needs labels. The score does not: it asks for separated clusters of comparable size
# in the spectral embedding, and ``twinsolve cluster`` chooses settings by it.

rows = []
for gamma in (1.5, 2, 3, 5, 8, 20, 50, 200):
    model = SparseSubspaceClustering(5, gamma=gamma, random_state=0).fit(X)
    affinity = model.affinity_matrix_
    rows.append(
        {
            "gamma": gamma,
            "non-zeros a row": model.coef_.nnz / len(X),
            "wrong mass": subspace_preserving_error(model.coef_, y),
            "connectivity": connectivity(affinity, y),
            "score": selection_score(affinity, model.labels_, 5),
            "error %": 100 * (1 - clustering_accuracy(y, model.labels_)),
        }
    )
table = pd.DataFrame(rows).set_index("gamma")
chosen = table["score"].idxmax()
print(table.round(3).to_string())
print(f"chosen without labels: gamma = {chosen}, error {table.loc[chosen, 'error %']:.1f} %")

# %%
figure, axes = plt.subplots(1, 3, figsize=(11, 3.4), layout="constrained")
for ax, (column, title) in zip(
    axes,
    {
        "wrong mass": "Mass on points of other subspaces",
        "connectivity": "Connectivity of the worst cluster",
        "error %": "Clustering error in %",
    }.items(),
    strict=True,
):
    ax.semilogx(table.index, table[column], "o-")
    ax.axvline(chosen, color="black", linestyle=":", label="chosen without labels")
    ax.set_title(title)
    ax.set_xlabel("gamma")
    ax.set_ylim(bottom=0)
    ax.grid(alpha=0.3)
axes[0].legend()
plt.show()
