"""Every twin of the catalogue, and the faults that the check has to find."""

import copy
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch

from twinsolve.solvers.oracles import sparse_coding as oracle
from twinsolve.solvers.sparse_coding import lasso_objective
from twinsolve.unrolled import (
    Context,
    Gaussian,
    LocallyLinear,
    NonLocalMeansAttention,
    Softmax,
    Solved,
    SparseCoding,
    Twicing,
)
from twinsolve.unrolled.locally_linear import affine_weights
from twinsolve.unrolled.sparse_coding import safe_step
from twinsolve.unrolled.sparse_coding.code_blocks import _restrict_, _shrink_
from twinsolve.unrolled.twins import HeadCall, Measurement, Twin, catalogue
from twinsolve.unrolled.twins.relations import (
    FixedPointLimit,
    Identity,
    Limit,
    Rate,
    layer_output,
    solver_output,
    twin_context,
)

from .conftest import TWINS, built, small_inputs


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_holds_on_small_data(twin, dtype):
    inputs = small_inputs(twin, dtype)
    assert twin.relation.measure(twin, built(twin, inputs), inputs).passed


def test_says_where_it_comes_from(twin):
    assert twin.name
    assert twin.equation
    assert twin.source
    assert twin.relation.tolerance <= (1.0 if isinstance(twin.relation, Rate) else 1e-7)


def test_builds_in_float64_and_measures_zero_against_itself(twin):
    inputs = small_inputs(twin, torch.float64)
    layer = built(twin, inputs)
    expected = solver_output(twin, layer, inputs)
    assert expected.dtype == np.float64
    assert layer_output(twin, layer, inputs).shape == expected.shape


def measured(name, dtype=torch.float64):
    twin = TWINS[name]
    inputs = small_inputs(twin, dtype)
    return twin.relation.measure(twin, built(twin, inputs), inputs)


@pytest.fixture
def patch(monkeypatch):
    def replace(target, value):
        monkeypatch.setattr(f"twinsolve.unrolled.{target}", value)

    return replace


ISTA = ["sparse-coding-iterates", "self-expression-iterates"]
LIMITS = ["sparse-coding-limit", "self-expression-limit"]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("name", ISTA + LIMITS)
def test_finds_a_threshold_scaled_by_two(patch, name, dtype):
    patch("sparse_coding.code_blocks._shrink_", lambda z, one_sided: _shrink_(z / 2, one_sided) * 2)
    assert not measured(name, dtype).passed


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("name", ISTA)
@pytest.mark.parametrize("factor", [1.001, 1.5, 4.0])
def test_finds_a_step_that_is_too_long(patch, name, factor, dtype):
    patch("sparse_coding.sparse_attention.safe_step", lambda *a: factor * safe_step(*a))
    assert not measured(name, dtype).passed


@pytest.mark.parametrize("name", ["sparse-coding-rate", "self-expression-rate"])
def test_a_diverging_step_breaks_the_proved_rate(patch, name):
    patch("sparse_coding.sparse_attention.safe_step", lambda *a: 6 * safe_step(*a))
    assert not measured(name).passed


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("name", ["self-expression-iterates", "self-expression-limit"])
def test_finds_a_diagonal_left_in(patch, name, dtype):
    def restrict_(codes, block, hidden, settings):
        _restrict_(codes, block, hidden, settings._replace(zero_diagonal=False))

    patch("sparse_coding.code_blocks._restrict_", restrict_)
    assert not measured(name, dtype).passed


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize(
    "name", ["gaussian-attention", "mahalanobis-attention", "twicing-attention"]
)
def test_finds_a_bandwidth_squared_wrongly(patch, name, dtype):
    right = Gaussian.bandwidth_for
    patch("kernel_smoothing.gaussian.Gaussian.bandwidth_for", lambda self, q: right(self, q) ** 2)
    assert not measured(name, dtype).passed


@pytest.mark.parametrize("name", ["gaussian-attention", "nonlocal-means", "twicing-attention"])
def test_finds_missing_key_norms(patch, name):
    patch("kernel_smoothing.gaussian._norm_features", lambda k: torch.zeros_like(k[..., :1]))
    assert not measured(name).passed


def test_finds_a_wrong_sign_of_the_residual(patch):
    def smooth_twice(self, q, k, v, **_):
        once = self.base(q, k, v)
        return once + self.base(q, k, once - v)

    patch("boosting.Twicing.forward", smooth_twice)
    assert not measured("twicing-attention").passed


