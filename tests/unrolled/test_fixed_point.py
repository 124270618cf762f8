import warnings

import pytest
import torch
from sklearn.exceptions import ConvergenceWarning
from torch.testing import assert_close

from twinsolve.unrolled import (
    Context,
    FixedPoint,
    Neutreno,
    Softmax,
    Solved,
    SparseCoding,
)

GENERATOR = torch.Generator().manual_seed(0)
Q, K, V, F = torch.randn(4, 2, 6, 3, generator=GENERATOR, dtype=torch.float64)


def test_gradcheck_of_a_nonlinear_map():
    W = 0.3 * Q[0, :3, :3] / torch.linalg.matrix_norm(Q[0, :3, :3], 2)
    b = V[0].clone()

    def solve(W, b):
        return FixedPoint(lambda z, W, b: torch.tanh(z @ W + b), tol=1e-14)(0 * b, W, b)

    assert torch.autograd.gradcheck(solve, (W.requires_grad_(), b.requires_grad_()))
    out = solve(W, b).sum()
    first = torch.autograd.grad(out, W, create_graph=True)[0]
    for inputs in (W, b):
        with pytest.raises(RuntimeError, match="FixedPoint: has no second derivative"):
            torch.autograd.grad(first.sum(), inputs, retain_graph=True)


def test_rows_of_small_numbers_are_as_exact_as_others():
    """Padding of 1e3, which only its own row sees."""
    mask = torch.arange(6) < 5
    far = torch.where(mask[:, None], F, 1e3 * F)
    layer = Solved(Neutreno(Softmax(), 0.4))
    found, near = (
        layer(Q, K, V, mask=mask[None], context=Context(first_values=f)) for f in (far, F)
    )
    assert_close(found[:, :5], near[:, :5], atol=4e-10, rtol=0)


def test_what_is_nan_is_no_failure_to_converge():
    q = Q.clone().requires_grad_()
    with torch.no_grad():
        q[:, 2] = torch.nan
    codes = Solved(SparseCoding(2.0)).matrix(q, K)
    codes.sum().backward()
    assert codes[:, 2].isnan().all()
    assert codes[:, :2].isfinite().all()
    k, mask = K.clone(), torch.ones(Q.shape[-2], K.shape[-2], dtype=torch.bool)
    k[:, 1], mask[0, 1] = torch.nan, False
    codes = Solved(SparseCoding(2.0)).matrix(Q, k, mask=mask)
    assert codes[:, 0].isfinite().all()
    assert codes[:, 1:].isnan().all()


def test_missing_the_tolerance_warns_forward_and_backward():
    with pytest.warns(ConvergenceWarning, match="of 12 solutions have a gap above tol"):
        Solved(SparseCoding(0.1), max_iter=1)(Q, K, V)
    with pytest.warns(ConvergenceWarning, match="the fixed point was not reached in 3 iterations"):
        Solved(Neutreno(Softmax(), 0.1), max_iter=3)(Q, K, V, context=Context(first_values=F))
    a = torch.ones(2, dtype=torch.float64, requires_grad=True)
    # z = z + a - a: every point is fixed, and I - J is singular.
    z = FixedPoint(lambda z: z + a - a.detach(), max_iter=20)(torch.ones_like(a))
    with pytest.warns(ConvergenceWarning, match="the gradient of the fixed point was not reached"):
        z.sum().backward()


def test_divergence_warns_and_ends_early():
    calls = []

    def square(z):
        calls.append(1)
        return z**2 + 1

    with pytest.warns(ConvergenceWarning, match="relative residual"):
        FixedPoint(square)(torch.full((2,), 3.0))
    assert len(calls) < 50


def test_an_empty_or_zero_start_is_a_fixed_point_at_once():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert FixedPoint(lambda z: z / 2)(torch.zeros(0, 3)).shape == (0, 3)
        assert (FixedPoint(lambda z: z / 2)(torch.zeros(2, 3)) == 0).all()


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")  # Dynamo
def test_compiled_programs_run_the_iterations_untraced():
    """With the numbers and gradients of the eager layer, and programs of what stands around."""

    class Between(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.solve = FixedPoint(lambda z, b: torch.tanh(z / 2 + b))

        def forward(self, b):
            return self.solve(0 * b, 2 * b) + b.sin()

    def record(program, inputs):
        programs.append(program.code)
        return program

    torch.compiler.reset()
    programs, layer, b = [], Between(), F.clone().requires_grad_()
    both = layer(b), torch.compile(layer, backend=record)(b)
    assert_close(both[1], both[0], atol=0, rtol=0)
    gradients = [torch.autograd.grad(out.sum(), b)[0] for out in both]
    assert_close(gradients[1], gradients[0], atol=0, rtol=0)
    assert programs
    assert not any("tanh(" in code for code in programs)
