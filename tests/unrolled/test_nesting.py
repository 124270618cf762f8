"""Operators around operators: the laws hold, or the nesting is refused."""

import warnings
from itertools import product

import pytest
import torch
from torch.testing import assert_close

from twinsolve.unrolled import (
    AttnScale,
    Biased,
    Context,
    Neutreno,
    ReAttention,
    Sinkhorn,
    Softmax,
    Solved,
    SparseCoding,
    Twicing,
)

GENERATOR = torch.Generator().manual_seed(0)
BIAS = torch.randn(5, 5, dtype=torch.float64, generator=GENERATOR)
INNER = {"softmax": Softmax, "sparse coding": lambda: SparseCoding(0.5)}
WRAPPERS = {
    "twicing": Twicing,
    "attn scale": AttnScale,
    "neutreno": lambda base: Neutreno(base, 0.4),
    "neutreno safe": lambda base: Neutreno(base, 0.4, relaxed=True, n_iter=2),
    "sinkhorn": lambda base: Sinkhorn(base, n_iter=3),
    "solved": lambda base: Solved(base, tol=1e-13, max_iter=400),
    "biased": lambda base: Biased(base, BIAS),
    "re-attention": lambda base: ReAttention(base, 2),
}


def nested(inner, wrappers):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        operator = INNER[inner]()
        for name in wrappers:
            operator = WRAPPERS[name](operator)
    with torch.no_grad():
        for parameter in operator.parameters():
            parameter += 0.2
    return operator.double()


@pytest.mark.parametrize("outer", WRAPPERS)
def test_nestings_keep_the_laws_or_are_refused(outer):
    for inner, wrapper in product(INNER, WRAPPERS):
        try:
            operator = nested(inner, (wrapper, outer))
        except ValueError as error:
            assert str(error).startswith("base: ")  # noqa: PT017
        else:
            assert_laws(operator)


def assert_laws(operator):
    q, k, v, first = torch.randn(4, 2, 5, 3, dtype=torch.float64, generator=GENERATOR)
    context = Context(first_values=first)
    A = operator.matrix(q, k, context=context)
    out, moved = (operator(q, k, x, context=context) for x in (v, v + first))
    if operator.of_first_values:
        assert_close(out, A @ first, atol=1e-9, rtol=0)
        assert_close(moved, out, atol=0, rtol=0)
    else:
        assert_close(moved - out, A @ first, atol=1e-9, rtol=0)
        if operator.linear_in_values:
            assert_close(out, A @ v, atol=1e-9, rtol=0)
    if operator.row_stochastic:
        assert_close(A.sum(dim=-1), torch.ones_like(A[..., 0]), atol=1e-9, rtol=0)
    if operator.nonnegative:
        assert A.min() >= 0


def test_a_solved_smoother_is_linear():
    with pytest.raises(ValueError, match="must hold a smoother that is linear in its values"):
        nested("softmax", ("neutreno", "neutreno", "solved"))
    for wrapper in ("twicing", "attn scale", "neutreno", "sinkhorn", "biased"):
        with pytest.raises(ValueError, match="base: must act on the values that a correction"):
            nested("softmax", ("neutreno", "solved", wrapper))
