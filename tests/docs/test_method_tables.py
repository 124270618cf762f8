"""The page of clustering methods: tables of kept runs, and what a contributor does."""

import re
import runpy
import subprocess
import sys
import tomllib
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from method_comparison import joined, overview_lines
from selection import THE_RULE
from typer.testing import CliRunner

from twinsolve.bench.cli import app
from twinsolve.bench.clustering.presets import PRESETS
from twinsolve.bench.clustering.summary import POOL
from twinsolve.bench.tables import markdown, read_table, write_table

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/methods.md").read_text()
pytest.importorskip("sphinx")
pytestmark = pytest.mark.slow  # with the documentation, which installs Sphinx
PUBLISHED = runpy.run_path(str(ROOT / "docs/_ext/published_values.py"), run_name="published")
TABLES = runpy.run_path(str(ROOT / "docs/_ext/method_tables.py"), run_name="method_tables")
SMALL = {
    "about": "Small data, to be run once.",
    "studies": [
        {
            "name": name,
            "about": "Small.",
            "data": [data],
            "without": ["LRSSC"],
            "n_trials": 2,
            "label_tuned": True,
        }
        for name, data in (
            ("first", "synthetic:n_samples=12,n_subspaces=2"),
            ("second", "digits:n_points=60"),
        )
    ],
}


def cells(text):
    """Rows of all tables in a text by their first cell."""
    rows = [line.strip("| ").split(" | ") for line in text.splitlines() if line.startswith("| ")]
    return {row[0]: row for row in reversed(rows)}


