"""The page of clustering methods: tables of kept runs, and what a contributor does."""

import re
import runpy
import tomllib
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from twinsolve.bench.cli import app
from twinsolve.bench.clustering.presets import PRESETS
from twinsolve.bench.tables import read_table

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
        result = CliRunner().invoke(app, [*arguments, "--seeds", "2"])
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


def test_a_set_that_was_not_run_says_so(tmp_path):
    assert TABLES["tables_of"](TABLES["folders_of"]("judge", tmp_path)) == "Not run yet.\n"


def test_no_number_of_the_judging_set_is_on_the_page_by_hand():
    assert not re.search(r"\d+\.\d", PAGE)
    assert np.all([f"{{method-tables}} {name}" in PAGE for name in ("judge", "design")])


def test_published_values_stand_apart_with_their_sources_and_our_rows():
    values = tomllib.loads((ROOT / "docs/published_values.toml").read_text())["value"]
    page = PAGE.partition("## Published")[0]
    assert "published-values" not in page
    text = PUBLISHED["table_of"](ROOT / "docs/published_values.toml")
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
