"""What studies say and leave on disk."""

import pandas as pd
import pytest

from twinsolve.bench.study import Study, write_studies


@pytest.mark.parametrize(("n_rows", "shown"), [(540, True), (541, False)])
def test_a_summary_names_the_file_of_a_table_too_long_to_read(tmp_path, n_rows, shown):
    table = pd.DataFrame({"error": range(n_rows)})
    rows = [(str(value),) for value in table.error]
    study = Study("all", "Everything.", lambda options: table, lambda table: (("error",), rows))
    write_studies("title", (study,), {"all": table}, {}, tmp_path)
    summary = (tmp_path / "summary.md").read_text()
    assert ("| 17 |" in summary) == shown
    assert (f"All {n_rows} rows: all.csv" in summary) != shown
    assert len((tmp_path / "all.csv").read_text().splitlines()) == n_rows + 1
