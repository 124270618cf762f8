"""A user's pictures with label pictures: how they are paired, split, sized, and refused."""

import json

import numpy as np
import pandas as pd
import pytest
from PIL import Image

from twinsolve.bench.vision.segmentation import report
from twinsolve.bench.vision.segmentation.data import load_scenes

from ..command import run

SIZE = (16, 24)
PARTS = ("train", "validation", "test")


@pytest.fixture
def save(tmp_path, monkeypatch):
    """Save an array as a picture of the folder; returns the folder."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))

    def save(name, pixels, **options):
        path = tmp_path / "scenes" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels).save(path, **options)
        return str(tmp_path / "scenes")

    return save


def labels_of(number, size=SIZE, values=(0, 255)):
    """Left half of the first value, right half of the second; each picture has a row of its own."""
    labels = np.full(size, values[0], np.uint8)
    labels[:, size[1] // 2 :] = values[1]
    labels[number % size[0]] = values[1]
    return labels


def scene(save, name, labels, image="images/{}.png", label="labels/{}.png"):
    """A picture that shows its labels, and them."""
    save(image.format(name), np.repeat(labels[..., None] // 2, 3, axis=-1))
    return save(label.format(name), labels)


def check_match(scenes, levels):
    """Every picture shows the labels that it has."""
    for part in (scenes.train, scenes.validation, scenes.test):
        shown = np.append(levels, 77)[part.target] // 2
        assert np.array_equal(part.images[..., 1], shown)


def test_pictures_get_the_label_picture_of_their_name_and_parts_are_drawn(save):
    for number in range(10):
        path = scene(save, f"{number:02d}", labels_of(number), image="images/{}.bmp")
    scenes = load_scenes(path)
    assert [len(getattr(scenes, part).images) for part in PARTS] == [6, 2, 2]
    assert scenes.train.images.shape == (6, *SIZE, 3)
    assert scenes.n_classes == 2
    assert scenes.train.target_names == ["0", "255"]
    names = [name for part in PARTS for name in getattr(scenes, part).names]
    assert sorted(names) == [f"{number:02d}" for number in range(10)]
    check_match(scenes, [0, 255])
    assert load_scenes(path).content == scenes.content
    scene(save, "03", labels_of(4), image="images/{}.bmp")
    assert load_scenes(path).content != scenes.content


@pytest.mark.parametrize(
    ("image", "label"),
    [
        ("{}/images/{}.png", "{}/masks/{}.tif"),
        ("images/{}/{}.png", "annotations/{}/{}.png"),
    ],
)
def test_parts_of_the_folder_are_kept_above_or_below(image, label, save):
    for part, n in (("train", 6), ("Val", 2)):
        for number in range(n):
            names = (x.replace("{}", part, 1) for x in (image, label))
            path = scene(save, str(number), labels_of(number), *names)
    scenes = load_scenes(path)
    assert [len(getattr(scenes, part).names) for part in PARTS] == [5, 2, 1]
    assert {name.split("/")[0] for name in scenes.validation.names} == {"Val"}
    assert {name.split("/")[0] for name in scenes.train.names + scenes.test.names} == {"train"}
    check_match(scenes, [0, 255])


@pytest.mark.parametrize(
    ("setting", "size", "columns"),
    [("", (16, 24), slice(4, 28)), (":size=16", (16, 16), slice(8, 24))],
)
def test_pictures_that_differ_are_cut_in_the_middle_with_their_labels(setting, size, columns, save):
    for number in range(5):
        path = scene(save, str(number), labels_of(number, (16, 24)))
    wide = np.arange(16 * 32, dtype=np.uint8).reshape(16, 32) % 2 * 255
    scene(save, "wide", wide)
    scenes = load_scenes(path + setting)
    check_match(scenes, [0, 255])
    parts = [getattr(scenes, part) for part in PARTS]
    assert {part.images.shape[1:3] for part in parts} == {size}
    (found,) = (p.target[i] for p in parts for i, name in enumerate(p.names) if name == "wide")
    assert np.array_equal(found, wide[:, columns] // 255)


def test_larger_pictures_are_scaled_until_they_cover_the_size(save):
    for number in range(5):
        path = scene(save, str(number), labels_of(number).repeat(2, 0).repeat(2, 1))
    scene(save, "small", labels_of(3))
    scenes = load_scenes(path)
    small, large = (
        next(
            part.target[part.names.index(name)]
            for part in (scenes.train, scenes.validation, scenes.test)
            if name in part.names
        )
        for name in ("small", "3")
    )
    assert np.array_equal(small, large)


def test_values_without_a_class_palettes_and_colours(save):
    for number in range(5):
        labels = labels_of(number, values=(1, 2))
        labels[:, 0] = 255
        path = scene(save, str(number), labels)
    scenes = load_scenes(f"{path}:ignore=255")
    assert scenes.train.target_names == ["1", "2"]
    assert (scenes.train.target[:, :, 0] == scenes.train.ignored).all()
    assert load_scenes(path).n_classes == 3
    for number in range(5):
        colours = np.array([[200, 0, 0], [0, 0, 200]], np.uint8)
        save(f"labels/{number}.png", colours[labels_of(number, values=(0, 1))])
    scenes = load_scenes(path)
    assert scenes.train.target_names == ["200", "#c80000"]
    for number in range(5):
        place = Image.fromarray(labels_of(number, values=(3, 1))).convert("P")
        place.save(f"{path}/labels/{number}.png")
    assert load_scenes(path).train.target_names == ["1", "3"]


@pytest.mark.parametrize(
    ("name", "pixels", "message"),
    [
        ("labels/2.png", labels_of(0, (24, 16)), "labels/2.png has 24 x 16 pixels and its picture"),
        ("labels/9.png", labels_of(0), "labels/9.png has no picture; .* images/NAME"),
        ("images/9.png", labels_of(0), "images/9.png has no label picture; .* labels/NAME"),
        ("9.png", labels_of(0), "found .*9.png"),
        ("labels/2.tif", labels_of(0), "are pictures of one name"),
        ("masks/2.png", labels_of(0), "are pictures of one name"),
        ("labels/2.png", np.arange(384).reshape(SIZE).astype(np.uint8), "2 to 64 different values"),
    ],
)
def test_folders_that_do_not_fit_are_refused_by_name(name, pixels, message, save):
    for number in range(5):
        path = scene(save, str(number), labels_of(number))
    save(name, pixels)
    with pytest.raises(ValueError, match=message):
        load_scenes(path)


def test_lossy_labels_few_pictures_and_unknown_settings_are_refused(save):
    for number in range(5):
        path = scene(save, str(number), labels_of(number), label="labels/{}.jpg")
    with pytest.raises(ValueError, match=r"0\.jpg: labels must be stored without loss.*JPEG"):
        load_scenes(path)
    with pytest.raises(ValueError, match=r"takes size and ignore; got .'sizes'."):
        load_scenes(f"{path}:sizes=3")
    with pytest.raises(ValueError, match="size must be a side or HEIGHTxWIDTH"):
        load_scenes(f"{path}:size=3x")
    with pytest.raises(ValueError, match="camvid takes no settings"):
        load_scenes("camvid:size=3")
    with pytest.raises(FileNotFoundError, match="nothing: is not a folder"):
        load_scenes("nothing")


def test_too_few_pictures_and_classes_without_training_pixels_are_refused(save):
    for number in range(4):
        path = scene(save, f"train/{number}", labels_of(number))
    with pytest.raises(ValueError, match="4 training pictures; must have 5"):
        load_scenes(path)
    scene(save, "train/4", labels_of(4))
    scene(save, "test/5", labels_of(5, values=(0, 9)))
    with pytest.raises(ValueError, match=r"no training label picture .* holds the class 9"):
        load_scenes(path)


@pytest.fixture
def saved(monkeypatch):
    """Words of the legend of each figure that the report of segmentation saves."""
    legends, save_figure = {}, report.save

    def keep(figure, path):
        legends[path.name] = [x.get_text() for box in figure.legends for x in box.get_texts()]
        save_figure(figure, path)

    monkeypatch.setattr(report, "save", keep)
    return legends


def test_the_legend_of_scenes_has_what_pictures_have(save, saved, tmp_path):
    for ignored in ("", ",ignore=7"):
        for number in range(7):
            labels = labels_of(number)
            labels[-1] = 7 if ignored else labels[-1]
            path = scene(save, str(number), labels)
        options = "--row softmax --seeds 1 --steps 2 --recipe depth=1,dim=16,num_heads=2"
        run(f"segment {path}:size=16{ignored} {options}", "--output", tmp_path / f"out{ignored}")
        assert saved["scenes.png"] == ["0", "255", *(["no label"] if ignored else [])]


def test_the_command_trains_on_a_folder(save, tmp_path):
    for number in range(7):
        path = scene(save, str(number), labels_of(number))
    options = "--row softmax --seeds 1 --steps 2 --recipe depth=1,dim=16,num_heads=2"
    run(f"segment {path}:size=16 {options}", "--output", tmp_path / "out")
    table = pd.DataFrame(json.loads((tmp_path / "out" / "table.json").read_text()))
    assert {"iou 0", "iou 255"} <= set(table.columns)
    assert (tmp_path / "out" / "scenes.png").is_file()
    assert f"{path}:size=16" in (tmp_path / "out" / "settings.json").read_text()
