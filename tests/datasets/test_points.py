import gzip
import re
import sys

import h5py
import numpy as np
import pytest
from scipy.io import savemat
from scipy.sparse import csc_array

from twinsolve.datasets import load_points

from .test_mnist import idx

RNG = np.random.default_rng(0)
X = RNG.standard_normal((6, 3))


@pytest.mark.parametrize("suffix", ["npz", "mat"])
@pytest.mark.parametrize(
    ("data", "labels"),
    [
        ("X", "y"), ("fea", "gnd"), ("data", "Target"), ("X", "GT"), ("X", "s"), ("x", "Y"),
        ("X", "label"), ("X", "Labels"), ("anything", "class"),
    ],
)  # fmt: skip
def test_common_names_are_found(suffix, data, labels, tmp_path):
    path, target = tmp_path / f"mine.{suffix}", np.array([4, 4, 2, 9, 2, 4])
    arrays = {data: X, labels: target}
    if data != "anything":
        arrays["kernel"] = np.eye(6)
    if suffix == "npz":
        np.savez(path, **arrays)
    else:
        savemat(path, arrays)
    found = load_points(path)
    assert (found.data == X).all()
    assert found.target.tolist() == [1, 1, 0, 2, 0, 1]
    assert (found.target_names[found.target] == target).all()
    assert found.found == f"points in array {data!r}, labels in array {labels!r}"
    assert found.DESCR.endswith(found.found)
    if "kernel" in arrays:
        assert (load_points(str(path), data_key="kernel").data == np.eye(6)).all()


@pytest.mark.parametrize(
    ("values", "why"),
    [
        (np.ones(5), "has 5 entries for 6 points"),  # singular values, say
        (np.eye(6)[:, :2], r"is no vector but of shape (6, 2)"),
        (X[:, 0], "holds other than whole numbers"),
        (X[:, 0] * 1j, "holds complex128"),
    ],
)
def test_what_cannot_be_labels_is_not_taken_and_said(values, why, tmp_path):
    np.savez(tmp_path / "mine.npz", X=X, s=values)
    points = load_points(tmp_path / "mine.npz")
    assert points.target is None
    assert points.DESCR.endswith(f"{values.shape}}}: points in array 'X', no labels ('s' {why})")
    np.savez(tmp_path / "mine.npz", X=X, s=values, Label=np.arange(6))
    assert load_points(tmp_path / "mine.npz").target.tolist() == list(range(6))


def test_several_that_could_be_labels_are_refused_by_name(tmp_path):
    np.savez(tmp_path / "mine.npz", X=X, Y=np.ones(6), gnd=np.arange(6), s=np.ones(3))
    with pytest.raises(ValueError, match=r"mine\.npz .*say target_key=Y or target_key=gnd$"):
        load_points(tmp_path / "mine.npz")
    assert load_points(tmp_path / "mine.npz", target_key="gnd").target[-1] == 5
    (tmp_path / "mine.csv").write_text("x,y,Label\n1,2,a\n3,4,b\n")
    with pytest.raises(ValueError, match=r"say target_key=y or target_key=Label$"):
        load_points(tmp_path / "mine.csv")
    (tmp_path / "mine.csv").write_text("x,y,Label\n1,2.5,a\n3,4,b\n")
    assert load_points(tmp_path / "mine.csv").feature_names == ["x", "y"]


@pytest.mark.parametrize("words", ["yn", ["NA", "US"], ["na", "big"], ["-", "+"], ["?", "null"]])
@pytest.mark.parametrize("kind", [str, bytes])
def test_words_are_classes_however_short(words, kind, tmp_path):
    """A gap in the labels is empty or nan; the longest label does not decide what is one."""
    labels = np.array([*words] * 4).astype("S" if kind is bytes else "U")
    np.savez(tmp_path / "mine.npz", X=np.arange(8.0)[:, None] ** 2, y=labels)
    assert load_points(tmp_path / "mine.npz").target_names.tolist() == sorted(set(labels.tolist()))
    for gap in ("", "nan", "NaN", " "):
        labels = np.array([gap, *words] * 3).astype(labels.dtype.kind)
        np.savez(tmp_path / "mine.npz", X=np.arange(9.0)[:, None] ** 2, y=labels)
        with pytest.raises(ValueError, match="the label of row 0 is missing"):
            load_points(tmp_path / "mine.npz")


