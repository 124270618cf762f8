"""
Differentiate through a sparse problem
======================================

A dictionary is trained for a task through its sparse codes. The codes are the certified solution
of a Lasso, and its gradient is exact, so that neither depends on a number of iterations.
"""

# %%
# Codes with a gradient
# ---------------------
# Row i of the codes minimises :math:`|x_i - c A|^2 + \lambda |c|_1`. The record says how good they
# are: the largest duality gap, and how far the rows are from a point where codes have no gradient.

import matplotlib.pyplot as plt
import torch
from sklearn.datasets import load_digits
from sklearn.preprocessing import normalize
from sklearn.utils import shuffle
from torch import nn

from twinsolve.solvers import ksvd
from twinsolve.unrolled import solved_lasso
from twinsolve.unrolled.solved import LassoEncoder

X, y = shuffle(*load_digits(return_X_y=True), random_state=0)
X = normalize(X)
atoms = ksvd(X[:1000], n_atoms=64, n_nonzero=5, n_iter=10, random_state=0)[0]
signals, labels = torch.from_numpy(X).float(), torch.from_numpy(y)
start = torch.from_numpy(atoms).float()

lam = torch.tensor(0.2, requires_grad=True)
codes, record = solved_lasso(signals[:100], start, lam=lam, return_record=True)
codes.abs().sum().backward()
print(f"largest gap {record.gap.max():.0e}, smallest margin {record.margin.min():.0e}")
print(f"a larger penalty shrinks codes: {lam.grad:.1f} for a change of 1")

# %%
# A dictionary for a task
# -----------------------
# The first classifier sees codes in atoms of K-SVD, which reconstruct images. The second trains
# the atoms, and the penalty, through the codes. The numbers of the images tell the encoder which
# ones it has coded before, so that the next epoch starts there.


def train(encoder, n_epochs=30):
    torch.manual_seed(0)
    readout = nn.Linear(64, 10)
    trained = [*readout.parameters(), *(p for p in encoder.parameters() if p.requires_grad)]
    optimizer, accuracies = torch.optim.Adam(trained, 3e-3), []
    rates = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, n_epochs)
    for _ in range(n_epochs):
        for rows in torch.randperm(1000).split(100):
            loss = nn.functional.cross_entropy(readout(encoder(signals[rows], rows)), labels[rows])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        rates.step()
        with torch.no_grad():
            right = readout(encoder(signals[1000:])).argmax(dim=1) == labels[1000:]
        accuracies.append(100 * right.float().mean().item())
    return accuracies


fixed, trained = LassoEncoder(start, lam=0.2).requires_grad_(False), LassoEncoder(start, lam=0.2)
accuracies = {"atoms of K-SVD": train(fixed), "atoms trained through codes": train(trained)}
for name, values in accuracies.items():
    print(f"{name}: {values[-1]:.1f} % of new digits")

# %%
# What the task changes
# ---------------------
# Atoms of K-SVD look like digits; trained ones also hold fine patterns that tell digits apart.

figure, axes = plt.subplots(1, 3, figsize=(10, 3.2), width_ratios=(1.3, 1, 1))
for name, values in accuracies.items():
    axes[0].plot(range(1, len(values) + 1), values, label=name)
axes[0].set(xlabel="epoch", ylabel="accuracy, %", title="New digits")
axes[0].legend()
for axis, (name, encoder) in zip(
    axes[1:], {"K-SVD": fixed, "trained": trained}.items(), strict=True
):
    tiles = encoder.atoms().detach()[:36].view(6, 6, 8, 8)
    tiles = nn.functional.pad(tiles / tiles.abs().amax((-2, -1), keepdim=True), (0, 1, 0, 1))
    axis.imshow(tiles.transpose(1, 2).reshape(54, 54), cmap="coolwarm", vmin=-1, vmax=1)
    axis.set(title=f"36 atoms, {name}")
    axis.axis("off")
figure.tight_layout()
plt.show()
