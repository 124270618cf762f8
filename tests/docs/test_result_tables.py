"""Tables and numbers of pages are those of a summary, and what is not there is an error."""

import pytest
import result_values
from result_values import number_of, table_of

SUMMARY = r"""# twinsolve test

2 of 3 rows passed.

| method | images | dB | dB |
|---|---|---|---|
| A | all | 1.00 | 2.00 |
| B | all | 3.00 | 4.00 |
| B | few | - | 5.00 |

## Noise

| method | note |
|---|---|
| A | a \| b |
"""


@pytest.fixture(autouse=True)
def summary(tmp_path, monkeypatch):
    monkeypatch.setattr(result_values, "RESULTS", tmp_path)
    (tmp_path / "run").mkdir()
    (tmp_path / "run/summary.md").write_text(SUMMARY)


def test_a_number_is_a_cell_or_a_group_of_a_pattern():
    assert number_of("run > B > all > dB.1") == "4.00"
    assert number_of("run > Noise > A > note") == "a | b"
    assert number_of(r"run > (\d+) of \d+ rows") == "2"


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("none > A > dB", "must be a folder"),
        ("run > A > SSIM", r"no table of \['run'\] has SSIM; there are method \| images"),
        ("run > C > dB", "no row has 'C'; there are A, B"),
        ("run > B > dB.1", "must name one number, got 4.00, 5.00"),
        ("run > ([0-9]+) seeds", "must name one number, got none"),
    ],
)
def test_what_is_not_there_is_named(name, message):
    with pytest.raises(ValueError, match=message):
        number_of(name)


def test_rows_and_columns_are_chosen_and_spread_with_their_means():
    lines = table_of(["run"], ["method", "dB.1"], ["B > few", "A"]).splitlines()
    assert lines == ["| method | dB |", "|---|---|", "| B | 5.00 |", "| A | 2.00 |"]
    lines = table_of(["run"], ["method", "dB.1"], [], pivot="images", mean=True).splitlines()
    assert lines[0] == "| method | all | few |"
    assert lines[2:] == ["| A | 2.00 | - |", "| B | 4.00 | 5.00 |", "| mean | 3.00 | 5.00 |"]