def test_labels_are_optional_and_float32_is_kept(tmp_path):
    np.savez(tmp_path / "mine.npz", anything=X.astype(np.float32), more=np.ones(6))
    found = load_points(tmp_path / "mine.npz")
    assert found.data.dtype == np.float32
    assert found.target is None
    assert found.target_names is None
    named = load_points(tmp_path / "mine.npz", target_key="more")
    assert named.target.tolist() == [0] * 6


def test_sparse_matrices_and_version_7_3_of_matlab(tmp_path):
    savemat(tmp_path / "sparse.mat", {"fea": csc_array(np.eye(4)), "gnd": np.ones((4, 1))})
    assert (load_points(tmp_path / "sparse.mat").data == np.eye(4)).all()
    with h5py.File(tmp_path / "new.mat", "w", userblock_size=512) as file:
        file["X"], file["y"] = X.T, [[1.0, 1, 2, 2, 3, 3]]
    found = load_points(tmp_path / "new.mat")
    assert (found.data == X).all()
    assert found.target.tolist() == [0, 0, 1, 1, 2, 2]


@pytest.mark.parametrize("suffix", ["h5", "hdf5"])
def test_hdf5_with_its_keys(suffix, tmp_path):
    path = tmp_path / f"mine.{suffix}"
    with h5py.File(path, "w") as file:
        file["X"], file["y"] = X, ["b", "a", "b", "c", "a", "a"]
        file["train/codes"], file["train/classes"] = X.astype(np.float32), [3, 3, 1, 1, 1, 3]
        file["nothing"] = h5py.Empty("f8")
    found = load_points(path)
    assert (found.data == X).all()
    assert found.target_names[found.target].tolist() == ["b", "a", "b", "c", "a", "a"]
    found = load_points(path, data_key="train/codes", target_key="train/classes")
    assert found.data.dtype == np.float32
    assert found.target.tolist() == [1, 1, 0, 0, 0, 1]
    with pytest.raises(
        ValueError, match=rf"data_key: no array 'Z' in .*mine\.{suffix}.*train/codes"
    ):
        load_points(path, data_key="Z")
    path.write_bytes(path.read_bytes()[:600])
    with pytest.raises(ValueError, match=rf"mine\.{suffix}: truncated, corrupted or no HDF5 file"):
        load_points(path)


def test_a_packed_copy_of_the_points_does_not_pass_for_labels(tmp_path):
    content = idx(RNG.integers(0, 256, (5, 3), dtype=np.uint8))
    (tmp_path / "mine.idx").write_bytes(content)
    (tmp_path / "mine.idx.gz").write_bytes(gzip.compress(content))
    for name in ("mine.idx", "mine.idx.gz"):
        assert load_points(tmp_path / name).target is None


