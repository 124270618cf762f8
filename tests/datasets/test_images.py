import io
import tarfile

import numpy as np
import pytest
from PIL import Image

from twinsolve.datasets import (
    add_noise,
    fetch_set12,
    fetch_train400,
    images,
    load_photographs,
    make_noisy_crop,
)


def test_photographs_are_grey_in_unit_range():
    photographs = load_photographs()
    assert photographs.names == ["china", "flower"]
    for image in photographs.images:
        assert image.shape == (427, 640)
        assert 0 <= image.min() < 0.1
        assert 0.8 < image.max() <= 1


def test_noisy_crop_is_a_seeded_part_of_the_image():
    image = load_photographs().images[0]
    noisy, clean = make_noisy_crop(image, size=64, sigma=0.1, random_state=3)
    windows = np.lib.stride_tricks.sliding_window_view(image, (64, 64))
    windows = windows[windows[..., 0, 0] == clean[0, 0]]
    assert (windows == clean).all(axis=(1, 2)).any()
    assert (noisy - clean).std() == pytest.approx(0.1, rel=0.05)
    again, _ = make_noisy_crop(image, size=64, sigma=0.1, random_state=3)
    assert (again == noisy).all()


def test_noise_is_seeded_of_the_images_shape_and_not_clipped():
    noisy = add_noise(np.ones((40, 50, 3)), sigma=0.2, random_state=1)
    assert noisy.shape == (40, 50, 3)
    assert noisy.max() > 1
    assert (noisy - 1).std() == pytest.approx(0.2, rel=0.05)
    assert (add_noise(np.ones((40, 50, 3)), sigma=0.2, random_state=1) == noisy).all()
    for sigma in (-0.1, float("nan"), float("inf")):
        with pytest.raises(ValueError, match="sigma: must be >= 0 and finite"):
            add_noise(np.ones((4, 5)), sigma=sigma)


def test_bad_crops_are_named():
    for settings in [{"size": 9}, {"size": 0}, {"sigma": -1.0}]:
        with pytest.raises(ValueError, match=r"size: an image|sigma: must"):
            make_noisy_crop(np.zeros((8, 8)), **({"size": 4, "sigma": 0.1} | settings))


def test_set12(real_data):
    images = fetch_set12().images
    assert len(images) == 12
    assert {image.shape for image in images} == {(256, 256), (512, 512)}
    assert all(0 <= image.min() <= image.max() <= 1 for image in images)


# Each its own, and quickly packed.
PIXELS = np.add.outer(np.arange(400), np.add.outer(np.arange(180), 2 * np.arange(180))) % 251
PIXELS = PIXELS.astype(np.uint8)


@pytest.fixture(scope="module")
def train400():
    """Names and bytes of the files of a data set in train400's form."""
    found = {}
    for number, pixels in enumerate(PIXELS, start=1):
        file = io.BytesIO()
        Image.fromarray(pixels).save(file, format="PNG", compress_level=0)
        found[f"train400/test_{number:03d}.png"] = file.getvalue()
    return found


def pack(path, files):
    kind = {"preset": 0} if path.suffix == ".xz" else {}
    with tarfile.open(path, f"w:{path.suffix[1:]}", **kind) as archive:
        for name in sorted(files, key=lambda name: name[::-1]):  # no order to rely on
            member = tarfile.TarInfo(name)
            member.size = len(files[name])
            archive.addfile(member, io.BytesIO(files[name]))


def test_train400_is_read_from_its_archive_once(train400, tmp_path, monkeypatch):
    pack(tmp_path / "train400.tar.xz", train400 | {"../outside.png": b"no picture"})
    loaded = fetch_train400(data_home=str(tmp_path))
    assert (loaded.images == PIXELS / 255).all()
    assert loaded.names[::399] == ["test_001", "test_400"]
    monkeypatch.setattr(images, "_train400_pixels", None)
    assert (fetch_train400(data_home=str(tmp_path)).images == PIXELS / 255).all()


def test_train400_is_read_from_a_folder(train400, tmp_path):
    (tmp_path / "train400").mkdir()
    for name, content in train400.items():
        (tmp_path / name).write_bytes(content)
    assert (fetch_train400(data_home=str(tmp_path)).images == PIXELS / 255).all()
    (tmp_path / "train400" / "test_007.png").unlink()
    with pytest.raises(ValueError, match=r"1 of 400 images are missing, such as test_007\.png"):
        fetch_train400(data_home=str(tmp_path))
    Image.new("L", (180, 90)).save(tmp_path / "train400" / "test_007.png")
    with pytest.raises(ValueError, match=r"test_007\.png: must be 180 x 180, got 180 x 90"):
        fetch_train400(data_home=str(tmp_path))


def test_train400(real_data):
    loaded = fetch_train400()
    assert loaded.images.shape == (400, 180, 180)
    assert 0 <= loaded.images.min() <= loaded.images.max() <= 1
    assert 0.3 < loaded.images.mean() < 0.6
