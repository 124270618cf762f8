"""
Notebook: cluster your own points
=================================

A notebook to start from. Replace the points of the first cell by yours, and run all cells. It
chooses a method without labels, and says how far the choice can be trusted. The link at the end of
the page gives the notebook.
"""

# %%
# Points
# ------
# Points are rows: an array, a frame or a sparse matrix. `load_points` reads files, such as
# ``load_points("mine.csv").data``. These are 200 digits, whose labels serve at the end alone.

import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_digits
from sklearn.metrics import adjusted_rand_score
from sklearn.preprocessing import normalize

from twinsolve.solvers import (
    LeastSquaresSubspaceClustering,
    OMPSubspaceClustering,
    SparseSubspaceClustering,
    choose_clusterer,
    choose_settings,
    clustering_accuracy,
    sparse_self_expression,
)
from twinsolve.solvers.self_expression import lam_from_gamma

digits = load_digits(n_class=5)
X, n_clusters = normalize(digits.data[:200]), 5
X.shape

# %%
# Coefficients
# ------------
# Every point is represented by the other points. The largest gap proves that the coefficients are
# those of the problem, not of an iteration that was stopped early.

solution = sparse_self_expression(X, lam=lam_from_gamma(X, gamma=20))
solution

# %%
# A setting, without labels
# -------------------------
# The score asks whether the clusters are separated and balanced.

model = SparseSubspaceClustering(n_clusters, random_state=0)
chosen = choose_settings(model, X, {"gamma": [5, 20, 80, 320]})
chosen

# %%
# A method, without labels
# ------------------------
# The choice is the candidate whose clusters the other good candidates confirm.

candidates = [
    *(SparseSubspaceClustering(n_clusters, gamma=g, random_state=0) for g in (5, 20, 80)),
    *(LeastSquaresSubspaceClustering(n_clusters, lam=lam, random_state=0) for lam in (0.01, 0.1)),
    *(OMPSubspaceClustering(n_clusters, n_nonzero=n, random_state=0) for n in (3, 5)),
]
best = choose_clusterer(candidates, X)
best

# %%
# Can it be trusted?
# ------------------
# Clusters that stay when a tenth of the points is missing are a property of the points. An
# agreement of 1 is the same clusters, of 0 chance.

labels = best.estimator.labels_
rng = np.random.default_rng(0)
agreements = []
for _ in range(5):
    kept = np.sort(rng.choice(len(X), 9 * len(X) // 10, replace=False))
    again = best.estimator.fit(X[kept]).labels_
    agreements.append(adjusted_rand_score(labels[kept], again))
print(f"agreement without a tenth of the points: {min(agreements):.2f} to {max(agreements):.2f}")

# %%
# Look at it
# ----------
# Coefficients of points, sorted by their cluster: entries outside the blocks join points of
# different clusters.

order = np.argsort(labels, kind="stable")
sizes = np.abs(solution.coef.toarray())[np.ix_(order, order)]
figure, ax = plt.subplots(figsize=(5, 5), layout="constrained")
ax.imshow(sizes, cmap="bone_r", vmax=np.quantile(sizes[sizes > 0], 0.99))
ax.set_title(f"{len(X)} points, sorted by cluster")
ax.set_xlabel("representing point")
ax.set_ylabel("represented point")
plt.show()

# %%
# With labels, the error of the choice is known.

error = 100 * (1 - clustering_accuracy(digits.target[:200], labels))
print(f"{error:.1f} % of the points are in the wrong cluster")

# %%
# The command line does the same for a file, and `twinsolve report` shows it in a page:
#
# .. code-block:: sh
#
#    twinsolve cluster mine.csv --auto --n-clusters 5
#    twinsolve report
