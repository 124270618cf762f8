"""Published against reproduced: the page is what its generator writes, from files that exist."""

import math
import re
from functools import cache

import numpy as np
import pandas as pd
import published_page as published
import pytest
from published_page import DOCS, RESULTS, kind_of, rows_of
from published_runs import (
    Difference,
    baselines_of,
    find_difference,
    rate_note,
    read_table,
    weigh,
    weigh_networks,
)

from twinsolve.bench.tables import number
from twinsolve.twins import catalogue

TWINS = {twin.name for twin in catalogue()}
KNOWN, PAPERS = published.read_runs(), published.read_papers()
ITEMS = {item["id"]: item for paper in PAPERS.values() for item in paper["item"]}
OF_RUNS = [
    (id_, n)
    for id_, item in ITEMS.items()
    for n, row in enumerate(item["rows"])
    if "run" in row.get("ours", {}) and (RESULTS / row["ours"]["run"]).exists()
]


@cache
def found(id_):
    """The rows of an item, each with our number and the verdict."""
    return rows_of(ITEMS[id_], KNOWN)


def test_the_page_is_what_the_generator_writes():
    assert (DOCS / "published.md").read_text() == published.page()


@pytest.mark.parametrize("paper", PAPERS)
def test_every_row_has_a_verdict_and_what_it_rests_on(paper):
    own = [(x["id"], *line) for x in PAPERS[paper]["item"] for line in found(x["id"])]
    assert {id_ for id_, *_ in own} == {item["id"] for item in PAPERS[paper]["item"]}
    summary = (RESULTS / "check/summary.md").read_text()
    for id_, row, cell, verdict in own:
        ours = row.get("ours", {})
        assert kind_of(verdict) in published.VERDICTS, (id_, verdict)
        assert cell != "-" or verdict == "no claim" or row.get("why"), id_
        assert ours.get("run", "check") in KNOWN["runs"], id_
        if "twin" in ours:
            assert ours["twin"] in TWINS, id_
            assert f"\n| {ours['twin']} |" in summary, id_
        if "test" in ours:
            file, _, name = ours["test"].partition("::")
            assert f"\ndef {name}(" in (DOCS.parent / file).read_text(), id_


@pytest.mark.parametrize(("id_", "n"), OF_RUNS)
def test_numbers_of_ours_stand_in_the_results(id_, n):
    row, cell, _ = found(id_)[n]
    ours = row["ours"]
    text = cell.removesuffix(f" {ours['unit']}")
    summary = (RESULTS / ours["run"] / "summary.md").read_text()
    if "find" in ours:
        assert all(part in summary for part in text.split(" against "))
        return
    tables = [read_table(ours[run]) for run in ("run", "against_run") if run in ours]
    table = pd.concat(tables).drop_duplicates(["row", "seed"]) if tables[1:] else tables[0].copy()
    if "top1" not in table and "accuracy" in table:
        table["top1"] = table.accuracy
    name = "model" if "model" in table else "row"
    if "column" in ours and "row" not in ours:
        check_column(ours, table, text)
    elif ours.get("measure") in table and ("against" in ours or name == "row"):
        told = table[ours["measure"]]
        if isinstance(told.iloc[0], list):  # log losses by stretch, in % of perplexity
            table[ours["measure"]] = told.map(lambda own: -100 * np.mean(own))
        values = table.pivot(index="seed", columns=name, values=ours["measure"])
        to = ours.get("against") or baselines_of(table)[ours["row"]]
        apart = (values[ours["row"]] - values[to]).mean()  # of the seeds that both have
        assert float(text.split(" ±")[0]) == pytest.approx(apart, abs=0.0051)
    elif ours.get("measure") in table.get("wrong", [{}])[0]:
        attacked = ours["measure"].startswith(("FGSM", "PGD"))  # the first 256 images
        n_images = min(256 if attacked else math.inf, table.n_test.iloc[0])
        missed = table.wrong.str.get(ours["measure"]).map(len).groupby(table.row).mean()
        apart = missed[baselines_of(table)[ours["row"]]] - missed[ours["row"]]
        expected = 100 * apart / n_images
        assert float(text.split(" ±")[0]) == pytest.approx(expected, abs=0.0051)
    else:
        mean, half = (float(x) for x in text.split(" ± "))
        written = [f"{mean:+.{n}f} ± {half:.{n}f}" for n in (1, 2)]
        lines = re.findall(rf"^\| {re.escape(ours['row'])} \|.*$", summary, re.M)
        assert any(x in line for line in lines for x in written)


