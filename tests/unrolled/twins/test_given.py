"""What constructors keep of their arguments, and the faults that must show in it."""

import functools
import inspect
from contextlib import suppress

import numpy as np
import pytest
import torch
from torch import nn

from twinsolve.unrolled import (
    ALiBi,
    Gaussian,
    ReAttention,
    Ridge,
    Softmax,
    UnrolledSelfExpression,
)
from twinsolve.unrolled.attention import Positive
from twinsolve.unrolled.twins import Identity, Twin
from twinsolve.unrolled.twins.given import ConstructorError, build_as_given, constructors

from .conftest import TWINS, headed_inputs

BUILDS = [
    (name, option)
    for name, twin in TWINS.items()
    if twin.inputs != "model"  # drawn as a whole
    for option in ("", *twin.options)
]
WHERE = {"device", "dtype"}


def arrays(twin):
    return [x.numpy() for x in headed_inputs(twin)]


def made_by(name, option):
    twin = TWINS[name]
    with constructors(twin) as made, suppress(Exception):
        (twin.options[option] if option else twin.build)(*arrays(twin))
    return made


@functools.cache
def all_made():
    return [(name, option, call) for name, option in BUILDS for call in made_by(name, option)]


def test_layers_of_all_twins_hold_what_they_were_given():
    for name, option, call in all_made():
        assert not call.faults, (name, option)
        assert not call.unheld, (name, option)


def test_arguments_include_defaults_and_those_of_wrapped_layers():
    made = {call.cls: call.arguments for call in made_by("neutreno-attention", "")}
    assert made[Gaussian]["learnable"] is False
    neutreno = next(arguments for cls, arguments in made.items() if cls.__name__ == "Neutreno")
    assert neutreno["lam"] == 0.45
    assert neutreno["n_iter"] == 1


# One build for every class and kind of argument, in which the fault is planted.
ARGUMENTS = {
    (call.cls, argument, type(value)): (name, option)
    for name, option, call in all_made()
    for argument, value in call.arguments.items()
    if argument not in WHERE and isinstance(value, bool | int | float | str | np.ndarray)
}
UNKEPT = {  # used in messages alone
    ("Positive", "name"),
}


