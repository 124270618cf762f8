"""Chains of affinity steps by name: PP-1 to PP-5 and others, applied from left to right."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from scipy.sparse import csr_array

from ...solvers.clustering import (
    keep_l1_mass,
    keep_largest,
    low_rank_affinity,
    nearest_rows_affinity,
    scale_by_row_maximum,
    softmax_rows,
    svd_power_affinity,
    symmetric_affinity,
    unit_rows,
)
from ...solvers.inputs import Array
from ..names import close_names

DENSE_ROWS = 10_000
OWN = "own affinity"  # instead of a chain, if the method makes an affinity
NO_STEPS = "none"  # instead of a chain, if the method only gives labels


@dataclass(frozen=True)
class Step:
    """``apply(coef, n_clusters, **parameters)`` returns coefficients, or an affinity if `final`.

    A `dense` step needs every entry of the matrix.
    """

    about: str
    apply: Callable[..., Any]
    parameters: dict[str, Any] = field(default_factory=dict)
    final: bool = False
    dense: bool = False


def affinity_of(chain: str, coef: Array | csr_array, n_clusters: int) -> Array | csr_array:
    """Affinity of coefficients by a chain of steps, such as ``"keep-mass 0.7, scale-rows"``.

    Each step is a name, followed by values of its parameters if they differ from the defaults. If
    the last step returns coefficients, ``symmetrize`` follows. A cut at the end of the chain, see
    `cut_of`, is ignored. Sparse coefficients stay sparse, except in steps that are `dense`.

    Raises
    ------
    ValueError
        If a step or a parameter is unknown, or a step follows one that made an affinity.
    """
    for apply in _parse(chain):
        coef = apply(coef, n_clusters)
    return coef


def check_chain(chain: str) -> str:
    """Return `chain` if all its steps are known.

    Raises
    ------
    ValueError
        If a step or parameter is unknown; the message lists what is allowed.
    """
    _parse(chain)
    return chain


def chain_key(chain: str) -> tuple[Any, ...]:
    """A key that is equal for chains that do the same, whether they spell out defaults or not."""
    steps = [(step.func, tuple(step.keywords.items())) for step in _parse(chain)]
    return (*steps, cut_of(chain))


def cut_of(chain: str) -> str:
    """The last word of a chain if it names a way to cut the graph into clusters, else k-means."""
    last = chain.rpartition(",")[2].strip()
    return last if last in CUTS else "k-means"


def without_cut(chain: str) -> str:
    """The steps of a chain that make the affinity."""
    first, _, last = chain.rpartition(",")
    return first if last.strip() in CUTS else chain


def with_both_cuts(chains: Iterable[str]) -> tuple[str, ...]:
    """Each chain as it is, which is cut by k-means, and again with ``cluster-qr`` behind it."""
    return tuple(name for chain in chains for name in (chain, f"{chain}, cluster-qr"))


def is_dense(chain: str) -> bool:
    """Whether a step needs every entry; above `DENSE_ROWS` rows such chains are left out."""
    return any(STEPS[word.split()[0]].dense for word in without_cut(chain).split(","))


def _parse(chain: str) -> list[partial[Any]]:
    applied: list[partial[Any]] = []
    final = False
    for word in without_cut(chain).split(","):
        name, *values = word.split() or [""]
        if name not in STEPS:
            allowed = f"{', '.join(STEPS)}, and {' or '.join(CUTS)} behind a step"
            hint = close_names(name, STEPS)
            raise ValueError(f"affinity: must be among {allowed}; got {name or chain!r}{hint}")
        if final:
            raise ValueError(f"affinity: nothing can follow an affinity, got {chain!r}")
        step = STEPS[name]
        applied.append(partial(step.apply, **_parameters(step, word.strip(), values)))
        final = step.final
    return applied if final else [*applied, partial(STEPS["symmetrize"].apply)]


def _parameters(step: Step, word: str, values: list[str]) -> dict[str, Any]:
    """Parameters of a step by name: the values given, in order, then the defaults."""
    known = step.parameters
    if len(values) > len(known):
        raise ValueError(f"affinity: {word!r} has too many values, it takes {list(known)}")
    try:
        given = {n: type(known[n])(v) for n, v in zip(known, values, strict=False)}
    except ValueError as error:
        raise ValueError(f"affinity: cannot read {word!r}, it takes {known}") from error
    return known | given


def _dense(coef: Array | csr_array) -> Array:
    return coef.toarray() if isinstance(coef, csr_array) else coef


STEPS = {
    "keep-mass": Step(
        "keep the largest entries of a row that hold a share of its l1 mass (PP-1)",
        lambda C, k, mass: keep_l1_mass(C, mass),
        {"mass": 0.7},
    ),
    "keep-largest": Step(
        "keep the n largest entries of a row", lambda C, k, n: keep_largest(C, n), {"n": 3}
    ),
    "scale-rows": Step(
        "divide rows by their largest entry (PP-2)", lambda C, k: scale_by_row_maximum(C)
    ),
    "unit-rows": Step("divide rows by their norm (PP-2b)", lambda C, k: unit_rows(C)),
    "softmax-rows": Step(
        "softmax of the rows of |C| (PP-5)", lambda C, k: softmax_rows(abs(C)), dense=True
    ),
    "softmax-signed-rows": Step(
        "softmax of the rows of C (PP-5)", lambda C, k: softmax_rows(C), dense=True
    ),
    "symmetrize": Step(
        "|C| + |C|^T, which ends every chain of coefficients (PP-2a)",
        lambda C, k: symmetric_affinity(C),
        final=True,
    ),
    "low-rank": Step(
        "cosines of the scaled left singular vectors of C, to a power (PP-3)",
        lambda C, k, power: low_rank_affinity(_dense(C), power=power),
        {"power": 4.0},
        final=True,
        dense=True,
    ),
    "low-rank-transposed": Step(
        "low-rank of C^T, as in the column form of low-rank representation (PP-3)",
        lambda C, k, power: low_rank_affinity(_dense(C).T, power=power),
        {"power": 4.0},
        final=True,
        dense=True,
    ),
    "svd-power": Step(
        "leading d k + 1 singular vectors of (C + C^T) / 2, to a power (PP-4)",
        lambda C, k, d, power: svd_power_affinity(C, k, dimension=d, power=power),
        {"d": 4, "power": 4.0},
        final=True,
        dense=True,
    ),
    "nearest-rows": Step(
        "graph of the n rows of C that are nearest by angle",
        lambda C, k, n: nearest_rows_affinity(C, n_neighbors=n),
        {"n": 3},
        final=True,
    ),
}
CUTS = {
    "k-means": "at the end of a chain: k-means of the spectral embedding, the default",
    "cluster-qr": "at the end of a chain: pivoted QR of the spectral embedding, without seeds",
}
