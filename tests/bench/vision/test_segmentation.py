"""Segmentation, from batches to the command."""

import json

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image
from sklearn.metrics import accuracy_score, balanced_accuracy_score, jaccard_score
from torch.nn import functional as F
from torch.testing import assert_close

from twinsolve.bench.vision.segmentation.data import LabelledPictures, class_weights, cross_entropy
from twinsolve.bench.vision.segmentation.quality import SCALES, scores_of, segmentation_quality
from twinsolve.bench.vision.segmentation.report import cosine_lines
from twinsolve.bench.vision.segmentation.study import ROWS, PixelClassifier, token_cosines
from twinsolve.datasets import camvid
from twinsolve.unrolled import Bilateral, GeneralizedResidual, Neutreno, Symmetric

from ..command import run

rng = np.random.default_rng(0)
# Classes can be read off the pictures: each has a grey level of its own.
TARGET = np.kron(rng.integers(4, size=(3, 3, 4)), np.ones((1, 4, 4))).astype(np.uint8)
IMAGES = np.repeat(60 * TARGET[..., None], 3, axis=-1)


class ByLevel(torch.nn.Module):
    """Scores by the distance to the level of each class; pixels by themselves."""

    def forward(self, images):
        grey = images[:, :1] * 0.25 + 0.45
        return -100 * (grey - torch.arange(4).view(1, 4, 1, 1) * 60 / 255) ** 2


class Wrong(ByLevel):
    def forward(self, images):
        return super().forward(images).roll(1, dims=1) + 0.5 * super().forward(images)


def test_batches_depend_on_seed_step_and_sample_alone():
    batches = LabelledPictures(IMAGES, TARGET)
    images, target = batches(1, 2, range(6))
    again, _ = batches(1, 2, range(3, 6))
    assert images.shape == (6, 3, 12, 16)
    assert target.shape == (6, 12, 16)
    assert torch.equal(images[3:], again)
    for other in (batches(1, 3, range(6)), batches(2, 2, range(6))):
        assert not torch.equal(images, other[0])
    assert (images[0] != images[1]).any()


def test_labels_move_with_their_pixels():
    images, target = LabelledPictures(IMAGES, TARGET)(0, 0, range(40))
    found = ByLevel()(images).argmax(dim=1)
    inside = F.max_pool2d(target[:, None].float(), 3, 1, 1) == -F.max_pool2d(
        -target[:, None].float(), 3, 1, 1
    )
    inside[..., [0, -1], :] = inside[..., [0, -1]] = False
    assert (found == target)[inside[:, 0]].all()  # borders of squares are interpolated
    assert (torch.unique(target) == torch.arange(4)).all()


@pytest.mark.parametrize("model", [ByLevel(), Wrong()])
def test_quality_is_that_of_scikit_learn(model):
    target = TARGET.copy()
    target[0, :5] = 4  # no label
    found = segmentation_quality(model, IMAGES, target, n_classes=4)
    predicted = model((torch.from_numpy(IMAGES).movedim(-1, 1) / 255 - 0.45) / 0.25).argmax(1)
    pairs = target[target < 4], predicted.numpy()[target < 4]
    assert found["iou"] == pytest.approx(list(jaccard_score(*pairs, average=None)))
    assert found["miou"] == pytest.approx(jaccard_score(*pairs, average="macro"))
    assert found["accuracy"] == pytest.approx(accuracy_score(*pairs))
    assert found["class_accuracy"] == pytest.approx(balanced_accuracy_score(*pairs))
    assert np.mean(found["pictures"]) == pytest.approx(found["miou"])
    weights = np.arange(len(IMAGES)) == 1  # the second picture counts a little more
    more = np.repeat(np.arange(len(IMAGES)), 1000 + weights)
    again = segmentation_quality(model, IMAGES[more], target[more], n_classes=4)
    slope = (again["miou"] - found["miou"]) * 1000 * len(IMAGES)
    assert slope == pytest.approx(found["pictures"][1] - found["miou"], abs=0.01)


def test_a_class_that_is_not_there_is_left_out():
    target = np.minimum(TARGET, 1)
    found = segmentation_quality(
        ByLevel(), 60 * np.repeat(target[..., None], 3, -1), target, n_classes=4
    )
    assert found["miou"] == 1
    assert np.isnan(found["iou"][2:]).all()


def test_windows_cover_every_scale_and_average_probabilities():
    images = torch.randn(2, 3, 12, 16)
    pixels = scores_of(ByLevel(), images)
    assert_close(pixels, ByLevel()(images).softmax(dim=1))
    sizes = []

    class Seen(torch.nn.Module):
        def forward(self, x):
            sizes.append(tuple(x.shape[-2:]))
            return torch.zeros(2, 4, 12, 16)

    uniform = scores_of(Seen(), images, SCALES)
    assert_close(uniform, torch.full((2, 4, 12, 16), 0.25))
    assert set(sizes) == {(12, 16)}
    assert len(sizes) == 1 + 4 + 4


