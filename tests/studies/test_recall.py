"""Recall of stored pairs."""

import pytest
import torch
from recall import MEMORIES, D, closed_form, expected_error, measure_recall, relative_error
from torch.nn.functional import normalize


def draw_pairs(n_pairs, n_draws=40):
    generator = torch.Generator().manual_seed(0)
    k, v = torch.randn(2, n_draws, n_pairs, D, generator=generator, dtype=torch.float64)
    return normalize(k, dim=-1), v


@pytest.mark.parametrize("name", MEMORIES)
def test_what_is_recalled_is_the_closed_form(name):
    recall, start = MEMORIES[name]
    own = {key: torch.tensor(x, dtype=torch.float64) for key, x in start.items()}
    for n_pairs in (1, 15, 40):
        k, v = draw_pairs(n_pairs)
        form = closed_form(name, k, v)
        if form is not None:
            torch.testing.assert_close(recall(k, v, own), form, atol=1e-10, rtol=0)


def test_mean_errors_are_those_of_the_sheet():
    found = [expected_error(x, 24) for x in ("linear attention", "delta rule", "Mesa, exact")]
    assert found == pytest.approx([1.44, 0.85, 0.33], abs=5e-3)


def test_mean_errors_of_random_keys_are_those_expected():
    """The standard error of 2,000 draws is about 0.003."""
    k, v = draw_pairs(12, n_draws=2000)
    for name in ("linear attention", "delta rule"):
        recall, start = MEMORIES[name]
        own = {key: torch.tensor(x, dtype=torch.float64) for key, x in start.items()}
        assert relative_error(recall(k, v, own), v) == pytest.approx(
            expected_error(name, 12), abs=0.004
        )


def test_learning_lowers_the_error_and_is_the_same_again(monkeypatch):
    monkeypatch.setattr("recall._N_STEPS", 40)
    monkeypatch.setattr("recall._N_TEST", 200)
    (row,) = measure_recall("linear attention", 24, 0)
    assert row["random"] == pytest.approx(expected_error("linear attention", 24), rel=0.1)
    assert row["keys"] < row["settings"] < row["random"]
    assert measure_recall("linear attention", 24, 0) == [row]
