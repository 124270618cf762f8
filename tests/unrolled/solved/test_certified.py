"""What every solved layer holds: its proof, its oracle, exact gradients, and clear refusals."""

from unittest.mock import patch

import cvxpy as cp
import numpy as np
import pytest
import torch
from sklearn.exceptions import ConvergenceWarning
from torch.autograd import grad, gradcheck

from twinsolve.solvers import kernel_smoothing as simplex
from twinsolve.solvers.nonlocal_energy import segments
from twinsolve.solvers.oracles import kernel_smoothing, nonlocal_energy, sparse_coding
from twinsolve.unrolled.solved import (
    solved_entmax,
    solved_lasso,
    solved_low_rank,
    solved_ridge,
    solved_total_variation,
)

from ..draws import tokens

X, A = tokens(5, 6), tokens(8, 6, seed=1)
POSITIVE = 0.4 + tokens(5, 1, seed=2).abs()
ALPHA = torch.tensor([[1.25], [1.75], [1.5], [1.25], [1.75]]).double()
STEEP = torch.tensor([[3.0], [4.0], [3.0], [3.0], [4.0]]).double()
MASK = tokens(5, 6, seed=3) > -0.8
ROTATION = np.linalg.qr(tokens(3, 3, seed=5).numpy())[0]
EQUAL = torch.diag(torch.tensor([3.0, 3.0, 1.0, 1.0, 0.0]).double())[:, :4]


def entmax_of_oracle(z, alpha):
    rows = [
        kernel_smoothing.entmax(row[None], alpha=a) for row, a in zip(z, alpha[:, 0], strict=True)
    ]
    return np.concatenate(rows)


def variation_of_oracle(f, lam):
    rows = [
        nonlocal_energy.total_variation(x[None], lam=w) for x, w in zip(f, lam[:, 0], strict=True)
    ]
    return np.concatenate(rows)


def ridge_of_oracle(X, A, ridge):
    C = cp.Variable((len(X), len(A)))
    squares = cp.sum(cp.multiply(np.tile(ridge, (1, len(A))), cp.square(C)))
    cp.Problem(cp.Minimize(cp.sum_squares(X - C @ A) + squares)).solve(solver=cp.CLARABEL)
    return C.value


def low_rank_of_oracle(X, lam):
    Z = cp.Variable(X.shape)
    penalty = lam.item() * cp.normNuc(Z)
    cp.Problem(cp.Minimize(cp.sum_squares(X - Z) / 2 + penalty)).solve(solver=cp.CLARABEL)
    return Z.value


# A function, its tensors (the first by position, the last by the name that follows), its oracle.
LAYERS = {
    "lasso": (
        solved_lasso,
        (X, A),
        {"lam": POSITIVE},
        lambda x, a, lam: sparse_coding.sparse_code(x, a, lam=lam[:, 0]),
    ),
    "entmax": (solved_entmax, (X,), {"alpha": ALPHA}, entmax_of_oracle),
    "entmax beyond sparsemax": (solved_entmax, (X,), {"alpha": STEEP}, entmax_of_oracle),
    "total variation": (
        solved_total_variation,
        (tokens(5, 12, seed=4),),
        {"lam": POSITIVE},
        variation_of_oracle,
    ),
    "ridge": (solved_ridge, (X, A), {"ridge": POSITIVE}, ridge_of_oracle),
    "ridge, tall": (solved_ridge, (X, A[:3]), {"ridge": POSITIVE}, ridge_of_oracle),
    "low rank": (solved_low_rank, (X,), {"lam": torch.tensor([[1.5]])}, low_rank_of_oracle),
    "low rank, tall": (solved_low_rank, (A,), {"lam": torch.tensor([[1.5]])}, low_rank_of_oracle),
    "equal singular values": (
        solved_low_rank,
        (EQUAL,),
        {"lam": torch.tensor([[0.5]])},
        low_rank_of_oracle,
    ),
    "equal on either side": (
        solved_low_rank,
        (EQUAL,),
        {"lam": torch.tensor([[2.0]])},
        low_rank_of_oracle,
    ),
}


