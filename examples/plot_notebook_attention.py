"""
Notebook: replace attention and judge it
========================================

A notebook to start from. Replace the model of the first cell by yours, and run all cells. It puts
another operator into the model, checks it, and judges whether it helps: by paired seeds, with an
interval. The link at the end of the page gives the notebook.
"""

# %%
# Data and a model
# ----------------
# Any model whose attention is `torch.nn.MultiheadAttention`, or has ``qkv`` and ``proj`` as in
# timm, will do. This one classifies digits of 8 x 8 pixels, cut into 16 tokens.

import matplotlib.pyplot as plt
import pandas as pd
import torch
from sklearn.datasets import load_digits
from torch import nn

import twinsolve
from twinsolve.bench import judge, paired_difference
from twinsolve.twins import fit_origin
from twinsolve.unrolled import Gaussian, SparseCoding, replace_attention

X, y = load_digits(return_X_y=True)
images = torch.tensor(X / 16, dtype=torch.float32).reshape(-1, 1, 8, 8)
labels = torch.tensor(y)
train, test = torch.arange(1400), torch.arange(1400, len(y))


class SmallTransformer(nn.Module):
    """Two layers of four heads."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Conv2d(1, 32, 2, stride=2)
        self.positions = nn.Parameter(0.1 * torch.randn(16, 32))
        layer = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2)
        self.head = nn.Linear(32, 10)

    def forward(self, images):
        """Logits of the ten digits."""
        tokens = self.embed(images).flatten(2).mT + self.positions
        return self.head(self.encoder(tokens).mean(dim=1))


def make(operator, seed):
    """The model with an operator; models of one seed start with the same weights."""
    torch.manual_seed(seed)
    return replace_attention(SmallTransformer(), operator)


# %%
# Check the operator in the model
# -------------------------------
# Every layer is compared with its solver, on the tokens that reach it, and with the laws of
# attention. A model that fails here needs no training.

report = twinsolve.check(make("twicing", 0), images[:8])
report

# %%
# Train with paired seeds
# -----------------------
# Both rows of a seed see the same start and the same batches. What differs is the operator.


def train_and_test(operator, seed, epochs=5):
    """Accuracy on the test images, in %."""
    model = make(operator, seed)
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    generator = torch.Generator().manual_seed(seed)
    for _ in range(epochs):
        for batch in train[torch.randperm(len(train), generator=generator)].split(50):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(images[batch]), labels[batch]).backward()
            optimizer.step()
    with torch.no_grad():
        return 100 * (model.eval()(images[test]).argmax(1) == labels[test]).float().mean().item()


seeds = range(3)
accuracy = pd.DataFrame(
    {name: {seed: train_and_test(name, seed) for seed in seeds} for name in ("softmax", "twicing")}
)
figure, ax = plt.subplots(figsize=(5, 3), layout="constrained")
ax.plot(accuracy.columns, accuracy.T, color="0.7")
ax.plot(accuracy.columns, accuracy.T, "o")
ax.set_ylabel("accuracy on test images, %")
ax.set_title("Each line is a seed")
plt.show()
accuracy.round(1)

# %%
# Judge
# -----
# The interval is of the difference, over the seeds. Three seeds settle little: the last column says
# how large a difference has to be to be seen with a power of 80 %.

difference = paired_difference(accuracy["twicing"], accuracy["softmax"])
verdict = judge({"twicing": difference})["twicing"]
names = ("difference, points", "p", "verdict", "seen with 80 % power")
pd.DataFrame([verdict.cells], index=["twicing"], columns=names)

# %%
# Which problem does a layer solve?
# ---------------------------------
# A layer may come closest to the problem of another family than its own. Here a layer of kernel
# smoothing, at a bandwidth that is not its own, is recognised.

tokens = torch.randn(24, 8, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
fit_origin(Gaussian(bandwidth=2.0), tokens, problem=[Gaussian(), SparseCoding(0.1)])
