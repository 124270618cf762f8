"""Twins: the sparse mixture of experts, and the cases in which it is a matching pursuit.

In general the evidence is a formula, since gates and ReLUs solve no problem. If each expert is one
atom, and there is one for either sign, routing by correlation selects atoms as matching pursuit
does. With equal gates the mixture is then orthogonal matching pursuit if one atom is chosen or the
atoms are orthonormal.
"""

from functools import partial
from typing import Any

import numpy as np
import torch
from scipy.special import softmax
from torch import Tensor

from ....solvers import ksvd
from ....solvers.sparse_coding.matching_pursuit import pursue_rows
from ....unrolled.sparse_coding import SparseMixtureOfExperts
from ...heads import Array
from ...laws.subject import as_array
from ...pairs import Inputs, Numerics
from ...registry import add_twin
from ...relations import Identity


def _build(X: Array, **settings: Any) -> SparseMixtureOfExperts:
    """Build the layer with random weights."""
    generator = torch.Generator().manual_seed(0)
    layer = SparseMixtureOfExperts(X.shape[1], 6, 5, dtype=torch.float64, **settings)
    with torch.no_grad():
        for weight in layer.parameters():
            weight.normal_(generator=generator)
    return layer


# So small that a softmax of scores is uniform; a power of two keeps the order of scores exactly.
_FLAT = 2.0**-60


def _build_pursuit(atoms: Array, n_nonzero: int) -> SparseMixtureOfExperts:
    """Build an expert for each atom (row) and sign; all gates are ``1 / n_nonzero``."""
    signed = torch.from_numpy(np.concatenate([atoms, -atoms]))
    layer = SparseMixtureOfExperts(
        atoms.shape[1], len(signed), 1, n_nonzero, renormalize=True, dtype=torch.float64
    )
    with torch.no_grad():
        layer.router.copy_(_FLAT * signed)
        layer.analysis.copy_(signed[:, None])
        layer.synthesis.copy_(n_nonzero * signed[..., None])
    return layer


def _build_orthonormal(X: Array) -> SparseMixtureOfExperts:
    return _build_pursuit(np.linalg.svd(X, full_matrices=False)[2], 4)


def _build_learned(X: Array) -> SparseMixtureOfExperts:
    n_atoms = min(16, len(X))
    return _build_pursuit(ksvd(X, n_atoms=n_atoms, n_nonzero=1, n_iter=2, random_state=0)[0], 1)


def _is_pursuit(layer: SparseMixtureOfExperts) -> bool:
    """Whether the layer is matching pursuit: experts are orthonormal atoms of both signs."""
    if layer.expert_width != 1 or not layer.renormalize:
        return False
    atoms = layer.analysis[:, 0]
    gram = atoms[: len(atoms) // 2] @ atoms[: len(atoms) // 2].mT
    unit = torch.eye(len(gram), dtype=gram.dtype, device=gram.device)
    exact = gram if layer.top_k > 1 else gram * unit
    return (
        bool((exact - unit).abs().max() < 1e-5)
        and torch.equal(layer.router, _FLAT * atoms)
        and torch.equal(layer.synthesis[..., 0], layer.top_k * atoms)
        and torch.equal(*(side * half for side, half in zip((1, -1), atoms.chunk(2), strict=True)))
    )


def _solve_pursuit(layer: SparseMixtureOfExperts, X: Array) -> Array:
    """Solve by matching pursuit in the atoms."""
    atoms = layer.dictionary().detach().cpu().double().numpy().T / layer.top_k
    atoms = np.ascontiguousarray(atoms[: len(atoms) // 2])
    return pursue_rows(X, atoms, layer.top_k, 0.0) @ atoms


def _solve(layer: SparseMixtureOfExperts, X: Array) -> Array:
    """Solve by loops over tokens and their experts, as in the definition."""
    R, Q, P = (as_array(w) for w in (layer.router, layer.analysis, layer.synthesis))
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
    load = np.bincount(chosen.ravel(), minlength=layer.n_experts) / chosen.size
    loss = layer.n_experts * load @ softmax(scores, axis=1).mean(axis=0)
    mixed = Z @ np.concatenate(list(P), axis=1).T
    return np.hstack([out, Z, mixed, np.full((len(X), 1), loss)])


def _output(layer: SparseMixtureOfExperts, X: Tensor) -> Tensor:
    """Return the mixture, its codes, the codes times the dictionary, and the balance loss."""
    codes, loss = layer.codes(X), layer.balance_loss(X)
    return torch.cat(
        [layer(X), codes, codes @ layer.dictionary().mT, loss.expand(len(X), 1)], dim=1
    )


def _logit_range(layer: SparseMixtureOfExperts, X: Array) -> float:
    return float(np.ptp(X @ as_array(layer.router).T))


_experts = partial(
    add_twin,
    family="sparse_coding",
    source="Revisiting Transformers with Insights from Image Filtering, eq. 32 and 33",
    layer=SparseMixtureOfExperts,
)
_experts(
    name="sparse-mixture-of-experts",
    relation=Identity(),
    equation="IF-32",
    build=_build,
    options={
        "renormalised": partial(_build, renormalize=True, top_k=3),
        "one-expert": partial(_build, top_k=1),
        "all-experts": partial(_build, top_k=6),
    },
    solve=_solve,
    task={"build": _build_orthonormal},
    inputs=Inputs("features", apply=_output),
    numerics=Numerics(logit_range=_logit_range),
)
for name, build in (("orthonormal", _build_orthonormal), ("ksvd", _build_learned)):
    _experts(
        name=f"sparse-mixture-of-experts-{name}",
        relation=Identity(evidence="solver"),
        equation="IF-KSVD",
        build=build,
        solve=_solve_pursuit,
        inputs=Inputs("features"),
        covers=_is_pursuit,
    )
