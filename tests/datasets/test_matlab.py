"""Cells, structs, sparse matrices and views in MATLAB files of both kinds."""

import h5py
import numpy as np
import pytest
from scipy.io import savemat
from scipy.sparse import csc_array, csr_array

from twinsolve.datasets import array_points, load_points
from twinsolve.datasets.matlab import read_mat

RNG = np.random.default_rng(0)
X, Y = RNG.standard_normal((6, 3)), np.array([2, 1, 1, 3, 2, 1])
WORDS = ["dog", "cat", "cat", "cow", "dog", "cat"]


def cell(*entries):
    """A cell with one row."""
    found = np.empty((1, len(entries)), dtype=object)
    found[0, :] = entries
    return found


def save(path, content, version):
    """Write arrays, csc_arrays, dicts and cells as MATLAB of this version does."""
    if version == 5:
        savemat(path, content)
        return
    with h5py.File(path, "w", userblock_size=512) as file:
        for name, value in content.items():
            write(file, file, name, value)


def write(file, group, name, value):
    if isinstance(value, dict):
        made = group.create_group(name)
        for key, field in value.items():
            write(file, made, key, field)
        kind = b"struct"
    elif isinstance(value, csc_array):
        made = group.create_group(name)
        made["data"], made["ir"], made["jc"] = value.data, value.indices, value.indptr
        made.attrs["MATLAB_sparse"] = np.uint64(value.shape[0])
        kind = b"double"
    elif isinstance(value, str):
        made = group.create_dataset(name, data=np.array([[ord(c)] for c in value], dtype="u2"))
        kind = b"char"
    elif value.dtype == object:
        references = np.empty(value.shape, dtype=h5py.ref_dtype)
        for place, entry in np.ndenumerate(value):
            inner = f"{len(file.require_group('#refs#'))}"
            write(file, file["#refs#"], inner, entry)
            references[place] = file["#refs#"][inner].ref
        made = group.create_dataset(name, data=references.T, dtype=h5py.ref_dtype)
        kind = b"cell"
    else:
        made, kind = group.create_dataset(name, data=value.T), b"double"
    made.attrs["MATLAB_class"] = np.bytes_(kind)


@pytest.fixture(params=[5, 7.3])
def saved(request, tmp_path):
    def save_as(**content):
        save(tmp_path / "mine.mat", content, request.param)
        return tmp_path / "mine.mat"

    return save_as


def test_cells_of_words_and_of_numbers_are_labels(saved):
    points = load_points(saved(X=X, labels=cell(*WORDS).T))
    assert (points.data == X).all()
    assert points.target_names[points.target].tolist() == WORDS
    numbers = cell(*(np.array([[float(y)]]) for y in Y))
    assert load_points(saved(X=X, gnd=numbers)).target_names.tolist() == [1, 2, 3]


def test_a_character_matrix_is_labels_without_its_padding(tmp_path):
    savemat(tmp_path / "mine.mat", {"X": X, "y": np.array(WORDS, "U5")})
    points = load_points(tmp_path / "mine.mat")
    assert points.target_names[points.target].tolist() == WORDS


def test_fields_of_structs_are_found_by_their_last_name(saved):
    points = load_points(saved(set={"fea": X, "info": {"gnd": Y[:, None] * 1.0}}))
    assert (points.data == X).all()
    assert points.found == "points in array 'set/fea', labels in array 'set/info/gnd'"
    points = load_points(saved(data={"pixels": X, "gnd": Y[:, None] * 1.0}))
    assert points.found == "points in array 'data/pixels', labels in array 'data/gnd'"
    path = saved(train={"X": X, "y": Y * 1.0}, test={"X": X[:4], "y": Y[:4] * 1.0})
    with pytest.raises(ValueError, match=r"data_key: name .*'train/X': \(6, 3\).* are tried$"):
        load_points(path)
    points = load_points(path, data_key="test/X")
    assert points.found == "points in array 'test/X', labels in array 'test/y'"


