"""The best learned method beside the best solved one."""

import numpy as np
import pandas as pd

from twinsolve.bench.clustering.clusters import clusters_study
from twinsolve.bench.clustering.summary import best_lines, reported_lines


def rows(family, method, accuracies, **more):
    about = {"data": "d", "features": "unit", "steps": "svd-power", "selection": "label-free"}
    return [
        about
        | {"family": family, "method": method, "fit_seed": 0, "trial": "0"}
        | {"seed": i, "accuracy": a}
        | more
        for i, a in enumerate(accuracies)
    ]


def line(*groups):
    found = best_lines(pd.DataFrame([row for group in groups for row in group]))[1]
    return found[0] if found else None


def test_the_best_of_each_family_and_who_is_ahead():
    learned, worse = rows("learned", "A", [0.9, 0.92]), rows("learned", "B", [0.5, 0.5])
    solved, baseline = rows("solved", "S", [0.86, 0.88]), rows("baseline", "N", [0.99, 0.99])
    expected = (
        "A",
        "9.00 ± 1.00",
        "S",
        "13.00 ± 1.00",
        "N",
        "1.00 ± 0.00",
        "+4.00",
        "yes",
        "1 of 1",
    )
    assert line(worse, learned, solved, baseline)[3:] == expected
    # Ahead by 1.9 with deviations of 1 each is within the spread.
    assert line(rows("learned", "A", [0.879, 0.899]), solved)[-3:] == ("+1.90", "no", "1 of 1")
    assert line(rows("learned", "A", [0.5, 0.5]), solved)[-3:] == ("-37.00", "no", "0 of 1")


def test_settings_chosen_with_labels_other_steps_and_failures_do_not_count():
    solved = rows("solved", "S", [0.8])
    tuned = rows("learned", "A", [0.99], selection="labels")
    other = rows("learned", "A", [0.99], steps="symmetrize")
    failed = rows("learned", "B", [np.nan])
    assert line(solved, tuned, other, failed) is None
    assert line(solved, tuned, rows("learned", "A", [0.7]))[3:5] == ("A", "30.00 ± 0.00")


def test_deviations_are_over_seeds_of_means_over_trials():
    def trials(family, method, accuracies):
        return [
            r for t, a in enumerate(accuracies) for r in rows(family, method, [a], trial=str(t))
        ]

    found = line(trials("learned", "A", [0.6, 0.8]), trials("solved", "S", [0.7, 0.5]))
    assert found[4] == "30.00 ± 0.00"
    assert found[-3:] == ("+10.00", "yes", "1 of 2")


def test_a_study_shows_it_only_where_both_families_ran():
    study = clusters_study(["digits"], ["SSC"])
    both = pd.DataFrame(rows("learned", "A", [0.9]) + rows("solved", "S", [0.8]))
    both = both.assign(
        settings="", fit_seconds=1.0, memory_mib=1.0, gap_max=0.0, selection_score=0.5
    )
    title = "Best learned beside best solved, by the same steps"
    assert study.further(both)[title] == best_lines(both)
    assert title not in study.further(both[both.family == "solved"])


def test_the_row_to_report_is_that_of_the_largest_score_whatever_its_error():
    many = pd.DataFrame(
        rows("solved", "S", [0.9, 0.9], steps="a", selection_score=0.4)
        + rows("solved", "S", [0.5, 0.7], steps="b", selection_score=0.6)
        + rows("solved", "S", [1.0, 1.0], steps="b", selection_score=0.9, selection="")
        + rows("baseline", "B", [0.8, 0.8], steps="none", selection_score=np.nan)
        + rows("baseline", "F", [np.nan] * 2, steps="a", selection_score=np.nan, note="failed")
        + rows("baseline", "F", [np.nan] * 2, steps="b", selection_score=np.nan, note="failed")
    ).assign(settings="", nmi=0.0, ari=0.0, connectivity=0.0)
    found = reported_lines(many)[1]
    assert [(line[2], line[4], line[5]) for line in found] == [
        ("S", "b", "40.00"),
        ("B", "none", "20.00"),
        ("F", "a", "failed"),
    ]
    assert reported_lines(many[many.steps != "b"])[1] == []
