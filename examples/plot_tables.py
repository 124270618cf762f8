r"""
Tables for a paper
==================

Results are DataFrames: pandas writes the CSV file that one keeps and the LaTeX table that one
prints, with the best number of each column in bold.
"""

# %%
# Results
# -------
# Three methods on two data sets, over five seeds of k-means. Fitted once, coefficients are the
# same for all seeds; only the spectral step is repeated.

import tempfile
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from sklearn.datasets import load_digits
from sklearn.preprocessing import normalize

from twinsolve.datasets import make_union_of_subspaces
from twinsolve.solvers import (
    ElasticNetSubspaceClustering,
    LeastSquaresSubspaceClustering,
    SparseSubspaceClustering,
)
from twinsolve.solvers.clustering import spectral_labels
from twinsolve.solvers.metrics import clustering_accuracy

digits, target = load_digits(n_class=5, return_X_y=True)
data = {
    "digits 0 to 4": (normalize(digits[:400]), target[:400]),
    "subspaces": make_union_of_subspaces(
        40, n_subspaces=5, dimension=5, n_features=20, noise=0.4, random_state=0
    ),
}
methods = {
    "SSC": SparseSubspaceClustering(5, gamma=20),
    "EnSC": ElasticNetSubspaceClustering(5, gamma=20),
    "LSR": LeastSquaresSubspaceClustering(5),
}
rows = []
for source, (X, y) in data.items():
    for name, model in methods.items():
        affinity = model.fit(X).affinity_matrix_
        for seed in range(5):
            labels = spectral_labels(affinity, 5, random_state=seed)
            error = 100 * (1 - clustering_accuracy(y, labels))
            rows.append({"data": source, "method": name, "seed": seed, "error": error})
table = pd.DataFrame(rows)

# %%
# CSV
# ---
# Every run in a row: all summaries can be made of it later.

folder = Path(tempfile.mkdtemp())
table.to_csv(folder / "errors.csv", index=False)
print(pd.read_csv(folder / "errors.csv").head(3).to_string())

# %%
# LaTeX
# -----
# Mean and standard deviation over the seeds; the smallest error of a data set is set in bold.

summary = table.groupby(["method", "data"], sort=False)["error"].agg(["mean", "std"]).unstack()
mean, deviation = summary["mean"], summary["std"]
cells = mean.map("{:.2f}".format) + r" $\pm$ " + deviation.map("{:.2f}".format)
cells = cells.where(mean > mean.min(), r"\textbf{" + cells + "}")
latex = cells.rename_axis(index=None, columns=None).to_latex(
    column_format="lrr", caption="Clustering error in \\%.", label="tab:errors"
)
(folder / "errors.tex").write_text(latex, encoding="utf-8")
print(latex)

# %%
# The figure of the same table
# ----------------------------

figure, ax = plt.subplots(figsize=(6, 3.2), layout="constrained")
places = np.arange(len(mean.columns))
for number, name in enumerate(mean.index):
    shift = 0.25 * (number - 1)
    ax.bar(places + shift, mean.loc[name], 0.23, yerr=deviation.loc[name], capsize=3, label=name)
ax.set_xticks(places, mean.columns)
ax.set_ylabel("clustering error in %")
ax.set_title("Mean and deviation over five seeds of k-means")
ax.legend()
plt.show()
