"""The command `twinsolve speed attention` on few tokens."""

import json
from functools import partial

import pytest
import torch
from torch.nn import functional as F
from torch.testing import assert_close

from twinsolve.bench import time_attention
from twinsolve.bench.speed import attention
from twinsolve.bench.speed.attention import (
    PEER,
    REFERENCE,
    Setting,
    TimedAttention,
    floating_point_operations,
    profile_run,
)
from twinsolve.unrolled import CrissCross, Local, make_operator, named_operators, operator_names

from ..command import run


@pytest.fixture
def small(monkeypatch):
    monkeypatch.setattr(attention, "_MEMORY_TOKENS", (32, 64))
    for name, case in attention.CASES.items():
        monkeypatch.setitem(attention.CASES, name, case._replace(shape=(2, 3, 24, 8)))
    monkeypatch.setattr("twinsolve.bench.speed.attention._SECONDS", 0.0)


def test_every_operator_has_its_rows(small):
    table = time_attention(cases=["images-197", "memory"], rounds=2)
    assert set(table.operator) == {REFERENCE, *operator_names()}
    assert (table.note == "").all(), table[table.note != ""]
    timed, grown = (table[table.case == case] for case in ("images-197", "memory"))
    stored = timed[timed.form == "stored"]
    assert list(stored.operator) == ["bilateral"]
    assert (stored.inference_ratio > 0).all()
    assert stored.training_ratio.isna().all()
    timed = timed[timed.form != "stored"]
    for mode in ("inference", "training"):
        lowest, median, highest = (
            timed[f"{mode}_{key}"] for key in ("ratio_lowest", "ratio", "ratio_highest")
        )
        assert ((lowest <= median) & (median <= highest)).all()
        assert (timed[f"{mode}_ms"] > 0).all()
    assert (timed.memory_mib > 0).all()
    assert grown.memory_exponent.between(0, 3).all()
    explicit = set(timed[timed.form == "explicit"].operator)
    assert {"softmax", "twicing"} <= explicit
    assert REFERENCE not in explicit


def test_operators_with_gates_have_causal_rows(small):
    table = time_attention(cases=["causal-256"], rounds=1)
    gated = {n for n in operator_names() if make_operator(n, num_heads=3, head_dim=8).gates}
    assert {"delta_rule", "mesa"} <= gated
    assert set(table.operator) - {PEER} == {REFERENCE, *gated}
    assert (table.note == "").all(), table[table.note != ""]
    assert (table.training_ratio > 0).all()


def test_gates_are_given_and_trained():
    timed = TimedAttention("delta_rule", "fused", Setting((1, 2, 9, 8), is_causal=True))
    out = timed.attend()
    timed.train()
    assert timed.context.gates.grad.abs().sum() > 0
    with torch.no_grad():
        timed.inputs[2][:, :, -1] += 1
        assert_close(timed.attend()[:, :, :-1], out[:, :, :-1])


def test_the_peer_computes_what_our_layer_does():
    pytest.importorskip("transformers")
    setting = Setting((1, 2, 70, 8), is_causal=True)
    ours, peer = (TimedAttention(name, "fused", setting) for name in ("gated_delta_rule", PEER))
    assert_close(peer.attend() * 8**0.5, ours.attend(), rtol=1e-3, atol=1e-4)


def test_operators_with_a_grid_are_given_one():
    criss_cross, local = (
        TimedAttention(name, "fused", Setting((1, 2, 197, 8))) for name in ("criss_cross", "local")
    )
    assert (criss_cross.context.grid, criss_cross.context.n_class_tokens) == ((14, 14), 1)
    alone = CrissCross(14, n_class_tokens=1)(*criss_cross.inputs)
    assert_close(criss_cross.attend(), alone)
    assert_close(local.attend(), Local(7, width=14, n_class_tokens=1)(*local.inputs))


def test_bfloat16_runs_and_what_has_no_kernel_is_noted(small):
    table = time_attention(
        cases=["images-197"], operators=["softmax", "gaussian"], rounds=1, dtype="bfloat16"
    )
    assert set(table.dtype) == {"bfloat16"}
    noted = table[table.note != ""]
    assert noted.training_ratio.isna().all()
    assert "softmax" in set(table[table.note == ""].operator)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is one")
def test_a_device_that_is_not_there_is_named():
    with pytest.raises(ValueError, match="device: 'cuda' cannot be used"):
        time_attention(device="cuda")


def test_peak_memory_counts_what_is_held_at_once():
    x = torch.ones(256, 1024)  # 1 MiB

    def run():
        for _ in range(3):
            y = x + 1
            z = y * 2
            del y, z

    # The first of a turn is still held while nothing else is: two at once, never six.
    assert 2 * 2**20 <= profile_run(run, "cpu").peak_memory < 2.1 * 2**20


def test_operations_of_the_fused_kernel_are_counted():
    q = torch.randn(1, 2, 64, 16, requires_grad=True)
    forward = floating_point_operations(lambda: F.scaled_dot_product_attention(q, q, q))
    assert forward == 2 * 2 * (2 * 64 * 64 * 16)
    both = floating_point_operations(
        lambda: F.scaled_dot_product_attention(q, q, q).sum().backward()
    )
    assert both == forward * 3.5  # five products in the backward pass, one of them anew


def test_the_kernel_that_was_reached_is_named():
    q, v = torch.randn(1, 2, 64, 16), torch.randn(1, 2, 64, 24)
    for values, kernel in ((q, "flash_attention_for_cpu"), (v, "attention_math")):
        run = partial(F.scaled_dot_product_attention, q, q, values)
        assert profile_run(run, "cpu").kernels == {kernel}


def test_command_writes_its_files(small, tmp_path):
    words = "speed attention --operator softmax --operator twicing --case images-197 --case memory"
    assert "twicing" in run(words, "--rounds", 1, "--output", tmp_path)
    rows = json.loads((tmp_path / "table.json").read_text())
    assert {row["operator"] for row in rows} == {REFERENCE, "softmax", "twicing"}
    assert (tmp_path / "times.png").stat().st_size > 10_000
    assert "exponent" in (tmp_path / "summary.md").read_text()


def test_a_loaded_operator_is_timed_and_timed_anew_when_its_file_changes(small, tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(
        "from twinsolve.unrolled import Softmax, register_operator\n"
        "class Mine(Softmax):\n"
        "    def attend(self, *arguments):\n"
        "        return super().attend(*arguments)\n"
        "register_operator('mine', lambda num_heads, head_dim: Mine())\n"
    )
    words = "speed attention --case images-197 --rounds 1 --operator mine"
    for runs in (1, 1, 2):
        if runs == 2:
            path.write_text(path.read_text() + "# changed\n")
        try:
            run(words, "--output", tmp_path / "out", "--load", path)
        finally:
            named_operators._FACTORIES.pop("mine", None)
        assert len(list((tmp_path / "out" / "runs").iterdir())) == runs
    rows = json.loads((tmp_path / "out" / "table.json").read_text())
    assert {row["operator"] for row in rows} == {REFERENCE, "mine"}
