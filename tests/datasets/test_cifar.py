import io
import re
import tarfile

import numpy as np
import pytest
from PIL import Image

from twinsolve.datasets import cifar, fetch_cifar10

from .test_images import pack

RNG = np.random.default_rng(0)
CLASSES = (
    "airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"
)  # fmt: skip


@pytest.fixture
def small(monkeypatch):
    monkeypatch.setattr(cifar, "_SIZES", {"train": 50, "test": 20})


@pytest.fixture
def images():
    """Fifty and twenty images by class, five and two each."""
    return {
        part: RNG.integers(0, 256, (10 * count, 32, 32, 3), dtype=np.uint8)
        for part, count in (("train", 5), ("test", 2))
    }


def batches(images):
    """Binary batches: labels 0, 0, ..., 9, 9 and the planes of red, green and blue."""
    found = {}
    for part, names in cifar._BATCHES.items():
        labels = np.repeat(np.arange(10, dtype=np.uint8), len(images[part]) // 10)
        planes = images[part].transpose(0, 3, 1, 2).reshape(len(labels), -1)
        records = np.hstack([labels[:, None], planes])
        for name, batch in zip(names, np.split(records, len(names)), strict=True):
            found[f"cifar-10-batches-bin/{name}"] = batch.tobytes()
    found["cifar-10-batches-bin/batches.meta.txt"] = b"airplane\n"
    return found


def pictures(images):
    """PNG files in class folders, to be equal to the last bit."""
    found = {"cifar-10-images/README.md": b"about"}
    for part, array in images.items():
        per_class = len(array) // 10
        for index, image in enumerate(array):
            file = io.BytesIO()
            Image.fromarray(image).save(file, format="PNG")
            name = f"{CLASSES[index // per_class]}/{index % per_class:04d}.png"
            found[f"cifar-10-images/{part}/{name}"] = file.getvalue()
    return found


def unpack(root, files):
    for name, content in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(content)


FORMS = {
    "batches": lambda root, images: unpack(root, batches(images)),
    "packed batches": lambda root, images: pack(root / "cifar-10-binary.tar.gz", batches(images)),
    "folders": lambda root, images: unpack(root, pictures(images)),
    "packed folders": lambda root, images: pack(root / "cifar-10-images.tar.xz", pictures(images)),
}


@pytest.mark.parametrize("form", FORMS)
def test_all_forms_give_the_same_images(form, small, images, tmp_path):
    FORMS[form](tmp_path, images)
    for subset in ("train", "test", "all"):
        parts = [images[part] for part in (("train", "test") if subset == "all" else (subset,))]
        found = fetch_cifar10(subset=subset, data_home=str(tmp_path))
        assert found.images.dtype == np.uint8
        assert (found.images == np.concatenate(parts)).all()
        assert found.data.dtype == np.float32
        assert (found.data == found.images.reshape(len(found.images), -1)).all()
        expected = [np.repeat(np.arange(10), len(part) // 10) for part in parts]
        assert found.target.tolist() == np.concatenate(expected).tolist()
    assert found.target_names == list(CLASSES)
    data, target = fetch_cifar10(data_home=str(tmp_path), return_X_y=True)
    assert data.shape == (50, 3072)
    assert target.shape == (50,)


def test_the_binary_version_comes_first(small, images, tmp_path):
    FORMS["packed folders"](tmp_path, {part: 255 - array for part, array in images.items()})
    assert (fetch_cifar10(data_home=str(tmp_path)).images == 255 - images["train"]).all()
    FORMS["packed batches"](tmp_path, images)
    assert (fetch_cifar10(data_home=str(tmp_path)).images == images["train"]).all()


def test_missing_images_and_batches_are_named(small, images, tmp_path):
    with pytest.raises(FileNotFoundError, match=r"cifar-10-batches-bin or .*tar\.xz is not in"):
        fetch_cifar10(data_home=str(tmp_path))
    FORMS["folders"](tmp_path, images)
    (tmp_path / "cifar-10-images/train/dog/0003.png").unlink()
    with pytest.raises(ValueError, match=r"must hold 5 pictures a class in train.*'dog': 4"):
        fetch_cifar10(data_home=str(tmp_path))
    FORMS["batches"](tmp_path, images)
    (tmp_path / "cifar-10-batches-bin/data_batch_4.bin").unlink()
    with pytest.raises(ValueError, match=r"data_batch_4\.bin must have 30730 bytes, got 0"):
        fetch_cifar10(data_home=str(tmp_path))
    assert len(fetch_cifar10(subset="test", data_home=str(tmp_path)).images) == 20


@pytest.mark.parametrize("name", ["cifar-10-batches-py/data_batch_1", "cifar-10-python.tar.gz"])
def test_pickles_are_refused_with_the_form_that_is_read(name, tmp_path):
    unpack(tmp_path, {name: b"cposix\nabort\n(tR."})  # ends the process if it is loaded
    place = re.escape(str(tmp_path / name.partition("/")[0]))
    words = (
        r" holds pickles, .* not read\. cifar-10-batches-bin or .*kriz/cifar\.html \(MD5 \w{32}\)"
    )
    with pytest.raises(FileNotFoundError, match=f"^{place}{words}"):
        fetch_cifar10(data_home=str(tmp_path))


def test_a_damaged_picture_is_named(small, images, tmp_path):
    files = pictures(images)
    name = "cifar-10-images/train/frog/0002.png"
    with io.BytesIO() as file:
        Image.fromarray(images["train"][0][:16]).save(file, format="PNG")
        unpack(tmp_path, files | {name: file.getvalue()})
    with pytest.raises(ValueError, match=r"train/frog/0002\.png: .*must be 32 x 32, got 32 x 16"):
        fetch_cifar10(data_home=str(tmp_path))
    (tmp_path / name).write_bytes(files[name][:900])
    with pytest.raises(ValueError, match=r"train/frog/0002\.png: .*no picture file"):
        fetch_cifar10(data_home=str(tmp_path))


def test_labels_out_of_range_are_named(small, images, tmp_path):
    files = batches(images)
    content = bytearray(files["cifar-10-batches-bin/test_batch.bin"])
    content[3073] = 10
    files["cifar-10-batches-bin/test_batch.bin"] = bytes(content)
    unpack(tmp_path, files)
    with pytest.raises(ValueError, match="labels must be at most 9"):
        fetch_cifar10(subset="test", data_home=str(tmp_path))


def test_links_and_paths_in_archives_lead_nowhere(small, images, tmp_path):
    path = tmp_path / "cifar-10-images.tar.xz"
    with tarfile.open(path, "w:xz") as archive:
        for name, content in pictures(images).items():
            member = tarfile.TarInfo(f"../../{name}")
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
        link = tarfile.TarInfo("cifar-10-images/test/ship/9999.png")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/hostname"
        archive.addfile(link)
    found = fetch_cifar10(subset="test", data_home=str(tmp_path))
    assert (found.images == images["test"]).all()
    assert list(tmp_path.rglob("*")) == [path]


def test_an_archive_is_read_once_until_it_changes(small, images, tmp_path, monkeypatch):
    reads = []
    members = cifar.packed_files
    monkeypatch.setattr(cifar, "packed_files", lambda *given: reads.append(1) or members(*given))
    FORMS["packed folders"](tmp_path, images)
    first = fetch_cifar10(subset="test", data_home=str(tmp_path))
    whole = fetch_cifar10(subset="all", data_home=str(tmp_path))
    assert len(reads) == 2
    for subset, expected in (("test", first), ("all", whole)):
        found = fetch_cifar10(subset=subset, data_home=str(tmp_path))
        assert (found.images == expected.images).all()
        assert (found.target == expected.target).all()
        assert found.target.dtype == expected.target.dtype
    assert (whole.images[50:] == first.images).all()
    assert len(reads) == 2
    FORMS["packed folders"](tmp_path, {part: 255 - array for part, array in images.items()})
    found = fetch_cifar10(subset="all", data_home=str(tmp_path))
    assert (found.images == 255 - whole.images).all()
    assert len(reads) == 3


@pytest.mark.parametrize("damage", [b"PK", "half", "pickles"])
def test_a_broken_file_in_the_cache_is_read_anew(damage, small, images, tmp_path, cache):
    FORMS["packed batches"](tmp_path, images)
    fetch_cifar10(data_home=str(tmp_path))
    (kept,) = cache.iterdir()
    if damage == "pickles":
        with np.load(kept) as arrays:
            np.savez(kept, **dict(arrays) | {"images": np.array([{}], dtype=object)})
    else:
        kept.write_bytes(kept.read_bytes()[:9000] if damage == "half" else damage)
    assert (fetch_cifar10(data_home=str(tmp_path)).images == images["train"]).all()
    assert list(cache.iterdir()) == [kept]
    with np.load(kept) as arrays:
        assert (arrays["images"] == images["train"]).all()


def test_archives_are_read_where_the_cache_cannot_be_written(
    small, images, tmp_path, cache, monkeypatch
):
    def full(file, **arrays):
        file.write(b"half")
        raise OSError("no space left on device")

    FORMS["packed batches"](tmp_path, images)
    with monkeypatch.context() as patch:
        patch.setattr(np, "savez", full)
        assert (fetch_cifar10(data_home=str(tmp_path)).images == images["train"]).all()
    assert list(cache.iterdir()) == []
    (tmp_path / "file").write_bytes(b"")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    for _ in range(2):
        assert (fetch_cifar10(data_home=str(tmp_path)).images == images["train"]).all()


def test_subset_is_checked():
    with pytest.raises(ValueError, match="subset: must be 'train', 'test' or 'all', got 'most'"):
        fetch_cifar10(subset="most")


@pytest.mark.slow
def test_cifar10(real_data):
    found = fetch_cifar10(subset="test")
    assert found.images.shape == (10_000, 32, 32, 3)
    assert np.bincount(found.target).tolist() == [1000] * 10
    # Ships and planes lie before blue, frogs and deer do not.
    blue = found.images[..., 2].mean(axis=(1, 2)) - found.images[..., 0].mean(axis=(1, 2))
    excess = [blue[found.target == label].mean() for label in range(10)]
    assert min(excess[0], excess[8]) > 0 > max(excess[4], excess[6])
