import gzip
from pathlib import Path
from types import SimpleNamespace
from urllib.error import URLError

import numpy as np
import pytest

from twinsolve.bench.clustering.data import find_data
from twinsolve.datasets import fetch_emnist, fetch_fashion_mnist, fetch_mnist, mnist
from twinsolve.datasets.idx import read_idx

RNG = np.random.default_rng(0)


def idx(array, code=8):
    header = bytes([0, 0, code, array.ndim]) + np.array(array.shape, dtype=">u4").tobytes()
    return header + array.astype(array.dtype.newbyteorder(">")).tobytes()


def write(folder, prefix, labels, end=""):
    """Write a pair of files and return the images."""
    folder.mkdir(parents=True, exist_ok=True)
    images = RNG.integers(0, 256, (len(labels), 28, 28), dtype=np.uint8)
    for kind, array in (("images-idx3", images), ("labels-idx1", np.array(labels, np.uint8))):
        content = idx(array)
        (folder / f"{prefix}-{kind}-ubyte{end}").write_bytes(
            gzip.compress(content) if end else content
        )
    return images


@pytest.fixture(autouse=True)
def offline(monkeypatch):
    def unreachable(*args, **kwargs):
        raise URLError("no network")

    monkeypatch.setattr(mnist, "fetch_openml", unreachable)


@pytest.mark.parametrize(
    ("fetch", "folder", "end"),
    [
        (fetch_mnist, "mnist", ".gz"),
        (fetch_mnist, ".", ""),
        (fetch_fashion_mnist, "fashion-mnist", ""),
    ],
)
def test_subsets(fetch, folder, end, tmp_path):
    train = write(tmp_path / folder, "train", [3, 9, 0], end)
    test = write(tmp_path / folder, "t10k", [1, 2], end)
    found = fetch(data_home=str(tmp_path))
    assert found.images.dtype == np.uint8
    assert (found.images == train).all()
    assert found.data.dtype == np.float32
    assert (found.data == train.reshape(3, -1)).all()
    assert found.target.tolist() == [3, 9, 0]
    assert len(found.target_names) == 10
    assert (fetch(subset="test", data_home=str(tmp_path)).images == test).all()
    data, target = fetch(subset="all", data_home=str(tmp_path), return_X_y=True)
    assert (data == np.concatenate([train, test]).reshape(5, -1)).all()
    assert target.tolist() == [3, 9, 0, 1, 2]


def test_digits_do_not_pass_for_clothes(tmp_path):
    write(tmp_path, "train", [1, 2])
    with pytest.raises(FileNotFoundError, match=r"fashion-mnist/train-images.*Source: Fashion"):
        fetch_fashion_mnist(data_home=str(tmp_path))


@pytest.mark.parametrize("folder", [".", "emnist/gzip"])
def test_emnist_is_turned_upright(folder, tmp_path):
    stored = write(tmp_path / folder, "emnist-letters-train", [1, 26], ".gz")
    found = fetch_emnist(split="letters", data_home=str(tmp_path))
    assert (found.images == stored.transpose(0, 2, 1)).all()
    assert (found.data == found.images.reshape(2, -1)).all()
    assert [found.target_names[label] for label in found.target] == ["A", "Z"]


@pytest.mark.parametrize(
    ("split", "n_classes"),
    [("balanced", 47), ("bymerge", 47), ("byclass", 62), ("digits", 10), ("mnist", 10)],
)
def test_classes_of_the_splits(split, n_classes, tmp_path):
    write(tmp_path, f"emnist-{split}-test", [0, n_classes - 1])
    found = fetch_emnist(split=split, subset="test", data_home=str(tmp_path))
    assert len(set(found.target_names)) == n_classes
    assert found.target.tolist() == [0, n_classes - 1]
    write(tmp_path, f"emnist-{split}-test", [0, n_classes])
    with pytest.raises(ValueError, match=rf"emnist-{split}-test-labels.*: labels must be 0 to"):
        fetch_emnist(split=split, subset="test", data_home=str(tmp_path))


def test_missing_files_are_named(tmp_path):
    words = r"mnist/train-images-idx3-ubyte.* is not in .*Source: MNIST.*from OpenML: .*no network"
    with pytest.raises(FileNotFoundError, match=words):
        fetch_mnist(data_home=str(tmp_path))
    with pytest.raises(FileNotFoundError, match=r"emnist-balanced-train.*gzip\.zip"):
        fetch_emnist(data_home=str(tmp_path))
    write(tmp_path, "train", [1])
    (tmp_path / "train-labels-idx1-ubyte").unlink()
    with pytest.raises(FileNotFoundError, match="train-labels-idx1-ubyte"):
        fetch_mnist(data_home=str(tmp_path))


def test_bad_settings_are_named(tmp_path):
    for fetch in (fetch_mnist, fetch_fashion_mnist, fetch_emnist):
        with pytest.raises(ValueError, match="subset: must be 'train', 'test' or 'all'"):
            fetch(subset="validation", data_home=str(tmp_path))
    with pytest.raises(ValueError, match="split: must be one of"):
        fetch_emnist(split="small", data_home=str(tmp_path))


def test_openml_is_asked_when_there_are_no_files(tmp_path, monkeypatch):
    asked = {}

    def openml(name, **settings):
        asked.update(settings, name=name)
        images = np.arange(9)[:, None] * np.ones((1, 784))
        return SimpleNamespace(data=images, target=np.array(list("012345678"), dtype=object))

    monkeypatch.setattr(mnist, "fetch_openml", openml)
    monkeypatch.setattr(mnist, "_SIZES", {"train": 6, "test": 3})
    found = fetch_mnist(subset="test", data_home=str(tmp_path))
    assert asked["name"] == "mnist_784"
    assert not asked["data_home"].startswith(str(tmp_path))  # not there before it is whole
    assert found.target.tolist() == [6, 7, 8]
    assert (found.images == found.target[:, None, None]).all()
    assert found.images.dtype == np.uint8
    assert fetch_fashion_mnist(data_home=str(tmp_path)).target.tolist() == [0, 1, 2, 3, 4, 5]
    assert asked["name"] == "Fashion-MNIST"
    monkeypatch.setattr(mnist, "_SIZES", {"train": 7, "test": 3})
    with pytest.raises(ValueError, match="mnist_784 must hold 10 images"):
        fetch_mnist(data_home=str(tmp_path))


