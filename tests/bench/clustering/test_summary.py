"""What a table of clusters says: the settings and the candidate chosen, and who is ahead."""

import coil20
import numpy as np
import pandas as pd
import pytest

from twinsolve.bench.clustering.clusters import clusters_study
from twinsolve.bench.clustering.methods import METHODS
from twinsolve.bench.clustering.summary import (
    FIXED,
    POOL,
    RULE,
    TITLE,
    best_lines,
    cluster_lines,
    distance_lines,
    drop_known_labels,
    quality_lines,
    rank_candidates,
    reported_lines,
    rows_of_pool,
    select_settings,
    whole_choice_lines,
)
from twinsolve.bench.jobs import Options


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


@pytest.fixture
def scored():
    """Two settings of A: `x` has the better score, `y` the better accuracy; B has no score."""
    rows = [
        {"method": "SSC", "settings": "x", "selection_score": 0.9, "accuracy": 0.5},
        {"method": "SSC", "settings": "y", "selection_score": 0.1, "accuracy": 0.8},
        {"method": "B", "settings": "x", "selection_score": np.nan, "accuracy": 0.1},
        {"method": "B", "settings": "y", "selection_score": np.nan, "accuracy": 0.9},
    ]
    common = {"data": "d", "features": "unit", "steps": "symmetrize", "fit_seed": 0}
    costs = {
        "objective": 1.0, "gap_mean": 0.0, "gap_max": 0.0, "nonzeros": 3.0, "subspace_error": 0.1,
        "memory_mib": 1.0, "nmi": 0.5, "ari": 0.5,
    }  # fmt: skip
    return pd.DataFrame(
        common | costs | row | {"trial": trial, "seed": seed, "fit_seconds": 1.0 + trial}
        for row in rows
        for trial in (0, 1)
        for seed in (0, 1)
    )


def test_one_setting_for_all_trials_without_labels(scored):
    # In trial 1 alone, y has the better score; the mean decides.
    scored.loc[(scored.trial == 1) & (scored.method == "SSC"), "selection_score"] = [0.5] * 2 + [
        0.6
    ] * 2
    marked = select_settings(scored)
    chosen = marked[marked.selection == "label-free"]
    assert set(zip(chosen.method, chosen.settings, strict=True)) == {("SSC", "x"), ("B", "x")}
    assert len(chosen) == 8
    assert set(marked.selection) == {"", "label-free"}
    shuffled = scored.assign(accuracy=scored.accuracy.to_numpy()[::-1])
    assert (select_settings(shuffled).selection == marked.selection).all()


def test_a_setting_that_failed_on_a_trial_is_not_chosen(scored):
    failed = (scored.method == "SSC") & (scored.settings == "x") & (scored.trial == 1)
    scored.loc[failed, ["selection_score", "accuracy"]] = np.nan
    scored["note"] = np.where(failed, "failed: ValueError: no", None)
    marked = select_settings(scored)
    chosen = marked[(marked.selection != "") & (marked.method == "SSC")]
    assert set(chosen.settings) == {"y"}
    only = select_settings(scored[(scored.method != "SSC") | (scored.settings == "x")])
    line = cluster_lines(only)[1][0]
    assert line[5] == "failed: ValueError: no (1 of 2 trials)"
    assert set(line[6:]) == {"-"}


@pytest.mark.filterwarnings("ignore:no candidate has a score above 0")
def test_settings_that_others_chose_with_labels_are_marked():
    name = "synthetic:n_samples=10,n_subspaces=2"
    study = clusters_study(
        [name], ["TSC"], settings={"TSC": [{}]}, affinity=["symmetrize"], n_trials=1, tuned=True
    )
    table = study.run(Options(seeds=1))
    for lines in (study.lines, study.more["Solver quality"]):
        assert lines(table)[1][0][2] == "TSC (labels)"
    assert coil20.studies()[1].rule == ""
    assert coil20.studies()[0].rule == RULE


def test_label_tuned_rows_are_added_and_marked(scored):
    marked = select_settings(scored, label_tuned=True)
    tuned = marked[marked.selection == "labels"]
    assert set(zip(tuned.method, tuned.settings, strict=True)) == {("SSC", "y"), ("B", "y")}
    assert len(marked) == len(scored) + len(tuned)
    names = [line[2] for line in cluster_lines(marked)[1]]
    assert sorted(names) == ["B", "B (labels)", "SSC", "SSC (labels)"]


def test_summary_by_hand(scored):
    scored.loc[(scored.method == "SSC") & (scored.seed == 1), "accuracy"] += 0.1
    headings, lines = cluster_lines(select_settings(scored))
    assert len(lines) == 2
    assert all(len(line) == len(headings) for line in lines)
    # Errors of the seeds 50 % and 40 %.
    assert lines[0][5:8] == ("45.00", "5.00", "40.00 to 50.00")
    headings, lines = quality_lines(select_settings(scored))
    assert all(len(line) == len(headings) for line in lines)
    assert [line[4] for line in lines] == ["1.00", "1.00"]
    scored.loc[scored.method == "B", "fit_seconds"] *= 3
    scored.loc[scored.settings == "y", "fit_seconds"] *= 2
    for tuned, ratios in ((False, ["1.00", "3.00"]), (True, ["1.00", "3.00", "2.00", "6.00"])):
        _, lines = quality_lines(select_settings(scored, label_tuned=tuned))
        assert [line[4] for line in lines] == ratios
    ours = scored.method == "SSC"
    found = {"distance": 0.25, "cosine": 0.5, "support_f1": 0.75, "objective_gap": 0.01}
    for column, value in found.items():
        scored[column] = np.where(ours, value, np.nan)
    headings, lines = distance_lines(select_settings(scored))
    assert [line[2:] for line in lines] == [("SSC", "x", "0.250", "0.500", "0.750", "1.0e-02")]
    assert len(headings) == len(lines[0])


