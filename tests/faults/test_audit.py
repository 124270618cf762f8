"""The audit finds faults of every kind planted in transformers, and faults that packages had."""

from pathlib import Path

import pytest
from audit_history import HISTORY, MasksAfterExponentials, audit_layer
from check_audit import (
    BATCHES,
    Fault,
    audit_family,
    hold,
    hold_layer,
    planted,
    read_faults,
)

transformers = pytest.importorskip("transformers")
PINNED = pytest.mark.skipif(transformers.__version__ != "5.24.0", reason="sources of this version")

FOUND = {
    ("llama", "padding mask not passed on"): "left padding",
    ("qwen3_next", "cached mask cut at the wrong side"): "pieces of left padded",
    ("gemma2", "window of the mask one key longer than that of the cache"): "decoding",
    ("gpt2", "decoded token one too far"): "decoding",
    ("BertModel", "position ids ignored"): "left padding",
    ("ViTModel", "positions move with the size of the batch"): "rows of a batch",
    ("llama", "keys for values wherever a cache is used"): "without cache",
    ("opt", "values not reordered"): "reordered cache",
    ("mamba", "convolution state not updated in decoding"): "decoding",
    ("mamba2", "initial state not passed on"): "prefill in pieces",
    ("falcon_h1", "state dropped at chunk boundaries"): "chunk sizes",
    ("jamba", "gate applied twice in decoding"): "decoding",
    ("llama", "heads tiled in place of repeated"): "attention implementations",
    ("falcon", "scale of the eager path by the number of heads"): "attention implementations",
    ("gemma2", "logits not capped in decoding"): "decoding",
}

FOUND_IN_LAYERS = [
    "prefill in pieces", "prefill in pieces", "determinism", "decoding", "content of padding",
    "gradients in pieces", "rows of a batch", "left padding", "prefill in pieces", "left padding",
    "decoding", "gradients under strong decay", "finite gradients under strong decay",
    "decoding after prefill without positions", "decoding", "later tokens",
    "reordered cache", "decoding", "left padding", "decoding", "gradients", "gradients",
]  # fmt: skip


@PINNED
def test_planted_faults_of_every_kind_are_caught():
    faults = {(fault.family, fault.name): fault for fault in read_faults("first")}
    rows = [hold(faults[key], (law,)) for key, law in FOUND.items()]
    assert [(row["subject"], row["broken"]) for row in rows] == [
        (family, law) for (family, _), law in FOUND.items()
    ]
    assert sorted(row["kind"] for row in rows) == sorted(3 * [*{f.kind for f in faults.values()}])


@PINNED
def test_every_fault_has_its_place():
    for batch in BATCHES:
        for fault in read_faults(batch):
            fault.find(Path(fault.module.__file__).read_text())


@PINNED
def test_fault_is_taken_out_again():
    laws = ("left padding",)
    fault = next(f for f in read_faults("first") if f.family == "llama")
    with planted(fault):
        assert not audit_family("llama", laws)
    assert audit_family("llama", laws)


def test_fault_without_its_place_is_an_error():
    fault = Fault("masks", "nowhere", "llama", old="no such text", new="")
    with pytest.raises(ValueError, match="llama, nowhere: 'no such text' occurs 0 times"):
        fault.find(Path(fault.module.__file__).read_text())


def test_faults_that_packages_had_are_caught():
    rows = [hold_layer(*fault, (law,)) for fault, law in zip(HISTORY, FOUND_IN_LAYERS, strict=True)]
    assert [row["broken"] for row in rows] == FOUND_IN_LAYERS
    assert {row["verdict"] for row in rows} == {"caught"}


def test_decays_that_overflow_are_seen_by_the_laws_of_strong_decay_alone():
    broken = {row.law for row in audit_layer(MasksAfterExponentials).broken}
    assert broken == {"finite gradients under strong decay", "gradients under strong decay"}
