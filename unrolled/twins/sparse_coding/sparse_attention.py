"""Twins: ISTA for sparse coding and sparse attention.

Iterates of support-adaptive steps are a formula: which step a row takes is known to ISTA alone.
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ....solvers import ista, sparse_code
from ....solvers.nonlocal_energy import dct_filters
from ....solvers.sparse_coding import lam_max, lasso_objective
from ...sparse_coding import SparseCoding
from ..certificates import first_and_last, proximal_residual
from ..heads import HeadCall, Tensors
from ..parameters import head_value
from ..registry import Array, Problem, Twin, register
from ..relations import (
    FixedPointLimit,
    Identity,
    Iterate,
    Limit,
    Rate,
    Relation,
    calls_of_heads,
    layer_matrix,
    with_n_iter,
)

_TOL = 1e-11
_LONG, _SHRINKING = 3.0, 0.05  # length of the constant atoms, share of the median largest penalty


def build_sparse_coding(
    q: Array,
    k: Array,
    v: Array,
    *,
    share: float = 0.03,
    zero_diagonal: bool,
    relative: bool = False,
    **settings: Any,
) -> SparseCoding:
    """Five iterations, at a share of the penalty that makes the median code, or each, zero."""
    lam = share
    if not relative:
        largest = [lam_max(a, b, zero_diagonal=zero_diagonal) for a, b in zip(q, k, strict=True)]
        lam = share * float(np.median(largest))
    settings["relative"] = relative
    return SparseCoding(lam, zero_diagonal=zero_diagonal, dtype=torch.float64, **settings)


def penalty(layer: SparseCoding, q: Array, k: Array, head: int, t: int = 0) -> float | Array:
    """The penalty of each row's problem at iteration t."""
    lam = head_value(layer.lam, head, t)
    if not layer.relative:
        return lam
    largest = lam_max(q, k, zero_diagonal=layer.zero_diagonal)
    return lam * np.where(largest > 0, largest, 1.0)


def step_length(layer: SparseCoding, k: Array, head: int, t: int = 0) -> float:
    """The safe step, or the shortest of the support-adaptive ones."""
    norm = float(np.linalg.norm(k.T @ k, 2 if layer.step == "support" else "fro"))
    return head_value(layer.relative_step, head, t) / norm if norm > 0 else 1.0


def solve_ista(layer: SparseCoding, call: HeadCall) -> Array:
    q, k = call.q, call.k
    codes = ista(
        q,
        k,
        lam=penalty(layer, q, k, call.head),
        n_iter=layer.n_iter,
        step="support" if layer.step == "support" else step_length(layer, k, call.head),
        zero_diagonal=layer.zero_diagonal,
        nonnegative=layer.nonnegative,
    ).coef
    return codes @ call.v


def build_heads(q: Array, k: Array, v: Array, **settings: Any) -> SparseCoding:
    """Learned penalties and steps of each head."""
    layer = build_sparse_coding(q, k, v, num_heads=len(q), learnable=True, **settings)
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.sub_(torch.linspace(0.1, 0.4, len(q)).reshape(-1, 1, 1))
    return layer


def build_learned(
    q: Array, k: Array, v: Array, *, zero_diagonal: bool, **settings: Any
) -> SparseCoding:
    """Relative penalties and steps that differ from iteration to iteration and head to head."""
    settings = {"relative": True, "share": 0.1, "num_heads": len(q)} | settings
    layer = build_sparse_coding(
        q, k, v, zero_diagonal=zero_diagonal, learnable=True, per_iteration=True, **settings
    )
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.sub_(torch.rand(parameter.shape, generator=generator, dtype=parameter.dtype))
    return layer


def solve_recursion(layer: SparseCoding, call: HeadCall) -> Array:
    """``C <- S_th(Q We + C S)`` with the n x n matrix S of each iteration."""
    q, k = call.q, call.k
    C = np.zeros((len(q), len(k)))
    for t in range(layer.n_iter):
        step = step_length(layer, k, call.head, t)
        z = step * (q @ k.T) + C @ (np.eye(len(k)) - step * (k @ k.T))
        cut = step / 2 * np.reshape(penalty(layer, q, k, call.head, t), (-1, 1))
        C = np.maximum(z - cut, 0) if layer.nonnegative else z - np.clip(z, -cut, cut)
        if layer.zero_diagonal:
            np.fill_diagonal(C, 0)
    return C @ call.v


