from itertools import chain

import pytest
import torch
from torch import nn

from twinsolve.unrolled.attention import Positive
from twinsolve.unrolled.clustering.training import train
from twinsolve.unrolled.generators import seeded

SETTINGS = {"max_iter": 6, "batch_size": 2, "learning_rate": 0.1, "seed": 0}


def number():
    return Positive(1.0, learnable=True, dtype=torch.float64)


def test_every_row_is_seen_before_one_is_seen_again():
    module, seen = number(), []

    def loss(rows):
        seen.append(rows.tolist())
        return module()

    train(module, loss, 5, **SETTINGS)
    assert [len(rows) for rows in seen] == [2, 2, 1, 2, 2, 1]
    first, second = (list(chain(*seen[i : i + 3])) for i in (0, 3))
    assert sorted(first) == sorted(second) == list(range(5))
    assert first != second


def test_steps_are_those_of_adam_with_cosine_decay():
    """On a loss of constant slope, each step of Adam is the learning rate itself."""
    linear = nn.Linear(1, 1, bias=False, dtype=torch.float64)
    linear.weight.data.zero_()
    curve = train(linear, lambda rows: 3 * linear.weight.sum(), 4, **SETTINGS | {"max_iter": 2})
    assert curve[0] == 0
    assert linear.weight.item() == pytest.approx(-0.1 * (1 + 0.5), rel=1e-6)
    assert curve[1] == pytest.approx(-0.3, rel=1e-6)


def test_gradients_are_clipped():
    """Adam's epsilon of 1e-8 shows how large a gradient was."""
    linear = nn.Linear(1, 1, bias=False, dtype=torch.float64)
    linear.weight.data.zero_()
    train(linear, lambda rows: linear.weight.sum(), 4, clip=1e-8, **SETTINGS | {"max_iter": 1})
    assert linear.weight.item() == pytest.approx(-0.05, rel=1e-6)


def test_parameters_have_the_rates_of_their_attributes():
    """On a loss of constant slope, the first step of Adam is the learning rate itself."""
    module = nn.Module()
    for name in ("step", "matrix"):
        module.add_module(name, nn.Linear(1, 1, bias=False, dtype=torch.float64))
        getattr(module, name).weight.data.zero_()

    def loss(rows):
        return sum(child.weight.sum() for child in module.children())

    train(module, loss, 4, rates={"step": 0.3}, **SETTINGS | {"max_iter": 1})
    assert module.step.weight.item() == pytest.approx(-0.3, rel=1e-6)
    assert module.matrix.weight.item() == pytest.approx(-0.1, rel=1e-6)
    with pytest.raises(ValueError, match="rates: must be"):
        train(module, loss, 4, rates={"step": 0}, **SETTINGS)


def test_the_state_with_the_lowest_loss_on_the_judged_rows_is_kept():
    """Rows after the first pull the weight up; the judged loss rises from the first step on."""
    linear, judged = nn.Linear(1, 1, bias=False, dtype=torch.float64), []
    linear.weight.data.zero_()

    def loss(rows):
        if not torch.is_grad_enabled():
            judged.append(rows.tolist())
            return linear.weight.sum()
        return -linear.weight.sum()

    settings = SETTINGS | {"max_iter": 45}
    train(linear, loss, 5, n_judged=3, **settings)
    assert linear.weight.item() == 0
    assert len(judged) == 4  # before the steps 1, 21 and 41, and at the end
    assert all(rows == judged[0] for rows in judged)
    assert len(set(judged[0])) == 3
    train(linear, loss, 5, **settings)
    assert linear.weight.item() > 0


def test_a_loss_that_diverges_is_named():
    module = number()
    with pytest.raises(ValueError, match="learning_rate: the loss is inf at step 1"):
        train(module, lambda rows: module() / 0, 5, **SETTINGS)


def test_global_state_of_torch_stays():
    before, threads = torch.get_rng_state(), torch.get_num_threads()
    with seeded(0):
        weight = nn.Linear(3, 3).weight
    with seeded(1):
        assert not torch.equal(nn.Linear(3, 3).weight, weight)
    module = number()
    train(module, lambda rows: module(), 5, **SETTINGS)
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.get_num_threads() == threads