def test_a_contributed_method_stands_beside_the_kept_ones(tmp_path, monkeypatch):
    """The class and the command of the page, on a small set in the place of the judging set."""
    monkeypatch.setitem(PRESETS, "judge", SMALL)
    monkeypatch.chdir(tmp_path)
    (block,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    (tmp_path / "my_module.py").write_text(block)
    (command,) = re.findall(r"^twinsolve (cluster --preset judge .*)$", PAGE, re.M)
    kept = ["--method", "SSC:gamma=5.0", "--method", "TSC", "--method", "k-means"]
    output = ["--output", "docs/results/cluster-judge"]
    for arguments in (["cluster", "--preset", "judge", *kept, *output], command.split()):
        result = CliRunner().invoke(app, [*arguments, "--n-seeds", "2"])
        assert result.exit_code == 0, result.output
        assert SMALL["about"] in result.output
    results = tmp_path / "docs/results"
    for folder in ("cluster-judge", "cluster-judge-cosines"):
        assert SMALL["about"] in (results / folder / "summary.md").read_text()

    folders = TABLES["folders_of"]("judge", results)
    assert [folder.name for folder in folders] == ["cluster-judge", "cluster-judge-cosines"]
    text = TABLES["tables_of"](folders)
    rows = cells(text)
    assert list(rows)[-1] == "method"
    assert rows["method"] == ["method", "synthetic", "digits", "mean"]
    assert set(rows) == {
        "method", "SSC:gamma=5.0", "TSC", "k-means", "SSC", "my_module:Cosines"
    }  # fmt: skip
    table = read_table(results / "cluster-judge-cosines" / "second.json.gz")
    own = table[(table.method == "my_module:Cosines") & (table.selection == "label-free")]
    steps = own.groupby("steps", sort=False).selection_score.mean().idxmax()
    by_subset = own[own.steps == steps].groupby("trial").accuracy.mean()
    expected = f"{100 * (1 - by_subset.mean()):.2f} ± {100 * by_subset.std(ddof=0):.2f}"
    assert rows["my_module:Cosines"][2] == expected
    assert len(re.findall(r"^### ", text, re.M)) == 2
    only = cells(TABLES["tables_of"](folders[:1]))
    assert only["TSC"] == rows["TSC"]


def test_the_page_holds_a_table_for_each_data_set(tmp_path):
    """Sphinx alone with the directive, on the page as it is and two small data sets."""
    row = {
        "method": "A", "family": "solved", "features": "unit", "trial": "0", "fit_seed": 0,
        "seed": 0, "settings": "", "steps": "symmetrize", "selection": "label-free",
        "selection_score": 0.5, "accuracy": 0.875, "fit_seconds": 1.0, "memory_mib": 1.0,
        "gap_max": 0.0,
    }  # fmt: skip
    folder = tmp_path / "results" / "cluster-design"
    folder.mkdir(parents=True)
    for name in ("digits:n_points=5", "coil20:classes=1-10,n_classes=6"):
        write_table(pd.DataFrame([row | {"data": name}]), folder, f"{name[:5]}.json.gz")
    (tmp_path / "methods.md").write_text(PAGE)
    (tmp_path / "published.toml").write_text((ROOT / "docs/published.toml").read_text())
    (tmp_path / "conf.py").write_text(
        f"import sys\nsys.path.insert(0, {str(ROOT / 'docs/_ext')!r})\n"
        "extensions = ['myst_parser', 'method_tables', 'published_values']\nroot_doc = 'methods'\n"
        "myst_heading_anchors = 3\n"
    )
    command = [sys.executable, "-m", "sphinx", "-b", "html", str(tmp_path), str(tmp_path / "out")]
    subprocess.run(command, check=True, capture_output=True)
    html = (tmp_path / "out" / "methods.html").read_text()
    judged, rest = html.split("Designed on", 1)
    designed, published = rest.split('<section id="published">', 1)
    assert "Not run yet." in judged
    assert designed.count("<table") == 3
    assert "12.50 ± 0.00" in designed
    assert len(re.findall(r"<h3>.*(?:Digits|COIL-20)", designed)) == 2
    assert published.count("<table") == 1
    assert "92.79" not in html.partition('<section id="published">')[0]


def test_a_set_that_was_not_run_says_so(tmp_path):
    assert TABLES["tables_of"](TABLES["folders_of"]("judge", tmp_path)) == "Not run yet.\n"


def test_no_number_of_the_judging_set_is_on_the_page_by_hand():
    assert not re.search(r"\d+\.\d", PAGE)
    assert np.all([f"{{method-tables}} {name}" in PAGE for name in ("judge", "design")])


def test_published_values_stand_apart_with_their_sources_and_our_rows():
    values = tomllib.loads((ROOT / "docs/published.toml").read_text())["value"]
    page = PAGE.partition("## Published")[0]
    assert "published-values" not in page
    text = PUBLISHED["table_of"](ROOT / "docs/published.toml")
    lines = [line.strip("| ").split(" | ") for line in text.splitlines()[2:]]
    assert len(lines) == len(values) >= 3
    summary = (ROOT / "docs/results/cluster-mnist/summary.md").read_text()
    for line, value in zip(lines, values, strict=True):
        assert line[:2] == [value["data"], value["method"]]
        assert float(line[2].removeprefix("about ")) == pytest.approx(
            100 - float(value["accuracy"])
        )
        assert value["source"] == line[4]
        assert value["differs"] == line[5]
        settings, steps = line[7].split("; ")
        assert f"| {value['ours']['method']} | {settings} | {steps} | {line[6]} |" in summary
    numbers = {value["accuracy"] for value in values}
    for kept in (ROOT / "docs/results").glob("cluster-*/summary.md"):
        assert not any(f"| {number} " in kept.read_text() for number in numbers)


SUBSET = ["data", "features", "trial"]


def runs(folder):
    """Errors in % of all candidates on all subsets, none of them twice."""
    table = pd.concat([read_table(path) for path in sorted(folder.glob("*.json.gz"))])
    table = table[(table.selection != "labels") & table.accuracy.notna()]
    return table.assign(error=100 * (1 - table.accuracy))


def over_problems(errors):
    return errors.groupby(SUBSET[:2]).mean()


def test_findings_of_the_judging_set_stand_in_its_results():
    findings = " ".join((ROOT / "docs/clustered.md").read_text().split())
    folder = ROOT / "docs/results/cluster-judge"
    lines = (folder / "summary.md").read_text().splitlines()
    rows = [line.strip("| ").split(" | ") for line in lines]
    choices = [row for row in rows if len(row) == 9]

    def mean(way):
        errors = [float(row[4]) for row in choices if row[2] == way]
        assert len(errors) == 8
        return f"{np.mean(errors):.2f}"

    words = r"best single method \| (\S+) \| .*? design set \| (\S+) \| .*? by labels \| (\S+) \|"
    best, fixed, by_labels = re.search(words, findings).groups()
    assert fixed == mean("always the same")
    assert by_labels == mean("by labels, one for all subsets")

    judged, own = (runs(ROOT / f"docs/results/cluster-{name}") for name in ("judge", "choice"))
    smallest = judged.groupby([*SUBSET, "method", "settings", "steps"]).error.mean()
    plain = own[(own.method == "SSC") & (own.steps == "symmetrize") & (own.seed == 0)]
    plain = plain.sort_values("selection_score").drop_duplicates(SUBSET, keep="last")
    errors = {"choice": own[own["rank"] == 1], "plain": plain, "older": judged[judged["rank"] == 1]}
    errors = {name: rows.groupby(SUBSET).error.mean() for name, rows in errors.items()}
    means = {name: over_problems(found).mean() for name, found in errors.items()}
    words = r"cluster --auto` [^|]*\| (\S+) \| \| nothing: SSC as it comes \| (\S+) \|"
    said = map(float, re.search(words, findings).groups())
    assert list(said) == [round(means["choice"], 2), round(means["plain"], 2)]
    lost = {
        name: over_problems(found - smallest.groupby(SUBSET).min())
        for name, found in errors.items()
    }
    words = re.search(r"differs: nothing on .*? (\S+) on motions", findings)[0]
    losses = re.findall(r"\d+\.\d+", words)
    assert {*losses, "0.00"} == {f"{value:.2f}" for value in lost["choice"]}
    words = r"The mean is (\S+) and the deviation over the problems (\S+)\."
    said = [*re.search(words, findings).groups()]
    words = r"older rule had erred on (\S+) % and lost (\S+) with a deviation of (\S+)\."
    said += re.search(words, findings).groups()
    expected = [
        lost["choice"].mean(), lost["choice"].std(ddof=0), means["older"],
        lost["older"].mean(), lost["older"].std(ddof=0),
    ]  # fmt: skip
    assert said == [f"{value:.2f}" for value in expected]

    summary = (ROOT / "docs/results/cluster-selection/summary.md").read_text()
    pool = re.findall(rf"^\| {', '.join(POOL)} \| (.*?) \|.*\| (\S+) \| \S+ \|$", summary, re.M)
    losses = {rule: float(mean) for rule, mean in pool}
    words = r"the rules tried there, (\S+) points where the score alone loses (\S+)\."
    said = [float(value) for value in re.search(words, findings).groups()]
    assert said == [losses[THE_RULE], losses["score"]]
    assert losses[THE_RULE] == min(losses.values())

    overview = cells("\n".join(markdown(*overview_lines(joined([TABLES["_rows"](folder)])))))
    means = {name: float(row[-1]) for name, row in overview.items() if row[-1][0].isdigit()}
    assert means["EnSC"] == min(means.values()) == float(best)
    words = r"deep self-expression at (\S+) %\. .*? comes to (\S+) %\."
    deep, affinity = map(float, re.search(words, findings).groups())
    assert (deep, affinity) == (means["deep self-expression"], means["learned affinity"])
    ahead = [row[10] for row in rows if len(row) == 12 and row[10] in ("yes", "no")]
    assert f"in {ahead.count('yes')} of {len(ahead)} comparisons" in findings