SUBSPACES = "synthetic:n_samples=12,n_subspaces=2,n_features=12,dimension=2,noise=0.1"


@pytest.fixture
def table():
    """Two subsets: on the first the earlier `EnSC` is chosen, on the second it has no score > 0."""
    scores = {("0", "EnSC"): 0.9, ("0", "LSR"): 0.8, ("1", "EnSC"): -0.5, ("1", "LSR"): 0.6}
    accuracies = {("0", "EnSC"): 0.6, ("0", "LSR"): 0.7, ("1", "EnSC"): 0.9, ("1", "LSR"): 0.5}
    accuracies |= {("0", "TSC"): 0.65, ("1", "TSC"): 0.8}
    rows = [
        {
            "data": "d", "features": "unit", "trial": trial, "method": method, "settings": "a=1",
            "steps": "symmetrize", "seed": seed, "accuracy": accuracy + 0.02 * seed,
            "selection_score": scores.get((trial, method), 1.0),
            "labels": [0, 1] if seed == 0 else None, "selection": "label-free",
        }
        for (trial, method), accuracy in accuracies.items()
        for seed in (0, 1)
    ]  # fmt: skip
    return pd.DataFrame(rows)


def test_each_subset_has_its_own_choice_within_the_pool(table):
    ranked = rank_candidates(table, rows_of_pool(table))
    first = ranked[ranked["rank"] == 1]
    assert dict(zip(first.trial, first.method, strict=True)) == {"0": "EnSC", "1": "LSR"}
    assert len(first) == 4  # with both seeds
    assert ranked[ranked.method == "TSC"]["rank"].isna().all()
    cut = table.assign(steps="symmetrize, cluster-qr")
    assert rank_candidates(cut, rows_of_pool(cut))["rank"].isna().all()
    everyone = rank_candidates(table, table)
    assert everyone[everyone.method == "TSC"]["rank"].notna().all()


def test_the_choice_is_held_against_those_by_labels(table):
    ranked = rank_candidates(table, rows_of_pool(table))
    headings, rows = whole_choice_lines(pd.concat([ranked, ranked.assign(selection="labels")]))
    by = {row[2]: dict(zip(headings[3:], row[3:], strict=True)) for row in rows}
    free = by["without labels"]
    assert free["candidate"] == "EnSC (1 of 2), LSR (1 of 2)"
    # Errors of the subsets 39 and 49 %, where the best have 29 and 9 %.
    assert [free[name] for name in headings[4:]] == ["44.00", "5.00", "1.00", "25.00", "40.00"]
    each = by["by labels, on each subset"]
    assert [each["error %"], each["regret"]] == ["19.00", "0.00"]
    same = by["by labels, one for all subsets"]
    assert same["candidate"] == "EnSC (a=1) by symmetrize"
    assert [same["error %"], same["regret"], same["largest"]] == ["24.00", "5.00", "10.00"]
    assert "always the same" not in by
    assert whole_choice_lines(table)[1] == []
    unknown = ranked.assign(accuracy=np.nan)
    assert whole_choice_lines(unknown)[1] == []


def test_what_failed_on_a_subset_is_no_choice_for_all(table):
    failed = (table.trial == "1") & (table.method == "EnSC")
    table.loc[failed, ["accuracy", "selection_score"]] = np.nan
    ranked = rank_candidates(table, rows_of_pool(table))
    assert ranked[failed]["rank"].isna().all()
    by = {row[2]: row[3] for row in whole_choice_lines(ranked)[1]}
    assert by["by labels, one for all subsets"] == "TSC (a=1) by symmetrize"


def test_clusters_are_kept_of_points_of_unknown_classes_alone(table):
    assert "labels" not in drop_known_labels(table)
    table.loc[table.trial == "1", "accuracy"] = np.nan
    kept = drop_known_labels(table)
    expected = (table.trial == "1") & (table.seed == 0)
    assert (kept.labels.notna() == expected).all()


def test_studies_tell_the_choice_and_keep_no_clusters():
    study = clusters_study([SUBSPACES], [*POOL, "TSC"], n_trials=2)
    table = study.run(Options(seeds=2))
    assert "labels" not in table
    chosen = table[table["rank"] == 1]
    assert set(chosen.method) <= set(POOL)
    assert chosen.groupby("trial").size().tolist() == [2, 2]
    _, rows = study.further(table)[TITLE]
    assert [row[2] for row in rows] == [
        "without labels", "by labels, on each subset", "by labels, one for all subsets",
        "always the same",
    ]  # fmt: skip
    study = clusters_study([SUBSPACES], ["OMP", "EnSC", "TSC"], n_trials=1)
    assert TITLE not in study.further(study.run(Options(seeds=1)))


def test_the_pool_and_the_fixed_candidate_are_methods():
    assert set(POOL) <= set(METHODS)
    method, settings, steps = FIXED
    own = [", ".join(f"{k}={v}" for k, v in s.items()) for s in METHODS[method].settings]
    assert settings in own
    assert steps in METHODS[method].affinity
