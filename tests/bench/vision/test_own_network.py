"""A user's own network as a row of `classify`."""

import pytest
import torch

from twinsolve.bench.paired_training import network_source
from twinsolve.bench.run_folder import load_model
from twinsolve.bench.task import row_options
from twinsolve.bench.vision.classification.data import load_splits
from twinsolve.bench.vision.classification.study import IMAGES, build, classify, settings_of

SOURCE = """
from torch import nn

class Net(nn.Module):
    def __init__(self, in_channels, num_classes, image_size, width=4):
        super().__init__()
        height, _ = image_size
        self.body = nn.Conv2d(in_channels, width, height)
        self.head = nn.Linear(width, num_classes)

    def forward(self, images):
        return self.head(self.body(images).flatten(1).relu())

class Narrow(Net):
    def forward(self, images):
        return super().forward(images)[:, :5]

class Failing(nn.Module):
    def forward(self, images):
        raise TypeError("no images today")
"""
ROW = "net_of_a_user:Net:width=6"


@pytest.fixture
def folder(tmp_path, monkeypatch):
    (tmp_path / "net_of_a_user.py").write_text(SOURCE)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture(scope="module")
def digits():
    return load_splits("digits")


def made(digits, row):
    return build(digits, settings_of("digits"), row_options(IMAGES, row), seed=3)


def test_an_own_network_is_trained_beside_softmax_and_loads_again(folder):
    told = []
    table = classify(
        rows=[ROW], seeds=1, steps=2, recipe={"dim": 8, "depth": 1, "num_heads": 1},
        directory=folder / "runs", on_step=told.append,
    )  # fmt: skip
    assert table.row.tolist() == ["softmax", ROW]
    assert table.against[1] == "softmax"
    # 8 x 8 pixels and a bias to 6 channels, these and a bias to 10 classes
    assert table.parameters[1] == 6 * 65 + 10 * 7
    # Of each row, three candidates train two steps; the best of them is not trained again.
    assert [(x["row"], x["seed"], x["step"]) for x in told] == [
        (row, 0, step) for row in ("softmax", ROW) for _ in range(3) for step in (1, 2)
    ]
    assert {x["steps_of_study"] for x in told} == {len(told)}
    (run, *_) = (folder / "runs/networks").glob("net_of_a_user*")
    assert "Net" in str(load_model(run))


def test_the_seed_decides_the_weights_of_an_own_network(folder, digits):
    first, second = (made(digits, ROW).state_dict() for _ in range(2))
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert network_source(row_options(IMAGES, ROW)) is not None
    assert network_source(row_options(IMAGES, "ConvMixer")) is None


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("net_of_a_user:Net:wide=6", "net_of_a_user:Net cannot be made.*wide"),
        ("net_of_a_user:Narrow", r"must return scores of shape \(2, 10\), got \(2, 5\)"),
        ("net_of_a_user:Failing", r"fails on images of shape \(2, 1, 8, 8\): no images today"),
        ("net_of_a_user:Nothing", "no class 'net_of_a_user:Nothing'"),
        ("nowhere_at_all:Net", "no class 'nowhere_at_all:Net'"),
        ("ViT:plain", "settings are NAME=VALUE"),
        ("Net", "package.module:Class"),
    ],
)
def test_what_is_no_network_is_refused(folder, digits, row, message):
    with pytest.raises(ValueError, match=message):
        made(digits, row)
