"""
Swap a layer in a Hugging Face model
====================================

Models of the transformers library (``pip install transformers``) take operators by
`attach_huggingface`. The model here is a tiny vision transformer with random weights, so that
nothing is downloaded; a pretrained one is treated in the same way.
"""

# %%
# A tiny model
# ------------

import matplotlib.pyplot as plt
import torch
from transformers import ViTConfig, ViTForImageClassification

import twinsolve
from twinsolve.datasets import load_digits
from twinsolve.unrolled import attach_huggingface, record

torch.manual_seed(0)
config = ViTConfig(
    image_size=8,
    patch_size=2,
    num_channels=1,
    hidden_size=32,
    intermediate_size=64,
    num_hidden_layers=4,
    num_attention_heads=4,
    num_labels=10,
    initializer_range=0.2,
)
model = ViTForImageClassification(config).eval()
images = torch.tensor(load_digits().images[:64] / 16, dtype=torch.float32)[:, None]

# %%
# Attach, and see that nothing changed
# ------------------------------------
# "softmax" computes what the library does. Seeing that first tells mistakes of the plumbing from
# effects of an operator.

with torch.no_grad():
    before = model(images).logits
    attach_huggingface(model, "softmax")
    change = (model(images).logits - before).abs().max().item()
print(f"largest change of a logit: {change:.1e}")

# %%
# Another operator, checked
# -------------------------
# Operators become part of the model: they are trained and moved with it, `save_huggingface` and
# `load_huggingface` save and restore it with them. `check` runs it on a batch and judges each of
# them by its solver.

attach_huggingface(model, "neutreno")
report = twinsolve.check(model, images[:4])
print(report)
assert report

# %%
# What the operator does to the tokens
# ------------------------------------
# Tokens of deep softmax models grow alike. `record` notes measures of every layer while a model
# runs; the mean cosine between tokens is one of them.

similarity = {}
for name in ("softmax", "twicing", "neutreno"):
    attach_huggingface(model, name)
    with record(model) as rows, torch.no_grad():
        model(images)
    similarity[name] = [row["value"] for row in rows if row["measure"] == "token_similarity"]
    print(name, [round(value, 3) for value in similarity[name]])

figure, ax = plt.subplots(figsize=(6, 3.4), layout="constrained")
for name, values in similarity.items():
    ax.plot(range(1, len(values) + 1), values, "o-", label=name)
ax.set_xlabel("layer")
ax.set_xticks(range(1, config.num_hidden_layers + 1))
ax.set_ylabel("mean cosine between tokens")
ax.set_title("How alike the tokens are after each attention layer")
ax.grid(alpha=0.3)
ax.legend()
plt.show()
