"""
An operator of your own, with its twin
======================================

A layer is an `Operator`; its twin says which classical problem it solves and how its parameters
become the solver's arguments. Both are written here, outside of the package: then `check` judges
the layer as it judges the project's own.
"""

# %%
# The layer
# ---------
# Kernel regression with the heavy-tailed kernel :math:`k(r) = (1 + r^2 / s^2)^{-1}`: far tokens
# keep a say. A `SoftmaxSmoother` is given by its logits, here :math:`\log k`. The bandwidth is a
# `Positive`: trained by its logarithm, and one for each head.

import matplotlib.pyplot as plt
import numpy as np
import torch

import twinsolve
from twinsolve.datasets import make_union_of_subspaces
from twinsolve.solvers import nadaraya_watson
from twinsolve.twins import Identity, Numerics, Twin, head_value, register
from twinsolve.unrolled import Attention, Gaussian
from twinsolve.unrolled.attention import Positive, SoftmaxSmoother


class Cauchy(SoftmaxSmoother):
    """Nadaraya-Watson regression with the kernel 1 / (1 + |q - k|^2 / s^2)."""

    def __init__(self, bandwidth, *, num_heads=None, learnable=False, dtype=None):
        super().__init__()
        self.bandwidth = Positive(
            bandwidth, name="bandwidth", num_heads=num_heads, learnable=learnable, dtype=dtype
        )

    def logits(self, call):
        """Logarithms of the kernel."""
        squares = (call.q[..., :, None, :] - call.k[..., None, :, :]).square().sum(dim=-1)
        return -torch.log1p(squares / self.bandwidth() ** 2)

    def attend(self, call):
        """The explicit matrix times the values: simple, and quadratic in memory."""
        return self.coefficients(call) @ call.v


# %%
# The twin
# --------
# `solve` gets one head at a time, in float64, and never calls the layer: it may read parameters
# alone. The solver sums kernels in NumPy; the layer is a softmax in PyTorch.


def solve(layer, call):
    """Kernel regression at the layer's bandwidth."""
    bandwidth = head_value(layer.bandwidth, call.head)
    return nadaraya_watson(
        call.q, call.k, call.v, bandwidth=bandwidth, kernel=lambda r: 1 / (1 + r**2)
    )


def logit_range(layer, q, k, v):
    """Largest logit, by which the tolerance in float32 grows."""
    farthest = np.ptp(np.concatenate([q, k], axis=-2), axis=-2)
    return float(np.log1p((farthest**2).sum(axis=-1).max() / head_value(layer.bandwidth, 0) ** 2))


twin = register(
    Twin(
        name="cauchy-attention",
        family="mine",
        relation=Identity(),
        equation="SE-5",
        source="an example",
        layer=Cauchy,
        build=lambda q, k, v: Cauchy(0.5, dtype=torch.float64),
        solve=solve,
        fitted={"bandwidth": None},
        numerics=Numerics(logit_range=logit_range),
    )
)

# %%
# The check
# ---------
# In float64 to 1e-10, and in float32 to the rounding that the range of the logits explains. The
# same holds inside a multi-head shell, whose projections are then part of the layer.

X, y = make_union_of_subspaces(40, n_subspaces=3, n_features=16, noise=0.1, random_state=0)
report = twinsolve.check(Cauchy(0.5, dtype=torch.float64), X)
print(report)
assert report

torch.manual_seed(0)
shell = Attention(16, 4, operator=Cauchy(0.5, num_heads=4, learnable=True))
print(twinsolve.check(shell, X))

# %%
# A check that cannot fail says nothing. A layer that forgot the square of the bandwidth is caught:


class Mistaken(Cauchy):
    """Divides by s in place of its square."""

    def logits(self, call):
        """Logarithms of another kernel."""
        squares = (call.q[..., :, None, :] - call.k[..., None, :, :]).square().sum(dim=-1)
        return -torch.log1p(squares / self.bandwidth())


report = twinsolve.check(Mistaken(0.5, dtype=torch.float64), X)
print(report)
assert not report

# %%
# What the operator does
# ----------------------
# Weights of one token on all others, sorted by distance: a Gaussian forgets far tokens, this kernel
# does not.

tokens = torch.tensor(X)
distance = torch.cdist(tokens[:1], tokens)[0]
figure, ax = plt.subplots(figsize=(6, 3.4), layout="constrained")
for name, layer in {
    "Cauchy": Cauchy(0.5, dtype=torch.float64),
    "Gaussian": Gaussian(0.5, dtype=torch.float64),
}.items():
    weights = layer.matrix(tokens, tokens)[0].detach()
    ax.semilogy(distance, weights, ".", label=f"{name}, bandwidth 0.5")
ax.set_xlabel("distance of the token")
ax.set_ylabel("weight")
ax.set_title("Weights of one token on the others")
ax.grid(alpha=0.3)
ax.legend()
plt.show()

# %%
# Saved in a file, the twin is checked on data, in both dtypes and under all laws of attention
# (masks, unequal counts, gradients) by
#
# .. code-block:: sh
#
#    twinsolve check --load my_operator.py --twin cauchy-attention
