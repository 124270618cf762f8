"""Twins of Nyström attention and Linformer.

Nyström iterates are computed from singular values, and their limit by the exact quadrature.
Linformer is kernel regression on the projected keys and values.
"""

from functools import partial
from typing import Any

import numpy as np
import torch
from scipy.special import softmax

from ....solvers.kernel_smoothing import (
    iterated_pseudo_inverse,
    nystrom_factors,
    nystrom_smoother,
    segment_means,
)
from ....unrolled.kernel_smoothing import Linformer, Nystrom
from ...heads import Array, HeadCall, perturb_parameters
from ...laws.subject import as_array
from ...pairs import Inputs, Numerics
from ...registry import add_twin
from ...relations import FixedPointLimit, Identity, Iterate
from .regression import regress_by_dot_products

_N_LANDMARKS = 4
_MAX_LENGTH = 128


def _seen(call: HeadCall) -> Array:
    """Return the indices of tokens that the mask does not hide as keys."""
    if call.visible is None:
        return np.arange(len(call.k))
    return np.flatnonzero(call.visible.any(axis=0))


def _solve(layer: Nystrom, call: HeadCall, *, exact: bool) -> Array:
    """Solve the visible tokens; then hidden queries weight the landmarks of the visible ones."""
    q, k, v = call.tokens
    seen, scale = _seen(call), q.shape[1] ** -0.5
    n_iter = None if exact else layer.n_iter
    out = np.zeros((len(q), v.shape[1]))
    if len(seen) == 0:
        return out
    given: dict[str, Any] = {"n_landmarks": layer.n_landmarks, "scale": scale}
    out[seen] = nystrom_smoother(q[seen], k[seen], v[seen], **given, n_iter=n_iter)
    hidden = np.setdiff1d(np.arange(len(q)), seen)
    if len(hidden) > 0:
        F = softmax(scale * q[hidden] @ segment_means(k[seen], layer.n_landmarks).T, axis=1)
        _, A, B = nystrom_factors(q[seen], k[seen], **given)
        inverse = np.linalg.pinv(A) if exact else iterated_pseudo_inverse(A, layer.n_iter)
        few = layer.n_landmarks >= len(seen)
        out[hidden] = F @ (v[seen] if few else inverse @ B @ v[seen])
    return out


def _term_sizes(layer: Nystrom, call: HeadCall) -> Array:
    """Return the sizes of the terms of ``F Z B v``; small singular values of A make Z large."""
    q, k, v = call.tokens
    seen, scale = _seen(call), q.shape[1] ** -0.5
    if len(seen) == 0:
        return np.zeros((len(q), v.shape[1]))
    _, A, B = nystrom_factors(q[seen], k[seen], n_landmarks=layer.n_landmarks, scale=scale)
    F = softmax(scale * q @ segment_means(k[seen], layer.n_landmarks).T, axis=1)
    sizes = F @ np.abs(iterated_pseudo_inverse(A, layer.n_iter)) @ B @ np.abs(v[seen])
    return np.asarray(sizes)


def _build(q: Array, k: Array, v: Array, *, n_landmarks: int = _N_LANDMARKS) -> Nystrom:
    return Nystrom(n_landmarks, n_iter=3)  # the relation sets its own


_nystrom = partial(
    add_twin,
    family="kernel_smoothing",
    equation="QK-Nystrom",
    source="Xiong et al. (2021)",
    layer=Nystrom,
    build=_build,
    inputs=Inputs(by_rows=False),
    numerics=Numerics(rounded="output", summed=_term_sizes),
)
_nystrom(
    name="nystrom-attention",
    relation=Iterate(n_iter=(0, 1, 2, 6, 12), evidence="solver"),
    solve=partial(_solve, exact=False),
    options={
        "one": partial(_build, n_landmarks=1),
        "uneven": partial(_build, n_landmarks=3),
        "every-token": partial(_build, n_landmarks=10_000),
    },
)
_nystrom(
    name="nystrom-attention-limit",
    relation=FixedPointLimit(n_iter=60, evidence="solver"),
    solve=partial(_solve, exact=True),
)


def _build_linformer(q: Array, k: Array, v: Array, *, n_projected: int = 3) -> Linformer:
    """Build for more tokens than there are, with projections moved off their start."""
    max_length = max(k.shape[-2] + 3, _MAX_LENGTH)
    layer = Linformer(max_length, min(n_projected, max_length), dtype=torch.float64)
    return perturb_parameters(layer, 0.5)


def _projected(layer: Linformer, call: HeadCall) -> tuple[Array, Array]:
    """Return the sums of the keys and of the values that are visible."""
    seen = _seen(call)
    E, F = (as_array(w)[:, seen] for w in (layer.project_keys, layer.project_values))
    return E @ call.k[seen], F @ call.v[seen]


def _solve_linformer(layer: Linformer, call: HeadCall) -> Array:
    """Solve by kernel regression on the projected keys and values."""
    return regress_by_dot_products(call.q, *_projected(layer, call), call.q.shape[1] ** -0.5)


def _linformer_terms(layer: Linformer, call: HeadCall) -> Array:
    seen, keys = _seen(call), _projected(layer, call)[0]
    A = softmax(call.q @ keys.T * call.q.shape[1] ** -0.5, axis=1)
    return A @ np.abs(as_array(layer.project_values)[:, seen]) @ np.abs(call.v[seen])


def _linformer_range(layer: Linformer, q: Array, k: Array, *others: Any) -> float:
    """Return the largest sum of the sizes of the terms of a logit."""
    E = np.abs(as_array(layer.project_keys)[:, : k.shape[-2]])
    sizes = np.abs(q) @ (E @ np.abs(k)).swapaxes(-1, -2)
    return float(sizes.max()) * q.shape[-1] ** -0.5


add_twin(
    name="linformer",
    family="kernel_smoothing",
    relation=Identity(evidence="solver"),
    equation="QK-Linformer",
    source="Wang et al. (2020)",
    layer=Linformer,
    build=_build_linformer,
    options={
        "initial": lambda q, k, v: Linformer(k.shape[-2], 1, dtype=torch.float64),
        "every-token": partial(_build_linformer, n_projected=10_000),
    },
    solve=_solve_linformer,
    inputs=Inputs(by_rows=False),
    numerics=Numerics(_linformer_range, summed=_linformer_terms),
)
