"""The Lasso as a layer: optimal codes, exact gradients, and what happens where there are none."""

import pytest
import torch
from sklearn.exceptions import ConvergenceWarning
from torch.autograd import grad, gradcheck

from twinsolve.solvers.sparse_coding import implicit, row_blocks
from twinsolve.unrolled import solved_lasso
from twinsolve.unrolled.solved import lasso

from ..draws import tokens

X, A = tokens(7, 6), tokens(9, 6, seed=1)
LAM, RIDGE = 0.4 + tokens(7, 1, seed=2).abs(), tokens(7, 1, seed=3).abs()
WEIGHTS = 0.5 + tokens(9, seed=4).abs()
MASK = tokens(7, 9, seed=5) > -0.5
FORMS = {
    "lasso": {"lam": LAM[0, 0]},
    "elastic net": {"lam": LAM[0, 0], "ridge": RIDGE[0, 0]},
    "penalties of rows": {"lam": LAM, "ridge": RIDGE},
    "weights": {"lam": LAM, "weights": WEIGHTS},
    "weights and ridge": {"lam": LAM, "weights": WEIGHTS, "ridge": RIDGE[0, 0]},
    "mask": {"lam": LAM, "mask": MASK},
    "mask, weights and ridge": {"lam": LAM, "mask": MASK, "weights": WEIGHTS, "ridge": RIDGE[0, 0]},
    "zero diagonal": {"lam": LAM, "zero_diagonal": True},
}


@pytest.fixture(params=FORMS)
def form(request):
    return FORMS[request.param]


@pytest.fixture(params=[False, True], ids=["signed", "nonnegative"])
def nonnegative(request):
    return request.param


def atoms_of(form):
    return A[:7] if form.get("zero_diagonal") else A


def violation(codes, signals, atoms, form, nonnegative):
    """Of the optimality conditions, relative to the penalty of each entry."""
    penalty = form["lam"] * form.get("weights", 1)
    pull = 2 * (signals - codes @ atoms) @ atoms.mT - 2 * form.get("ridge", 0) * codes
    pull = (pull / penalty).where(form.get("mask", torch.tensor(True)), 0)
    if form.get("zero_diagonal"):
        pull.fill_diagonal_(0)
    off = (pull if nonnegative else pull.abs()) - 1
    return torch.where(codes == 0, off.clamp(min=0), (pull - codes.sign()).abs()).max()


def test_codes_are_optimal(form, nonnegative):
    atoms = atoms_of(form)
    codes, record = solved_lasso(X, atoms, nonnegative=nonnegative, return_record=True, **form)
    assert violation(codes, X, atoms, form, nonnegative) < 1e-12
    assert (codes != 0).any(dim=-1).sum() >= 5
    assert not (nonnegative and (codes < 0).any())
    if "mask" in form:
        assert not codes[~MASK].any()
    assert record.gap.max() < 1e-12
    assert record.margin.min() > 0


def first(name, value, n_signals=4, n_atoms=6):
    """What belongs to the first signals and atoms: a difference is taken for every number."""
    if not isinstance(value, torch.Tensor) or value.ndim == 0:
        return value
    return value[:n_atoms] if name == "weights" else value[:n_signals, :n_atoms]


def test_gradients_are_those_of_finite_differences(form, nonnegative):
    n_atoms = 4 if form.get("zero_diagonal") else 6
    few = {name: first(name, value, n_atoms=n_atoms) for name, value in form.items()}
    names = [name for name in ("lam", "ridge", "weights") if name in few]
    constant = {name: value for name, value in few.items() if name not in names}
    leaves = [x.clone().requires_grad_() for x in (X[:4], A[:n_atoms], *(few[n] for n in names))]

    def codes(signals, atoms, *values):
        settings = dict(zip(names, values, strict=True)) | constant
        return solved_lasso(signals, atoms, nonnegative=nonnegative, **settings)

    assert gradcheck(codes, leaves, atol=1e-8, rtol=1e-6)


def test_signals_that_are_their_own_dictionary_get_both_parts():
    assert gradcheck(
        lambda x: solved_lasso(x, x, lam=0.5, zero_diagonal=True), [X.clone().requires_grad_()]
    )