def test_the_loss_is_weighted_and_ignores_what_has_no_label():
    weights = class_weights(TARGET, 4)
    images = torch.randn(3, 3, 12, 16)
    target = torch.from_numpy(TARGET).long()
    target[0] = 7
    loss = cross_entropy(weights, ignored=7)(ByLevel(), (images, target))
    kept = F.cross_entropy(ByLevel()(images[1:]), target[1:], weights)
    assert_close(loss, kept)
    with pytest.raises(ValueError, match="target: holds no pixel of class 4"):
        class_weights(TARGET, 5)


def write_camvid(place, monkeypatch, **sizes):
    """CamVid of these sizes, whose pictures tell the classes of their pixels."""
    monkeypatch.setattr(camvid, "_SIZES", sizes)
    for subset, size in sizes.items():
        for number in range(size):
            target = rng.integers(12, size=(15, 20), dtype=np.uint8).repeat(8, 0).repeat(8, 1)
            for name, pixels in (
                (subset, np.repeat(20 * target[..., None], 3, -1)), (f"{subset}annot", target)
            ):  # fmt: skip
                path = place / "CamVid" / name / f"{number}.png"
                path.parent.mkdir(parents=True, exist_ok=True)
                Image.fromarray(pixels).save(path)


def test_rows_hold_the_parts_of_their_names():
    sizes = {"n_classes": 3, "image_size": [16, 24], "dim": 16, "depth": 2, "num_heads": 2}
    held = {
        name: PixelClassifier(sizes | options).network.backbone.blocks[1]
        for name, options in ROWS.items()
    }
    operators = {name: block.attention.operator for name, block in held.items()}
    assert isinstance(operators["NeuTRENO"], Neutreno)
    assert isinstance(operators["symmetric + NeuTRENO"], Neutreno)
    assert isinstance(operators["symmetric + NeuTRENO"].base, Symmetric)
    assert isinstance(operators["bilateral + GRC"], Bilateral)
    boosted = [n for n, x in held.items() if isinstance(x.attention_residual, GeneralizedResidual)]
    assert boosted == ["GRC", "bilateral + GRC"]


def test_cosines_are_of_two_tokens_behind_each_block():
    model = PixelClassifier(
        {"n_classes": 3, "image_size": [16, 24], "dim": 16, "depth": 2, "num_heads": 2}
    ).eval()
    kept = []
    for block in model.network.backbone.blocks:
        block.register_forward_hook(lambda _, inputs, tokens: kept.append(tokens[0][0].double()))
    pictures = rng.integers(256, size=(3, 16, 24, 3), dtype=np.uint8)
    found = token_cosines(model, pictures[:1])
    apart = ~torch.eye(kept[0].shape[0], dtype=torch.bool)
    expected = [
        float(F.cosine_similarity(own[:, None], own[None], dim=-1)[apart].mean()) for own in kept
    ]
    assert found == pytest.approx(expected)
    assert token_cosines(model, pictures)[-1] != pytest.approx(found[-1])


def test_a_line_of_cosines_is_of_a_layer_with_means_over_seeds():
    table = pd.DataFrame(
        {"row": ["a", "a", "b", "b"], "cosines": [[0.1, 0.2], [0.3, 0.4], [0.5, 0.7], [0.5, 0.7]]}
    )
    lines = [("1", "0.200", "0.500"), ("2", "0.300", "0.700")]
    assert cosine_lines(table) == (("layer", "a", "b"), lines)
    assert cosine_lines(table[["row"]])[1] == []


def test_the_command_trains_compares_and_goes_on(tmp_path, monkeypatch):
    out = tmp_path / "out"
    write_camvid(tmp_path, monkeypatch, train=2, val=1, test=5)
    command = "segment --row twicing --seeds 2 --steps 2 --recipe depth=2,dim=16"
    run(command, "--data-home", tmp_path, "--output", out)
    table = pd.DataFrame(json.loads((out / "table.json").read_text()))
    assert list(table.row) == ["softmax"] * 2 + ["twicing"] * 2
    assert list(table.seed) == [0, 1] * 2
    assert list(table.against.fillna("-")) == ["-"] * 2 + ["softmax"] * 2
    assert table.miou.between(0, 100).all()
    summary = (out / "summary.md").read_text()
    assert "by Holm for all comparisons of the table, here 2:" in summary
    assert table.pictures.map(len).eq(5).all()
    assert table.cosines.map(lambda own: own[-1]).equals(table.token_cosine)
    for name in (
        "scenes.png",
        "differences.png",
        "curves.png",
        "means.csv",
        "over-three-scales.csv",
        "mean-cosine-of-two-tokens.csv",
    ):
        assert (out / name).is_file()
    weights = [out / "runs" / folder / "weights.safetensors" for folder in table.network]
    changed = [path.stat().st_mtime_ns for path in weights]
    run(command, "--data-home", tmp_path, "--output", out)
    assert [path.stat().st_mtime_ns for path in weights] == changed
    assert (out / "summary.md").read_text() == summary
