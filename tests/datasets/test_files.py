"""Every format, damaged: the error is a ValueError and names the file."""

import errno
import gzip
import io
import os
import re
import tarfile

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
    path.parent.mkdir(parents=True)
    savemat(path, {"x": RNG.standard_normal((3, 9, 20)), "s": np.ones((9, 1))})


def write_usps(path):
    with h5py.File(path, "w") as file:
        for part in ("train", "test"):
            file[f"{part}/data"] = RNG.uniform(size=(5, 256)).astype(np.float32)
            file[f"{part}/target"] = np.arange(5)


def write_idx(path):
    path.parent.mkdir(exist_ok=True)
    header = bytes([0, 0, 8, 3]) + np.array([6, 28, 28], dtype=">u4").tobytes()
    content = header + RNG.integers(0, 256, 6 * 784, dtype=np.uint8).tobytes()
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)
    name = "train-labels-idx1-ubyte"
    labels = bytes([0, 0, 8, 1]) + np.array([6], dtype=">u4").tobytes() + bytes(6)
    (path.parent / name).write_bytes(labels)


def write_set12(path):
    path.parent.mkdir()
    for number in range(1, 13):
        (path.parent / f"{number:02d}.png").write_bytes(picture("PNG", (32, 32)))


def write_cifar_pictures(path):
    with tarfile.open(path, "w:xz") as archive:
        for number, name in enumerate(cifar._CLASSES):
            content = picture("JPEG", (32, 32))
            member = tarfile.TarInfo(f"cifar-10-images/test/{name}/{number:04d}.jpg")
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))


def write_cifar_binary(path):
    with tarfile.open(path, "w:gz") as archive:
        content = RNG.integers(0, 10, (10, 3073), dtype=np.uint8).tobytes()
        member = tarfile.TarInfo("cifar-10-batches-bin/test_batch.bin")
        member.size = len(content)
        archive.addfile(member, io.BytesIO(content))


def write_npz(path):
    np.savez_compressed(path, X=RNG.standard_normal((40, 5)), y=np.arange(40))


def write_csv(path):
    lines = [f"{a},{b},{label}" for a, b, label in RNG.integers(10, 99, (40, 3))]
    path.write_text("a,b,label\n" + "\n".join(lines) + "\n")


def at_root(fetch):
    return lambda path, root: fetch(data_home=str(root))


def points(path, root):
    return load_points(path)


FORMATS = {
    "mat": ("COIL20.mat", write_mat, at_root(fetch_coil20)),
    "mat packed": (
        "COIL20.mat",
        lambda path: write_mat(path, do_compression=True),
        at_root(fetch_coil20),
    ),
    "mat faces": ("ExtendedYaleB.mat", write_faces, at_root(fetch_extended_yale_b)),
    "mat sequence": (
        "hopkins155/a/a_truth.mat",
        write_sequence,
        at_root(fetch_hopkins155),
    ),
    "mat points": ("mine.mat", write_mat, points),
    "hdf5": ("usps.h5", write_usps, at_root(fetch_usps)),
    "idx": ("mnist/train-images-idx3-ubyte", write_idx, at_root(fetch_mnist)),
    "idx packed": ("mnist/train-images-idx3-ubyte.gz", write_idx, at_root(fetch_mnist)),
    "png": ("set12/01.png", write_set12, at_root(fetch_set12)),
    "tar.xz": (
        "cifar-10-images.tar.xz",
        write_cifar_pictures,
        lambda path, root: fetch_cifar10(subset="test", data_home=str(root)),
    ),
    "tar.gz": (
        "cifar-10-binary.tar.gz",
        write_cifar_binary,
        lambda path, root: fetch_cifar10(subset="test", data_home=str(root)),
    ),
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


def test_truncated_tables_are_named_with_their_line(tmp_path):
    path = tmp_path / "mine.csv"
    write_csv(path)
    path.write_text(path.read_text()[:-4])
    with pytest.raises(ValueError, match=r"mine\.csv: line 41 has 2 fields, the first has 3"):
        load_points(path)


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
    with (
        pytest.raises(FileNotFoundError, match="nowhere"),
        whole_file(tmp_path / "new" / "file"),
    ):
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
