"""Relations: what passes, what fails, and how tolerances follow from the layer."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from twinsolve.twins import (
    Bound,
    Inequalities,
    Iterate,
    Limit,
    Measurement,
    Rate,
)
from twinsolve.twins.laws.subject import identity_values
from twinsolve.twins.pairs import layer_output
from twinsolve.unrolled import Gaussian, SparseCoding

from .conftest import TWINS, built, small_inputs

BOUNDS = [name for name, twin in TWINS.items() if isinstance(twin.relation, Bound)]
RATES = [name for name, twin in TWINS.items() if isinstance(twin.relation, Rate)]
LIMITS = [name for name, twin in TWINS.items() if isinstance(twin.relation, Limit)]


def test_nan_never_passes():
    assert not Measurement(float("nan"), 1.0).holds

    class Broken(Gaussian):
        def forward(self, *args, **kwargs):
            return super().forward(*args, **kwargs) * float("nan")

    twin = TWINS["gaussian-attention"]
    inputs = small_inputs(twin, torch.float64)
    assert not twin.relation.measure(twin, Broken(1.0).double(), inputs).holds


def test_one_bad_iterate_among_good_ones_counts():
    class Late(SparseCoding):
        def forward(self, *args, **kwargs):
            out = super().forward(*args, **kwargs)
            return out * (float("nan") if self.n_iter == 5 else 1)

    twin = TWINS["sparse-coding-iterates"]
    inputs = small_inputs(twin, torch.float64)
    assert not twin.relation.measure(twin, Late(0.5).double(), inputs).holds


def test_float32_tolerance_scales_with_steps_and_logits():
    twin = TWINS["twicing-attention"]
    inputs = small_inputs(twin, torch.float32)
    layer = built(twin, inputs)
    logits = twin.numerics.logit_range(layer, *(x.double().numpy() for x in inputs))
    assert logits > 1
    expected = 32 * torch.finfo(torch.float32).eps * 2 * logits
    assert twin.relation.measure(twin, layer, inputs).tolerance == pytest.approx(expected)


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
        with pytest.raises(ValueError, match=r"needs a problem"):
            relation.measure(twin, built(twin, inputs), inputs)


def measured(twin, dtype=torch.float64):
    inputs = small_inputs(twin, dtype)
    return twin.relation.measure(twin, built(twin, inputs), inputs)


def plant(monkeypatch, layer, fault):
    right = layer.forward
    monkeypatch.setattr(layer, "forward", lambda self, *a, **k: fault(right(self, *a, **k)))


@pytest.mark.parametrize("name", RATES)
def test_a_rate_finds_codes_that_are_zero_or_of_another_token(name, monkeypatch):
    """Smaller faults are within a rate, which is not reached; the iterates see them."""
    twin = replace(TWINS[name], relation=Rate(problem=TWINS[name].relation.problem))
    assert measured(twin).holds
    for fault in (torch.zeros_like, lambda out: out.roll(1, -2)):
        with monkeypatch.context() as patch:
            plant(patch, twin.layer, fault)
            assert not measured(twin).holds


@pytest.mark.parametrize("name", BOUNDS)
def test_is_reached_and_finds_an_output_that_is_off_by_a_millionth(name, monkeypatch):
    """In either direction; a minimum changes to second order only."""
    assert measured(TWINS[name]).tightness == pytest.approx(1, abs=1e-3)
    size = 1e-4 if name == "low-rank-optimality" else 1e-6
    for factor in (1 - size, 1 + size):
        with monkeypatch.context() as patch:
            plant(patch, TWINS[name].layer, lambda out, factor=factor: factor * out)
            assert not measured(TWINS[name]).holds


@pytest.mark.parametrize("name", RATES)
def test_a_layer_twice_too_slow_within_the_rate_is_seen_by_its_iterates(name, monkeypatch):
    twin = TWINS[name]
    inputs = small_inputs(twin, torch.float64)
    layer = built(twin, inputs)
    exact = [
        other
        for other in TWINS.values()
        if other.layer is twin.layer
        and isinstance(other.relation, Iterate)
        and other.covers(layer)
        and other.inputs.pairing == twin.inputs.pairing
    ]
    right = twin.layer.forward

    def slow(self, *args, **kwargs):
        n_iter = self.n_iter
        self.n_iter = (n_iter + 1) // 2
        try:
            return right(self, *args, **kwargs)
        finally:
            self.n_iter = n_iter

    monkeypatch.setattr(twin.layer, "forward", slow)
    assert twin.relation.measure(twin, layer, inputs).holds
    assert exact
    for other in exact:
        assert not other.relation.measure(other, layer, inputs).holds


@pytest.mark.parametrize("name", [RATES[0], LIMITS[0]])
def test_codes_better_than_the_optimum_fail(name):
    """As with an objective or constraints that are not those of the solved problem."""
    twin = TWINS[name]

    def problem(*args):
        solved = twin.relation.problem(*args)
        return replace(solved, objective=lambda codes: solved.objective(codes) - 1e4)

    few = {"n_iter": (1, 4)} if name in RATES else {"n_iter": 100}
    changed = replace(twin, relation=replace(twin.relation, problem=problem, **few))
    assert not measured(changed).holds


def test_an_inequality_is_judged_by_the_difference_on_a_scale():
    for lhs, rhs, scale, excess in (
        (1.0, 2.0, None, 0.0),
        (2.0, 2.0, None, 0.0),
        (4.0, 3.0, None, 0.25),
        (-1.0, -2.0, None, 0.5),
        (1.0, -1.0, None, 2.0),
        (0.0, 0.0, None, 0.0),
        (1.0, 0.0, None, 1.0),
        (3.0, 2.0, 10.0, 0.1),
    ):
        sides = Inequalities()
        sides.at_most(lhs, rhs, scale=scale)
        assert sides.excess() == pytest.approx(excess)
    sides = Inequalities()
    sides.at_most([1.0, 5.0], [2.0, 4.0])
    sides.at_most(0.5, 1.0)
    assert sides.excess() == pytest.approx(0.2)
    assert sides.tightness() == 1.25


def test_a_bound_that_is_not_reached_fails():
    for lhs, share, passes in ((2.0, 1.0, True), (1.9, 1.0, False), (1.9, 0.9, True)):
        sides = Inequalities()
        sides.attained(lhs, 2.0, share=share)
        assert (sides.excess() == 0) == passes
        assert sides.tightness() == lhs / 2


def test_what_is_not_finite_fails_an_inequality():
    for lhs, rhs in ((np.nan, 1.0), (1.0, np.nan), (np.inf, 1.0), (np.inf, np.inf)):
        sides = Inequalities()
        sides.at_most([0.0, lhs], [1.0, rhs])
        assert not sides.excess() <= 1e-10


def test_limits_are_judged_on_tokens_that_are_alike_too():
    """A layer that takes one of two keys that are nearly the same for a duplicate of the other."""
    twin = TWINS["self-expression-limit"]
    x = np.random.default_rng(0).standard_normal((1, 24, 30))
    x[:, 20:] = x[:, 20:21] + 0.1 * x[:, 20:]
    inputs = (*(torch.from_numpy(x),) * 2, identity_values(torch.from_numpy(x)))
    relation = replace(twin.relation, n_tokens=4)
    layer = built(twin, inputs)

    def without_duplicates(layer, q, k, v):
        unit = torch.nn.functional.normalize(k, dim=-1)
        twice = (unit @ unit.mT).tril(-1).amax(-1) > 0.9
        return twin.inputs.apply(layer, q, k, torch.where(twice[..., None], 0, v))

    assert relation.measure(twin, layer, inputs).holds
    wrong = replace(twin, inputs=replace(twin.inputs, apply=without_duplicates))
    assert not relation.measure(wrong, layer, inputs).holds
    assert relation.measure(wrong, layer, tuple(x[:, :20] for x in inputs)).holds