@pytest.mark.parametrize("packed", [(), ("images",)])
def test_idx_pairs(packed, tmp_path):
    images = RNG.integers(0, 256, (5, 4, 3), dtype=np.uint8)
    written = {}
    for kind, array in (("images-idx3", images), ("labels-idx1", np.array([7, 7, 2, 7, 2], "u1"))):
        name = f"my-{kind}-ubyte" + (".gz" if kind[:6] in packed else "")
        written[kind[:6]] = tmp_path / name
        content = idx(array)
        written[kind[:6]].write_bytes(gzip.compress(content) if name.endswith("gz") else content)
    found = load_points(written["images"])
    assert found.data.dtype == np.float64
    assert (found.data == images.reshape(5, 12)).all()
    assert (found.images == images).all()
    assert found.target_names[found.target].tolist() == [7, 7, 2, 7, 2]
    with pytest.raises(ValueError, match=r"my-labels.*like labels; name the file of the points"):
        load_points(written["labels"])
    (tmp_path / "others.idx1").write_bytes(idx(np.array([1, 2, 3, 4, 5], "u1")))
    chosen = load_points(written["images"], target_key="others.idx1")
    assert chosen.target.tolist() == [0, 1, 2, 3, 4]
    with pytest.raises(ValueError, match=r"target_key: no file .*nothing\.idx1"):
        load_points(written["images"], target_key="nothing.idx1")
    with pytest.raises(ValueError, match=r"labels must be a vector, got shape \(5, 4, 3\)"):
        load_points(written["images"], target_key=written["images"].name)
    with pytest.raises(ValueError, match=r"data_key: must be None for .*ubyte"):
        load_points(written["images"], data_key="X")
    (tmp_path / "others.idx1").write_bytes(idx(np.array([1, 2], "u1")))
    with pytest.raises(ValueError, match="the points are 5 rows, but there are 2 labels"):
        load_points(written["images"], target_key="others.idx1")
    written["labels"].unlink()
    assert load_points(written["images"]).target is None
    written["images"].write_bytes(b"1,2")
    with pytest.raises(ValueError, match=r"my-images-idx3-ubyte.*(is no IDX file|no gzip file)"):
        load_points(written["images"])
    written["images"].write_bytes(gzip.compress(idx(images[:0])))
    with pytest.raises(ValueError, match=r"my-images-idx3-ubyte"):
        load_points(written["images"])


def test_missing_h5py_is_named(tmp_path, monkeypatch):
    with h5py.File(tmp_path / "new.mat", "w", userblock_size=512) as file:
        file["X"] = X.T
    monkeypatch.setitem(sys.modules, "h5py", None)
    with pytest.raises(ImportError, match=r"new\.mat: HDF5 needs h5py: pip install"):
        load_points(tmp_path / "new.mat")


def test_bad_arrays_are_named(tmp_path):
    for arrays, keys, words in [
        ({"A": X, "B": X}, {}, r"data_key: name the array of the points in .*'A'.* 'B': \(6, 3\)"),
        ({"A": np.ones(6)}, {}, r"data_key: name the array of the points in .*'A': \(6,\)"),
        ({"X": X}, {"data_key": "Z"}, r"data_key: no array 'Z' in .*'X': \(6, 3\)"),
        ({"X": X}, {"target_key": "Z"}, r"target_key: no array 'Z' in .*'X': \(6, 3\)"),
        ({"X": X, "Z": X}, {"target_key": "Z"}, "target_key: array 'Z' must be a vector"),
        ({"A": X, "Y": X}, {}, r"data_key: name the array of the points in .*'Y': \(6, 3\)"),
        (
            {"X": X.T, "y": np.ones(6)},
            {},
            "the points are 3 rows, but there are 6 labels; as many as columns: set transpose",
        ),
        (
            {"X": X, "y": np.ones(6)},
            {"transpose": True},
            r"'X': \(6, 3\), 'y': \(6,\)}: the points are 3 columns, but there are 6 labels; "
            "as many as rows: leave out transpose=True$",
        ),
        (
            {"X": X, "y": np.ones(5)},
            {"target_key": "y"},
            "the points are 6 rows, but there are 5 labels$",
        ),
        (
            {"X": X * np.nan},
            {},
            r"mine\.npz: array 'X' holds NaN or infinite values, first in row 0, column 0$",
        ),
        ({"X": X, "y": X[:, 0] * np.nan}, {}, "holds NaN or infinite labels"),
        ({"X": X, "y": X[:, 0] * 1j}, {"target_key": "y"}, "labels must be numbers .*complex128"),
        ({"X": X * 1j}, {}, "must hold numbers in shape .*complex128"),
        ({"X": X[None, None, None]}, {}, r"must hold numbers in shape .*\(1, 1, 1, 6, 3\)"),
        ({"X": X[:, :0]}, {}, "must hold numbers in shape"),
    ]:
        np.savez(tmp_path / "mine.npz", **arrays)
        with pytest.raises(ValueError, match=words):
            load_points(tmp_path / "mine.npz", **keys)