@pytest.mark.parametrize(
    ("n_jobs", "size", "packed", "nonnegative"),
    [(None, 1.0, 20, False), (2, 1e13, 20, True), (None, 1e13, 256, False), (2, 1.0, 256, True)],
)
def test_batches_are_their_problems_one_by_one(n_jobs, size, packed, nonnegative, monkeypatch):
    monkeypatch.setattr(lasso, "_PACKED", packed)
    sizes = torch.tensor([1.0, size, 1.0]).double()[:, None, None]
    lam, ridge = (x[0, :, :, :1].abs() for x in (tokens(1, 3, 9, 1, seed=i) for i in (2, 3)))
    leaves = [tokens(2, 3, 9, 6), sizes * tokens(3, 9, 6, seed=1), sizes * (0.5 + lam)]
    leaves = [x.requires_grad_() for x in (*leaves, sizes**2 * ridge)]
    given = {"mask": tokens(3, 9, 9, seed=6) > -0.5, "start": tokens(3, 9, 9, seed=9)}
    options = {"zero_diagonal": True, "nonnegative": nonnegative, "n_jobs": n_jobs}

    def solve(x, a, lam, ridge, mask, start):
        return solved_lasso(x, a, lam=lam, ridge=ridge, mask=mask, start=start, **options)

    together = solve(*leaves, **given)
    apart = torch.stack(
        [torch.stack(list(map(solve, x, *leaves[1:], *given.values()))) for x in leaves[0]]
    )
    lengths = leaves[1].detach().norm(dim=-1)[:, None, :]
    assert ((together - apart) * lengths).abs().max() < 1e-13
    cotangent = tokens(*apart.shape, seed=7) * lengths
    for a, b in zip(*(grad(y, leaves, cotangent) for y in (together, apart)), strict=True):
        assert ((a - b).abs() <= 1e-13 * b.abs().amax(dim=(-2, -1), keepdim=True)).all()


def test_only_small_problems_are_solved_together(monkeypatch):
    """A pack holds a matrix of all its rows and all its atoms."""
    solved, rows = implicit.implicit_codes, []

    def recorded(Y, *args, **given):
        rows.append(len(Y))
        return solved(Y, *args, **given)

    monkeypatch.setattr(implicit, "implicit_codes", recorded)
    solved_lasso(tokens(4, 300, 3), tokens(4, 2, 3, seed=1), lam=0.5)
    solved_lasso(tokens(4, 30, 3), tokens(4, 2, 3, seed=1), lam=0.5)
    assert rows == [300] * 4 + [120]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_other_dtypes_are_solved_in_float64(dtype):
    x, a = (y.to(dtype).requires_grad_() for y in (X, A))
    wide = [y.detach().double().requires_grad_() for y in (x, a)]
    codes, expected = solved_lasso(x, a, lam=0.5), solved_lasso(*wide, lam=0.5)
    assert codes.dtype == dtype
    assert torch.equal(codes, expected.to(dtype))
    cotangent = torch.ones_like(codes)
    found, exact = grad(codes, [x, a], cotangent), grad(expected, wide, cotangent.double())
    for b, c in zip(found, exact, strict=True):
        assert b.dtype == dtype
        assert (b - c).norm() <= 2 * torch.finfo(dtype).eps * c.norm()


def test_a_start_changes_nothing(form, nonnegative):
    form = form | {"nonnegative": nonnegative}
    atoms, cotangent = atoms_of(form), tokens(7, len(atoms_of(form)), seed=8)
    leaves = X.clone().requires_grad_(), atoms.clone().requires_grad_()
    plain = solved_lasso(*leaves, **form)
    warm = solved_lasso(*leaves, start=tokens(*plain.shape, seed=9), **form)
    assert (plain - warm).abs().max() < 1e-13
    for a, b in zip(*(grad(y, leaves, cotangent) for y in (plain, warm)), strict=True):
        assert (a - b).abs().max() < 1e-12


AT_THE_THRESHOLD = {
    # One atom, whose code is (x - 1)+ for lam = 2; its slope at 1 is 0 from below and 1 from above.
    "threshold": ([[1.0]], [[1.0]], [[0.0]], [[0.0]], ""),
    # Either of two equal atoms may be used: the slope of their sum is 1.
    "equal atoms": ([[3.0]], [[1.0], [1.0]], [[2.0]], [[1.0]], "atoms 0 and 1 are equal"),
    # Opposite ones as well.
    "opposite atoms": (
        [[3.0]],
        [[0.0], [1.0], [0.0], [-1.0]],
        [[2.0]],
        [[1.0]],
        "atoms 1 and 3 are opposite",
    ),
}


@pytest.mark.parametrize("name", AT_THE_THRESHOLD)
def test_where_codes_are_not_differentiable_the_gradient_is_that_of_the_support(name):
    *numbers, why = AT_THE_THRESHOLD[name]
    signals, atoms, fit, slope = (torch.tensor(x).double() for x in numbers)
    signals.requires_grad_()
    told = f"1 of 1 solutions are not proved to be differentiable.*{why}"
    with pytest.warns(ConvergenceWarning, match=told) as caught:
        codes, record = solved_lasso(signals, atoms, lam=2.0, return_record=True)
    assert record.margin.abs() < 1e-12
    assert ("atoms" in str(caught[0].message)) == bool(why)
    assert torch.equal(codes @ atoms, fit)
    assert torch.equal(grad((codes @ atoms).sum(), signals)[0], slope)
    with pytest.raises(RuntimeError, match=told):
        solved_lasso(signals, atoms, lam=2.0, inexact="raise")
    solved_lasso(signals, atoms, lam=2.0, inexact="ignore")
    solved_lasso(signals.detach(), atoms, lam=2.0)  # no gradient, no warning


