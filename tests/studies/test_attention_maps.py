"""What attention maps cover, on maps whose answer is known, and on a short run."""

import numpy as np
import pandas as pd
import pytest
import torch
from attention_maps import (
    HIDDEN,
    apart,
    area,
    class_lines,
    class_weights,
    contrast,
    contrast_lines,
    head_similarity,
    hidden_by,
    hide,
    measure_maps,
)

from twinsolve.bench.vision.classification.data import load_splits
from twinsolve.bench.vision.classification.study import build, settings_of

TABLES = (class_lines, contrast_lines)


@pytest.mark.parametrize("n_kept", [1, 4, 16])
def test_equal_weights_on_a_few_tokens_cover_their_share(n_kept):
    maps = torch.zeros(2, 3, 17, 17, dtype=torch.float64)
    maps[..., 1 : 1 + n_kept] = 1 / n_kept
    weights = class_weights(maps)
    torch.testing.assert_close(weights.sum(dim=-1), torch.ones(2, dtype=torch.float64))
    torch.testing.assert_close(area(weights), torch.full((2,), n_kept / 16, dtype=torch.float64))
    # of n weights, k are 1 / k: their variance over the squared mean is n / k - 1
    expected = torch.full((2,), (17 / n_kept - 1) ** 0.5, dtype=torch.float64)
    torch.testing.assert_close(contrast(maps), expected)


def test_heads_on_one_token_are_alike_and_on_different_ones_are_not():
    maps = torch.full((1, 2, 5, 5), 0.25)
    assert float(head_similarity(maps)) == pytest.approx(1)
    maps[0, :, 0, 1:] = torch.eye(4)[:2]
    assert float(head_similarity(maps)) == 0


def test_the_half_that_is_hidden_is_that_of_its_name():
    weights = torch.from_numpy(np.random.default_rng(0).random((6, 16)))
    masks = {which: hidden_by(weights, which) for which in HIDDEN}
    assert not masks["none"].any()
    assert all((masks[which].sum(dim=1) == 8).all() for which in HIDDEN[1:])
    for own, most, least in zip(weights, masks["most"], masks["least"], strict=True):
        assert own[most].min() > own[~most].max()
        assert own[least].max() < own[~least].min()
    torch.testing.assert_close(masks["random"], hidden_by(1 - weights, "random"))
    assert len({tuple(row) for row in masks["random"].tolist()}) == 6


def test_hidden_patches_are_at_the_mean_and_others_stay():
    splits = load_splits("digits")
    model = build(splits, settings_of("digits"), {"pool": "class"}, 0)
    levels, hidden = splits.test.levels[:2], torch.zeros(2, 16, dtype=torch.bool)
    hidden[:, 5] = True  # the second patch of the second row
    shown = hide(model, levels, hidden)
    torch.testing.assert_close(shown[:, 0, 2:4, 2:4], torch.full((2, 2, 2), model.mean[0]))
    assert (shown != levels).sum(dim=(1, 2, 3)).le(4).all()


def test_a_short_run_has_lines_for_layers_and_rows(tmp_path):
    settings = settings_of("digits", {"depth": 2})
    settings["candidates"] = [settings["candidates"][0] | {"n_steps": 4}]
    table = pd.DataFrame(
        line
        for row in ("softmax", "AttnScale")
        for seed in (0, 1)
        for line in measure_maps("digits", None, str(tmp_path), settings, row, seed)
    )
    assert table.class_maps.notna().tolist() == [True, False, True, False]
    assert np.shape(table.first_heads[0]) == (2, 4, 4)
    heads, lines = contrast_lines(table)
    assert [line[0] for line in lines] == ["1", "2"]
    assert heads[-1] == "AttnScale - softmax"
    values = table.set_index(["row", "seed"]).area
    assert apart(table, "AttnScale", "area").mean == pytest.approx(
        (values["AttnScale"] - values["softmax"]).mean()
    )
    assert [line[2] == "-" for line in class_lines(table)[1]] == [True, False]
    single = table[table.seed == 0]
    assert all(", one pair" in lines[-1][-1] for _, lines in (f(single) for f in TABLES))
