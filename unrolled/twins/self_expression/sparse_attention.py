"""Twins: ISTA for sparse self-expression and sparse attention without the diagonal."""

from ..relations import Iterate, Limit, Rate
from ..sparse_coding.sparse_attention import register_learned, register_sparse_coding

for name, relation, equation, settings in (
    ("self-expression-iterates", Iterate(), "SE-15", {}),
    ("self-expression-rate", Rate(), "SE-15", {}),
    ("self-expression-limit", Limit(), "SE-12", {}),
    (
        "relative-self-expression-iterates",
        Iterate(n_iter=(1, 2, 5)),
        "CL-1",
        {"relative": True, "share": 0.1},
    ),
    ("nonnegative-self-expression-iterates", Iterate(), "SE-15n", {"nonnegative": True}),
    ("nonnegative-self-expression-limit", Limit(), "SE-15n", {"nonnegative": True}),
    (
        "support-adaptive-self-expression-iterates",
        Iterate(n_iter=(1, 2, 5)),
        "LS-1",
        {"step": "support", "share": 0.1},
    ),
    (
        "support-adaptive-self-expression-rate",
        Rate(n_iter=(1, 4)),
        "LS-1",
        {"step": "support", "share": 0.1},
    ),
):
    register_sparse_coding(name, relation, equation, zero_diagonal=True, **settings)
register_learned("learned-self-expression-recursion", zero_diagonal=True)
