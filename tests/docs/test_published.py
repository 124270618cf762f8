"""Published against reproduced: the page is what its generator writes, from files that exist."""

import re

import pandas as pd
import pytest
from published_page import (
    DOCS,
    RESULTS,
    VERDICTS,
    Difference,
    baselines_of,
    kind_of,
    ours_of,
    page,
    papers_of,
    read_known,
    read_table,
    weigh,
)

KNOWN = read_known()
ROWS = [row for paper in papers_of(KNOWN).values() for row in paper["rows"]]
MEASURED = [row for row in ROWS if ours_of(row)[0] != "-"]


def test_the_page_is_what_the_generator_writes():
    assert (DOCS / "published.md").read_text() == page()


def test_every_row_has_a_verdict_a_source_and_files_that_exist():
    assert len(MEASURED) >= 40
    for row in ROWS:
        assert kind_of(ours_of(row)[1]) in VERDICTS, row["item"]
        assert row["published"]["source"] in KNOWN["sources"]
        assert row.get("verdict") != "cannot run here" or row["why"]
    for run, told in KNOWN["runs"].items():
        rows = [row for row in ROWS if row.get("ours", {}).get("run") == run]
        assert told["command"]
        assert rows
        assert (RESULTS / run).exists() or {ours_of(row)[1] for row in rows} == {"not run"}


@pytest.mark.parametrize("row", MEASURED, ids=lambda row: row["item"])
def test_numbers_of_ours_stand_in_the_results(row):
    ours, (cell, _) = row["ours"], ours_of(row)
    summary = (RESULTS / ours["run"] / "summary.md").read_text()
    text = cell.removesuffix(f" {ours['unit']}")
    if "find" in ours:
        assert all(part in summary for part in text.split(" against "))
    elif "row" not in ours:
        table = read_table(ours["run"])
        means = pd.concat([table[x].dropna() for x in (ours["column"], ours.get("beside")) if x])
        known = {format(x, ours["format"]) for x in means}
        assert {x for part in text.split(" against ") for x in part.split(", ")} <= known
    elif ours.get("measure") in (table := read_table(ours["run"])) and (
        "against" in ours or "model" not in table
    ):
        name = "model" if "model" in table else "row"
        values = table.pivot(index="seed", columns=name, values=ours["measure"]).mean()
        apart = (
            values[ours["row"]] - values[ours.get("against") or baselines_of(table)[ours["row"]]]
        )
        assert float(text.split(" ±")[0]) == pytest.approx(apart, abs=0.0051)
    else:
        mean, half = (float(x) for x in text.split(" ± "))
        written = [f"{mean:+.{n}f} ± {half:.{n}f}" for n in (1, 2)]
        lines = re.findall(rf"^\| {re.escape(ours['row'])} \|.*$", summary, re.M)
        assert any(x in line for line in lines for x in written)


@pytest.mark.parametrize(
    ("mean", "words", "claimed", "effect", "verdict"),
    [
        (1.0, "ahead", "more", 1.2, "holds"),
        (1.0, "ahead", "more", 3.0, "holds in direction"),
        (1.0, "ahead", "more", None, "holds in direction"),
        (-1.0, "behind", "less", -1.2, "holds"),
        (-1.0, "behind", "more", None, "does not hold"),
        (0.1, "inconclusive at ± 0.64", "more", 0.2, "inconclusive"),
        (0.1, "inconclusive at ± 0.64", "more", 3.0, "does not hold"),
        (0.1, "equal within 1", "within", None, "holds"),
        (0.1, "inconclusive at ± 0.64", "within", 0.2, "inconclusive"),
        (-3.0, "behind", "within", -2, "does not hold"),
        (2.9, "ahead", "no less", None, "holds"),
        (-0.7, "behind", "no less", None, "inconclusive"),
        (-2.0, "behind", "no less", None, "does not hold"),
    ],
)
def test_verdicts_follow_from_interval_and_published_effect(mean, words, claimed, effect, verdict):
    assert weigh(Difference(mean, 0.64, words), claimed, effect) == verdict


@pytest.mark.parametrize("claimed", ["more", "less", "within", "no less"])
def test_a_single_seed_settles_no_claim(claimed):
    assert weigh(Difference(0.1, float("nan"), "-"), claimed, 3.0) == "inconclusive"