def certify_iterates(twin: Twin, layer: SparseCoding, inputs: Tensors) -> float:
    """Iterates minimise the model of the Lasso around the ones before: the first and the last."""

    def codes(n_iter: int) -> Array:
        return layer_matrix(twin, with_n_iter(layer, n_iter), *inputs[:2])

    residuals = [
        proximal_residual(
            after[call.head],
            before[call.head],
            call.q,
            call.k,
            step=step_length(layer, call.k, call.head, t),
            lam=penalty(layer, call.q, call.k, call.head, t),
            zero_diagonal=layer.zero_diagonal,
            nonnegative=layer.nonnegative,
        )
        for t, before, after in first_and_last(codes, layer.n_iter)
        for call in calls_of_heads(twin, inputs)
    ]
    return float(np.max(residuals))


def lasso_problem(layer: SparseCoding, call: HeadCall) -> Problem:
    """The Lasso behind the layer, with its certified solution."""
    q, k = call.q, call.k
    lam = penalty(layer, q, k, call.head)
    solution = sparse_code(
        q,
        k,
        lam=lam,
        tol=_TOL,
        zero_diagonal=layer.zero_diagonal,
        nonnegative=layer.nonnegative,
    )

    def objective(codes: Array) -> float:
        if layer.zero_diagonal and np.diagonal(codes).any():
            return float("inf")
        if layer.nonnegative and (codes < 0).any():
            return float("inf")
        return float(lasso_objective(q, k, codes, lam=lam).sum())

    coef = solution.coef.toarray()
    lower_bound = float((solution.objective - solution.gap * (q**2).sum(axis=1)).sum())
    return Problem(coef, objective, lower_bound, _rate(layer, k, coef, call.head))


def _cosines(X: Tensor) -> Tensor:
    """Cosines of windows with either sign, the constant ones longer, as its penalty is a bias."""
    size = round(X.shape[1] ** 0.5)
    waves = dct_filters(size).reshape(-1, size**2)
    atoms = np.concatenate([np.full((1, size**2), _LONG / size), waves])
    return torch.from_numpy(np.concatenate([atoms, -atoms])).to(X.dtype)


def _build_cosines(X: Array) -> SparseCoding:
    atoms = _cosines(torch.from_numpy(X)).numpy()
    return build_sparse_coding(
        X[None], atoms[None], atoms[None], share=_SHRINKING, zero_diagonal=False, nonnegative=True
    )


def _solve_cosines(layer: SparseCoding, X: Array) -> Array:
    atoms = _cosines(torch.from_numpy(X)).numpy()
    return lasso_problem(layer, HeadCall(X, atoms, atoms)).coef @ atoms


def _rate(layer: SparseCoding, k: Array, coef: Array, head: int) -> float:
    """``|C*|_F^2 / step``, proved for steps up to ``1 / |K|_2^2`` (SE-15)."""
    step = step_length(layer, k, head)
    if step * np.linalg.norm(k, 2) ** 2 > 1 + 1e-12:
        return float("inf")
    return float((coef**2).sum()) / step


def ista_logit_range(layer: SparseCoding, q: Array, k: Array, v: Array) -> float:
    return max(
        float(np.ptp(a @ b.T)) * step_length(layer, b, head)
        for head, (a, b) in enumerate(zip(q, k, strict=True))
    )


def covers(layer: SparseCoding, *, zero_diagonal: bool, **settings: Any) -> bool:
    """Layers with this diagonal and kind of iteration.

    Support-adaptive ones and those of relative penalties are of either sign.
    """
    if layer.zero_diagonal != zero_diagonal or layer.per_iteration:
        return False
    if settings.get("relative", layer.relative) != layer.relative:
        return False
    if layer.step == "support":
        return settings.get("step") == "support"
    if settings.get("relative"):
        return "step" not in settings
    return "step" not in settings and layer.nonnegative == settings.get("nonnegative", False)


