"""The catalogue, and twins of a user's own."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

import twinsolve
from twinsolve.bench import check_twins
from twinsolve.bench.check.lines import twin_lines
from twinsolve.solvers import smoother_matrix
from twinsolve.twins import (
    Identity,
    Twin,
    catalogue,
    exact_twin,
    families,
    register,
    registry,
    twins_of,
    unregister,
)
from twinsolve.unrolled import Gaussian, Ridge, SparseCoding


class Sharp(Gaussian):
    """A user's layer."""


@pytest.fixture
def users_twin():
    twin = register(
        Twin(
            name="sharp-attention",
            family="mine",
            relation=Identity(),
            source="a notebook",
            layer=Sharp,
            build=lambda q, k, v: Sharp(0.5).double(),
            solve=lambda layer, call: (
                smoother_matrix(call.q, call.k, bandwidth=float(layer.bandwidth())) @ call.v
            ),
        )
    )
    yield twin
    unregister("sharp-attention")


def test_a_twin_from_outside_is_registered_once_and_needs_no_equation(users_twin):
    assert catalogue()[-1] is users_twin
    assert exact_twin(Sharp(0.5)) is users_twin
    with pytest.raises(ValueError, match="'sharp-attention' is registered already"):
        register(users_twin)
    X = np.random.default_rng(0).standard_normal((9, 4))
    report = twinsolve.check(Sharp(0.5), X)
    assert report
    assert str(report).startswith("Sharp: 1 holds\n  sharp-attention [identity]: holds in float64")
    model = twinsolve.check(Holder().double(), torch.from_numpy(X)[None])
    assert "sharp-attention [identity]: holds" in str(model)


class Rounded(Gaussian):
    """As if computed with a relative error of two percent."""

    def attend(self, call):
        return 1.02 * super().attend(call)


@pytest.mark.parametrize("guess", ["logit_range", "passes"])
def test_no_guess_widens_a_float32_tolerance_beyond_a_percent(guess):
    original = exact_twin(Gaussian(1.0))
    numerics = replace(original.numerics, **{guess: lambda *given: 10**7})
    twin = register(replace(original, name="rounded", layer=Rounded, numerics=numerics))
    try:
        q = torch.randn(1, 9, 4, generator=torch.Generator().manual_seed(0))
        measured = Identity().measure(twin, Rounded(1.0), (q, q, q))
        assert measured.tolerance == 1e-2
        assert not measured.holds
        assert Identity().measure(twin, Gaussian(1.0), (q, q, q)).holds
    finally:
        unregister("rounded")


class Coarse(Gaussian):
    """That error in float32 alone."""

    def attend(self, call):
        return (1.02 if call.v.dtype == torch.float32 else 1.0) * super().attend(call)


@pytest.mark.parametrize("fault", [Coarse, Rounded])
def test_a_failure_in_float32_alone_says_what_the_tolerance_depends_on(fault):
    fields = {"layer": fault, "build": lambda q, k, v: fault(1.0), "options": {}}
    fields["relation"] = Identity()
    register(replace(exact_twin(Gaussian(1.0)), name="rounded", **fields))
    try:
        X = np.random.default_rng(0).standard_normal((9, 4))
        x = torch.from_numpy(X).float()[None]
        single = str(twinsolve.check(fault(1.0), X.astype(np.float32)))
        model = str(twinsolve.check(Holder(fault(0.5)).float(), x))
        listed = "\n".join(twin_lines(check_twins(twins=["rounded"], data=["digits", "drawn"])))
        for found in (single, model):
            assert "broken in float32" in found
        for found in (single, model, listed):
            assert (
                ("Numerics.logit_range" in found)
                == ("Numerics.passes" in found)
                == (fault is Coarse)
            )
        assert " broken  " in listed
        assert "passes" not in str(twinsolve.check(fault(1.0), X))
        assert "passes" not in str(twinsolve.check(Gaussian(1.0), X.astype(np.float32)))
    finally:
        unregister("rounded")


class Holder(nn.Module):
    """A model of one operator."""

    def __init__(self, operator=None):
        super().__init__()
        self.operator = operator or Sharp(0.5)

    def forward(self, x):
        return self.operator(x[:, None], x[:, None], x[:, None])


def test_a_solver_whose_answer_has_another_shape_is_named():
    class Wide(Gaussian):
        pass

    twin = Twin(
        name="of-another-shape", family="mine", relation=Identity(), source="my notes",
        layer=Wide, build=lambda q, k, v: Wide(1.0), solve=lambda layer, call: np.zeros((8, 3)),
    )  # fmt: skip
    register(twin)
    try:
        with pytest.raises(ValueError, match=r"twin of-another-shape: solve .* not \(8, 4\)"):
            twinsolve.check(Wide(1.0), np.random.default_rng(0).standard_normal((8, 4)))
    finally:
        unregister(twin.name)


def test_a_layer_without_twin_is_told_in_short_how_to_have_one():
    with pytest.raises(LookupError, match=r"registered for Linear; .*register adds") as error:
        twins_of(nn.Linear(2, 2))
    assert len(str(error.value)) < 160


def test_families_are_discovered_by_their_files(tmp_path, monkeypatch):
    """A new file beside the others is enough: nothing lists the families."""
    (tmp_path / "added_family.py").write_text(
        "from twinsolve.unrolled import Softmax\n"
        "from twinsolve.twins import Identity, Twin, register\n"
        "register(Twin(name='added', family='added_family', relation=Identity(), equation='-',\n"
        "    source='-', layer=Softmax, build=lambda q, k, v: Softmax(),\n"
        "    solve=lambda layer, call: call.v))\n"
    )
    monkeypatch.setattr(families, "__path__", [*families.__path__, str(tmp_path)])
    registry._import_families.cache_clear()
    assert "added" in {twin.name for twin in catalogue()}
    unregister("added")


@pytest.mark.parametrize(
    ("layer", "name"),
    [
        (SparseCoding(1.0), "sparse-coding-iterates"),
        (SparseCoding(1.0, nonnegative=True), "nonnegative-coding-iterates"),
        (SparseCoding(1.0, zero_diagonal=True), "self-expression-iterates"),
        (
            SparseCoding(1.0, zero_diagonal=True, nonnegative=True, step="support"),
            "support-adaptive-self-expression-iterates",
        ),
        (Ridge(1.0, zero_diagonal=True), "ridge-self-expression-zero-diagonal"),
    ],
)
def test_layers_find_their_twin(layer, name):
    assert exact_twin(layer, same_points=True).name == name


def test_without_one_of_its_own_a_subclass_has_its_parents_twin():
    assert exact_twin(Sharp(0.5)).name == "gaussian-attention"
    assert {twin.family for twin in twins_of(SparseCoding(1.0))} == {"sparse_coding"}
