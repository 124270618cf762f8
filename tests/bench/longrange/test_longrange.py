"""The command, what seeds pair, and batches."""

import json

import pytest
import torch

from twinsolve.bench.longrange.data import load_sequences
from twinsolve.bench.longrange.study import SEQUENCES, build, make_batches, settings_of
from twinsolve.bench.task import row_options

from ..command import run

DATA = "listops:n_train=200,min_length=8,max_length=24"
SMALL = {"dim": 16, "depth": 1, "num_heads": 2}


def test_the_command_trains_measures_and_takes_what_is_finished(tmp_path):
    words = f"longrange {DATA} --seeds 2 --steps 2 --recipe dim=16,depth=1,num_heads=2 --row ALiBi"
    words += " --row Sequence:operator=symmetric,correction=neutreno:lam=0.4"
    for _ in range(2):
        run(words, "--output", tmp_path)
    rows = json.loads((tmp_path / "table.json").read_text())
    assert [row["against"] for row in rows[::2]] == [None, "softmax", "softmax", "symmetric"]
    for row in rows:
        assert row["accuracy"] == pytest.approx(100 * (1 - len(row["wrong"]["clean"]) / 2000))
        assert [step for step, _ in row["curve"]] == [0, 2]
        assert row["curve"][-1][1] == row["validation"]
    folders = list((tmp_path / "runs/networks").iterdir())
    assert len(folders) == 4 * (2 + 1)  # candidates, seeds
    summary = (tmp_path / "summary.md").read_text()
    assert f"most frequent class has {rows[0]['most_frequent']:.2f} % of the 2,000" in summary
    assert all((tmp_path / f"{name}.png").is_file() for name in ("curves", "differences"))


def test_rows_of_a_seed_start_from_the_same_weights_and_pixels_are_standardised():
    splits = load_sequences("pathfinder:n_train=100,size=24")
    settings = settings_of("pathfinder", SMALL)
    plain, other = (
        build(splits, settings, row_options(SEQUENCES, row), 3) for row in ("softmax", "bilateral")
    )
    first, second = plain.state_dict(), other.state_dict()
    assert all(torch.equal(first[name], second[name]) for name in first)
    tokens, hidden = plain.arguments(splits.train.levels)
    assert hidden is None
    assert float(tokens.mean()) == pytest.approx(0, abs=1e-3)
    assert float(tokens.std()) == pytest.approx(1, abs=1e-3)


def test_batches_end_where_their_longest_expression_does():
    splits = load_sequences(DATA)
    tokens, target = make_batches(splits, settings_of(DATA))(0, 1, range(4))
    assert tokens.shape[1] == (tokens > 0).sum(dim=1).max() < 24
    whole = splits.train.levels
    for ids, label in zip(tokens, target, strict=True):
        (place,) = (whole[:, : len(ids)] == ids).all(dim=1).nonzero()[0]
        assert not whole[place, len(ids) :].any()
        assert splits.train.target[place] == label
