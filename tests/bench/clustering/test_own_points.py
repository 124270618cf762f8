"""How the file of a user's points is read."""

import numpy as np
import pandas as pd
import pytest
from sklearn.datasets import load_digits

from twinsolve.bench.clustering.own_points import with_clusters

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
