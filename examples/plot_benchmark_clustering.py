"""
Benchmark subspace-clustering methods
=====================================

Five solved methods, one learned method and a baseline cluster the same noisy points on five
subspaces. Each method is a scikit-learn estimator, so the benchmark is a loop; the command
``twinsolve cluster`` runs the same loop over data sets, settings and seeds, and keeps what is
finished.
"""

# %%
# The points
# ----------
# Each of five subspaces of dimension six holds 40 points in 12 dimensions, so that the subspaces
# meet, and the noise is a fifth of the signal.

import time

import matplotlib.pyplot as plt
import pandas as pd
from sklearn.metrics import normalized_mutual_info_score

from twinsolve.datasets import make_union_of_subspaces
from twinsolve.solvers import (
    ElasticNetSubspaceClustering,
    LeastSquaresSubspaceClustering,
    LowRankSubspaceClustering,
    OMPSubspaceClustering,
    SparseSubspaceClustering,
    ThresholdingSubspaceClustering,
)
from twinsolve.solvers.metrics import (
    clustering_accuracy,
    connectivity,
    subspace_preserving_error,
)
from twinsolve.unrolled.clustering import UnrolledSubspaceClustering

methods = {
    "sparse (SSC)": lambda seed: SparseSubspaceClustering(5, gamma=20, random_state=seed),
    "elastic net (EnSC)": lambda seed: ElasticNetSubspaceClustering(
        5, gamma=20, l1_ratio=0.5, random_state=seed
    ),
    "matching pursuit (OMP)": lambda seed: OMPSubspaceClustering(5, n_nonzero=6, random_state=seed),
    "ridge (LSR)": lambda seed: LeastSquaresSubspaceClustering(5, random_state=seed),
    "low rank (LRSC)": lambda seed: LowRankSubspaceClustering(5, random_state=seed),
    "unrolled SSC, learned": lambda seed: UnrolledSubspaceClustering(
        5, gamma=20, max_iter=50, random_state=seed
    ),
    "thresholding (TSC)": lambda seed: ThresholdingSubspaceClustering(5, random_state=seed),
}

# %%
# The loop
# --------
# The accuracy is that of the best one-to-one matching of clusters to classes. The share of wrong
# mass says how much of a point's coefficients lies on points of other subspaces: it judges the
# coefficients before the spectral step has its say. Connectivity is zero where a true cluster
# falls apart in the graph: then no spectral step can mend it, however right the coefficients
# are, as happens to matching pursuit here. Each trial draws new points.

rows = []
for trial in range(4):
    X, y = make_union_of_subspaces(
        40, n_subspaces=5, dimension=6, n_features=12, noise=0.2, random_state=trial
    )
    for name, make in methods.items():
        start = time.perf_counter()
        model = make(trial).fit(X)
        seconds = time.perf_counter() - start
        rows.append(
            {
                "method": name,
                "trial": trial,
                "error %": 100 * (1 - clustering_accuracy(y, model.labels_)),
                "NMI": normalized_mutual_info_score(y, model.labels_),
                "wrong mass": subspace_preserving_error(model.coef_, y),
                "connectivity": connectivity(model.affinity_matrix_, y),
                "seconds": seconds,
            }
        )
table = pd.DataFrame(rows)
means = table.groupby("method", sort=False)[["error %", "NMI", "wrong mass", "connectivity"]].mean()
print(means.round(3).to_string())

# %%
# The same numbers as a figure
# ----------------------------
# A dot is a trial, the line the mean over the trials.

figure, ax = plt.subplots(figsize=(7, 3.5), layout="constrained")
for place, (_, group) in enumerate(table.groupby("method", sort=False)):
    ax.plot(group["error %"], [place] * len(group), "o", color="tab:blue", alpha=0.5)
    ax.plot([group["error %"].mean()] * 2, [place - 0.3, place + 0.3], color="black")
ax.set_yticks(range(len(methods)), methods)
ax.invert_yaxis()
ax.set_xlim(left=0)
ax.set_xlabel("clustering error in %")
ax.set_title("Clustering error of seven methods in four trials")
ax.grid(axis="x", alpha=0.3)
plt.show()

# %%
# Times are in the table too, but the first fit includes the compilation of Numba's kernels and the
# trials are small. ``twinsolve cluster`` measures in a process of its own and prints ratios.