@pytest.fixture(params=LAYERS)
def layer(request):
    """The function of its tensors, these tensors, and the oracle."""
    function, tensors, named, oracle = LAYERS[request.param]
    ((name, value),) = named.items()

    def run(*leaves, **settings):
        return function(*leaves[:-1], **{name: leaves[-1]}, **settings)

    return run, [x.double() for x in (*tensors, value)], oracle


def leaves_of(tensors, dtype=torch.float64):
    return [x.to(dtype).requires_grad_() for x in tensors]


def test_a_solution_is_certified_and_that_of_the_oracle(layer):
    run, tensors, oracle = layer
    solution, record = run(*tensors, return_record=True)
    assert record.gap.max() < 1e-13
    assert record.gap.shape == record.margin.shape
    assert record.margin.min() > 1e-4
    assert np.abs(solution.numpy() - oracle(*(x.numpy() for x in tensors))).max() < 2e-4
    assert solution.abs().max() > 0.1


def test_gradients_in_every_tensor_are_those_of_finite_differences(layer):
    run, tensors, _ = layer
    assert gradcheck(run, leaves_of(tensors), atol=1e-8, rtol=1e-6)


def test_float32_comes_back_and_is_solved_in_float64(layer):
    run, tensors, _ = layer
    low, high = leaves_of(tensors, torch.float32), leaves_of([x.float() for x in tensors])
    found, exact = run(*low), run(*high)
    assert found.dtype == torch.float32
    assert torch.equal(found, exact.float())
    w = tokens(*exact.shape, seed=9).float()
    for a, b in zip(grad(found, low, w), grad(exact, high, w.double()), strict=True):
        assert a.dtype == torch.float32
        assert (a - b).norm() <= 2 * torch.finfo(torch.float32).eps * b.norm()


def test_batches_are_their_problems_one_by_one(layer):
    run, tensors, _ = layer
    more = [torch.stack([x, 0.97 * x.flip(-2)]) for x in tensors]
    apart = torch.stack([run(*parts) for parts in zip(*more, strict=True)])
    assert (run(*more) - apart).abs().max() < 1e-13


def test_second_derivatives_and_tracing_are_refused(layer):
    run, tensors, _ = layer
    leaves = leaves_of(tensors)
    (slope,) = grad(run(*leaves).square().sum(), leaves[0], create_graph=True)
    with pytest.raises(RuntimeError, match=r"solved_.*: has no second derivative"):
        slope.sum().backward()
    with pytest.raises(RuntimeError, match=r"solved_.*: torch.func cannot transform it"):
        torch.func.grad(lambda x: run(x, *tensors[1:]).sum())(tensors[0])
    with pytest.raises(RuntimeError, match=r"solved_.*: cannot run on the meta device"):
        run(tensors[0].to("meta"), *tensors[1:])


# Where a solution is not differentiable, and the gradient of its sum in the tensor.
KINKS = {
    "lasso": (lambda x: solved_lasso(x, torch.eye(1), lam=2.0), [[1.0]], [[0.0]]),
    "entmax": (
        lambda z: solved_entmax(z, alpha=2.0)[..., :1],
        [[1.0, 0.0]],
        [[0.0, 0.0]],
    ),
    "total variation": (
        lambda f: solved_total_variation(f, lam=0.5)[..., :1],
        [[0.0, 1.0]],
        [[0.5, 0.5]],
    ),
    "low rank": (
        lambda x: solved_low_rank(x, lam=2.0),
        [[3.0, 0.0], [0.0, 2.0]],
        [[1.0, 1.0], [1.0, 0.0]],
    ),
}


@pytest.mark.parametrize("name", KINKS)
def test_where_a_solution_is_not_differentiable_one_side_is_taken_and_told(name):
    function, point, slope = KINKS[name]
    x = torch.tensor(point).double().requires_grad_()
    with pytest.warns(ConvergenceWarning, match="1 of 1 solutions are not proved to be diff"):
        solution = function(x)
    assert (grad(solution.sum(), x)[0] - torch.tensor(slope).double()).abs().max() < 1e-12
    function(x.detach())  # no gradient is needed


def leaf(x):
    return torch.as_tensor(x, dtype=torch.float64).clone().requires_grad_()


