"""Twins: the Lasso solved to a certificate, and sparse attention run to convergence."""

from functools import partial
from typing import Any

from ....solvers import sparse_code
from ...solved_operator import Solved
from ...sparse_coding import SparseCoding
from ..heads import HeadCall
from ..registry import Array, Twin, register
from ..relations import Limit
from .sparse_attention import build_sparse_coding, lasso_problem, penalty


def _solve(layer: Solved, call: HeadCall) -> Array:
    q, k = call.q, call.k
    base: Any = layer.base
    codes = sparse_code(
        q,
        k,
        lam=penalty(base, q, k, call.head),
        tol=1e-11,
        zero_diagonal=base.zero_diagonal,
        nonnegative=base.nonnegative,
    )
    return codes.coef @ call.v


def _add(name: str, equation: str, *, zero_diagonal: bool) -> None:
    def covers(layer: Any) -> bool:
        base = layer.base
        return isinstance(base, SparseCoding) and base.zero_diagonal == zero_diagonal

    def build(q: Array, k: Array, v: Array, **settings: Any) -> Solved:
        base = build_sparse_coding(q, k, v, zero_diagonal=zero_diagonal, **settings)
        return Solved(base, tol=1e-10)

    register(
        Twin(
            name=name,
            family="self_expression" if zero_diagonal else "sparse_coding",
            relation=Limit(),
            equation=equation,
            source="Attention: Self-Expression Is All You Need, eq. 12 and 16",
            layer=Solved,
            build=build,
            options={
                "nonnegative": partial(build, nonnegative=True),
                "relative": partial(build, relative=True),
            },
            solve=_solve,
            fitted=("base.lam",),
            pairing="self" if zero_diagonal else "cross",
            covers=covers,
            differentiable_twice=(),
            problem=lambda layer, call: lasso_problem(layer.base, call),
        )
    )


_add("sparse-coding-solved", "SE-17", zero_diagonal=False)
_add("self-expression-solved", "SE-12", zero_diagonal=True)