@pytest.mark.parametrize(
    ("text", "key", "labels", "names"),
    [
        ("1,2\n3,4\n", None, None, None),
        ("a,b\n1,2\n3,4\n", None, None, ["a", "b"]),
        ("a,Class,b\n1,dog,2\n3,cat,4\n", None, ["dog", "cat"], ["a", "b"]),
        ("\ufeffy,a,b\n7,1,2\n-1,3,4\n\n", None, [7, -1], ["a", "b"]),
        ('"a","kind","b"\n1,0.5,2\n3,1.5,4\n', "kind", [0.5, 1.5], ["a", "b"]),
        ("0,1,kind\n1,2,5\n3,4,6\n", "kind", [5, 6], ["0", "1"]),
        ("1,2,dog\n3,4,cat\n", -1, ["dog", "cat"], None),
        ("1,2,dog\n3,4,cat\n", "-1", ["dog", "cat"], None),  # of the command line
        ("1,0,2\n1,5,2\n3,6,4\n", "0", [5, 6], ["1", "2"]),  # a name before a number
        ("a,b,kind\n1,2,5\n3,4,6\n", -1, [5, 6], ["a", "b"]),
        ("9,1,2\n8,3,4\n", 0, [9, 8], None),
        ("1,2\r\n3,4", None, None, None),
    ],
)
def test_tables(text, key, labels, names, tmp_path):
    (tmp_path / "mine.csv").write_text(text, newline="")
    found = load_points(tmp_path / "mine.csv", target_key=key)
    assert found.data.tolist() == [[1, 2], [3, 4]]
    assert found.feature_names == names
    if labels is None:
        assert found.target is None
    else:
        assert found.target_names[found.target].tolist() == labels


@pytest.mark.parametrize("start", [0, 1])
@pytest.mark.parametrize("name", ["", '""', " ", "Unnamed: 0", "Unnamed: 0.1"])
def test_row_numbers_are_no_feature(name, start, tmp_path):
    """As `to_csv` of pandas and `write.csv` of R write them, also of what was written before."""
    path = tmp_path / "mine.csv"
    path.write_text(f"{name},a,b,class\n" + "".join(f"{start + i},2,{i}.5,u\n" for i in range(3)))
    points = load_points(path)
    assert points.data.tolist() == [[2, 0.5], [2, 1.5], [2, 2.5]]
    assert points.feature_names == ["a", "b"]
    assert points.found.startswith("points in 2 columns ('a', 'b'), labels in column 'class'; ")
    assert re.search(r"; column (0|'Unnamed: 0.*') left out, as it numbers the rows$", points.found)
    kept = load_points(path, drop=[])
    assert kept.data[:, 0].tolist() == [start, start + 1, start + 2]
    assert re.search(r"column .* may number the points: drop=.* leaves it out$", kept.found)
    labelled = load_points(path, target_key=0, drop="class")
    assert labelled.target.tolist() == [0, 1, 2]
    assert "numbers the rows" not in labelled.found


@pytest.mark.parametrize(
    ("text", "data"),
    [
        (",0,1\n0,5,6\n1,7,8\n", [[5, 6], [7, 8]]),  # of an array: names are numbers
        ("Unnamed: 0,0,1\n1,5,6\n2,7,8\n", [[5, 6], [7, 8]]),
        (",Unnamed: 0,a,b\n0,1,5,6\n1,0,7,8\n", [[5, 6], [7, 8]]),  # sorted, then written again
        ("a,,b\n5,2,6\n7,1,8\n", [[5, 6], [7, 8]]),
        ("0,5\n1,6\n2,4\n", [[5], [6], [4]]),
        ("1.0,5,2\n2.0,6,2\n3.0,4,2\n", [[5, 2], [6, 2], [4, 2]]),
        # what stays a feature
        ("0,5\n1,6\n", [[0, 5], [1, 6]]),
        ("0\n1\n2\n", [[0], [1], [2]]),
        ("1,5\n0,6\n2,4\n", [[1, 5], [0, 6], [2, 4]]),
        ("n,a\n0,5\n1,6\n2,4\n", [[0, 5], [1, 6], [2, 4]]),
        (",a\n2,5\n3,6\n4,4\n", [[2, 5], [3, 6], [4, 4]]),
        (",a\n0,5\n1,6\n1,4\n", [[0, 5], [1, 6], [1, 4]]),
        (",a\n0.5,5\n1,6\n2,4\n", [[0.5, 5], [1, 6], [2, 4]]),
        (",a\n1e300,5\n1,6\n2,4\n", [[1e300, 5], [1, 6], [2, 4]]),
    ],
)
def test_only_row_numbers_are_left_out(text, data, tmp_path):
    (tmp_path / "mine.csv").write_text(text)
    points = load_points(tmp_path / "mine.csv")
    assert points.data.tolist() == data
    width = len(text.partition("\n")[0].split(","))
    assert points.found.count("left out, as it numbers the rows") == width - len(data[0])