def another(cls, argument, value):
    """A value that a faulty constructor might take in place of the one given."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, str):
        annotation = inspect.signature(cls.__init__).parameters[argument].annotation
        choices = [*getattr(annotation, "__args__", ()), "gaussian", "laplace", "support", "safe"]
        return next(x for x in choices if isinstance(x, str) and x != value)
    if isinstance(value, int):
        return value + 1
    return value / 2


@pytest.mark.parametrize(
    ("cls", "argument", "kind"),
    [key for key in ARGUMENTS if (key[0].__name__, key[1]) not in UNKEPT],
    ids=lambda x: getattr(x, "__name__", x),
)
def test_finds_a_constructor_that_takes_another_value(monkeypatch, cls, argument, kind):
    name, option = ARGUMENTS[cls, argument, kind]
    original = cls.__init__

    @functools.wraps(original)
    def faulty(self, *args, **kwargs):
        bound = inspect.signature(original).bind(self, *args, **kwargs)
        bound.apply_defaults()
        if type(bound.arguments[argument]) is kind:
            bound.arguments[argument] = another(cls, argument, bound.arguments[argument])
        original(*bound.args, **bound.kwargs)

    monkeypatch.setattr(cls, "__init__", faulty)
    # Where the other value is refused, or does not fit the rest, that is said in its place.
    with pytest.raises((ConstructorError, ValueError)):
        build_as_given(TWINS[name], TWINS[name].options.get(option), *arrays(TWINS[name]))


DRAWN = {
    "Attention": {"in_proj_weight", "in_proj_bias", "out_proj.weight", "out_proj.bias"},
    "Logistic": {"query_weight", "key_weight"},
    "SelfExpressiveNetwork": {f"{side}.{i}.weight" for side in ("query", "key") for i in range(9)},
    "SparseMixtureOfExperts": {"router", "analysis", "synthesis"},
    "Tupe": {"position_weight"},
    "UnrolledSelfExpression": {"features.weight", "features.bias"},  # the user's own
}


def first_parameters():
    """A build for every parameter of every class of layer."""
    found = {}
    for name, option in BUILDS:
        twin = TWINS[name]
        layer = (twin.options[option] if option else twin.build)(*arrays(twin))
        own = [key for key, _ in layer.named_parameters() if not key.startswith("base.")]
        for key in set(own) - DRAWN.get(type(layer).__name__, set()):
            found[type(layer), key] = name, option
    return found


PARAMETERS = first_parameters()


@pytest.mark.parametrize(
    ("cls", "parameter"),
    sorted(PARAMETERS, key=str),
    ids=lambda x: getattr(x, "__name__", x),
)
def test_finds_a_parameter_that_starts_elsewhere(monkeypatch, cls, parameter):
    name, option = PARAMETERS[cls, parameter]
    original = cls.__init__

    @functools.wraps(original)
    def faulty(self, *args, **kwargs):
        original(self, *args, **kwargs)
        parameters = dict(self.named_parameters())
        if parameter in parameters:
            parameters[parameter].data += 0.1

    monkeypatch.setattr(cls, "__init__", faulty)
    twin = TWINS[name]
    with pytest.raises(ConstructorError, match=cls.__name__):
        build_as_given(twin, twin.options.get(option), *arrays(twin))


def after_init(monkeypatch, cls, change):
    original = cls.__init__

    @functools.wraps(original)
    def faulty(self, *args, **kwargs):
        original(self, *args, **kwargs)
        change(self)

    monkeypatch.setattr(cls, "__init__", faulty)


def test_a_fault_names_class_attribute_and_both_values(monkeypatch):
    after_init(monkeypatch, Ridge, lambda layer: setattr(layer.lam, "initial", 7.0))
    twin = TWINS["ridge-relative-penalty"]
    with pytest.raises(ConstructorError, match=r"Ridge: lam is 7\., must be 0\.01"):
        build_as_given(twin, None, *arrays(twin))


def test_finds_a_default_that_is_no_formula_of_the_width(monkeypatch):
    after_init(monkeypatch, Softmax, lambda layer: setattr(layer, "scale", 1 / 16))
    twin = TWINS["softmax-attention"]
    with pytest.raises(ConstructorError, match=r"Softmax: scale is 0\.0625, must be None"):
        build_as_given(twin, twin.options["default-scale"], *arrays(twin))


def test_finds_parameters_that_are_not_reset(monkeypatch):
    monkeypatch.setattr(UnrolledSelfExpression, "reset_parameters", lambda self: None)
    twin = TWINS["unrolled-self-expression-iterates"]
    with pytest.raises(ConstructorError, match="lam after reset_parameters is"):
        build_as_given(twin, None, *arrays(twin))


def test_finds_a_setting_that_is_not_shown(monkeypatch):
    monkeypatch.setattr(Ridge, "extra_repr", lambda self: "")
    twin = TWINS["ridge-relative-penalty"]
    with pytest.raises(ConstructorError, match=r"repr leaves out is \['relative'\], must be \[\]"):
        build_as_given(twin, None, *arrays(twin))


def test_finds_a_constructor_that_changes_what_it_wraps(monkeypatch):
    def reset(layer):
        layer.base.bandwidth.log.data.fill_(0)

    after_init(monkeypatch, ReAttention, reset)
    twin = TWINS["re-attention"]
    with pytest.raises(ConstructorError, match="ReAttention: parameters of base"):
        build_as_given(twin, None, *arrays(twin))


def test_finds_another_eps_of_the_norm(monkeypatch):
    after_init(monkeypatch, ReAttention, lambda layer: setattr(layer.norm, "eps", 1e-4))
    twin = TWINS["re-attention"]
    with pytest.raises(ConstructorError, match=r"norm\.eps is 0\.0001, must be 1e-05"):
        build_as_given(twin, None, *arrays(twin))
    inputs = headed_inputs(twin)
    layer = twin.build(*arrays(twin))
    assert not twin.relation.measure(twin, layer, inputs).passed


def test_classes_are_as_before_afterwards_even_if_the_build_fails():
    twin = TWINS["gaussian-attention"]
    before = Gaussian.__init__
    with pytest.raises(ZeroDivisionError):
        build_as_given(twin, lambda *_: Gaussian(1 / 0), *arrays(twin))
    assert Gaussian.__init__ is before


def test_a_users_own_layer_is_held_to_its_arguments_where_it_has_them():
    class Own(Gaussian):
        def __init__(self, width, colour):
            super().__init__(width)
            self.width = width / 2

    twin = Twin(
        name="own", family="mine", relation=Identity(), equation="-", source="-", layer=Own,
        build=lambda q, k, v: Own(0.5, "red"), solve=None,
    )  # fmt: skip
    with pytest.raises(ConstructorError, match=r"Own: width is 0\.25, must be 0\.5$"):
        build_as_given(twin, None, *np.ones((3, 2, 4, 5)))


@pytest.mark.parametrize("target", ["alibi_slopes"])
def test_default_slopes_are_no_matter_of_the_layer(monkeypatch, target):
    monkeypatch.setattr(
        f"twinsolve.unrolled.kernel_smoothing.alibi.{target}",
        lambda n: [2 ** (-4 * (h + 1) / n) for h in range(n)],
    )
    twin = TWINS["alibi"]
    inputs = headed_inputs(twin)
    layer = twin.options["default"](*arrays(twin))
    assert isinstance(layer, ALiBi)
    assert not twin.relation.measure(twin, layer, inputs).passed


def test_a_module_that_is_no_layer_of_a_twin_is_left_alone():
    with constructors(TWINS["gaussian-attention"]) as made:
        nn.Linear(2, 3, dtype=torch.float64)
    assert made == []


@pytest.mark.parametrize("name", ["ridge-attention", "gaussian-attention", "nonlocal-means"])
def test_finds_a_parameter_that_computes_another_value_from_what_is_stored(monkeypatch, name):
    twin = TWINS[name]
    option = next(x for x in ("penalties-of-heads", "learned-bandwidth", "learned-decay")
                  if x in twin.options)  # fmt: skip
    inputs = headed_inputs(twin)
    layer = twin.options[option](*arrays(twin))
    monkeypatch.setattr(Positive, "forward", lambda self: (1.01 * self.log).exp())
    assert not twin.relation.measure(twin, layer, inputs).passed
