"""
What a step at test time is worth
=================================

Linear attention, the delta rule and Mesa read a linear map that they fit to the tokens so far. On
random linear regressions their errors can be set beside the best fit of the same tokens.
"""

# %%
# Regressions as sequences
# ------------------------
# Each sequence has an unknown map W of its own; tokens are pairs of a key and its noisy value. The
# query at token t is a new key, so that the error tells how well the tokens so far are generalised.

import matplotlib.pyplot as plt
import pandas as pd
import torch

from twinsolve.unrolled.online_regression import (
    chunked_delta_rule,
    chunked_heavy_ball,
    chunked_linear_attention,
    chunked_mesa,
)

generator = torch.Generator().manual_seed(0)
n_sequences, n_tokens, d, noise = 400, 48, 12, 0.2


def draw(*shape: int) -> torch.Tensor:
    return torch.randn(n_sequences, *shape, generator=generator, dtype=torch.float64)


W = draw(d, 1)
k, q = (torch.nn.functional.normalize(draw(n_tokens, d), dim=-1) for _ in range(2))
v = k @ W + noise * draw(n_tokens, 1)
one = torch.ones(n_sequences, n_tokens, dtype=torch.float64)


def error(out: torch.Tensor) -> torch.Tensor:
    """Mean squared error at each token, relative to the values'."""
    return (out - q @ W).square().mean(dim=(0, 2)) / (k @ W).square().mean()


# %%
# One step, a correction a token, or a solution a token
# -----------------------------------------------------
# Ridge regression with the penalty noise ** 2 is the best guess there is: W has unit variance.
# ``chunked_mesa`` solves it exactly, or by a few steps of conjugate gradients. Sums of linear
# attention are scaled by d / t, as unit keys have the covariance 1 / d. The steps of the delta rule
# and of heavy ball are examples, not the best ones.

lam = torch.tensor(noise**2, dtype=torch.float64)
half = (one / 2).log()
n_seen = torch.arange(1, n_tokens + 1)[:, None]
outputs = {
    "linear attention, scaled": d / n_seen * chunked_linear_attention(q, k, v)[0],
    "delta rule, beta = 0.3": chunked_delta_rule(q, k, v, beta=0.3 * one)[0],
    "delta rule, beta = 1": chunked_delta_rule(q, k, v, beta=one)[0],
    "heavy ball": chunked_heavy_ball(q, k, v, step=0.15 * one, log_momentum=half, log_keep=0 * one)[
        0
    ],
}
for n_iter in (1, 2, 4, 8):
    out, _ = chunked_mesa(q, k, v, beta=one, lam=lam, n_iter=n_iter)
    outputs[f"Mesa, {n_iter} CG step{'s' if n_iter > 1 else ''}"] = out
outputs["Mesa, exact"] = chunked_mesa(q, k, v, beta=one, lam=lam)[0]
errors = {name: error(out) for name, out in outputs.items()}

table = pd.DataFrame({name: x[[5, 11, 23, 47]].tolist() for name, x in errors.items()}).T
table.columns = [f"{t} tokens" for t in (6, 12, 24, 48)]
print(table.round(3).to_string())

# %%
# How many steps of conjugate gradients a rule is worth
# ------------------------------------------------------
# Linear attention sums without correcting: its error falls like d / t. The delta rule corrects each
# token once, and is worth about two steps of conjugate gradients after 48 tokens. Mesa has the best
# fit after eight steps. With fewer tokens than dimensions few steps are worse than none, as the
# penalty is small.

fig, ax = plt.subplots(figsize=(8, 4.2), layout="constrained")
for name, x in errors.items():
    ax.semilogy(range(1, n_tokens + 1), x, label=name)
ax.axvline(d, color="0.7", linestyle=":")
ax.set_xlabel("tokens so far (dotted: dimensions)")
ax.set_ylabel("squared error of new queries")
ax.set_ylim(top=3)
ax.grid(alpha=0.3)
ax.legend(fontsize=8)
plt.show()