def test_identifiers_are_named_and_dropped(tmp_path):
    path = tmp_path / "mine.csv"
    path.write_text("Sample ID,a,step,kind,who\n40,1,7,u,p\n11,1,9,v,q\n23,2,8,v,r\n")
    with pytest.raises(ValueError, match=r"column 'kind': 'u' is not a number; target_key='kind' "):
        load_points(path)
    for key in ("who", False):
        with pytest.raises(ValueError, match="'u' is not a number; drop='kind' leaves the column"):
            load_points(path, target_key=key)
    found = load_points(path, drop=["kind", -1]).found
    assert "points in 3 columns ('Sample ID', 'a', 'step'), no labels" in found
    assert "'who' left out by drop" in found
    for name in ("Sample ID", "step"):
        assert f"column {name!r} may number the points: drop={name!r} leaves it out" in found
    dropped = load_points(path, drop=["Sample ID", "step", 4], target_key="kind")
    assert dropped.data.tolist() == [[1], [1], [2]]
    assert dropped.feature_names == ["a"]
    assert "may number" not in dropped.found
    (tmp_path / "bare.csv").write_text("1,2,u\n3,4,v\n")
    assert load_points(tmp_path / "bare.csv", drop=2).data.tolist() == [[1, 2], [3, 4]]
    for drop, words in [
        ("kind", "drop: column 'kind' of .* holds the labels"),
        ("nobody", r"drop: no column 'nobody' in .*\['Sample ID'"),
        (9, "drop: must be a column of"),
    ]:
        with pytest.raises(ValueError, match=words):
            load_points(path, drop=drop, target_key="kind")
    np.savez(tmp_path / "mine.npz", X=X)
    with pytest.raises(ValueError, match=r"drop: must be None for .*mine\.npz"):
        load_points(tmp_path / "mine.npz", drop=0)


def test_many_columns_are_named_in_short(tmp_path):
    header = ",".join(f"p{i}" for i in range(30))
    (tmp_path / "mine.csv").write_text(f"{header}\n{header.replace('p', '')}\n")
    assert load_points(tmp_path / "mine.csv").found == (
        "points in 30 columns ('p0', 'p1', 'p2', 'p3', 'p4', 'p5', ..., 'p29'), no labels"
    )


@pytest.mark.parametrize("names", ["x,y,v", "v,X,Y", " x , y ,z"])
def test_a_coordinate_y_is_no_label_unless_it_is_said(names, tmp_path):
    path = tmp_path / "mine.csv"
    path.write_text(f"{names}\n1,2,5\n3,1,6\n2,2,7\n")
    with pytest.raises(ValueError, match=r"target_key: column '[yY]' .* beside '[xX]'; say target"):
        load_points(path)
    (y,) = (name.strip() for name in names.split(",") if name.strip() in "yY")
    assert load_points(path, target_key=y).data.shape == (3, 2)
    assert load_points(path, target_key=False).data.shape == (3, 3)
    (x,) = (name.strip() for name in names.split(",") if name.strip() in "xX")
    assert load_points(path, drop=x).found.startswith("points in 1 column ")


@pytest.mark.parametrize("text", ["x,y\n0.5,1\n2,0\n", "x,y\n1,u\n2,v\n", "x1,y\n1,0\n2,1\n"])
def test_other_columns_y_are_labels(text, tmp_path):
    (tmp_path / "mine.csv").write_text(text)
    assert load_points(tmp_path / "mine.csv").found.endswith("labels in column 'y'")


