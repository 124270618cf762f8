"""Faults that the twins of sparse, ridge and low-rank attention have to find."""

import pytest
import torch

from twinsolve.unrolled import LowRank, Ridge, SparseCoding
from twinsolve.unrolled.self_expression import low_rank_attention, ridge_attention
from twinsolve.unrolled.sparse_coding.code_blocks import _shrink_
from twinsolve.unrolled.sparse_coding.iterations import curvature, support_step
from twinsolve.unrolled.twins import exact_twin

from .conftest import TWINS, built, small_inputs

UNROLLED = "twinsolve.unrolled"


def measured(name, dtype=torch.float64):
    twin = TWINS[name]
    inputs = small_inputs(twin, dtype)
    return twin.relation.measure(twin, built(twin, inputs), inputs)


RIDGE = [
    "ridge-self-expression",
    "ridge-self-expression-zero-diagonal",
    "ridge-attention",
    "ridge-attention-zero-diagonal",
    "ridge-large-penalty",
]
LOW_RANK = [
    "low-rank-self-expression",
    "low-rank-attention",
    "low-rank-optimality",
    "low-rank-small-penalty",
]
NONNEGATIVE = [n for n in TWINS if n.startswith("nonnegative")]
SUPPORT = [n for n in TWINS if n.startswith("support-adaptive") and n.endswith("iterates")]
DTYPES = pytest.mark.parametrize("dtype", [torch.float64, torch.float32])


@DTYPES
@pytest.mark.parametrize("name", RIDGE)
def test_finds_half_the_ridge_penalty(monkeypatch, name, dtype):
    right = ridge_attention._regularize
    monkeypatch.setattr(ridge_attention, "_regularize", lambda gram, lam: right(gram, lam / 2))
    assert not measured(name, dtype).passed


@DTYPES
@pytest.mark.parametrize("name", [n for n in RIDGE if "zero" in n])
def test_finds_a_key_that_is_not_left_out(monkeypatch, name, dtype):
    monkeypatch.setattr(ridge_attention, "_leave_out", lambda q, k, v, *rest: torch.zeros_like(v))
    assert not measured(name, dtype).passed


@DTYPES
@pytest.mark.parametrize("name", LOW_RANK)
def test_finds_twice_the_low_rank_threshold(monkeypatch, name, dtype):
    right = low_rank_attention._Filter
    monkeypatch.setattr(low_rank_attention, "_Filter", lambda w, t: right(w, 2 * t))
    assert not measured(name, dtype).passed


@DTYPES
@pytest.mark.parametrize("name", NONNEGATIVE)
def test_finds_a_signed_threshold(monkeypatch, name, dtype):
    """Erratum E3-f: the one-sided and the two-sided threshold solve different problems."""
    monkeypatch.setattr(
        f"{UNROLLED}.sparse_coding.code_blocks._shrink_", lambda z, one_sided: _shrink_(z, False)
    )
    assert not measured(name, dtype).passed


@DTYPES
@pytest.mark.parametrize("name", SUPPORT)
def test_finds_support_steps_that_are_always_taken(monkeypatch, name, dtype):
    def always_long(codes, move, local, whole):
        return support_step(codes, move, local, torch.where(local > 0, local, whole))

    monkeypatch.setattr(f"{UNROLLED}.sparse_coding.sparse_attention.support_step", always_long)
    assert not measured(name, dtype).passed


@DTYPES
@pytest.mark.parametrize("name", SUPPORT)
def test_finds_support_steps_that_are_never_taken(monkeypatch, name, dtype):
    def always_short(codes, move, local, whole):
        return support_step(codes, move, torch.zeros_like(local), whole)

    monkeypatch.setattr(f"{UNROLLED}.sparse_coding.sparse_attention.support_step", always_short)
    assert not measured(name, dtype).passed


def test_a_diverging_support_step_breaks_the_proved_rate(monkeypatch):
    monkeypatch.setattr(
        f"{UNROLLED}.sparse_coding.sparse_attention.curvature", lambda *a: curvature(*a) / 4
    )
    assert not measured("support-adaptive-self-expression-rate").passed


@pytest.mark.parametrize(
    ("layer", "name"),
    [
        (SparseCoding(1.0), "sparse-coding-iterates"),
        (SparseCoding(1.0, nonnegative=True), "nonnegative-coding-iterates"),
        (SparseCoding(1.0, step="support"), "support-adaptive-coding-iterates"),
        (SparseCoding(1.0, zero_diagonal=True), "self-expression-iterates"),
        (
            SparseCoding(1.0, zero_diagonal=True, nonnegative=True),
            "nonnegative-self-expression-iterates",
        ),
        (
            SparseCoding(1.0, zero_diagonal=True, nonnegative=True, step="support"),
            "support-adaptive-self-expression-iterates",
        ),
        (Ridge(1.0, zero_diagonal=True), "ridge-self-expression-zero-diagonal"),
        (Ridge(1.0), "ridge-self-expression"),
        (LowRank(1.0), "low-rank-self-expression"),
    ],
)
def test_layers_find_their_twin(layer, name):
    assert exact_twin(layer, same_points=True).name == name