@pytest.mark.parametrize("name", ["locally-linear", "locally-linear-attention"])
def test_finds_another_regularisation(patch, name):
    def twice(q, k, *, reg, **arguments):
        return affine_weights(q, k, reg=2 * reg, **arguments)

    patch("locally_linear.affine_weights", twice)
    assert not measured(name).passed


@pytest.mark.parametrize("name", ["nonlocal-means", "nonlocal-means-windowed"])
def test_finds_a_decay_squared_wrongly(patch, name):
    right = NonLocalMeansAttention.forward

    def squared(self, image):
        changed = copy.deepcopy(self)
        changed.h.initial **= 2
        return right(changed, image)

    patch("image_filters.NonLocalMeansAttention.forward", squared)
    assert not measured(name).passed


def test_nan_never_passes():
    assert not Measurement(float("nan"), 1.0).passed

    class Broken(Gaussian):
        def forward(self, *args, **kwargs):
            return super().forward(*args, **kwargs) * float("nan")

    twin = TWINS["gaussian-attention"]
    inputs = small_inputs(twin, torch.float64)
    assert not twin.relation.measure(twin, Broken(1.0).double(), inputs).passed


def test_one_bad_iterate_among_good_ones_counts():
    class Late(SparseCoding):
        def forward(self, *args, **kwargs):
            out = super().forward(*args, **kwargs)
            return out * (float("nan") if self.n_iter == 5 else 1)

    twin = TWINS["sparse-coding-iterates"]
    inputs = small_inputs(twin, torch.float64)
    assert not twin.relation.measure(twin, Late(0.5).double(), inputs).passed


def test_float32_tolerance_scales_with_steps_and_logits():
    twin = TWINS["twicing-attention"]
    inputs = small_inputs(twin, torch.float32)
    layer = built(twin, inputs)
    logits = twin.logit_range(layer, *(x.double().numpy() for x in inputs))
    assert logits > 1
    expected = 32 * torch.finfo(torch.float32).eps * 2 * logits
    assert twin.relation.measure(twin, layer, inputs).tolerance == pytest.approx(expected)


def first_tokens_of(context, count, *_):
    """The context of the first few tokens."""

    def cut(value):
        if isinstance(value, tuple):
            return tuple(cut(x) for x in value)
        return value[..., :count, :] if isinstance(value, torch.Tensor) else value

    return Context(*(cut(value) for value in context))


@pytest.mark.parametrize("dtype", [torch.float64])
def test_causal_rows_are_the_solvers_on_each_prefix(twin, dtype):
    """Twicing is left out: its second pass needs the causal rows of all earlier tokens.

    So are solved codes, which agree in their objective.
    """
    inputs = small_inputs(twin, dtype)
    layer = built(twin, inputs)
    row_by_row = twin.inputs == "tokens" and twin.layer not in (Twicing, Solved)
    if not row_by_row or twin.apply is not Twin.apply or not getattr(layer, "causal", False):
        pytest.skip("takes no causal mask, or one of its own, or is not made of rows")
    if isinstance(twin.relation, FixedPointLimit):
        pytest.skip("solves for the limit, not for the layer's output")
    context = twin_context(twin, inputs)
    with torch.no_grad():
        out = layer(*inputs, is_causal=True, context=context).numpy()
    for i in (12, 17, 23):
        given = None if context is None else partial(first_tokens_of, context, i + 1)
        tokens = tuple(x[:, : i + 1] for x in inputs)
        expected = solver_output(replace(twin, context=given), layer, tokens)[:, -1]
        np.testing.assert_allclose(out[:, i], expected, atol=1e-8)


@pytest.mark.parametrize("name", ["sparse-coding-rate", "self-expression-rate"])
@pytest.mark.parametrize("nonnegative", [False, True])
def test_a_problem_is_what_its_oracle_says(name, nonnegative):
    twin = TWINS[name]
    q, k, _ = (x[0].numpy() for x in small_inputs(twin, torch.float64))
    q, k = q[:10], k[:10]
    layer = SparseCoding(0.4, zero_diagonal=name.startswith("self"), nonnegative=nonnegative)
    problem = twin.problem(layer, HeadCall(q, k, k))
    solved = oracle.sparse_code(
        q, k, lam=0.4, zero_diagonal=layer.zero_diagonal, nonnegative=nonnegative
    )
    best = lasso_objective(q, k, solved, lam=0.4).sum()
    # Interior points leave about 1e-8; the bound is a dual value and the objective its primal.
    assert problem.lower_bound <= best + 1e-7
    assert problem.objective(problem.coef) == pytest.approx(best, abs=1e-7)
    assert problem.objective(problem.coef) - problem.lower_bound < 1e-8
    expected = (solved**2).sum() * np.linalg.norm(k.T @ k)
    assert problem.rate == pytest.approx(expected, rel=1e-4)
    outside = -np.ones((10, 10)) if nonnegative else np.eye(10)
    assert nonnegative or layer.zero_diagonal or np.isfinite(problem.objective(outside))
    if nonnegative or layer.zero_diagonal:
        assert problem.objective(outside) == np.inf


