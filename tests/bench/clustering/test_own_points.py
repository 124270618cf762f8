"""How the file of a user's points is read."""

import numpy as np
import pandas as pd
import pytest
from scipy.sparse import csr_array, save_npz
from sklearn.datasets import load_digits

from twinsolve.bench import cluster
from twinsolve.bench.clustering.own_points import with_clusters
from twinsolve.datasets import array_points

DIGITS = load_digits().data[:20]


@pytest.mark.parametrize("transpose", [False, True])
def test_it_is_said_how_a_file_is_read_and_what_to_do_if_that_is_wrong(transpose, tmp_path):
    path = tmp_path / "mine.npz"
    np.savez(path, X=DIGITS)
    names, about = with_clusters([f"{path}" + ":transpose=True" * transpose, "digits"], 2)
    assert names[0].endswith(":transpose=True,n_clusters=2" if transpose else ":n_clusters=2")
    assert names[1] == "digits"
    n, d = (64, 20) if transpose else (20, 64)
    read, other = ("columns", "rows") if transpose else ("rows", "columns")
    assert f"{n} points ({read}) of {d} features, 2 clusters; " in about
    assert "; points in array 'X', no labels. " in about
    cure = "leave out" if transpose else "add"
    assert f"If the {other} are the points, {cure} transpose=True" in about


def test_what_was_found_in_a_table_is_said_without_a_cure_that_it_refuses(tmp_path):
    path = tmp_path / "mine.tsv.gz"
    pd.DataFrame(DIGITS).to_csv(path, sep="\t", decimal=",", index=False)
    (name,), about = with_clusters([f"{path}:sep=tab"], 2)
    assert name.endswith(":sep=tab,n_clusters=2")
    assert "20 points (rows) of 64 features, 2 clusters; " in about
    assert "no labels; separator tab, decimal comma" in about
    assert "transpose" not in about


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("features", ["unit", "pca-5"])
def test_large_sparse_files_give_what_small_ones_do(features, tmp_path, monkeypatch):
    """Kept sparse beyond a limit: the same errors; methods that need features say so."""
    X, y = sparse_topics()
    save_npz(tmp_path / "small.npz", X)
    save_npz(tmp_path / "large.npz", X)
    np.save(tmp_path / "y.npy", y)
    methods = ["SSC", "OMP", "LSR", "kNN graph", "TSC", "k-means", "SSC outliers"]
    options = {"methods": methods, "features": [features], "seeds": 1}
    found = {}
    for name in ("small", "large"):
        if name == "large":
            monkeypatch.setattr(array_points, "_MOST_BYTES", 100)
        table = cluster([str(tmp_path / f"{name}.npz")], **options)
        columns = ["method", "settings", "steps", "accuracy", "selection_score", "n_points", "note"]
        found[name] = table.reindex(columns=columns).sort_values(columns[:3], ignore_index=True)
    refused = (found["large"].method == "SSC outliers") & (features != "pca-5")
    one, other = (table[~refused] for table in found.values())
    assert one.n_points.tolist() == other.n_points.tolist()
    # Without a positive score nothing tells clusters apart: rounding decides.
    judged, also = (~(table.selection_score <= 0) for table in (one, other))
    assert judged.equals(also)
    assert judged.mean() > 0.75
    # Seeds of k-means fall on other points, as sparse points keep their order: of 45, one differs.
    np.testing.assert_allclose(other.accuracy[judged], one.accuracy[judged], atol=1.01 / 45)
    notes = found["large"][refused].note.astype(str)
    assert notes.str.contains("must not be sparse, as outliers").all()


def sparse_topics(n=45, d=300, topics=3):
    """Rows whose entries are mainly in one third of the columns."""
    rng = np.random.default_rng(0)
    y = np.arange(n) % topics
    own = np.arange(d) * topics // d == y[:, None]
    chosen = rng.random((n, d)) < np.where(own, 0.4, 0.03)
    return csr_array(chosen * rng.random((n, d))), y