def test_views_are_chosen_or_taken_side_by_side(saved):
    path = saved(X=cell(X, X[:, :2], X @ X.T), Y=Y[:, None] * 1.0)
    with pytest.raises(ValueError, match=r"'X/3': \(6, 6\).*; data_key=X takes all of X side by"):
        load_points(path)
    second = load_points(path, data_key="X/2")
    assert (second.data == X[:, :2]).all()
    assert second.target.tolist() == [1, 0, 0, 2, 1, 0]
    joined = load_points(path, data_key="X")
    assert (joined.data == np.hstack([X, X[:, :2], X @ X.T])).all()
    assert joined.found == (
        "points in arrays 'X/1' beside 'X/2' beside 'X/3' side by side, labels in array 'Y'"
    )
    path = saved(X=cell(X.T, X.T), Y=Y[:, None] * 1.0)
    with pytest.raises(ValueError, match=r"are 3 rows, but there are 6 labels; .* set transpose=T"):
        load_points(path, data_key="X")
    path = saved(fea=cell(X.T, X[:, :2].T), gt=Y[:, None] * 1.0)
    with pytest.raises(ValueError, match=r"fea/1, fea/2 hold 3, 2 points; .* set transpose=True$"):
        load_points(path, data_key="fea")
    assert load_points(path, data_key="fea", transpose=True).data.shape == (6, 5)


def test_sparse_matrices_are_made_dense_and_it_is_said(saved, monkeypatch):
    sparse = csc_array(np.where(X > 0.5, X, 0))
    path = saved(fea=sparse, gnd=csc_array(Y[:, None] * 1.0))
    points = load_points(path)
    assert (points.data == sparse.toarray()).all()
    assert points.target.tolist() == [1, 0, 0, 2, 1, 0]
    share = f"{sparse.nnz / 18:.2%}"
    assert points.found.startswith(f"points in array 'fea' (sparse, {share} stored, made dense), ")
    turned = load_points(saved(fea=csc_array(sparse.T), gnd=Y * 1.0), transpose=True)
    assert (turned.data == points.data).all()
    monkeypatch.setattr(array_points, "_MOST_BYTES", 8 * 18 - 1)
    kept = load_points(saved(fea=sparse, gnd=Y * 1.0))
    assert isinstance(kept.data, csr_array)
    assert (kept.data.toarray() == points.data).all()
    assert kept.target.tolist() == points.target.tolist()
    assert kept.found.startswith(f"points in array 'fea' (sparse, {share} stored, kept so), ")
    broken = sparse.copy()
    broken.data[-1] = np.nan  # the last of its column
    path = saved(fea=broken, gnd=Y * 1.0)
    place = f"row {broken.indices[-1]}, column {X.shape[1] - 1}"
    with pytest.raises(ValueError, match=f"'fea' holds NaN or infinite values, first in {place}"):
        load_points(path)


def test_objects_are_left_out(tmp_path):
    with h5py.File(tmp_path / "mine.mat", "w", userblock_size=512) as file:
        file["X"] = X.T
        file["y"] = np.zeros((1, 6), "u4")
        file["y"].attrs["MATLAB_object_decode"] = 3
        file["none"] = np.array([0, 0], "u8")
        file["none"].attrs["MATLAB_empty"] = 1
    assert list(read_mat(tmp_path / "mine.mat")) == ["X", "none"]
    assert read_mat(tmp_path / "mine.mat")["none"].shape == (0, 0)
    assert load_points(tmp_path / "mine.mat").target is None


@pytest.mark.parametrize("version", [5, 7.3])
def test_images_are_along_the_last_axis_in_matlab(version, tmp_path):
    images = RNG.uniform(size=(4, 5, 6))
    save(tmp_path / "mine.mat", {"X": images, "y": Y[:, None] * 1.0}, version)
    with pytest.raises(ValueError, match=r"are 4 rows, but there are 6 labels; .* set transpose"):
        load_points(tmp_path / "mine.mat")
    points = load_points(tmp_path / "mine.mat", transpose=True)
    assert (points.images == np.moveaxis(images, -1, 0)).all()
    assert (points.data.reshape(6, 4, 5) == points.images).all()
    assert "'X', each of shape 4 x 5, labels" in points.found