def spoiled(owner, name, change, function, x):
    """The solution by a solver that stops short."""
    right = getattr(owner, name)
    with patch.object(owner, name, lambda *given, **named: change(right(*given, **named))):
        return function(leaf(x))


def sharpen(p, power):
    p = p ** (1 + power)
    return p / p.sum(axis=-1, keepdims=True)


def turn(found, angle):
    """Turn the first two left singular vectors."""
    U, s, Vt = found
    first, second = U[..., 0].copy(), U[..., 1].copy()
    U[..., 0], U[..., 1] = first + angle * second, second - angle * first
    return U, s, Vt


def split(solution, jump):
    solution.coef[:, 0] += jump
    return solution


def turned(by, function):
    def spoil(found):
        return turn(found, by) if isinstance(found, tuple) else found

    return spoiled(np.linalg, "svd", spoil, function, X)


# Solvers that stop short by an amount with a small gap, and problems close to where they have no
# answer: an amount that leaves the gradient exact, and one that does not.
INEXACT = {
    "entmax": (
        lambda by: spoiled(
            simplex, "entmax", lambda p: sharpen(p, by), lambda z: solved_entmax(z, alpha=1.25), X
        ),
        (0, 1e-5),
    ),
    "sparsemax": (
        lambda by: spoiled(
            simplex, "entmax", lambda p: p + by, lambda z: solved_entmax(z, alpha=2.0), X
        ),
        (0, 1e-9),
    ),
    "total variation": (
        lambda by: spoiled(
            segments,
            "signal_variation",
            lambda u: split(u, by),
            lambda f: solved_total_variation(f, lam=0.3),
            [[0.0, 0.0, 0.1, 1.0, 1.0, 1.0]],
        ),
        (0, 1e-8),
    ),
    "ridge": (lambda by: turned(by, lambda x: solved_ridge(x, A, ridge=1.0)), (0, 1e-6)),
    "low rank": (lambda by: turned(by, lambda x: solved_low_rank(x, lam=1.5)), (0, 1e-8)),
    "a logit near the threshold": (
        lambda by: solved_entmax(leaf([[0, -(1 - by) / 0.99]]), alpha=1.99),
        (0.1, 1e-12),
    ),
    "hardly a ridge": (lambda by: solved_ridge(leaf(X), A, ridge=by), (1e-8, 1e-15)),
    "singular values near lam": (
        lambda by: solved_low_rank(leaf(ROTATION * [1e3, 2 + by, 2 - by]), lam=2.0),
        (0.1, 1e-8),
    ),
}


@pytest.mark.parametrize("name", INEXACT)
def test_a_gradient_that_is_not_proved_to_be_exact_is_told(name):
    solve, (exact, inexact) = INEXACT[name]
    solve(exact).square().sum().backward()
    with pytest.warns(ConvergenceWarning, match="are not proved to be"):
        solve(inexact).square().sum().backward()


def test_entmax_has_a_slope_in_alpha_at_softmax_and_beside_it_en_3():
    p = torch.softmax(X, dim=-1)
    log_p = p.log()
    expected = p / 2 * ((p * log_p**2).sum(dim=-1, keepdim=True) - log_p**2)
    for excess in (0.0, 1e-12, 1e-6):
        alpha = torch.full((5, 1), 1 + excess, dtype=torch.float64, requires_grad=True)
        slopes = [grad(solved_entmax(X, alpha=alpha)[:, j].sum(), alpha)[0] for j in range(6)]
        assert (torch.cat(slopes, dim=1) - expected).abs().max() < 1e-12 + 10 * excess


def test_a_small_ridge_has_its_gradient_where_atoms_depend_on_each_other():
    atoms = torch.tensor([[1.0, 2.0], [2.0, 1.0], [1.0, 1.0]]).double()
    x, w, ridge = leaf([[1.0, -0.5]]), tokens(1, 3), leaf(1e-7)
    inverse = torch.linalg.inv(atoms.mT @ atoms + ridge.detach() * torch.eye(2).double())
    slope = -(x @ inverse @ inverse @ atoms.mT * w).sum()
    (found,) = grad(solved_ridge(x, atoms, ridge=ridge), ridge, w)
    assert (found - slope).abs() < 1e-12 * slope.abs()


