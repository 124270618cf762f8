"""Twins: ISTA and sparse attention, for queries in keys and for tokens in each other.

The evidence for iterates of support-adaptive steps is a formula: no certificate knows a row's step.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ....solvers import ista
from ....solvers.nonlocal_energy import dct_filters
from ....solvers.sparse_coding import lam_max
from ....unrolled.solved_operator import Solved
from ....unrolled.sparse_coding import SparseCoding
from ...heads import Array, HeadCall, Tensors, head_value
from ...pairs import Derivatives, Inputs, Numerics, calls_of_heads
from ...registry import Twin, add_twin
from ...relations import FixedPointLimit, Identity, Iterate, Limit, Problem, Rate, Relation
from ..lasso import certify_steps, solved_lasso
from ..tasks import PATCHES

_LONG, _SHARE = 3.0, 0.05  # length of the constant atoms, share of the median largest penalty


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
    """Build at a share of the penalty that makes the median code (each, if relative) zero."""
    lam = share
    if not relative:
        largest = [lam_max(a, b, zero_diagonal=zero_diagonal) for a, b in zip(q, k, strict=True)]
        lam = share * float(np.median(largest))
    settings["relative"] = relative
    return SparseCoding(lam, zero_diagonal=zero_diagonal, dtype=torch.float64, **settings)


def penalty(layer: SparseCoding, q: Array, k: Array, head: int, t: int = 0) -> float | Array:
    """Return the penalty of each row's problem at iteration t."""
    lam = head_value(layer.lam, head, t)
    if not layer.relative:
        return lam
    largest = lam_max(q, k, zero_diagonal=layer.zero_diagonal)
    return lam * np.where(largest > 0, largest, 1.0)


def step_length(layer: SparseCoding, k: Array, head: int, t: int = 0) -> float:
    """Return the safe step, or the shortest of the support-adaptive steps."""
    norm = float(np.linalg.norm(k.T @ k, 2 if layer.step == "support" else "fro"))
    return head_value(layer.relative_step, head, t) / norm if norm > 0 else 1.0


def solve_ista(layer: SparseCoding, call: HeadCall) -> Array:
    """Solve by the solver's ISTA with the layer's penalty and step."""
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
    """Build the layer with learned penalties and steps for each head."""
    layer = build_sparse_coding(q, k, v, num_heads=len(q), learnable=True, **settings)
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.sub_(torch.linspace(0.1, 0.4, len(q)).reshape(-1, 1, 1))
    return layer


def build_learned(
    q: Array, k: Array, v: Array, *, zero_diagonal: bool, **settings: Any
) -> SparseCoding:
    """Build with relative penalties and steps that differ between iterations and heads."""
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
    """Iterate ``C <- S_th(Q We + C S)`` with the n x n matrix S of each iteration."""
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
    """Judge the first and the last iteration by `certify_steps`."""
    calls = list(calls_of_heads(twin, inputs))
    return certify_steps(
        twin,
        layer,
        inputs,
        [(call.q, call.k) for call in calls],
        step=lambda head, t: step_length(layer, calls[head].k, head, t),
        lam=lambda head, t: penalty(layer, calls[head].q, calls[head].k, head, t),
        zero_diagonal=layer.zero_diagonal,
        nonnegative=layer.nonnegative,
    )


def lasso_problem(layer: SparseCoding, call: HeadCall) -> Problem:
    """Solve the Lasso of the layer to a certificate."""
    q, k = call.q, call.k
    return solved_lasso(
        q,
        k,
        rate=lambda coef: _rate(layer, k, coef, call.head),
        lam=penalty(layer, q, k, call.head),
        zero_diagonal=layer.zero_diagonal,
        nonnegative=layer.nonnegative,
    )


def _make_cosines(X: Tensor) -> Tensor:
    """Return cosines of windows with both signs; constant atoms are longer, to shrink them less."""
    size = round(X.shape[1] ** 0.5)
    waves = dct_filters(size).reshape(-1, size**2)
    atoms = np.concatenate([np.full((1, size**2), _LONG / size), waves])
    return torch.from_numpy(np.concatenate([atoms, -atoms])).to(X.dtype)