def test_a_ridge_makes_codes_of_equal_atoms_unique():
    atoms = torch.cat([A, A[:2], -A[2:4]])
    leaves = [x.clone().requires_grad_() for x in (X, atoms)]
    assert gradcheck(lambda x, a: solved_lasso(x, a, lam=0.5, ridge=0.1), leaves)
    codes = solved_lasso(X, atoms, lam=0.5, ridge=0.1)
    assert (codes[:, :2] - codes[:, 9:11]).abs().max() < 1e-12
    assert (codes[:, 2:4] + codes[:, 11:]).abs().max() < 1e-12
    assert codes[:, 9:].any()


@pytest.mark.parametrize("kind", ["tiny penalty", "cells"])
def test_hidden_atoms_stay_out_where_others_are_searched_for_differently(monkeypatch, kind):
    """Penalties below the rounding of correlations, and dictionaries that are split in cells."""
    monkeypatch.setattr(row_blocks, "FEWEST_IN_CELLS", 2 if kind == "cells" else 10**6)
    monkeypatch.setattr(row_blocks, "_LEFT_BY_CELLS", 1.0)
    codes = solved_lasso(X, A, lam=0.5 if kind == "cells" else 1e-8, mask=MASK)
    assert not codes[~MASK].any()
    assert codes.any(dim=-1).all()


def test_rows_without_signal_or_atoms_have_zero_codes_and_gradients():
    x, mask = X.clone(), torch.ones(7, 9, dtype=torch.bool)
    x[0], mask[1] = 0, False
    x.requires_grad_()
    codes = solved_lasso(x, A, lam=0.5, mask=mask)
    assert not codes[:2].any()
    assert codes[2:].any(dim=-1).all()
    (slope,) = grad(codes.sum(), x)
    assert not slope[:2].any()


def test_rows_whose_rounding_hides_the_support_are_told():
    """Signals of 10^13: correlations are rounded by 10^-2 and more, the penalty is 1/2."""
    x = (1e13 * X).requires_grad_()
    with pytest.warns(ConvergenceWarning, match="7 of 7 solutions are not proved"):
        _, unsure = solved_lasso(x, A, lam=0.5, return_record=True)
    assert unsure.gap.max() < 1e-12
    _, sure = solved_lasso(x, A, lam=0.5e13, return_record=True)
    assert sure.margin.min() > 1e-6


def test_an_answer_that_is_not_reached_is_told():
    with pytest.warns(ConvergenceWarning, match="solutions have a gap above tol"):
        solved_lasso(tokens(50, 20), tokens(200, 20, seed=1), lam=0.01, max_iter=1)


def test_a_gradient_beyond_the_tolerance_is_told(monkeypatch):
    right = implicit.pull_rows

    def wrong(first, stop, supports, *arguments):
        right(first, stop, supports._replace(factor=1.001 * supports.factor), *arguments)

    codes = solved_lasso(X.clone().requires_grad_(), A, lam=0.5)
    monkeypatch.setattr(implicit, "pull_rows", wrong)
    with pytest.warns(ConvergenceWarning, match="gradients are not proved to be within tol"):
        codes.sum().backward()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"lam": 0.0}, "lam: must be > 0, got 0.0"),
        ({"lam": float("nan")}, "lam: contains NaN"),
        ({"ridge": -1.0}, "ridge: must be >= 0, got -1.0"),
        ({"weights": torch.zeros(9)}, "weights: must be > 0"),
        ({"weights": WEIGHTS, "ridge": RIDGE}, "ridge: must be one number where weights"),
        ({"zero_diagonal": True}, "zero_diagonal: needs as many signals as atoms, got 7 and 9"),
        ({"mask": MASK.double()}, "mask: must be boolean, got torch.float64"),
        ({"lam": torch.ones(7)}, r"lam: must be broadcastable to \(7, 1\), got \(7,\)"),
        ({"ridge": torch.ones(6, 1)}, r"ridge: must be broadcastable to \(7, 1\), got \(6, 1\)"),
        ({"weights": torch.ones(7)}, r"weights: must be broadcastable to \(1, 9\), got \(1, 7\)"),
        ({"start": X}, r"start: must be broadcastable to \(7, 9\), got \(7, 6\)"),
        ({"dictionary": A.expand(2, 9, 6), "signals": X.expand(3, 7, 6)}, "signals: leading axes"),
        ({"signals": X * torch.nan}, "signals: contains NaN"),
        ({"signals": X[0]}, "signals: must be a floating-point tensor"),
        ({"dictionary": A[:, :5]}, "dictionary: has 5 features, but the signals have 6"),
    ],
)
def test_what_has_no_answer_is_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        solved_lasso(**{"signals": X, "dictionary": A, "lam": 1.0} | settings)


@pytest.mark.parametrize(
    "shapes", [((0, 5, 6), (0, 9, 6)), ((0, 6), (9, 6)), ((5, 6), (0, 6)), ((5, 0), (9, 0))]
)
def test_nothing_gives_nothing(shapes):
    codes = solved_lasso(*map(torch.ones, shapes), lam=1.0)
    assert codes.shape == (*shapes[0][:-1], shapes[1][-2])
