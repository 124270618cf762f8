"""The page of all results: what is read, what it shows, and what it refuses."""

import re
import sys

import numpy as np
import pandas as pd
import pytest
from bokeh.models import ColumnDataSource, LinearAxis

from twinsolve.bench.clustering import matrix_files
from twinsolve.bench.clustering.matrix_files import read_matrices
from twinsolve.bench.provenance import provenance
from twinsolve.bench.report import charts
from twinsolve.bench.report.folders import read_runs

from ..command import run as command
from .made import COEF, LABELS, NUMBERS, make_chosen, make_classified

FETCHED = re.compile(r"<(?:link|script|img|iframe|source)\b[^>]*?\b(?:href|src)=[\"']([^\"']+)")


def test_one_page_shows_every_folder_and_needs_no_other_file(tmp_path):
    make_classified(tmp_path / "results/classify")
    make_chosen(tmp_path / "results/deep/cluster-auto")
    make_classified(tmp_path / "results/classify/runs/of-a-job")
    said = command("report", tmp_path / "results", "--output", tmp_path / "out")
    assert said.startswith("2 folders in ")
    (file,) = (tmp_path / "out").iterdir()
    own = file.read_text().partition("</main>")[0]  # what follows are scripts
    fetched = {url.partition(",")[0] for url in FETCHED.findall(own)}
    assert fetched == {"data:", "data:image/png;base64"}
    assert own.count("<h2>") == 2
    assert "of-a-job" not in own
    for text in (
        "twinsolve cluster mine.csv --auto", "In the folder <code>/home/me/own</code>:",
        "The folder keeps no command line", "10.00 ± 1",
        "labels.csv: 4 rows", "score: 0.750", "gamma=5.0", "torch", "<th>seeds</th><td>2</td>",
        "Measures against settings: table.json", "Measures against settings: candidates.csv",
    ):  # fmt: skip
        assert text in own, text
    assert own.count('class="picture"') == 1
    assert "Settings: data" not in own  # the summary's own list, which a table above shows
    assert "<b>" not in own
    assert "<script>alert" not in own


def test_a_command_line_is_kept_and_may_be_typed_again(tmp_path, monkeypatch):
    assert "command" not in provenance({})
    typed = ["/env/bin/twinsolve", "cluster", "a b.csv", "--affinity", "keep-largest 3"]
    monkeypatch.setattr(sys, "argv", typed)
    monkeypatch.chdir(tmp_path)
    kept = provenance({})
    assert kept["command"] == "twinsolve cluster 'a b.csv' --affinity 'keep-largest 3'"
    assert kept["typed_in"] == str(tmp_path)


def test_a_training_run_shows_its_steps(tmp_path):
    (tmp_path / "settings.json").write_text('{"settings": {"recipe": 1}, "versions": {}}')
    (tmp_path / "metrics.jsonl").write_text('{"step": 1, "loss": 0.5}\n{"step": 2, "loss": 0.25}\n')
    (run,) = read_runs([tmp_path])
    assert run.tables["metrics.jsonl"].to_dict("list") == {
        "step": ["1", "2"],
        "loss": ["0.5", "0.25"],
    }


def test_long_tables_that_the_summary_only_names_are_read(tmp_path):
    make_classified(tmp_path)
    summary = tmp_path / "summary.md"
    summary.write_text(summary.read_text() + "\nAll 600 rows: means.csv.\n")
    for name in ("means.csv", "other.csv"):
        (tmp_path / name).write_text("a,b\n1e-3,\n")
    (run,) = read_runs([tmp_path, tmp_path])
    assert {name: table.values.tolist() for name, table in run.tables.items()} == {
        "means.csv": [["1e-3", ""]]
    }


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("settings.json", "{", "settings.json"),
        ("settings.json", '{"settings": {}}', "settings.json"),
        ("table.json", "[{", "table.json"),
        ("matrices.npz", "no file", "matrices.npz"),
    ],
)
def test_a_damaged_file_is_named(tmp_path, name, content, words):
    make_classified(tmp_path / "results")
    (tmp_path / "results" / name).write_text(content)
    said = command("report", tmp_path / "results", "--output", tmp_path / "out", code=2)
    assert words in said.replace(" ", "")
    assert not (tmp_path / "out").exists()


