"""A user's folder of classes: its own parts are kept, and what is ambiguous is refused."""

from itertools import chain

import numpy as np
import pytest
import torch
from PIL import Image

from twinsolve.bench.vision.classification.data import Images, load_splits
from twinsolve.bench.vision.classification.folder import PackedLevels
from twinsolve.bench.vision.classification.measures import CORRUPTIONS, corrupt, wrong_corrupted

PARTS = ("train", "validation", "test")


@pytest.fixture
def fill(tmp_path, monkeypatch):
    """Fill folders with pictures, each of a grey level of its own; `level` tells them apart."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    levels = {}

    def fill(counts, size=(8, 12)):
        for folder, count in counts.items():
            (tmp_path / "data" / folder).mkdir(parents=True, exist_ok=True)
            for number in range(count):
                level = len(levels)
                name = f"{folder}/{number}.png".lstrip("/")
                Image.fromarray(np.full((*size, 3), level, np.uint8)).save(tmp_path / "data" / name)
                levels[level] = name
        return str(tmp_path / "data"), levels

    return fill


def names_of(images, levels):
    """Names of the pictures of a part, by the level that each has."""
    whole = images.levels[torch.arange(len(images))]
    return [levels[round(255 * float(image[0, 0, 0]))] for image in whole]


@pytest.mark.parametrize(
    ("given", "spelling"),
    [
        (("train", "test"), ""),
        (("train", "val"), "val"),
        (("train", "val", "test"), "Valid"),
        (("train", "val", "test"), "validation"),
    ],
)
def test_a_folder_keeps_its_own_parts(fill, given, spelling):
    spelt = {"train": "train", "val": spelling, "test": "test"}
    path, levels = fill({f"{spelt[part]}/{name}": 10 for part in given for name in ("cat", "dog")})
    splits = load_splits(path)
    found = {part: names_of(getattr(splits, part), levels) for part in PARTS}
    for part, name in zip(PARTS, ("train", "val", "test"), strict=True):
        folder = spelt[name] if name in given else "train"
        assert {own.partition("/")[0] for own in found[part]} == {folder}
    assert sorted(chain(*found.values())) == sorted(levels.values())
    for part, name in (("validation", "val"), ("test", "test")):
        assert len(found[part]) == (20 if name in given else 4)
        drawn = f" of {spelt[name]}" if name in given else " of train, drawn by class"
        assert f"{part}: {len(found[part])}{drawn}" in splits.origin
    assert splits.classes == ("cat", "dog")


@pytest.mark.parametrize("given", [("train", "test"), ("train", "val", "test")])
def test_the_first_pictures_of_every_part_are_of_all_classes(fill, given):
    path, _ = fill({f"{part}/{name}": 10 for part in given for name in ("cat", "dog")})
    splits = load_splits(path)
    for part in PARTS:
        assert sorted(getattr(splits, part).target[:2].tolist()) == [0, 1], part


def test_the_first_photographs_of_every_part_are_of_all_classes(real_data):
    splits = load_splits("cifar10:n_train=1000", str(real_data))
    for part in PARTS:
        first = getattr(splits, part).target[:50].bincount(minlength=10)
        assert first.tolist() == [5] * 10, part
    assert splits.test.target.bincount().tolist() == [1000] * 10


def test_parts_are_drawn_by_class_where_none_are_given(fill):
    path, levels = fill({"cat": 10, "dog": 10})
    splits = load_splits(path)
    assert splits.train.levels.shape == (12, 3, 8, 12)
    assert sorted(splits.test.target.tolist()) == [0, 0, 1, 1]
    found = chain(*(names_of(getattr(splits, part), levels) for part in PARTS))
    assert sorted(found) == sorted(levels.values())
    assert splits.origin == "train: 12; validation: 4, drawn by class; test: 4, drawn by class"


def test_a_class_may_be_called_as_a_part(fill):
    path, _ = fill({"bus": 5, "train": 5})
    assert load_splits(path).classes == ("bus", "train")


@pytest.mark.parametrize(
    ("counts", "message"),
    [
        ({"train/cat": 5, "train/dog": 5, "bird": 5}, r"CLASS/PICTURE.*found bird/0"),
        ({"cat/train": 5, "cat/test": 5, "dog/train": 5}, r"CLASS/PICTURE.*found cat/te"),
        ({"cat": 5, "dog": 5, "": 1}, r"CLASS/PICTURE.*found 0"),
        ({"train/cat": 5, "val/cat": 5, "valid/cat": 5}, "more than one folder of a part"),
        ({"val/cat": 5, "test/cat": 5}, "val?.* but no folder train"),
        ({"train/cat": 5, "train/dog": 5}, "train alone; name that folder itself"),
        ({"train/cat": 5, "train/dog": 5, "test/bird": 5}, "no training pictures .* 'bird'"),
        ({"cat": 5, "dog": 4}, "4 training pictures of the class 'dog'; must have 5"),
        ({"cat": 5}, "two or more classes; found 'cat'"),
    ],
)
def test_other_folders_are_refused(fill, counts, message):
    path, _ = fill(counts)
    with pytest.raises(ValueError, match=message):
        load_splits(path)


@pytest.mark.parametrize(
    ("setting", "shape"), [("", (16, 24)), (":size=8", (8, 8)), (":size=8x32", (8, 32))]
)
def test_pictures_that_differ_in_size_are_brought_to_one(setting, shape, fill):
    fill({"cat": 10}, size=(17, 40))
    path, levels = fill({"dog": 10}, size=(30, 25))
    splits = load_splits(path + setting)
    assert splits.train.levels.shape == (12, 3, *shape)
    names = [name for part in PARTS for name in names_of(getattr(splits, part), levels)]
    assert sorted(names) == sorted(levels.values())


def test_pictures_of_one_size_keep_it_and_settings_are_checked(fill):
    path, _ = fill({"cat": 5, "dog": 5}, size=(9, 13))
    assert load_splits(path).train.levels.shape[2:] == (9, 13)
    with pytest.raises(ValueError, match="a folder takes size"):
        load_splits(f"{path}:n_train=100")
    fill({"cat": 6}, size=(7, 12))
    with pytest.raises(ValueError, match=r"8 pixels or more; .*cat/0\.png has 7 x 12"):
        load_splits(path)


def test_pictures_on_the_disk_count_as_a_tensor_does():
    """300 pictures are more than a batch of measures, so that the noise of a second one counts."""
    rng = np.random.default_rng(0)
    pictures = list(rng.integers(256, size=(320, 4, 5, 3), dtype=np.uint8))
    chosen, target = rng.permutation(320)[:300], torch.zeros(300, dtype=torch.int64)
    levels = torch.from_numpy(np.stack(pictures)[chosen]).movedim(3, 1).float() / 255
    packed, whole = Images(PackedLevels(pictures, chosen, ""), target), Images(levels, target)
    assert packed.levels.shape == levels.shape
    assert torch.equal(packed.levels[3:7], levels[3:7])
    assert torch.equal(packed.levels[torch.tensor([2, 0])], levels[[2, 0]])
    # levels.std has n - 1 in its denominator.
    for own, of_tensor in zip(packed.channel_moments(), whole.channel_moments(), strict=True):
        np.testing.assert_allclose(own, of_tensor, rtol=1e-4)
    torch.manual_seed(0)
    halves = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(60, 2))
    kind = next(iter(CORRUPTIONS))
    missed = (halves(corrupt(levels, kind)).argmax(1) != 0).nonzero()[:, 0].tolist()
    assert 0 < len(missed) < 300
    assert wrong_corrupted(halves, packed)[kind] == wrong_corrupted(halves, whole)[kind] == missed