def register_sparse_coding(
    name: str,
    relation: Relation,
    equation: str,
    *,
    zero_diagonal: bool,
    share: float = 0.03,
    task: Mapping[str, Any] | None = None,
    **settings: Any,
) -> None:
    """Register a twin of `SparseCoding` with these settings."""
    build = partial(build_sparse_coding, share=share, **settings)
    options: dict[str, Callable[..., SparseCoding]] = {}
    if isinstance(relation, Iterate):
        options["parameters-of-heads"] = partial(build_heads, share=share, **settings)
        if settings.get("relative") or "step" in settings:
            options["nonnegative"] = partial(build, nonnegative=True)
        if not settings.get("relative"):
            options["relative"] = partial(build, relative=True, share=0.1)
        if "step" not in settings:
            options["short-steps"] = partial(build, relative_step=0.6, n_iter=7)
    _register(
        name,
        relation,
        equation,
        build,
        solve_ista,
        partial(covers, **settings),
        zero_diagonal,
        options,
        certified=isinstance(relation, Iterate) and "step" not in settings,
        task=task,
    )


def register_learned(name: str, *, zero_diagonal: bool) -> None:
    """Register a twin of `SparseCoding` with parameters of each iteration."""

    def covers(layer: SparseCoding, *, zero_diagonal: bool) -> bool:
        return layer.per_iteration and layer.zero_diagonal == zero_diagonal

    options = {
        "nonnegative": partial(build_learned, nonnegative=True),
        "absolute": partial(build_learned, relative=False, n_iter=3),
        "one-for-all-heads": partial(build_learned, num_heads=None),
    }
    _register(
        name,
        Identity(),
        "SE-15L",
        build_learned,
        solve_recursion,
        covers,
        zero_diagonal,
        options,
        certified=True,
    )


def _register(
    name: str,
    relation: Relation,
    equation: str,
    build: Callable[..., SparseCoding],
    solve: Callable[..., Array],
    covers: Callable[..., bool],
    zero_diagonal: bool,
    options: Mapping[str, Callable[..., SparseCoding]],
    *,
    certified: bool,
    task: Mapping[str, Any] | None = None,
) -> None:
    register(
        Twin(
            name=name,
            family="self_expression" if zero_diagonal else "sparse_coding",
            relation=relation,
            equation=equation,
            source=(
                "Attention: Self-Expression Is All You Need, eq. "
                + ("12 and 15" if zero_diagonal else "16-18")
            ),
            layer=SparseCoding,
            rounded="output",
            build=partial(build, zero_diagonal=zero_diagonal),
            options={
                name: partial(build, zero_diagonal=zero_diagonal) for name, build in options.items()
            },
            task=task or {},
            solve=solve,
            pairing="self" if zero_diagonal else "cross",
            covers=partial(covers, zero_diagonal=zero_diagonal),
            problem=lasso_problem,
            certificate=certify_iterates if certified else None,
            fitted=("lam",),
            logit_range=ista_logit_range,
            passes=lambda layer: max(layer.n_iter, 1),
        )
    )


# Longer runs of support-adaptive steps take minutes: an eigenvalue problem a row and iteration.
_SUPPORT: dict[str, Any] = {"step": "support", "share": 0.1}

register_sparse_coding("sparse-coding-iterates", Iterate(), "SE-18", zero_diagonal=False)
register_sparse_coding("sparse-coding-rate", Rate(), "SE-18", zero_diagonal=False)
register_sparse_coding("sparse-coding-limit", Limit(), "SE-17", zero_diagonal=False)
register_sparse_coding(
    "nonnegative-coding-iterates", Iterate(), "SE-15n", zero_diagonal=False, nonnegative=True
)
register_sparse_coding(
    "nonnegative-coding-limit",
    Limit(),
    "SE-15n",
    zero_diagonal=False,
    nonnegative=True,
    task={
        "relation": FixedPointLimit(n_iter=600),
        "inputs": "patches",
        "build": _build_cosines,
        "apply": lambda layer, X: layer(X[None], *(_cosines(X)[None],) * 2)[0],
        "solve": _solve_cosines,
        "logit_range": lambda layer, X: 10.0,
    },
)
register_sparse_coding(
    "support-adaptive-coding-iterates",
    Iterate(n_iter=(1, 2, 5)),
    "LS-1",
    zero_diagonal=False,
    **_SUPPORT,
)
register_sparse_coding(
    "relative-coding-iterates",
    Iterate(n_iter=(1, 2, 5)),
    "CL-1",
    zero_diagonal=False,
    share=0.1,
    relative=True,
)
register_learned("learned-coding-recursion", zero_diagonal=False)
