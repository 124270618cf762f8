"""Twins: ISTA for sparse self-expression and sparse attention without the diagonal."""

from ...sparse_coding import SparseCoding
from ..registry import Twin, register
from ..relations import Iterate, Limit, Rate
from ..sparse_coding.sparse_attention import (
    build_sparse_coding,
    ista_logit_range,
    lasso_problem,
    solve_ista,
)

for name, relation, equation in (
    ("self-expression-iterates", Iterate(), "SE-15"),
    ("self-expression-rate", Rate(), "SE-15"),
    ("self-expression-limit", Limit(), "SE-12"),
):
    register(
        Twin(
            name=name,
            family="self_expression",
            relation=relation,
            equation=equation,
            source="Attention: Self-Expression Is All You Need, eq. 12 and 15",
            layer=SparseCoding,
            build=lambda q, k, v: build_sparse_coding(q, k, zero_diagonal=True),
            solve=solve_ista,
            pairing="self",
            covers=lambda layer: layer.zero_diagonal,
            problem=lasso_problem,
            logit_range=ista_logit_range,
            passes=lambda layer: max(layer.n_iter, 1),
        )
    )