def test_no_rate_is_proved_for_a_step_that_is_too_long():
    twin = TWINS["sparse-coding-rate"]
    q, k, _ = (x[0].numpy() for x in small_inputs(twin, torch.float64))
    longest = np.linalg.norm(k.T @ k) / np.linalg.norm(k, 2) ** 2
    for factor, finite in ((0.99, True), (1.01, False)):
        layer = SparseCoding(0.4, relative_step=factor * longest)
        assert np.isfinite(twin.problem(layer, HeadCall(q, k, k)).rate) == finite


def test_logit_ranges_are_those_of_the_logits():
    q, k, v = (x.numpy() for x in small_inputs(TWINS["gaussian-attention"], torch.float64))
    squares = ((q[:, :, None] - k[:, None]) ** 2).sum(-1)
    gaussian = Gaussian(0.7)
    expected = squares.max() / (2 * 0.7**2)
    for name, layer in (("gaussian", gaussian), ("twicing", Twicing(gaussian))):
        found = TWINS[f"{name}-attention"].logit_range(layer, q, k, v)
        assert found == pytest.approx(expected)
    dots = q @ k.transpose(0, 2, 1)
    spread = max(np.ptp(dots[0]), np.ptp(dots[1]))
    found = TWINS["softmax-attention"].logit_range(Softmax(0.3), q, k, v)
    assert found == pytest.approx(0.3 * spread)
    images = np.array([[[[0.0, 0.5], [1.0, 0.25]]]])
    layer = NonLocalMeansAttention(0.2, patch_size=1)
    assert TWINS["nonlocal-means"].logit_range(layer, images) == pytest.approx(25)
    layer = SparseCoding(0.3, relative_step=2.0)
    steps = [2 / np.linalg.norm(b.T @ b) for b in k]
    expected = max(np.ptp(dots[h]) * steps[h] for h in range(2))
    found = TWINS["sparse-coding-iterates"].logit_range(layer, q, k, v)
    assert found == pytest.approx(expected)


def test_passes_follow_the_layer():
    assert TWINS["sparse-coding-iterates"].passes(SparseCoding(1.0, n_iter=7)) == 7
    assert TWINS["twicing-attention"].passes(Twicing(Twicing(Gaussian()))) == 4


def test_task_outputs_of_a_limit_are_the_solution_and_the_converged_layer():
    twin = TWINS["self-expression-limit"]
    inputs = small_inputs(twin, torch.float64)
    layer = built(twin, inputs)
    solved, learned, tokens = twin.relation.task_outputs(twin, layer, inputs)
    np.testing.assert_allclose(learned, solved, atol=1e-4)
    after_five = layer_output(twin, layer, tuple(x[:, tokens] for x in inputs))
    assert np.abs(after_five - solved).max() > 1e-2


def test_limits_need_a_problem():
    twin = TWINS["gaussian-attention"]
    inputs = small_inputs(twin, torch.float64)
    for relation in (Rate(), Limit()):
        with pytest.raises(ValueError, match=r"needs Twin\.problem"):
            relation.measure(twin, built(twin, inputs), inputs)


def test_twicing_finds_the_twin_of_any_base():
    twin = TWINS["twicing-attention"]
    inputs = small_inputs(twin, torch.float64)
    for base in (LocallyLinear(5), Twicing(Gaussian(1.0).double())):
        layer = Twicing(base)
        # Locally linear weights solve systems: 1e-8, twice.
        assert Identity(1e-8).measure(twin, layer, inputs).passed


def test_the_catalogue_is_complete_and_typed():
    twins = catalogue()
    assert all(isinstance(twin, Twin) for twin in twins)
    assert {twin.family for twin in twins} >= {
        "kernel_smoothing", "image_filters", "boosting", "sparse_coding", "self_expression",
        "locally_linear",
    }  # fmt: skip