def test_a_folder_without_results_is_named(tmp_path):
    (tmp_path / "empty").mkdir()
    assert "holds no results" in command("report", tmp_path / "empty", code=2)
    assert "is not a folder" in command("report", tmp_path / "absent", code=2)


def test_without_bokeh_the_command_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "bokeh.embed", None)
    monkeypatch.delitem(sys.modules, "twinsolve.bench.report.page", raising=False)
    assert "pip install 'twinsolve[report]'" in command("report", tmp_path, code=2)


def test_matrices_keep_their_largest_entries_and_points_sorted_by_label(tmp_path, monkeypatch):
    monkeypatch.setattr(matrix_files, "MOST_ENTRIES", 5)
    kept = read_matrices(make_chosen(tmp_path / "auto") / "matrices.npz")
    order = np.argsort(LABELS, kind="stable")
    assert kept.numbers.tolist() == NUMBERS[order].tolist()
    assert kept.labels.tolist() == [0, 0, 1, 1]
    assert kept.points[0].tolist() == [[4, 5], [6, 7]]
    coef = kept.matrices[0]
    assert coef.name.endswith("coefficients")
    assert coef.n_entries == 16
    assert coef.values.tolist() == [16, 15, 14, 13, 12]
    assert (coef.values == COEF[order][:, order][coef.rows, coef.columns]).all()
    monkeypatch.setattr(matrix_files, "MOST_VALUES", 15)
    assert read_matrices(make_chosen(tmp_path / "large") / "matrices.npz").points is None


def source_of(layout):
    (source,) = layout.select({"type": ColumnDataSource})
    return source.data


def test_a_chart_has_errors_in_percent_against_the_settings_in_words():
    table = pd.DataFrame(
        {
            "method": ["SSC", "SSC", "EnSC"],
            "settings": ["gamma=20.0", "gamma=5.0", "gamma=5.0, l1_ratio=0.5"],
            "accuracy": [0.5, 0.75, np.nan],
            "nmi": [0.1, 0.2, 0.3],
            "objective": [1.23456, 2.3, 3.4],
            "seed": [0, 1, 2],
        }
    )
    drawn = source_of(charts.draw_chart(table))
    assert drawn["error, %"].tolist()[:2] == [50, 25]
    assert list(drawn["gamma"]) == ["20.0", "5.0", "5.0"]
    assert list(drawn["l1_ratio"]) == ["-", "-", "0.5"]
    assert "objective" not in drawn  # neither a setting nor a measure that we know
    assert "seed" not in drawn
    in_percent = table.drop(columns=["nmi", "settings"]).assign(accuracy=[0.5, 75, 80])
    assert source_of(charts.draw_chart(in_percent))["_y"].tolist() == [99.5, 25, 20]
    assert charts.draw_chart(table[["seed", "accuracy"]]) is None
    assert charts.draw_chart(table[["method"]]) is None


@pytest.mark.parametrize(
    ("words", "ordered"),
    [
        (["1,000", "-", "50", "2e-3"], ["2e-3", "50", "1,000", "-"]),
        (
            ["lam=0.5", "gamma=50", "gamma=5", "-", "lam=0.1"],
            ["gamma=5", "gamma=50", "lam=0.1", "lam=0.5", "-"],
        ),
        (["softmax", "ALiBi"], ["softmax", "ALiBi"]),
        (["k=3, sigma=2", "k=1"], ["k=3, sigma=2", "k=1"]),
    ],
)
def test_settings_are_in_order_of_size(words, ordered):
    assert charts._order(pd.Series(words)) == ordered


def test_numbers_are_in_order_of_size_and_many_rows_are_means(monkeypatch):
    table = pd.DataFrame({"sigma": [25.0, 5.0] * 2, "seed": [0, 0, 1, 1], "psnr": [30, 40, 32, 41]})
    axes = charts.draw_chart(table).select({"type": LinearAxis})
    assert {0: "5", 1: "25"} in [axis.major_label_overrides for axis in axes]
    assert source_of(charts.draw_chart(table))["_x"].tolist() == [1, 0, 1, 0]
    monkeypatch.setattr(charts, "_MOST_ROWS", 3)
    drawn = source_of(charts.draw_chart(table))
    assert dict(zip(drawn["sigma"], drawn["_y"], strict=True)) == {"25": 31, "5": 40.5}
