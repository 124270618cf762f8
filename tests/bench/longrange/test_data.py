import numpy as np
import pytest
import torch

from twinsolve.bench.longrange.data import load_sequences


def test_drawn_sequences_are_in_three_parts_and_none_is_in_two():
    data = "listops:n_train=500,min_length=8,max_length=20"
    splits = load_sequences(data)
    tokens = torch.cat([splits.train.levels, splits.validation.levels, splits.test.levels])
    assert len(splits.test) == 2000
    assert len(np.unique(tokens, axis=0)) == len(tokens) <= 2500
    assert load_sequences.__wrapped__(data).content == splits.content


def test_pixels_come_row_by_row():
    splits = load_sequences("pathfinder:n_train=100,size=24")
    assert splits.train.levels.shape == (90, 576)
    image = splits.test.levels[0].reshape(24, 24)
    assert image.unfold(0, 3, 1).unfold(1, 3, 1).amin(dim=(2, 3)).sum() == 2  # dots of 3 x 3


@pytest.mark.parametrize(
    "data",
    ["lists", "listops:n=3", "listops:n_train=9", "pathfinder:size=9.5", "cifar-pixels:size=5"],
)
def test_what_is_unknown_is_refused(data):
    with pytest.raises(ValueError, match="data: "):
        load_sequences(data)
