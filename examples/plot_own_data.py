"""
Cluster points of your own
==========================

Points and labels come from a ``.mat`` file, as most of the field's data sets do. The example
writes such a file first; with a file of your own, start at the second step.
"""

# %%
# A MATLAB file
# -------------
# Points are rows, and labels a vector of the same length. Without keys, `load_points` takes the
# array named X, x, data, fea or features, and the labels named y, target, targets, label, labels,
# gnd, gt or s. Here both have other names.

import tempfile
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
from scipy.io import savemat
from scipy.optimize import linear_sum_assignment
from sklearn.manifold import spectral_embedding
from sklearn.metrics import confusion_matrix

from twinsolve.datasets import load_points, make_union_of_subspaces
from twinsolve.solvers import SparseSubspaceClustering
from twinsolve.solvers.metrics import clustering_accuracy

X, y = make_union_of_subspaces(50, n_subspaces=3, noise=0.7, random_state=0)
path = Path(tempfile.mkdtemp()) / "faces.mat"
savemat(path, {"pixels": X, "person": y + 1})

# %%
# Load it
# -------
# Labels may be any numbers or strings: they are counted from zero, and ``target_names`` gives back
# what the file holds. A look at the shape pays: files of the field often hold one point a column,
# and a transposed matrix clusters pixels without complaint.

points = load_points(path, data_key="pixels", target_key="person")
print("points and features:", points.data.shape)
print("labels in the file:", points.target_names)
print("points with each label:", np.bincount(points.target))

# %%
# Cluster it
# ----------

model = SparseSubspaceClustering(n_clusters=3, gamma=20, random_state=0).fit(points.data)
accuracy = clustering_accuracy(points.target, model.labels_)
print(f"clustering error: {100 * (1 - accuracy):.1f} %")
print(f"largest certified gap of a point: {model.gap_.max():.1e}")

# %%
# Look at it
# ----------
# The spectral embedding of the affinity is what k-means clusters. Colours are the clusters that
# were found; a cross marks a point in the wrong one.

table = confusion_matrix(points.target, model.labels_)
_, best = linear_sum_assignment(table, maximize=True)
wrong = model.labels_ != best[points.target]
plane = spectral_embedding(model.affinity_matrix_.toarray(), n_components=2, random_state=0)
figure, ax = plt.subplots(figsize=(5.5, 4.5), layout="constrained")
for cluster in range(3):
    members = plane[model.labels_ == cluster]
    ax.scatter(*members.T, s=18, label=f"cluster {cluster + 1}")
ax.scatter(*plane[wrong].T, marker="x", color="black", label=f"wrong ({wrong.sum()})")
ax.set_xlabel("first eigenvector")
ax.set_ylabel("second eigenvector")
ax.set_title(f"{100 * (1 - accuracy):.1f} % of the points are in the wrong cluster")
ax.legend()
plt.show()

# %%
# The command line takes the same file, with its keys after a colon:
#
# .. code-block:: sh
#
#    twinsolve cluster faces.mat:data_key=pixels,target_key=person --method SSC --method EnSC
#
# ``.npz``, ``.npy``, ``.h5`` and IDX files and tables, such as ``.csv`` or ``.tsv.gz``, are read in
# the same way.