def check_column(ours, table, text):
    """Compare what is told of a column with means over the rows of `table.json`."""
    columns = [ours[x] for x in ("column", "beside") if x in ours]
    table[columns] *= math.log(10) if ours.get("natural") else 1
    for known, values in ours.get("where", {}).items():
        table = table[table[known].isin(values)]
    if "model" in ours:
        means = table.groupby(table.model.str.partition("-seed-")[0])[ours["column"]].mean()
        form = ours["format"]
        assert text.startswith(f"{means[ours['against']]:{form}} to {means[ours['model']]:{form}} ")
    elif "by" in ours:
        own = table.dropna(subset=columns).groupby(ours["by"], sort=False)[columns].mean()
        known = {number(x, ours["format"]) for x in own.to_numpy().ravel()}
        assert {x for part in text.split(" against ") for x in part.split(", ")} == known


def test_items_and_printed_cells_are_those_of_the_papers(real_data):
    listed = real_data.parent / "papers" / "items.toml"
    if not listed.is_file():
        pytest.skip(f"{listed} is not there")
    assert published.differences_to(listed) == []


def test_erratum_e2h_the_text_on_small_lambda_is_not_the_table():
    """The text has NeuTRENO better "within the range of [0.2, 1]"."""
    baseline, *lines = ITEMS["NT-Table-13"]["printed"]["rows"]
    better = [line[0] for line in lines if line[1] > baseline[1] and line[2] > baseline[2]]
    assert better == [0.4, 0.5, 0.6, 0.8, 1.0]


@pytest.mark.parametrize(("task", "verdict"), [("digits", "does not hold"), ("ImageNet", None)])
def test_a_printed_effect_counts_on_the_same_task_alone(task, verdict):
    ours = {"run": "classify-digits", "row": "NeuTRENO", "measure": "top1", "unit": "points"}
    row = {"effect": 50.0, "ours": ours | {"claimed": "more"}}
    of_item = rows_of({"task": task, "rows": [row]}, KNOWN)
    of_row = rows_of({"task": "none", "rows": [row | {"task": task}]}, KNOWN)
    for [(_, _, found)] in (of_item, of_row):
        assert kind_of(found) == (verdict or "inconclusive")


def test_tokens_of_rows_that_were_trained_otherwise_are_not_compared():
    """NeuTRENO has twice the rate and half the steps of softmax there."""
    ours = {"run": "classify-digits", "row": "NeuTRENO", "measure": "token_cosine"}
    with pytest.raises(KeyError, match="NeuTRENO"):
        find_difference(ours)
    assert find_difference(ours | {"row": "FeatScale"}).words


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
        (-0.3, "inconclusive at ± 0.64", "no less", None, "holds"),
        (-0.7, "behind", "no less", None, "inconclusive"),
        (-2.0, "behind", "no less", None, "does not hold"),
    ],
)
def test_verdicts_follow_from_interval_and_published_effect(mean, words, claimed, effect, verdict):
    assert weigh(Difference(mean, 0.64, words), claimed, effect) == verdict


@pytest.mark.parametrize("claimed", ["more", "less", "within", "no less"])
def test_a_single_seed_settles_no_claim(claimed):
    assert weigh(Difference(0.1, float("nan"), "-"), claimed, 3.0) == "inconclusive"


@pytest.mark.parametrize(
    ("agree", "along", "verdict"),
    [
        ([True, True], [1.0, -9.0], "holds in direction"),
        ([False, False], [1.0, 1.0], "does not hold"),
        ([True, False], [1.0], "inconclusive"),
        ([True, False], [1.0, 1.1, 0.9], "holds in direction"),
        ([True, False], [-1.0, -1.1, -0.9], "does not hold"),
        ([True, False], [1.0, 2.0, -1.5], "inconclusive"),
    ],
)
def test_networks_that_disagree_are_compared_by_their_means(agree, along, verdict):
    assert weigh_networks(np.array(agree), pd.Series(along)) == verdict


@pytest.mark.parametrize(
    ("run", "row", "note"),
    [
        ("sequential", "AttnScale", ", at twice the rate"),
        ("sequential", "FeatScale", ""),
        ("classify-digits", "bilateral + GRC", ", at twice the rate and half the steps"),
        ("classify-adaptation", "NeuTRENO", ", at 10 times the rate"),
        ("classify-path", "one ISTA step a layer", ", at twice the rate"),
    ],
)
def test_rows_that_were_trained_otherwise_say_so(run, row, note):
    assert rate_note({"run": run, "row": row}) == note
    assert rate_note({"run": run, "row": row, "measure": "start_token_cosine"}) == ""
