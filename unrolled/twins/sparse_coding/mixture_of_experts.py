"""Twins: the sparse mixture of experts, expert by expert, and its code in the dictionary."""

import numpy as np
import torch
from scipy.special import softmax
from torch import Tensor

from ...sparse_coding import SparseMixtureOfExperts
from ..registry import Array, Twin, register
from ..relations import Identity


def _build(X: Array) -> SparseMixtureOfExperts:
    generator = torch.Generator().manual_seed(0)
    layer = SparseMixtureOfExperts(X.shape[1], 6, 5, 2, dtype=torch.float64)
    with torch.no_grad():
        for weight in layer.parameters():
            weight.normal_(generator=generator)
    return layer


def _solve(layer: SparseMixtureOfExperts, X: Array) -> Array:
    R, Q, P = (
        w.detach().cpu().double().numpy() for w in (layer.router, layer.analysis, layer.synthesis)
    )
    scores = X @ R.T
    chosen = np.argsort(-scores, axis=1)[:, : layer.top_k]
    out, codes = np.zeros_like(X), np.zeros((len(X), layer.n_experts, layer.expert_width))
    for i, x in enumerate(X):
        gates = (
            softmax(scores[i, chosen[i]]) if layer.renormalize else softmax(scores[i])[chosen[i]]
        )
        for j, gate in zip(chosen[i], gates, strict=True):
            codes[i, j] = gate * np.maximum(Q[j] @ x, 0)
            out[i] += P[j] @ codes[i, j]
    Z = codes.reshape(len(X), -1)
    return np.hstack([out, Z, Z @ np.concatenate(list(P), axis=1).T])


def _output(layer: SparseMixtureOfExperts, X: Tensor) -> Tensor:
    """The mixture, its codes, and the codes times the dictionary."""
    codes = layer.codes(X)
    return torch.cat([layer(X), codes, codes @ layer.dictionary().mT], dim=1)


def _logit_range(layer: SparseMixtureOfExperts, X: Array) -> float:
    return float(np.ptp(X @ layer.router.detach().cpu().double().numpy().T))


register(
    Twin(
        name="sparse-mixture-of-experts",
        family="sparse_coding",
        relation=Identity(),
        equation="IF-32",
        source="Revisiting Transformers with Insights from Image Filtering, eq. 32 and 33",
        layer=SparseMixtureOfExperts,
        build=_build,
        solve=_solve,
        inputs="features",
        apply=_output,
        logit_range=_logit_range,
    )
)
