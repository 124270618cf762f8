"""Single matrices of NumPy and SciPy, with labels in a file beside them, and stacks of images."""

import numpy as np
import pytest
from scipy.sparse import coo_array, csr_matrix, save_npz

from twinsolve.datasets import load_points
from twinsolve.datasets.points import point_files

RNG = np.random.default_rng(0)
X, Y = RNG.standard_normal((6, 3)), np.array([2, 1, 1, 3, 2, 1])


@pytest.fixture
def folder(tmp_path):
    np.save(tmp_path / "points.npy", X)
    return tmp_path


def test_labels_lie_in_a_file_beside(folder):
    assert load_points(folder / "points.npy").found == "points in file 'points.npy', no labels"
    np.save(folder / "Labels.npy", Y)
    np.save(folder / "y.npy", X[:, 0])
    points = load_points(folder / "points.npy")
    assert (points.data == X).all()
    assert points.target_names[points.target].tolist() == Y.tolist()
    assert points.found == "points in file 'points.npy', labels in file 'Labels.npy'"
    assert [path.name for path in point_files(folder / "points.npy")] == [
        "points.npy", "Labels.npy", "y.npy",
    ]  # fmt: skip
    assert load_points(folder / "points.npy", target_key=False).target is None
    np.save(folder / "others.npy", ["a"] * 6)
    assert load_points(folder / "points.npy", target_key="others.npy").target_names == ["a"]
    for name in ("nothing.npy", "points"):
        with pytest.raises(ValueError, match=rf"target_key: no \.npy file .*{name}"):
            load_points(folder / "points.npy", target_key=name)
    np.save(folder / "y.npy", Y)
    with pytest.raises(ValueError, match=r"say target_key=Labels\.npy or target_key=y\.npy"):
        load_points(folder / "points.npy")


def test_float32_is_kept_and_bad_files_are_named(folder):
    np.save(folder / "points.npy", X.T.astype(np.float32))
    assert load_points(folder / "points.npy", transpose=True).data.dtype == np.float32
    np.save(folder / "points.npy", np.array([None, {}]), allow_pickle=True)
    with pytest.raises(
        ValueError, match=r"points\.npy: truncated, corrupted or no NumPy file .*pick"
    ):
        load_points(folder / "points.npy")
    np.save(folder / "points.npy", X[:, 0])
    with pytest.raises(ValueError, match=r"file 'points\.npy' must hold numbers in shape .*\(6,\)"):
        load_points(folder / "points.npy")
    X_gap = X.copy()
    X_gap[4, 1] = np.nan
    np.save(folder / "points.npy", X_gap)
    with pytest.raises(ValueError, match="holds NaN or infinite values, first in row 4, column 1"):
        load_points(folder / "points.npy")
    (folder / "points.npy").write_bytes(b"")
    with pytest.raises(ValueError, match=r"points\.npy: truncated, corrupted or no NumPy file"):
        load_points(folder / "points.npy")


@pytest.mark.parametrize("kind", [csr_matrix, coo_array])
def test_sparse_matrices_of_scipy(kind, folder):
    sparse = kind(np.where(X > 0, X, 0))
    save_npz(folder / "words.npz", sparse)
    np.save(folder / "target.npy", Y)
    points = load_points(folder / "words.npz")
    assert (points.data == sparse.toarray()).all()
    assert points.target.tolist() == [1, 0, 0, 2, 1, 0]
    assert f"sparse, {sparse.nnz / 18:.2%} stored, made dense), labels in file" in points.found
    assert [path.name for path in point_files(folder / "words.npz")] == ["words.npz", "target.npy"]


@pytest.mark.parametrize("shape", [(6, 4, 5), (6, 4, 5, 3)])
def test_stacks_of_images_become_rows(shape, folder):
    images = RNG.integers(0, 256, shape, dtype=np.uint8)
    np.save(folder / "points.npy", images)
    np.savez(folder / "mine.npz", images=images, y=Y)
    for name in ("points.npy", "mine.npz"):
        points = load_points(folder / name)
        assert (points.data == images.reshape(6, -1)).all()
        assert (points.images == images).all()
        assert f"each of shape {' x '.join(map(str, shape[1:]))}" in points.found
