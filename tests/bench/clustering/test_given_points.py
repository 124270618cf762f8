"""Points given to `cluster` as arrays, frames and sparse matrices."""

import numpy as np
import pandas as pd
import pytest
from scipy.sparse import csr_array

from twinsolve.bench import cluster
from twinsolve.bench.clustering.data import find_data
from twinsolve.datasets import make_union_of_subspaces

X, Y = make_union_of_subspaces(12, n_subspaces=2, n_features=8, dimension=2, random_state=0)
ASKED = {"methods": ["TSC", "k-means"], "affinity": ["symmetrize"], "seeds": 2}
SCORES = ["method", "settings", "seed", "accuracy", "nmi", "selection"]


@pytest.fixture(scope="module")
def expected(tmp_path_factory):
    path = tmp_path_factory.mktemp("points") / "mine.npz"
    np.savez(path, X=X, y=Y)
    return cluster(str(path), **ASKED)[SCORES]


@pytest.mark.parametrize(
    ("given", "labels"),
    [
        (X, Y),
        (X.reshape(24, 2, 4), Y.tolist()),
        (pd.DataFrame(X).add_prefix("p"), pd.Series(Y).map({0: "red", 1: "blue"})),
        (csr_array(X), pd.Categorical(Y)),
    ],
    ids=["array", "images", "frame", "sparse"],
)
def test_arrays_are_clustered_as_their_file(given, labels, expected):
    table = cluster(given, labels, **ASKED)
    assert set(table.data) == {"X"}
    pd.testing.assert_frame_equal(table[SCORES], expected)


def test_points_without_labels_need_a_number_of_clusters(tmp_path):
    table = cluster(X, n_clusters=2, **ASKED, directory=tmp_path)
    assert table.accuracy.isna().all()
    assert {len(labels) for labels in table.labels} == {24}
    kept = sorted(path.name for path in tmp_path.rglob("*"))
    again = cluster(X, n_clusters=2, **ASKED, directory=tmp_path)
    assert sorted(path.name for path in tmp_path.rglob("*")) == kept
    pd.testing.assert_frame_equal(table, again)
    with pytest.raises(ValueError, match="n_clusters: say how many clusters to look for, or give"):
        cluster(X, **ASKED)


@pytest.mark.parametrize("part", ["n_points=20", "classes=1-2", "n_classes=2"])
@pytest.mark.parametrize("labelled", [True, False])
def test_a_part_of_a_file_keeps_the_number_of_clusters(part, labelled, tmp_path):
    np.savez(tmp_path / "mine.npz", X=X, **({"y": Y} if labelled else {}))
    if labelled or part == "n_points=20":
        data = find_data(f"{tmp_path}/mine.npz:n_clusters=3,{part}")
        assert data.problem().n_clusters == 3
    if labelled:
        assert find_data(f"{tmp_path}/mine.npz:{part}").problem().n_clusters == 2


def test_a_single_name_will_do():
    table = cluster("digits:n_points=40", methods=["k-means"], seeds=1)
    assert table.data.tolist() == ["digits:n_points=40"]


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"data": X[0], "y": Y}, r"^X: the array must hold numbers in shape .*\(8,\)"),
        ({"data": np.where(X[3, 1] == X, np.nan, X), "y": Y}, r"first in row 3, column 1$"),
        ({"data": X * 1j, "y": Y}, "^X: the array must hold numbers .*complex128"),
        ({"data": pd.DataFrame({"a": Y, "b": ["u"] * 24}), "y": Y}, r"leave out .*\['b'\]"),
        ({"data": pd.DataFrame({"a": [1, None] * 12}), "y": Y}, "first in row 1, column 0"),
        ({"data": X, "y": Y[:5]}, r"^y: must be a vector with a label for each of the 24 points"),
        ({"data": X, "y": [None, "a"] * 12}, "^y: labels must be numbers or strings, got object"),
        ({"data": X, "y": [np.nan, 1] * 12}, "^y: holds NaN or infinite labels"),
        ({"data": X, "y": Y + 0.5}, "^y: labels must be whole numbers or words, got 0.5"),
        ({"data": X, "y": Y / 2, "n_clusters": 2}, "^y: labels must be whole .* got 0.5"),
        ({"data": X, "y": 0 * Y}, "^y: all labels are of one class; say n_clusters"),
        ({"data": X, "n_clusters": 25}, r"n_clusters: must be a whole number in \[1, 24\], got 25"),
        ({"data": np.ones((9, 2)), "n_clusters": 2}, "^X: has 1 distinct point, fewer than"),
        ({"data": "digits", "n_clusters": 2}, "y, n_clusters: are for points given as an array"),
        ({"data": X, "y": Y, "directory": "a:b"}, "directory: must have no colon in its path"),
    ],
)
def test_what_cannot_be_clustered_is_said(given, words):
    with pytest.raises(ValueError, match=words):
        cluster(**given, **ASKED)