def test_hidden_entries_get_no_weight_and_no_gradient():
    mask = MASK.clone()
    mask[1] = False
    z, alpha = leaves_of((X, ALPHA))
    p = solved_entmax(z, alpha=alpha, mask=mask)
    assert not p[~mask].any()
    assert (p.sum(dim=-1) - mask.any(dim=-1).double()).abs().max() < 1e-15
    assert gradcheck(lambda *x: solved_entmax(x[0], alpha=x[1], mask=mask), (z, alpha))
    slope = grad(p.square().sum(), z)[0]
    assert not slope[~mask].any()
    infinite = z.masked_fill(~mask, -torch.inf).requires_grad_()
    assert solved_entmax(infinite, alpha=alpha).equal(p)
    found = grad(solved_entmax(infinite, alpha=alpha, mask=MASK).square().sum(), infinite)[0]
    assert found.equal(slope)


@pytest.mark.parametrize("alpha", [1.0, 1.5, 3.0])
def test_one_row_may_come_without_an_axis_of_rows(alpha):
    z, mask = X[0].clone().requires_grad_(), MASK[0]
    p, record = solved_entmax(z, alpha=alpha, mask=mask, return_record=True)
    rows, of_rows = solved_entmax(z[None], alpha=alpha, mask=mask[None], return_record=True)
    assert p.equal(rows[0])
    assert [x.shape for x in record] == [()] * 2
    assert [x.item() for x in record] == [x.item() for x in of_rows]
    assert grad(p[0], z)[0].equal(grad(rows[0, 0], z)[0])


def test_beyond_sparsemax_a_slope_at_the_edge_of_the_support_is_told():
    """Two logits leave c = z_2 - 1 / 2 at alpha = 3: sqrt(2 t) grows with infinite slope there."""
    z = torch.tensor([[0.5, 1e-12]]).double().requires_grad_()
    with pytest.warns(ConvergenceWarning, match="not proved to be differentiable"):
        p = solved_entmax(z, alpha=3.0)
    assert (p - torch.tensor([1.0, 0.0])).abs().max() < 2e-6


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: solved_entmax(X, alpha=torch.inf), "alpha: contains NaN or infinity"),
        (lambda: solved_entmax(-X / 0, alpha=1.5), "logits: contains NaN or infinity"),
        (lambda: solved_entmax([0.0, 1.0], alpha=1.5), "logits: must be a floating-point tensor"),
        (lambda: solved_entmax(X, alpha=0.5), "alpha: must be >= 1"),
        (lambda: solved_entmax(X, alpha=1.5, mask=MASK.double()), "mask: must be boolean"),
        (lambda: solved_total_variation(X, lam=0.0), "lam: must be > 0"),
        (lambda: solved_total_variation(X, lam=POSITIVE[:4]), "lam: must be broadcastable"),
        (lambda: solved_ridge(X, A[:, :5], ridge=1.0), "dictionary: has 5 features"),
        (lambda: solved_ridge(X, A, ridge=0.0), "ridge: must be > 0"),
        (lambda: solved_low_rank(X * torch.nan, lam=1.0), "matrices: contains NaN"),
        (lambda: solved_low_rank(X, lam=1.0, inexact="no"), "inexact: must be one of"),
        (lambda: solved_low_rank(X, lam=1.0, tol=-1.0), "tol: must be"),
    ],
)
def test_what_has_no_answer_is_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()


@pytest.mark.parametrize("shape", [(0, 6), (5, 0), (2, 0, 6)])
@pytest.mark.parametrize(
    "function",
    [
        lambda x: solved_entmax(x, alpha=1.5),
        lambda x: solved_total_variation(x, lam=1.0),
        lambda x: solved_low_rank(x, lam=1.0),
        lambda x: solved_ridge(x, x, ridge=1.0) @ x,
    ],
)
def test_nothing_gives_nothing(function, shape):
    x = torch.zeros(shape, requires_grad=True)
    solution = function(x)
    assert solution.shape == shape
    assert grad(solution.sum(), x)[0].shape == shape
