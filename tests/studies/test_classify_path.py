"""The path from non-local means to softmax attention."""

import itertools
import json
from pathlib import Path

import classify_path
import pandas as pd
import torch
from classify_path import ISTA, PATH
from shared.script import command_of
from typer.testing import CliRunner

from twinsolve.bench.costs import size_measures
from twinsolve.bench.vision.classification.data import load_splits
from twinsolve.bench.vision.classification.study import build, settings_of


def network(digits, options):
    return build(digits, settings_of("digits"), options, 0)


def test_the_figure_of_the_path_keeps_its_order(tmp_path, monkeypatch):
    kept = []
    monkeypatch.setattr(classify_path, "save", lambda figure, path: kept.append(figure))
    file = Path(__file__).parents[2] / "docs/results/classify-path/table.json"
    classify_path.draw_path(pd.DataFrame(json.loads(file.read_text())), tmp_path)
    (left, steps, _) = kept[0].axes
    shown = [label.get_text() for label in left.get_yticklabels()]
    assert shown[::-1][: len(PATH)] == list(PATH)
    assert len(steps.containers) == len(shown) - 1  # an interval each, but for the first


def test_the_path_begins_at_non_local_means_of_pixels_and_ends_at_softmax():
    digits = load_splits("digits")
    levels = digits.test.levels[:2].double()
    model = network(digits, PATH["non-local means"]).double()
    levels = model.standardised(levels)
    patches = model.network.patch_embedding.patches(levels)
    for block, tokens in zip(
        model.network.blocks, model.network.intermediates(levels)[1:], strict=True
    ):
        h = block.attention.operator.bandwidth()
        weights = torch.softmax(-torch.cdist(patches, patches).square() / (2 * h**2), dim=-1)
        patches = weights @ patches
        torch.testing.assert_close(tokens[..., :4], patches)
        assert not tokens[..., 4:].any()
    assert size_measures(model.float(), digits.test.levels)["parameters"] == 6 + 33 * 10
    trained = {name for name, p in model.named_parameters() if p.requires_grad}
    assert all(".operator." in name or name.startswith("network.head.") for name in trained)
    ended, plain = network(digits, PATH["dot products"]), network(digits, {})
    assert torch.equal(ended(digits.test.levels[:2]), plain(digits.test.levels[:2]))


def test_each_row_of_the_path_differs_in_one_part_from_the_row_before():
    for before, after in itertools.pairwise(PATH.values()):
        changed = {k for k in before | after if before.get(k) != after.get(k)}
        assert len(changed) == 1


def test_the_script_trains_all_rows_and_compares_each_with_the_one_before(tmp_path):
    words = ["digits", "--seeds", "1", "--steps", "1", "--output", str(tmp_path)]
    words += ["--recipe", "dim=8,depth=1"]
    CliRunner().invoke(command_of(classify_path), words, catch_exceptions=False)
    table = pd.DataFrame(json.loads((tmp_path / "table.json").read_text()))
    assert list(table.row) == ["softmax", *PATH, *ISTA]
    summary = (tmp_path / "summary.md").read_text()
    assert summary.startswith("# python studies/classify_path.py\n")
    assert "## Part by part" in summary
    assert (tmp_path / "differences.png").is_file()
