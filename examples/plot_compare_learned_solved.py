"""
Compare learned with solved coefficients
========================================

Plain ISTA, ISTA with learned steps and the certified solver code the same points by each other.
The layers are trained without labels; what is compared is how close their coefficients come to
the optimum after the same number of iterations.
"""

# %%
# The problem and its solution
# ----------------------------
# Row i of C minimises :math:`|x_i - c X|^2 + \lambda_i |c|_1` with :math:`c_i = 0`. The penalty
# is relative: :math:`\lambda_i` is a tenth of the one at which the row becomes zero.

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd

import twinsolve
from twinsolve.datasets import make_union_of_subspaces
from twinsolve.solvers import sparse_self_expression
from twinsolve.solvers.self_expression import lam_from_gamma
from twinsolve.solvers.sparse_coding import lasso_objective
from twinsolve.unrolled.clustering import UnrolledSubspaceClustering

gamma = 10.0
X, y = make_union_of_subspaces(40, n_subspaces=4, noise=0.2, random_state=0)
lam = lam_from_gamma(X, gamma)
solution = sparse_self_expression(X, lam=lam)
print(f"largest certified gap of a row: {solution.gap.max():.1e}")


def objective(C):
    """The objective of all rows together."""
    return lasso_objective(X, X, C, lam=lam).sum()


# %%
# Unrolled layers, before and after training
# ------------------------------------------
# ``max_iter`` counts training steps: with 0 the layers are ISTA at the safe step
# :math:`1/\|X\|_2^2`. `compare` takes any coefficients, layers or functions; with an objective it
# also reports the gap :math:`(F(C) - F(C^*)) / |X|_F^2`.

rows = []
coefficients = {}
for n_layers in (2, 5, 10, 20):
    for name, steps in {"plain ISTA": 0, "learned steps": 60}.items():
        model = UnrolledSubspaceClustering(
            4, n_layers=n_layers, gamma=gamma, max_iter=steps, random_state=0
        ).fit(X)
        coefficients[name, n_layers] = model.coef_
        numbers = twinsolve.compare(model.coef_, solution, X, objective=objective)
        rows.append({"layers": n_layers, "coefficients": name, **numbers})
table = pd.DataFrame(rows)
columns = ["layers", "coefficients", "distance", "support_f1", "residual", "gap"]
print(table[columns].round(4).to_string(index=False))

# %%
# What training buys
# ------------------
# Learned steps are longer than the safe one and each layer has its own. They come closer with the
# same number of layers, and still far from the solver, whose gap is certified.

figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.4), layout="constrained")
for name, group in table.groupby("coefficients", sort=False):
    left.semilogy(group["layers"], group["gap"], "o-", label=name)
    right.plot(group["layers"], group["support_f1"], "o-", label=name)
left.set_title("Distance to the optimum of the objective")
left.set_ylabel("gap, relative to the squared norm of X")
right.set_title("Agreement of the non-zero entries")
right.set_ylabel("F1 score against the solution")
for ax in (left, right):
    ax.set_xlabel("layers")
    ax.set_xticks(sorted(set(table["layers"])))
    ax.grid(alpha=0.3)
left.legend()
plt.show()

# %%
# The coefficients themselves
# ---------------------------
# The points are sorted by subspace. All three matrices have the same colour scale.

order = np.argsort(y, kind="stable")
matrices = {
    "plain ISTA, 10 layers": coefficients["plain ISTA", 10],
    "learned steps, 10 layers": coefficients["learned steps", 10],
    "certified solution": solution.coef,
}
figure, axes = plt.subplots(1, 3, figsize=(10, 3.6), layout="constrained")
scale = np.quantile(abs(solution.coef.data), 0.8)
for ax, (title, C) in zip(axes, matrices.items(), strict=True):
    image = ax.imshow(abs(C).toarray()[np.ix_(order, order)], cmap="magma", vmin=0, vmax=scale)
    ax.set_title(title)
    ax.set_xticks([])
    ax.set_yticks([])
figure.colorbar(image, ax=axes, label="size of the coefficient", shrink=0.8)
plt.show()
