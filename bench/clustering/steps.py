"""Affinity-step chains by name: PP-1 to PP-5 and others, in the order of their application."""

from collections.abc import Callable
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
from ...solvers.solution import Array

DENSE_ROWS = 10_000


@dataclass(frozen=True)
class Step:
    """``apply(coef, n_clusters, **parameters)`` makes coefficients, or an affinity if `final`.

    A `dense` step needs every entry of the matrix.
    """

    about: str
    apply: Callable[..., Any]
    parameters: dict[str, Any] = field(default_factory=dict)
    final: bool = False
    dense: bool = False


def affinity_of(chain: str, coef: Array | csr_array, n_clusters: int) -> Array | csr_array:
    """Affinity by a chain of steps, such as ``"PP-1 mass=0.7, PP-2"``.

    Each step is a name, with parameters after it where they differ from the defaults. A chain
    that ends in coefficients goes on with PP-2a. What cuts the graph, at its end, is left to
    `cut_of`. Sparse coefficients stay sparse, except in PP-3,
    PP-4 and PP-5.

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
        Otherwise; the message lists what is allowed.
    """
    _parse(chain)
    return chain


def cut_of(chain: str) -> str:
    """What cuts the graph into clusters: the last word of a chain, k-means unless said."""
    last = chain.rpartition(",")[2].strip()
    return last if last in CUTS else "k-means"


def without_cut(chain: str) -> str:
    """The steps of a chain that make the affinity."""
    first, _, last = chain.rpartition(",")
    return first if last.strip() in CUTS else chain


def is_dense(chain: str) -> bool:
    """Whether a step needs every entry: such a chain is left out above `DENSE_ROWS` rows."""
    return any(STEPS[word.split()[0]].dense for word in without_cut(chain).split(","))


def _parse(chain: str) -> list[Callable[..., Any]]:
    applied: list[Callable[..., Any]] = []
    final = False
    for word in without_cut(chain).split(","):
        name, *words = word.split() or [""]
        if name not in STEPS:
            allowed = f"{', '.join(STEPS)}, and {' or '.join(CUTS)} behind a step"
            raise ValueError(f"steps: must be among {allowed}; got {name or chain!r}")
        if final:
            raise ValueError(f"steps: nothing can follow an affinity, got {chain!r}")
        step = STEPS[name]
        parameters = step.parameters | dict(_parameter(word, name) for word in words)
        applied.append(partial(step.apply, **parameters))
        final = step.final
    return applied if final else [*applied, STEPS["PP-2a"].apply]


def _parameter(word: str, step: str) -> tuple[str, Any]:
    name, _, value = word.partition("=")
    known = STEPS[step].parameters
    if name not in known:
        raise ValueError(f"steps: {step} has the parameters {list(known)}, got {word!r}")
    try:
        return name, type(known[name])(value)
    except ValueError as error:
        raise ValueError(f"steps: cannot read {word!r} of {step}") from error


def _dense(coef: Array | csr_array) -> Array:
    return coef.toarray() if isinstance(coef, csr_array) else coef


STEPS = {
    "PP-1": Step(
        "keep the largest entries of a row that hold a share of its l1 mass",
        lambda C, k, mass: keep_l1_mass(C, mass),
        {"mass": 0.7},
    ),
    "PP-2": Step(
        "divide rows by their largest entry, then |C| + |C|^T",
        lambda C, k: symmetric_affinity(scale_by_row_maximum(C)),
        final=True,
    ),
    "PP-2a": Step("|C| + |C|^T", lambda C, k: symmetric_affinity(C), final=True),
    "PP-2b": Step("unit rows", lambda C, k: unit_rows(C)),
    "PP-3": Step(
        "cosines of the scaled left singular vectors of C, to a power",
        lambda C, k, power: low_rank_affinity(_dense(C), power=power),
        {"power": 4.0},
        final=True,
        dense=True,
    ),
    "PP-3T": Step(
        "PP-3 of C^T, as in the column form of low-rank representation",
        lambda C, k, power: low_rank_affinity(_dense(C).T, power=power),
        {"power": 4.0},
        final=True,
        dense=True,
    ),
    "PP-4": Step(
        "leading d k + 1 singular vectors of (C + C^T) / 2, to a power",
        lambda C, k, d, power: svd_power_affinity(C, k, dimension=d, power=power),
        {"d": 4, "power": 4.0},
        final=True,
        dense=True,
    ),
    "PP-5": Step("softmax rows of |C|", lambda C, k: softmax_rows(abs(C)), dense=True),
    "PP-5s": Step("softmax rows of C", lambda C, k: softmax_rows(C), dense=True),
    "keep-largest": Step(
        "keep the n largest entries of a row", lambda C, k, n: keep_largest(C, n), {"n": 3}
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
