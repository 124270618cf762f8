"""Every twin of the catalogue on small data, with all its options."""

import functools
import inspect
from dataclasses import replace

import numpy as np
import pytest
import torch

from twinsolve.solvers.oracles import sparse_coding as oracle
from twinsolve.solvers.sparse_coding import lasso_objective
from twinsolve.twins import FixedPointLimit, HeadCall, Iterate, Limit, Rate
from twinsolve.twins.pairs import layer_output, solver_output
from twinsolve.unrolled import (
    Context,
    Gaussian,
    NonLocalMeansAttention,
    Softmax,
    SparseCoding,
    Twicing,
)
from twinsolve.unrolled.sparse_coding import patches as choice

from .conftest import TWINS, built, headed_inputs, small_inputs

# Linear systems and singular values lose two digits more than sums.
SYSTEMS = {
    "locally-linear", "locally-linear-attention", "convex-ridge", "convex-ridge-network",
    "neutreno-solved", "neutreno-energy-minimum", "ridge-self-expression",
    "ridge-self-expression-zero-diagonal", "ridge-attention", "ridge-attention-zero-diagonal",
    "ridge-relative-penalty", "low-rank-self-expression", "low-rank-attention",
    "low-rank-relative-penalty", "low-rank-small-penalty", "local-linear-attention",
}  # fmt: skip


def test_tolerances_are_those_of_rounding_of_systems_and_of_limits(twin):
    """A rate has its proved bound; a limit stops at 1e-7."""
    relation = twin.relation
    by_kind = {Rate: 1.0, Limit: 1e-7, FixedPointLimit: 1e-7}
    of_sums = 1e-8 if twin.name in SYSTEMS else 1e-10
    assert relation.tolerance <= by_kind.get(type(relation), of_sums)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_holds_on_small_data(twin, dtype):
    inputs = small_inputs(twin, dtype)
    layer = built(twin, inputs)
    assert twin.relation.measure(twin, layer, inputs).holds
    assert solver_output(twin, layer, inputs).dtype == np.float64


def test_twins_say_where_they_come_from():
    for twin in TWINS.values():
        assert twin.equation, twin.name
        assert twin.source, twin.name


@pytest.mark.parametrize("name", ["sparse-coding-rate", "self-expression-rate"])
@pytest.mark.parametrize("nonnegative", [False, True])
def test_a_problem_is_what_its_oracle_says(name, nonnegative):
    twin = TWINS[name]
    q, k, _ = (x[0].numpy() for x in small_inputs(twin, torch.float64))
    q, k = q[:10], k[:10]
    layer = SparseCoding(0.4, zero_diagonal=name.startswith("self"), nonnegative=nonnegative)
    problem = twin.relation.problem(layer, HeadCall(q, k, k))
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
        assert np.isfinite(twin.relation.problem(layer, HeadCall(q, k, k)).rate) == finite


def test_logit_ranges_are_those_of_the_logits():
    q, k, v = (x.numpy() for x in small_inputs(TWINS["gaussian-attention"], torch.float64))
    squares = ((q[:, :, None] - k[:, None]) ** 2).sum(-1)
    gaussian = Gaussian(0.7)
    expected = max(map(np.ptp, squares)) / (2 * 0.7**2)
    for name, layer in (("gaussian", gaussian), ("twicing", Twicing(gaussian))):
        found = TWINS[f"{name}-attention"].numerics.logit_range(layer, q, k, v)
        assert found == pytest.approx(expected)
    dots = q @ k.transpose(0, 2, 1)
    spread = max(np.ptp(dots[0]), np.ptp(dots[1]))
    found = TWINS["softmax-attention"].numerics.logit_range(Softmax(0.3), q, k, v)
    assert found == pytest.approx(0.3 * spread)
    images = np.array([[[[0.0, 0.5], [1.0, 0.25]]]])
    layer = NonLocalMeansAttention(0.2, patch_size=1)
    assert TWINS["nonlocal-means"].numerics.logit_range(layer, images) == pytest.approx(25)


def built_option(twin, option, inputs):
    return twin.options[option](*(x.double().numpy() for x in inputs)).to(inputs[0].dtype)


SAME = {
    ("tupe", "given-width"),  # the width that it finds for itself
    ("neutreno-iterates", "default-penalty"),  # the first iterate of first values has no pull
    ("neutreno-solved", "relaxed"),  # the fixed point of both
}


