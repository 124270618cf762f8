"""
Use a layer in a model and check it
===================================

A small vision transformer learns digits with softmax attention. Its attention is then replaced by
other operators, which keep its weights; each new model is checked layer by layer against its
solvers, and its accuracy is measured before and after some tuning.
"""

# %%
# A model of one's own
# --------------------
# Nothing in it comes from twinsolve: patches of 2 x 2 pixels, `torch.nn.TransformerEncoder`, a mean
# over the tokens.

import copy

import matplotlib.pyplot as plt
import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import nn

import twinsolve
from twinsolve.unrolled import replace_attention


class SmallTransformer(nn.Module):
    """Digits of 8 x 8 pixels, cut into 16 tokens."""

    def __init__(self, dim=32, heads=4, depth=2):
        super().__init__()
        self.embed = nn.Conv2d(1, dim, 2, stride=2)
        self.positions = nn.Parameter(0.1 * torch.randn(16, dim))
        layer = nn.TransformerEncoderLayer(dim, heads, 2 * dim, dropout=0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, depth)
        self.head = nn.Linear(dim, 10)

    def forward(self, images):
        """Logits of the ten digits."""
        tokens = self.embed(images).flatten(2).mT + self.positions
        return self.head(self.encoder(tokens).mean(dim=1))


X, y = load_digits(return_X_y=True)
images = torch.tensor(X / 16, dtype=torch.float32).reshape(-1, 1, 8, 8)
labels = torch.tensor(y)
order = np.random.default_rng(0).permutation(len(y))
train, test = order[:1400], order[1400:]


def fit(model, epochs, seed=0):
    """Train on batches of 100 images with Adam."""
    generator = torch.Generator().manual_seed(seed)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    model.train()
    for _ in range(epochs):
        for batch in torch.randperm(len(train), generator=generator).split(100):
            optimizer.zero_grad()
            chosen = train[batch.numpy()]
            nn.functional.cross_entropy(model(images[chosen]), labels[chosen]).backward()
            optimizer.step()
    return model.eval()


def accuracy(model):
    """Share of the test images that are recognised, in %."""
    with torch.no_grad():
        return 100 * (model(images[test]).argmax(dim=1) == labels[test]).float().mean().item()


torch.manual_seed(0)
model = fit(SmallTransformer(), epochs=10)
print(f"softmax attention: {accuracy(model):.1f} %")

# %%
# Replace and check
# -----------------
# `replace_attention` puts an operator between the projections of every self attention, and keeps
# the weights and the names in the state dict. With "softmax" nothing changes, which is worth a look
# before anything else is tried.

same = replace_attention(copy.deepcopy(model), "softmax")
with torch.no_grad():
    change = (same(images[test]) - model(images[test])).abs().max().item()
print(f"largest change of a logit by replacing softmax with softmax: {change:.1e}")

# %%
# `check` runs the model once and holds every operator in it against its solver, on the queries,
# keys and values that reach it, at its present parameters.

twicing = replace_attention(copy.deepcopy(model), "twicing")
report = twinsolve.check(twicing, images[test[:16]])
print(report)
assert report

# %%
# What the swap costs
# -------------------
# The weights were trained for softmax. Another operator makes another model of them, less accurate
# until it is tuned: here for three epochs, which softmax attention is given too.

results = {}
for name in ("softmax", "twicing", "neutreno", "sparsemax", "sparse_coding", "ridge"):
    swapped = replace_attention(copy.deepcopy(model), name)
    before = accuracy(swapped)
    results[name] = before, accuracy(fit(swapped, 3))
    print(f"{name:14} {before:5.1f} % as swapped, {results[name][1]:5.1f} % after three epochs")

figure, ax = plt.subplots(figsize=(7, 3.4), layout="constrained")
places = np.arange(len(results))
for shift, (title, values) in zip(
    (-0.2, 0.2),
    zip(
        ("as swapped", "after three more epochs"), zip(*results.values(), strict=True), strict=True
    ),
    strict=True,
):
    ax.bar(places + shift, values, width=0.38, label=title)
ax.axhline(10, color="black", linestyle=":", linewidth=1, label="chance")
ax.set_xticks(places, [name.replace("_", " ") for name in results])
ax.set_ylabel("accuracy in %")
ax.set_title("Another operator in a trained model costs accuracy until it is tuned")
ax.set_ylim(0, 119)
ax.legend(loc="upper center", ncols=3)
plt.show()

# %%
# A single layer
# --------------
# A function of the layer's name chooses; where it returns None the layer keeps its own attention.

mixed = replace_attention(
    copy.deepcopy(model), lambda name: "twicing" if name == "encoder.layers.1.self_attn" else None
)
print(f"twicing in the second layer alone: {accuracy(mixed):.1f} %")