@pytest.fixture
def openml(monkeypatch):
    """OpenML as scikit-learn caches it: a list, then the data; `left` files can be downloaded."""
    asked = SimpleNamespace(left=0, folders=[])

    def fetch(name, data_home, **settings):
        asked.folders.append(Path(data_home))
        folder = Path(data_home, "openml", "openml.org")
        for file in (folder / "data_name" / name.lower() / "list", folder / "download"):
            if not file.is_file():
                file.parent.mkdir(parents=True, exist_ok=True)
                if not asked.left:
                    raise URLError("cut off")
                asked.left -= 1
                file.write_text("all")
        return SimpleNamespace(data=np.zeros((2, 784)), target=np.array(["1", "2"]))

    monkeypatch.setattr(mnist, "fetch_openml", fetch)
    monkeypatch.setattr(mnist, "_SIZES", {"train": 1, "test": 1})
    return asked


def files_in(root):
    return {path.relative_to(root).as_posix() for path in root.rglob("*") if path.is_file()}


def test_a_download_is_kept_whole_or_not_at_all(tmp_path, openml):
    root = tmp_path / "root"
    openml.left = 1
    with pytest.raises(FileNotFoundError, match="cut off"):
        fetch_mnist(data_home=str(root))
    assert not root.exists()
    openml.left = 2
    assert fetch_mnist(data_home=str(root)).target.tolist() == [1]
    kept = "openml/mnist_784/openml/openml.org"
    whole = {f"{kept}/data_name/mnist_784/list", f"{kept}/download"}
    assert files_in(root) == whole
    assert fetch_mnist(data_home=str(root)).target.tolist() == [1]
    assert files_in(root) == whole
    (tmp_path / "file").touch()
    openml.left = 2
    with pytest.raises(FileNotFoundError, match=r"mnist/train-images.*from OpenML: .*file"):
        fetch_mnist(data_home=str(tmp_path / "file"))
    assert not any(folder.exists() for folder in openml.folders)


def test_what_scikit_learn_kept_by_itself_serves_offline(tmp_path, openml, monkeypatch):
    openml.left = 2
    mnist.fetch_openml("mnist_784", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    before = sorted(tmp_path.rglob("*"))
    for root in (str(tmp_path), "."):
        assert fetch_mnist(data_home=root).target.tolist() == [1]
    assert find_data("mnist", str(tmp_path)).at_hand
    with pytest.raises(FileNotFoundError, match="cut off"):
        fetch_fashion_mnist(data_home=str(tmp_path))
    assert not find_data("fashion-mnist", str(tmp_path)).at_hand
    assert sorted(tmp_path.rglob("*")) == before


def test_an_empty_folder_is_no_copy(tmp_path, openml):
    folder = tmp_path / "openml" / "mnist_784"
    folder.mkdir(parents=True)
    with pytest.raises(FileNotFoundError, match="cut off"):
        fetch_mnist(data_home=str(tmp_path))
    assert not list(folder.iterdir())
    openml.left = 2
    for _ in range(2):
        assert fetch_mnist(data_home=str(tmp_path)).target.tolist() == [1]
    assert len(files_in(folder)) == 2


def test_files_that_do_not_fit_each_other_are_named(tmp_path):
    write(tmp_path, "train", [1, 2])
    labels = tmp_path / "train-labels-idx1-ubyte"
    labels.write_bytes(idx(np.zeros(3, np.uint8)))
    with pytest.raises(ValueError, match=r"train-labels.* must hold 2 labels"):
        fetch_mnist(data_home=str(tmp_path))
    (tmp_path / "train-images-idx3-ubyte").write_bytes(idx(np.zeros((2, 784), np.uint8)))
    with pytest.raises(ValueError, match=r"train-images.* in shape \(n, 28, 28\)"):
        fetch_mnist(data_home=str(tmp_path))


@pytest.mark.parametrize(
    ("code", "dtype"), [(8, "u1"), (9, "i1"), (11, "i2"), (12, "i4"), (13, "f4"), (14, "f8")]
)
def test_every_type_of_entry(code, dtype, tmp_path):
    array = RNG.integers(0, 100, (2, 3, 4)).astype(dtype)
    (tmp_path / "file").write_bytes(idx(array, code))
    found = read_idx(tmp_path / "file")
    assert found.dtype == array.dtype
    assert (found == array).all()


def test_damaged_headers_are_named(tmp_path):
    for content, words in [
        (b"\0\0\x08", "is no IDX file"),
        (b"\0\1\x08\1" + bytes(4), "is no IDX file"),
        (b"\0\0\x0a\1" + bytes(4), "is no IDX file"),
        (b"\0\0\x08\3" + bytes(8), "truncated within the header"),
        (idx(np.zeros(5, np.uint8))[:-1], "needs 13 bytes, got 12"),
        (idx(np.zeros(5, np.uint8)) + b"\0", "needs 13 bytes, got 14"),
        (b"\0\0\x08\4" + b"\xff" * 16, "truncated or corrupted"),
    ]:
        (tmp_path / "file").write_bytes(content)
        with pytest.raises(ValueError, match=rf"file: .*{words}"):
            read_idx(tmp_path / "file")