@pytest.mark.parametrize("name", [name for name, twin in TWINS.items() if twin.options])
def test_options_have_a_counterpart_in_the_solver_and_change_the_output(name):
    twin = TWINS[name]
    inputs = headed_inputs(twin)
    default = layer_output(twin, twin.build(*(x.numpy() for x in inputs)), inputs)
    relation = twin.relation
    if isinstance(relation, Iterate):
        relation = replace(relation, n_iter=(1, 2, 5))
    for option in twin.options:
        layer = built_option(twin, option, inputs)
        assert twin.covers(layer), option
        assert relation.measure(twin, layer, inputs).holds, option
        output = layer_output(twin, layer, inputs)
        changed = np.abs(default - output).max() > 1e-6 * np.abs(output).max()
        assert changed or (name, option) in SAME, option


@pytest.mark.parametrize("name", ["local-window", "criss-cross", "spatial-gaussian"])
def test_a_models_grid_takes_the_place_of_the_layers_own(name):
    q, k, v = headed_inputs(TWINS[name])
    context = Context(grid=(3, 5), n_class_tokens=2)
    twin = TWINS[name].with_context(lambda *_: context)
    layer = twin.options["sequence"](*(x.numpy() for x in (q, k, v)))
    assert twin.relation.measure(twin, layer, (q, k, v)).holds
    A, out = layer.matrix(q, k, context=context), layer(q, k, v, context=context)
    torch.testing.assert_close(A @ v, out, atol=1e-12, rtol=0)
    of_models, of_its_own = (layer_output(t, layer, (q, k, v)) for t in (twin, TWINS[name]))
    assert np.abs(of_models - of_its_own).max() > 1e-3


# Arguments that no build has to vary.
UNVARIED = {
    "device": "where the layer is",
    "dtype": "rows in float32 and float64",
    "max_iter": "ends a solve that has not converged, with a warning",
    "name": "in error messages",
    ("Solved", "tol"): "how exactly is solved; always given",
}


def recorded():
    """Arguments of the constructors of all layers with a twin, over all builds of all twins."""
    values = {}

    def watch(cls, original):
        @functools.wraps(original)
        def init(self, *args, **kwargs):
            bound = inspect.signature(original).bind(self, *args, **kwargs)
            bound.apply_defaults()
            for name, value in bound.arguments.items():
                values.setdefault((cls, name), []).append(value)
            original(self, *args, **kwargs)

        return init

    with pytest.MonkeyPatch.context() as patched:
        for cls in {twin.layer for twin in TWINS.values() if "__init__" in vars(twin.layer)}:
            patched.setattr(cls, "__init__", watch(cls, cls.__init__))
        for twin in TWINS.values():
            arrays = [x.numpy() for x in headed_inputs(twin)]
            for build in (twin.build, *twin.options.values()):
                build(*arrays)
    return values


def uncovered(values):
    """Arguments that are never given another value than the default, or never left at None."""
    found = []
    for cls in {twin.layer for twin in TWINS.values() if "__init__" in vars(twin.layer)}:
        for name, parameter in list(inspect.signature(cls.__init__).parameters.items())[1:]:
            given = values.get((cls, name), [])
            at_default = [np.array_equal(value, parameter.default) for value in given]
            if all(at_default) or (parameter.default is None and not any(at_default)):
                found.append((cls.__name__, name))
    return {key for key in found if not UNVARIED.keys() & {key, key[1]}}


def test_every_argument_of_every_layer_with_a_twin_is_covered():
    """Where a default stands for a formula, so is that."""
    assert uncovered(recorded()) == set()


NEAREST = ["nonlocal-filter-diffusion", "nonlocal-filter-diffusion-network", "group-coding"]


@pytest.mark.parametrize("name", NEAREST)
def test_of_equally_close_patches_the_layers_choice_counts_and_of_others_the_solvers(
    name, monkeypatch
):
    twin, right = TWINS[name], choice.similar_patches
    images = np.random.default_rng(0).integers(3, size=(2, 1, 18, 18)) / 2  # many ties
    layer, inputs = twin.build(images).eval(), (torch.from_numpy(images),)
    assert twin.relation.measure(twin, layer, inputs).holds

    def shifted(images, patch_size, window, n_similar):
        found = right(images, patch_size, window, n_similar)
        return torch.cat([found[:, 1:], found[:, :1].roll(1, dims=0)], dim=1)

    monkeypatch.setattr(choice, "similar_patches", shifted)
    assert not twin.relation.measure(twin, layer, inputs).holds