def test_no_labels_are_taken_if_it_is_said(tmp_path):
    np.savez(tmp_path / "mine.npz", X=X, y=np.arange(6))
    points = load_points(tmp_path / "mine.npz", target_key=False)
    assert points.target is None
    assert points.found == "points in array 'X', no labels"
    for kind, array in (("images", np.zeros((2, 3, 3), "u1")), ("labels", np.ones(2, "u1"))):
        (tmp_path / f"{kind}.idx").write_bytes(idx(array))
    assert load_points(tmp_path / "images.idx").target is not None
    assert load_points(tmp_path / "images.idx", target_key=False).target is None


def test_bad_tables_are_named(tmp_path):
    for text, keys, words in [
        ("", {}, r"mine\.csv: is empty"),
        ("a,b\n", {}, r"mine\.csv: the table must hold numbers"),
        ("1,2\n3\n", {}, r"mine\.csv: line 2 has 1 fields, the first has 2"),
        ("1,2\n3,x\n", {}, r"line 2 \(row 1\), column 1: 'x' is not a number; target_key=1 "),
        ("1,2\n3,inf\n", {}, r"line 2 \(row 1\), column 1: is not finite"),
        ("1,2\n3,1_0\n", {}, r"column 1: '1_0' is not a number"),
        ("a,class\n1,u\n2,\n", {}, "the label of row 1 is missing: fill it, or remove the row"),
        ("a,class\n1,7\n2,nan\n", {}, "holds NaN or infinite labels"),
        ("a,b\n10,20,30\n", {}, "line 2 has 3 fields, the first has 2"),
        ("a,b\n1,2\n", {"target_key": "c"}, r"target_key: no column 'c' in .*\['a', 'b'\]"),
        ("1,2\n", {"target_key": 2}, "target_key: must be a column of .*, -2 to 1, got 2"),
        ("1,2\n", {"transpose": True}, "transpose: must be False for .*mine.csv"),
        ("1,2\n", {"data_key": "X"}, "data_key: must be None for .*mine.csv, which holds"),
    ]:
        (tmp_path / "mine.csv").write_text(text)
        with pytest.raises(ValueError, match=words):
            load_points(tmp_path / "mine.csv", **keys)


def test_other_files_are_named(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"path: no file .*mine\.npz"):
        load_points(tmp_path / "mine.npz")
    (tmp_path / "mine.doc").write_text("1")
    with pytest.raises(
        ValueError, match=r"path: must end in \.csv, .* or bear idx in its name; got"
    ):
        load_points(tmp_path / "mine.doc")
    (tmp_path / "mine.csv").write_bytes(b"a,b\n\xff\xfe\x00,2\n")
    with pytest.raises(ValueError, match=r"mine\.csv: is no text in UTF-8: save it as UTF-8"):
        load_points(tmp_path / "mine.csv")
    (tmp_path / "mine.csv.gz").write_bytes(b"a,b\n1,2\n")
    with pytest.raises(ValueError, match=r"mine\.csv\.gz: truncated, corrupted or no text table"):
        load_points(tmp_path / "mine.csv.gz")
    for keys in ({"sep": "tab"}, {"decimal": "comma"}):
        np.savez(tmp_path / "mine.npz", X=X)
        with pytest.raises(ValueError, match=r"sep, decimal: must be None for .*mine\.npz"):
            load_points(tmp_path / "mine.npz", **keys)


@pytest.mark.parametrize("shape", [(1, 6), (6, 1)])
def test_a_vector_of_labels_is_no_second_matrix(shape, tmp_path):
    np.savez(tmp_path / "mine.npz", pixels=X, person=np.arange(6).reshape(shape))
    points = load_points(tmp_path / "mine.npz")
    assert points.data.shape == X.shape
    assert points.target is None
    np.savez(tmp_path / "mine.npz", pixels=X[:, :1])
    assert load_points(tmp_path / "mine.npz").data.shape == (6, 1)
