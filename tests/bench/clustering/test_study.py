"""What studies say and leave on disk."""

import numpy as np
import pandas as pd
import pytest
from sklearn.datasets import load_digits

from twinsolve.bench.clustering.study import Study, with_clusters, write_studies


@pytest.mark.parametrize(("n_rows", "shown"), [(540, True), (541, False)])
def test_a_summary_names_the_file_of_a_table_too_long_to_read(tmp_path, n_rows, shown):
    table = pd.DataFrame({"error": range(n_rows)})
    rows = [(str(value),) for value in table.error]
    study = Study("all", "Everything.", lambda options: table, lambda table: (("error",), rows))
    write_studies("title", (study,), {"all": table}, {}, tmp_path)
    summary = (tmp_path / "summary.md").read_text()
    assert ("| 17 |" in summary) == shown
    assert (f"All {n_rows} rows, by affinity steps: all.csv" in summary) != shown
    assert len((tmp_path / "all.csv").read_text().splitlines()) == n_rows + 1


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
