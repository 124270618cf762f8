"""Methods by data sets, of rows made by hand."""

import numpy as np
import pandas as pd
import pytest
from method_comparison import comparison_lines, joined, overview_lines


def rows(method, accuracy, **more):
    """One for each trial and seed; `accuracy` is a list of lists."""
    about = {
        "data": "d:n_points=5", "features": "unit", "method": method, "family": "solved",
        "settings": "gamma=1", "steps": "symmetrize", "fit_seed": 0, "selection": "label-free",
        "selection_score": 0.5, "fit_seconds": 1.0, "memory_mib": 2.0, "gap_max": 1e-7,
    }  # fmt: skip
    return [
        about | {"trial": str(t), "seed": s, "accuracy": a} | more
        for t, trial in enumerate(accuracy)
        for s, a in enumerate(trial)
    ]


def lines(*groups):
    table = joined([pd.DataFrame([row for group in groups for row in group])])
    ((headings, found),) = comparison_lines(table).values()
    return [dict(zip(headings, line, strict=True)) for line in found]


def test_an_error_is_a_mean_with_its_spread_over_subsets_and_over_seeds():
    (line,) = lines(rows("A", [[0.9, 0.8], [0.7, 0.4]]))
    assert (line["error %"], line["subsets"], line["seeds"]) == ("30.00", "15.00", "10.00")


def test_steps_are_chosen_by_the_score_and_by_labels_apart():
    high = {"steps": "high", "selection_score": 0.9}
    low = {"steps": "low", "selection_score": 0.1}
    free = rows("A", [[0.5, 0.7]], **high) + rows("A", [[0.8, 0.9]], **low)
    tuned = rows("A", [[0.6, 0.7]], selection="labels", **high)
    tuned += rows("A", [[0.85, 0.95]], selection="labels", **low)
    tried = rows("A", [[0.1, 0.1]], settings="gamma=2", selection="", **high)
    (line,) = lines(free, tuned, tried)
    assert (line["steps"], line["from"], line["error %"]) == ("high", "label-free", "40.00")
    assert (line["error %, labels"], line["best run"]) == ("10.00", "5.00")
    unscored = rows("A", [[0.5]], steps="none", selection_score=np.nan)
    unscored += rows("A", [[0.9]], steps="none", settings="gamma=2", selection="")
    (line,) = lines(unscored)  # a method without affinity, at the first of its settings
    assert (line["error %"], line["from"]) == ("50.00", "given")
    (line,) = lines(rows("A", [[0.5]], settings=""))
    assert (line["settings"], line["from"], line["error %, labels"]) == ("-", "given", "-")


def test_times_are_held_against_ssc_of_the_same_run():
    """Another machine is half as fast, and so is its SSC."""
    first = rows("SSC", [[0.5]], fit_seconds=2.0) + rows("A", [[0.6]], fit_seconds=3.0)
    second = rows("SSC", [[0.1]], fit_seconds=4.0) + rows("B", [[0.7]], fit_seconds=8.0)
    table = joined([pd.DataFrame(first), pd.DataFrame(second)])
    ((headings, found),) = comparison_lines(table).values()
    at = headings.index("time")
    assert {line[0]: line[at] for line in found} == {"SSC": "1.00", "A": "1.50", "B": "2.00"}
    assert {line[0]: line[2] for line in found}["SSC"] == "50.00"  # of the first run


def test_an_overview_has_a_column_for_each_data_set_and_the_mean():
    other = {"data": "e:n_points=5"}
    table = joined([
        pd.DataFrame(rows("B", [[0.5], [0.7]]) + rows("B", [[0.9]], **other)),
        pd.DataFrame(rows("A", [[0.9]]) + rows("A", [[0.7]], **other)),
        pd.DataFrame(rows("C", [[1.0]])),
    ])  # fmt: skip
    headings, found = overview_lines(table)
    assert headings == ("method", "d", "e", "mean")
    assert found == [
        ("A", "10.00 ± 0.00", "30.00 ± 0.00", "20.00"),
        ("B", "40.00 ± 10.00", "10.00 ± 0.00", "25.00"),
        ("C", "0.00 ± 0.00", "-", "-"),
    ]
    twice = pd.concat([table, table.assign(features="raw")])
    assert overview_lines(twice)[0][1:3] == ("d, unit", "e, unit")


@pytest.mark.parametrize("column", ["error %", "error %, labels"])
def test_what_failed_on_a_subset_has_no_error(column):
    failed = rows("A", [[0.9], [np.nan]], note="failed: no such luck")
    failed += rows("A", [[0.9], [np.nan]], selection="labels", note="failed: no such luck")
    (line,) = lines(failed)
    assert line[column] in ("-", "failed: no such luck")
