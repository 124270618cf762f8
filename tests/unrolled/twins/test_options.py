"""Settings of layers beside the default, of which each changes the mathematics of its twin."""

import functools
import inspect
from dataclasses import replace

import numpy as np
import pytest
import torch

from twinsolve.unrolled import Context
from twinsolve.unrolled.twins import Init, Iterate, Twin, findings_of
from twinsolve.unrolled.twins.relations import Identity, layer_output, solver_output

from .conftest import TWINS, headed_inputs

OPTIONS = [(name, option) for name, twin in TWINS.items() for option in twin.options]
EXACT = (Identity, Init, Iterate)


def built(twin, option, inputs):
    return twin.options[option](*(x.double().numpy() for x in inputs)).to(inputs[0].dtype)


@pytest.mark.parametrize(("name", "option"), OPTIONS)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_the_solver_has_a_counterpart_of_every_option(name, option, dtype):
    twin = TWINS[name]
    inputs = tuple(x.to(dtype) for x in headed_inputs(twin))
    layer = built(twin, option, inputs)
    assert twin.covers(layer)
    relation = twin.relation
    if isinstance(relation, Iterate):
        relation = replace(relation, n_iter=(1, 2, 5))
    measurement = relation.measure(twin, layer, inputs)
    assert measurement.passed, measurement


SAME = {
    ("tupe", "given-width"),  # the width that it finds for itself
    ("neutreno-iterates", "default-penalty"),  # the first iterate of first values has no pull
    ("neutreno-solved", "relaxed"),  # the fixed point of both
}


@pytest.mark.parametrize(("name", "option"), [x for x in OPTIONS if x not in SAME])
def test_an_option_that_is_ignored_is_found(name, option):
    """The layer of the default build in its place does not pass as the layer of the option."""
    twin = TWINS[name]
    inputs = headed_inputs(twin)
    default, layer = twin.build(*(x.numpy() for x in inputs)), built(twin, option, inputs)
    outputs = [layer_output(twin, made, inputs) for made in (default, layer)]
    assert np.abs(outputs[0] - outputs[1]).max() > 1e-6 * np.abs(outputs[1]).max()


def takes_masks(twin):
    plain = twin.inputs == "tokens" and twin.apply is Twin.apply
    return plain and twin.by_rows and isinstance(twin.relation, EXACT)


# The first causal rows of these need more than one point.
NEEDS_POINTS = {"locally-linear"}
# Rows of these are those of their own token, which their solver is given among the others alone.
OF_KEYS = {"symmetric-attention"}


@pytest.mark.parametrize(
    ("name", "option"),
    [
        (name, option)
        for name, option in OPTIONS
        if takes_masks(TWINS[name]) and name not in NEEDS_POINTS | OF_KEYS
    ],
)
def test_options_hold_on_the_keys_that_each_query_sees(name, option):
    """The causal mask, and one that differs from query to query."""
    twin = TWINS[name]
    q, *rest = headed_inputs(twin)
    inputs = q[:, :8], *(x[:, :8] for x in rest)
    layer = built(twin, option, inputs)
    triangle = np.tri(8, dtype=bool)
    pairs = np.random.default_rng(1).random((3, 8, 8)) < 0.6
    pairs |= np.eye(8, dtype=bool)
    cases = []
    if layer.causal:
        cases.append(({"is_causal": True}, triangle))
    if layer.pair_masks:
        cases.append(({"mask": torch.from_numpy(pairs)}, pairs))
    for masks, visible in cases:
        found = layer_output(twin, layer, inputs, **masks)
        expected = solver_output(twin, layer, inputs, visible=visible)
        np.testing.assert_allclose(found, expected, atol=1e-8 * np.abs(expected).max())


@pytest.mark.parametrize("name", ["local-window", "criss-cross", "spatial-gaussian"])
def test_a_models_grid_takes_the_place_of_the_layers_own(name):
    q, k, v = headed_inputs(TWINS[name])
    twin = replace(TWINS[name], context=lambda *_: Context(grid=(3, 5), n_class_tokens=2))
    layer = twin.options["sequence"](*(x.numpy() for x in (q, k, v)))
    assert twin.relation.measure(twin, layer, (q, k, v)).passed
    of_models, of_its_own = (layer_output(t, layer, (q, k, v)) for t in (twin, TWINS[name]))
    assert np.abs(of_models - of_its_own).max() > 1e-3


@pytest.mark.parametrize("count", [1, 3, 4, 5, 12])
def test_slopes_of_any_number_of_heads(count):
    twin = TWINS["alibi"]
    rng = np.random.default_rng(count)
    inputs = tuple(torch.from_numpy(x) for x in rng.standard_normal((3, count, 7, 4)))
    layer = twin.options["default"](*(x.numpy() for x in inputs))
    assert twin.relation.measure(twin, layer, inputs).passed


def test_the_second_width_of_tupe_is_that_of_its_positions():
    """Positions may be of another width than the heads together."""
    twin = TWINS["tupe"]
    inputs = headed_inputs(twin)
    positions = torch.from_numpy(np.random.default_rng(2).standard_normal((17, 10)))
    layer = type(built(twin, "given-width", inputs))(10, 3, head_dim=6, dtype=torch.float64)
    twin = replace(twin, context=lambda *_: Context(positions=positions))
    with torch.no_grad():
        layer.position_weight.copy_(torch.randn(layer.position_weight.shape))
    assert Identity().measure(twin, layer, inputs).passed


# Arguments that no build has to vary.
UNVARIED = {
    "device": "where the layer is",
    "dtype": "rows in float32 and float64",
    "max_iter": "ends a solve that has not converged, with a warning",
    "name": "in error messages",
    ("Solved", "tol"): "how exactly is solved; always given",
}


def recorded(*, options=True):
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
            for build in (twin.build, *(twin.options.values() if options else ())):
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


def test_without_options_arguments_are_uncovered():
    found = uncovered(recorded(options=False))
    assert {("Gaussian", "bandwidth"), ("Ridge", "num_heads"), ("Softmax", "scale")} <= found
    assert len(found) > 40


def test_every_option_is_judged_under_its_hardest_mask():
    found = {finding.name for finding in findings_of(TWINS["alibi"])}
    for option in TWINS["alibi"].options:
        for name in (
            "output, no mask",
            "output, causal, pairs",
            "matrix, causal, pairs",
            "blocks, no mask",
            "gradient, q, causal, pairs",
        ):
            assert f"{option}: {name}" in found
