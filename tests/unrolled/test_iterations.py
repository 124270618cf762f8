"""One iteration a backend: the layers', the solvers' and the fused kernel's are the same."""

import numpy as np
import pytest
import torch
from torch.testing import assert_close

from twinsolve.solvers import fista, ista
from twinsolve.solvers.sparse_coding.penalty import Penalty
from twinsolve.unrolled import SparseCoding
from twinsolve.unrolled.sparse_coding import (
    SparsePenalty,
    accelerated,
    proximal_map,
    repeated,
)

from .draws import tokens

FLAGS = pytest.mark.parametrize("nonnegative", [False, True])
DIAGONAL = pytest.mark.parametrize("zero_diagonal", [False, True])
STEPS = [0.02, 0.03, 0.01, 0.025]


def own(n):
    return torch.eye(n, dtype=torch.bool)


@pytest.mark.parametrize(
    ("nonnegative", "zero_diagonal", "l1_ratio", "step"),
    [
        (False, True, 1.0, 0.4),
        (True, False, 0.3, tokens(6, 1).abs() + 0.1),
        (False, False, 0.3, 0.4),
    ],
)
def test_prox_is_that_of_the_solvers(nonnegative, zero_diagonal, l1_ratio, step):
    z, lam = tokens(6, 6), tokens(6, 1, seed=1).abs()
    hidden = own(6) if zero_diagonal else None
    found = SparsePenalty(lam, l1_ratio, nonnegative, hidden).prox(z, step)
    rows = np.arange(6) if zero_diagonal else None
    expected = Penalty(lam[:, 0].numpy(), l1_ratio, nonnegative, rows)
    step = step if isinstance(step, float) else step.numpy()
    assert_close(found.numpy(), expected.prox(z.numpy(), step), atol=1e-15, rtol=0)


@FLAGS
@DIAGONAL
def test_iterates_are_those_of_the_solvers(nonnegative, zero_diagonal):
    q, k = tokens(9, 5), tokens(9, 5, seed=1)
    move = proximal_map(
        q, k, SparsePenalty(0.4, 1.0, nonnegative, own(9) if zero_diagonal else None)
    )
    zero = torch.zeros(9, 9, dtype=torch.float64)
    flags = {"lam": 0.4, "nonnegative": nonnegative, "zero_diagonal": zero_diagonal}
    expected = ista(q, k, n_iter=4, step=STEPS, **flags).coef
    assert_close(repeated(move, zero, STEPS).numpy(), expected, atol=1e-14, rtol=0)
    expected = fista(q, k, n_iter=4, step=0.02, **flags).coef
    assert_close(accelerated(move, zero, [0.02] * 4).numpy(), expected, atol=1e-14, rtol=0)


@FLAGS
@DIAGONAL
def test_equal_steps_of_each_iteration_are_those_of_the_kernel(nonnegative, zero_diagonal):
    """The kernel serves one step for all iterations, the literal iteration one for each."""
    settings = {"n_iter": 4, "learnable": True, "nonnegative": nonnegative}
    settings |= {"zero_diagonal": zero_diagonal, "dtype": torch.float64}
    fused, apart = (SparseCoding(0.5, per_iteration=each, **settings) for each in (False, True))
    inputs = [tokens(8, 4, seed=i).requires_grad_() for i in range(3)]
    found, expected = fused(*inputs), apart(*inputs)
    assert_close(found, expected, atol=1e-13, rtol=0)
    by_kernel, by_iteration = (
        torch.autograd.grad(out.square().sum(), [*inputs, *layer.parameters()])
        for out, layer in ((found, fused), (expected, apart))
    )
    for a, b in zip(by_kernel[:3], by_iteration[:3], strict=True):
        assert_close(a, b, atol=1e-11, rtol=0)
    lams, steps = by_iteration[3:7], by_iteration[7:]
    assert_close(by_kernel[3:], (sum(lams), sum(steps)), atol=1e-11, rtol=0)
