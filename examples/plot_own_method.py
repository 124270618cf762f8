"""
Cluster by a method of your own
===============================

A clusterer is any scikit-learn estimator with ``fit_predict``. If it leaves its coefficients in
``coef_``, it can be judged, plotted and compared as the methods of the project are.
"""

# %%
# The method
# ----------
# Cosines between points, of which each point keeps the largest few: inner-product thresholding in a
# few lines. The spectral step and the affinity are the project's.

import matplotlib.pyplot as plt
import numpy as np
from scipy.sparse import csr_array
from sklearn.base import BaseEstimator, ClusterMixin
from sklearn.preprocessing import normalize

from twinsolve.datasets import make_union_of_subspaces
from twinsolve.solvers import SparseSubspaceClustering
from twinsolve.solvers.clustering import keep_largest, spectral_labels, symmetric_affinity
from twinsolve.solvers.metrics import clustering_accuracy, subspace_preserving_error


class CosineClustering(ClusterMixin, BaseEstimator):
    """Each point is joined to the `n_entries` points at the smallest angle."""

    def __init__(self, n_clusters=8, *, n_entries=4, random_state=None):
        self.n_clusters = n_clusters
        self.n_entries = n_entries
        self.random_state = random_state

    def fit(self, X, y=None):
        """Cluster the rows of X."""
        unit = normalize(X)
        cosines = np.abs(unit @ unit.T)
        np.fill_diagonal(cosines, 0)
        self.coef_ = csr_array(keep_largest(cosines, self.n_entries))
        self.affinity_matrix_ = symmetric_affinity(self.coef_)
        self.labels_ = spectral_labels(
            self.affinity_matrix_, self.n_clusters, random_state=self.random_state
        )
        return self


# %%
# Beside a method of the project
# ------------------------------
# Neighbours by angle are of the same subspace where its points are dense. Sparse coefficients
# combine points, so that a few of a subspace suffice.

counts = (8, 12, 16, 24, 40, 80)
makers = {
    "cosines (ours)": lambda: CosineClustering(4, random_state=0),
    "sparse (SSC)": lambda: SparseSubspaceClustering(4, gamma=20, random_state=0),
}
errors = {name: [] for name in makers}
wrong = {name: [] for name in makers}
for count in counts:
    X, y = make_union_of_subspaces(
        count, n_subspaces=4, dimension=4, n_features=10, noise=0.1, random_state=1
    )
    for name, make in makers.items():
        model = make().fit(X)
        errors[name].append(100 * (1 - clustering_accuracy(y, model.labels_)))
        wrong[name].append(subspace_preserving_error(model.coef_, y))

figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.4), layout="constrained")
for name in makers:
    left.plot(counts, errors[name], "o-", label=name)
    right.plot(counts, wrong[name], "o-", label=name)
left.set_ylabel("clustering error in %")
left.set_title("Clusters")
right.set_ylabel("share of mass on other subspaces")
right.set_title("Coefficients")
for ax in (left, right):
    ax.set_xlabel("points in each subspace")
    ax.set_ylim(bottom=0)
    ax.grid(alpha=0.3)
left.legend()
plt.show()

# %%
# On the command line
# -------------------
# Saved as ``my_method.py`` in the present folder, the class joins the table of the others by its
# name. All chains of affinity steps are applied to its ``coef_``:
#
# .. code-block:: sh
#
#    twinsolve cluster digits --method SSC --method my_method:CosineClustering
