"""Faults in NeuTRENO, its fixed points and twicing that the check has to find."""

import pytest
import torch

from twinsolve.unrolled import FixedPoint, Neutreno, SparseCoding, Twicing, solved_operator

from .conftest import TWINS, built, small_inputs

EXPLICIT = ["neutreno-attention", "neutreno-gradient-step", "neutreno-iterates"]
SAFE = ["neutreno-safe-iterates", "neutreno-limit"]
SOLVED = ["neutreno-solved", "neutreno-energy-minimum"]


def measured(name):
    twin = TWINS[name]
    inputs = small_inputs(twin, torch.float64)
    return twin.relation.measure(twin, built(twin, inputs), inputs)


def faulty_step(change):
    right = Neutreno.iteration

    def iteration(self, call, *, relaxed):
        step = right(self, call, relaxed=relaxed)
        return lambda u: change(self, step, u)

    return iteration


@pytest.mark.parametrize("name", [*EXPLICIT, *SAFE, *SOLVED])
def test_finds_a_pull_that_is_off_by_a_thousandth(monkeypatch, name):
    fault = faulty_step(lambda self, step, u: 1.001 * step(u))
    monkeypatch.setattr(Neutreno, "iteration", fault)
    assert not measured(name).passed


@pytest.mark.parametrize("name", ["neutreno-energy", "neutreno-rate", "neutreno-safe-rate"])
def test_bounds_find_a_step_in_the_wrong_direction(monkeypatch, name):
    fault = faulty_step(lambda self, step, u: 2 * u - step(u))
    monkeypatch.setattr(Neutreno, "iteration", fault)
    assert not measured(name).passed


@pytest.mark.parametrize("name", SOLVED)
def test_finds_a_solver_that_stops_early(monkeypatch, name):
    def early(step, **arguments):
        return FixedPoint(step, **arguments | {"tol": 1e-4})

    monkeypatch.setattr(solved_operator, "FixedPoint", early)
    assert not measured(name).passed


@pytest.mark.parametrize("name", ["sparse-coding-solved", "self-expression-solved"])
def test_finds_another_penalty(monkeypatch, name):
    right = SparseCoding.iteration

    def heavier(self, call):
        return right(self, call._replace(q=0.999 * call.q))

    monkeypatch.setattr(SparseCoding, "iteration", heavier)
    assert not measured(name).passed


def test_finds_one_twicing_too_few(monkeypatch):
    right = Twicing.attend

    def once(self, call):
        if isinstance(self.base, Twicing):
            return self.base.attend(call)
        return right(self, call)

    monkeypatch.setattr(Twicing, "attend", once)
    assert not measured("twicing-of-twicing").passed
