"""Tokens of every kind that strains an identity of attention, and PyTorch's attention."""

import numpy as np
import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention


@pytest.fixture(params=["random", "duplicated", "constant", "huge", "far away"])
def tokens(request):
    """Tokens of shape (n, 4), none of them zero."""
    kind = request.param
    X = np.random.default_rng(0).standard_normal((8, 4))
    if kind == "duplicated":
        X[4:] = X[:4]
    elif kind == "constant":
        X[:] = X[0]
    return (1e3 if kind == "huge" else 1) * X + (100 if kind == "far away" else 0)


@pytest.fixture(scope="session")
def encode():
    """Sinusoidal position encodings."""

    def encodings(n, d, T=1e4):
        angles = np.arange(n)[:, None] / T ** (2 * np.arange((d + 1) // 2) / d)
        return np.stack([np.sin(angles), np.cos(angles)], axis=-1).reshape(n, -1)[:, :d]

    return encodings


@pytest.fixture(scope="session")
def sdpa():
    def attend(q, k, v, mask=None, **settings):
        q, k, v = (torch.from_numpy(np.array(x, order="C"))[None] for x in (q, k, v))
        mask = None if mask is None else torch.from_numpy(mask)
        return scaled_dot_product_attention(q, k, v, attn_mask=mask, **settings)[0].numpy()

    return attend


@pytest.fixture(scope="session")
def rounding():
    """What attention may lose in the dtype of its values.

    A logit errs by some ulps of the terms that it adds up, a weight relatively by twice as much,
    and the average by that times the values.
    """

    def bound(values, *terms):
        size = 1 + sum(np.abs(term).max() for term in terms)
        return 16 * np.finfo(values.dtype).eps * size * np.abs(values).max()

    return bound
