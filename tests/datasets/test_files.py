"""Every format, damaged: the error is a ValueError and names the file."""

import errno
import io
import os
import re
from functools import partial

import h5py
import numpy as np
import pytest
from PIL import Image
from scipy.io import savemat

from twinsolve.datasets import (
    cifar,
    fetch_cifar10,
    fetch_coil20,
    fetch_extended_yale_b,
    fetch_hopkins155,
    fetch_mnist,
    fetch_set12,
    fetch_usps,
    load_points,
)
from twinsolve.datasets.files import NotWritten, whole_file, write_whole

from .test_images import pack
from .test_mnist import write as write_pair
from .test_motion import write as write_truth

RNG = np.random.default_rng(0)


def picture(mode, size):
    noise = RNG.integers(0, 256, (*size, 3), dtype=np.uint8)
    file = io.BytesIO()
    Image.fromarray(noise).convert("L" if mode == "PNG" else "RGB").save(file, format=mode)
    return file.getvalue()


def write_mat(path, **settings):
    path.parent.mkdir(parents=True, exist_ok=True)
    fea, gnd = RNG.uniform(size=(9, 1024)), np.arange(9)[:, None] + 1
    savemat(path, {"fea": fea, "gnd": gnd}, **settings)


def write_faces(path):
    faces = RNG.integers(0, 256, (2016, 5), dtype=np.uint8)
    savemat(path, {"EYALEB_DATA": faces, "EYALEB_LABEL": [[1, 1, 2, 2, 3]]}, do_compression=True)


def write_sequence(path):
    write_truth(path.parents[2], "a", RNG.standard_normal((3, 9, 20)), np.ones((9, 1)))


def write_usps(path):
    with h5py.File(path, "w") as file:
        for part in ("train", "test"):
            file[f"{part}/data"] = RNG.uniform(size=(5, 256)).astype(np.float32)
            file[f"{part}/target"] = np.arange(5)


def write_idx(path):
    write_pair(path.parent, "train", [0] * 6, ".gz" if path.suffix == ".gz" else "")


def write_set12(path):
    path.parent.mkdir()
    for number in range(1, 13):
        (path.parent / f"{number:02d}.png").write_bytes(picture("PNG", (32, 32)))


def write_cifar_pictures(path):
    names = [f"{name}/{number:04d}.jpg" for number, name in enumerate(cifar._CLASSES)]
    pack(path, {f"cifar-10-images/test/{name}": picture("JPEG", (32, 32)) for name in names})


def write_cifar_binary(path):
    content = RNG.integers(0, 10, (10, 3073), dtype=np.uint8).tobytes()
    pack(path, {"cifar-10-batches-bin/test_batch.bin": content})


def write_npz(path):
    np.savez_compressed(path, X=RNG.standard_normal((40, 5)), y=np.arange(40))


def at_root(fetch):
    return lambda path, root: fetch(data_home=str(root))


def points(path, root):
    return load_points(path)


def judged_cifar(path, root):
    return fetch_cifar10(subset="test", data_home=str(root))


FORMATS = {
    "mat": ("COIL20.mat", write_mat, at_root(fetch_coil20)),
    "mat packed": ("COIL20.mat", partial(write_mat, do_compression=True), at_root(fetch_coil20)),
    "mat faces": ("ExtendedYaleB.mat", write_faces, at_root(fetch_extended_yale_b)),
    "mat sequence": ("hopkins155/a/a_truth.mat", write_sequence, at_root(fetch_hopkins155)),
    "mat points": ("mine.mat", write_mat, points),
    "hdf5": ("usps.h5", write_usps, at_root(fetch_usps)),
    "idx": ("mnist/train-images-idx3-ubyte", write_idx, at_root(fetch_mnist)),
    "idx packed": ("mnist/train-images-idx3-ubyte.gz", write_idx, at_root(fetch_mnist)),
    "png": ("set12/01.png", write_set12, at_root(fetch_set12)),
    "tar.xz": ("cifar-10-images.tar.xz", write_cifar_pictures, judged_cifar),
    "tar.gz": ("cifar-10-binary.tar.gz", write_cifar_binary, judged_cifar),
    "npz": ("mine.npz", write_npz, points),
}


@pytest.fixture(autouse=True)
def small_cifar(monkeypatch):
    monkeypatch.setattr(cifar, "_SIZES", {"train": 50, "test": 10})


@pytest.mark.parametrize("format", FORMATS)
def test_truncated_files_and_noise_are_named(format, tmp_path):
    name, write, read = FORMATS[format]
    path = tmp_path / name
    write(path)
    read(path, tmp_path)
    content = path.read_bytes()
    parts = [content[: int(kept * len(content))] for kept in (0, 0.3, 0.95)]
    noise = RNG.integers(0, 256, 5000, dtype=np.uint8).tobytes()
    for damaged in (*parts, content[:3], content[:60], noise):
        path.write_bytes(damaged)
        with pytest.raises(ValueError, match=path.name.replace(".", r"\.")):
            read(path, tmp_path)


@pytest.mark.parametrize("format", ["idx packed", "tar.xz", "tar.gz", "npz", "mat packed"])
def test_flipped_bytes_of_packed_files_are_found(format, tmp_path):
    """Checksums find a byte that changed without changing a length."""
    name, write, read = FORMATS[format]
    path = tmp_path / name
    write(path)
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 0xFF
    path.write_bytes(content)
    with pytest.raises(ValueError, match=path.name.replace(".", r"\.")):
        read(path, tmp_path)


def test_objects_are_never_unpickled(tmp_path):
    np.savez(tmp_path / "mine.npz", X=np.array([{"a": 1}], dtype=object))
    with pytest.raises(ValueError, match=r"mine\.npz: .*allow_pickle=False"):
        load_points(tmp_path / "mine.npz")


def full(handle):
    raise OSError(errno.ENOSPC, "no space left")


def test_a_file_that_cannot_be_written_whole_stays_what_it_was(tmp_path, monkeypatch):
    write_whole(tmp_path / "file", "before")
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(NotWritten, match=re.escape(str(tmp_path / "file"))) as raised:
        write_whole(tmp_path / "file", "after")
    assert raised.value.errno == errno.ENOSPC
    assert [path.read_text() for path in tmp_path.iterdir()] == ["before"]


def test_an_error_of_another_file_keeps_its_name_and_leaves_nothing(tmp_path):
    with pytest.raises(FileNotFoundError, match="nowhere"), whole_file(tmp_path / "new" / "file"):
        (tmp_path / "nowhere").read_bytes()
    assert not list((tmp_path / "new").iterdir())


@pytest.mark.parametrize("place", ["file/below/one", "folder"])
def test_what_stands_in_the_way_of_a_file_is_named(place, tmp_path):
    (tmp_path / "file").touch()
    (tmp_path / "folder").mkdir()
    with pytest.raises(NotWritten) as raised:
        write_whole(tmp_path / place, "content")
    assert raised.value.filename == str(tmp_path / place.partition("/")[0])
    assert raised.value.errno in (errno.EEXIST, errno.ENOTDIR, errno.EISDIR)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "folder"]


def test_what_a_killed_process_left_goes_and_what_another_writes_stays(tmp_path):
    left, live, folder = (tmp_path / f"{name}.part" for name in ("left", "live", "folder"))
    left.touch()
    live.touch()
    folder.mkdir()
    for path in (left, folder):
        os.utime(path, (1, 1))
    write_whole(tmp_path / "file", "content")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "live.part"]