def _build_cosines(X: Array) -> SparseCoding:
    """Build the layer with cosines of windows as keys."""
    atoms = _make_cosines(torch.from_numpy(X)).numpy()
    return build_sparse_coding(
        X[None], atoms[None], atoms[None], share=_SHARE, zero_diagonal=False, nonnegative=True
    )


def _solve_cosines(layer: SparseCoding, X: Array) -> Array:
    atoms = _make_cosines(torch.from_numpy(X)).numpy()
    return lasso_problem(layer, HeadCall(X, atoms, atoms)).coef @ atoms


def _rate(layer: SparseCoding, k: Array, coef: Array, head: int) -> float:
    """Return ``|C*|_F^2 / step``, which is proved for steps up to ``1 / |K|_2^2`` (SE-15)."""
    step = step_length(layer, k, head)
    if step * np.linalg.norm(k, 2) ** 2 > 1 + 1e-12:
        return float("inf")
    return float((coef**2).sum()) / step


def ista_logit_range(layer: SparseCoding, q: Array, k: Array, v: Array) -> float:
    """Return the largest range of products times the step."""
    return max(
        float(np.ptp(a @ b.T)) * step_length(layer, b, head)
        for head, (a, b) in enumerate(zip(q, k, strict=True))
    )


def covers(layer: SparseCoding, *, zero_diagonal: bool, **settings: Any) -> bool:
    """Whether a layer has this diagonal and these settings.

    Codes with support-adaptive steps or relative penalties may have either sign constraint.
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


def _iterate_options(
    build: Callable[..., SparseCoding], settings: dict[str, Any]
) -> dict[str, Any]:
    """Return builders with other settings, by name."""
    options: dict[str, Any] = {"parameters-of-heads": partial(build_heads, **settings)}
    if settings.get("relative") or "step" in settings:
        options["nonnegative"] = partial(build, nonnegative=True)
    if not settings.get("relative"):
        options["relative"] = partial(build, relative=True, share=0.1)
    if "step" not in settings:
        options["short-steps"] = partial(build, relative_step=0.6, n_iter=7)
    return options


def _add(
    name: str,
    relation: type[Relation],
    equation: str,
    *,
    zero_diagonal: bool,
    n_iter: tuple[int, ...] = (),
    task: dict[str, Any] | None = None,
    **settings: Any,
) -> None:
    """Register a twin of `SparseCoding` with these settings."""
    settings = {"share": 0.03, "zero_diagonal": zero_diagonal} | settings
    build = partial(build_sparse_coding, **settings)
    iterates = relation is Iterate
    covered = {name: x for name, x in settings.items() if name != "share"}
    fields: dict[str, Any] = {"n_iter": n_iter} if n_iter else {}
    if iterates and "step" not in settings:
        fields["certificate"] = certify_iterates
    _register(
        name=name,
        relation=relation(problem=lasso_problem, **fields),
        equation=equation,
        build=build,
        options=_iterate_options(build, settings) if iterates else {},
        solve=solve_ista,
        covers=partial(covers, **covered),
        task=task or {},
        **_OF_DIAGONAL[zero_diagonal],
    )


def _add_learned(name: str, *, zero_diagonal: bool) -> None:
    """Register a twin of `SparseCoding` with its own parameters in each iteration."""
    build = partial(build_learned, zero_diagonal=zero_diagonal)
    _register(
        name=name,
        relation=Identity(problem=lasso_problem, certificate=certify_iterates),
        equation="SE-15L",
        build=build,
        options={
            "nonnegative": partial(build, nonnegative=True),
            "absolute": partial(build, relative=False, n_iter=3),
            "one-for-all-heads": partial(build, num_heads=None),
        },
        solve=solve_recursion,
        covers=lambda layer: layer.per_iteration and layer.zero_diagonal == zero_diagonal,
        **_OF_DIAGONAL[zero_diagonal],
    )


def _solve_codes(layer: Solved, call: HeadCall) -> Array:
    return lasso_problem(layer.base, call).coef @ call.v  # type: ignore[arg-type]


def _add_solved(name: str, equation: str, *, zero_diagonal: bool) -> None:
    """Register a twin of `SparseCoding` that iterates to convergence."""

    def covers(layer: Any) -> bool:
        return isinstance(layer.base, SparseCoding) and layer.base.zero_diagonal == zero_diagonal

    def build(q: Array, k: Array, v: Array, **settings: Any) -> Solved:
        base = build_sparse_coding(q, k, v, zero_diagonal=zero_diagonal, **settings)
        return Solved(base, tol=1e-10)

    add_twin(
        name=name,
        relation=Limit(problem=lambda layer, call: lasso_problem(layer.base, call)),
        equation=equation,
        layer=Solved,
        build=build,
        options={
            "nonnegative": partial(build, nonnegative=True),
            "relative": partial(build, relative=True),
        },
        solve=_solve_codes,
        fitted={"base.lam": None},
        covers=covers,
        derivatives=Derivatives(twice=()),
        **_OF_DIAGONAL[zero_diagonal],
    )


_register = partial(
    add_twin,
    layer=SparseCoding,
    fitted={"lam": None},
    numerics=Numerics(ista_logit_range, lambda layer: max(layer.n_iter, 1), "output"),
)
_SOURCE = "Attention: Self-Expression Is All You Need, eq. "
_OF_DIAGONAL: dict[bool, dict[str, Any]] = {
    False: {
        "family": "sparse_coding",
        "source": _SOURCE + "16-18",
        "inputs": Inputs(pairing="cross"),
    },
    True: {
        "family": "self_expression",
        "source": _SOURCE + "12 and 15",
        "inputs": Inputs(pairing="self"),
    },
}
# Support-adaptive steps solve an eigenvalue problem for each row and iteration: long runs are slow.
_SUPPORT: dict[str, Any] = {"step": "support", "share": 0.1, "n_iter": (1, 2, 5)}
_RELATIVE: dict[str, Any] = {"relative": True, "share": 0.1, "n_iter": (1, 2, 5)}
_SHRINKING: dict[str, Any] = {
    "relation": FixedPointLimit(n_iter=600),
    "inputs": Inputs(
        "patches", apply=lambda layer, X: layer(X[None], *(_make_cosines(X)[None],) * 2)[0]
    ),
    "build": _build_cosines,
    "solve": _solve_cosines,
    "numerics": PATCHES,
}
for prefix, zero_diagonal, iterates, optimum in (
    ("coding", False, "SE-18", "SE-17"),
    ("self-expression", True, "SE-15", "SE-12"),
):
    add = partial(_add, zero_diagonal=zero_diagonal)
    plain = prefix if zero_diagonal else f"sparse-{prefix}"
    add(f"{plain}-iterates", Iterate, iterates)
    add(f"{plain}-rate", Rate, iterates)
    add(f"{plain}-limit", Limit, optimum)
    add(f"nonnegative-{prefix}-iterates", Iterate, "SE-15n", nonnegative=True)
    shrinking = None if zero_diagonal else _SHRINKING
    add(f"nonnegative-{prefix}-limit", Limit, "SE-15n", nonnegative=True, task=shrinking)
    add(f"support-adaptive-{prefix}-iterates", Iterate, "LS-1", **_SUPPORT)
    if zero_diagonal:
        add(f"support-adaptive-{prefix}-rate", Rate, "LS-1", **_SUPPORT | {"n_iter": (1, 4)})
    add(f"relative-{prefix}-iterates", Iterate, "CL-1", **_RELATIVE)
    _add_learned(f"learned-{prefix}-recursion", zero_diagonal=zero_diagonal)
    _add_solved(f"{plain}-solved", optimum, zero_diagonal=zero_diagonal)
