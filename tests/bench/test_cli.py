"""The command line from end to end, on few and small data sets."""

import json
import os
import re
import sys
from dataclasses import replace
from itertools import islice
from pathlib import Path
from urllib.error import URLError

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image
from sklearn.datasets import _openml
from typer.testing import CliRunner

import twinsolve
from twinsolve.bench import check_twins
from twinsolve.bench.check import samples
from twinsolve.bench.check.lines import draw_deviations
from twinsolve.bench.cli import app
from twinsolve.bench.tables import write_table
from twinsolve.twins import catalogue, trials_of, unregister
from twinsolve.unrolled import Gaussian, SparseCoding
from twinsolve.unrolled.sparse_coding.code_blocks import _restrict_, _shrink_

from .command import run as command

KEYS = {
    "twin", "family", "relation", "evidence", "equation", "data", "task", "case", "dtype",
    "deviation", "tolerance", "tightness", "task_number_solver", "task_number_layer",
    "task_number_nothing", "verdict", "why",
}  # fmt: skip


def shrink(monkeypatch):
    """Fewer tokens and a smaller crop, packaged data only, and of each twin the first law.

    `tests/twins/test_subjects.py` has them all.
    """
    monkeypatch.setattr(samples, "_N_TOKENS", 64)
    monkeypatch.setattr(samples, "_CROP", 12)
    monkeypatch.delenv("TWINSOLVE_DATA", raising=False)
    monkeypatch.setattr(
        "twinsolve.bench.check.checks.trials_of", lambda *given: islice(trials_of(*given), 1)
    )


_SOME = {
    "gaussian-attention", "locally-linear", "sparse-coding-iterates", "self-expression-iterates",
    "nonlocal-means",
}  # fmt: skip


@pytest.fixture
def small(monkeypatch):
    shrink(monkeypatch)


# Every family has some. The README's check runs all.
_MANY = [
    twin for i, twin in enumerate(catalogue()) if i % 6 == 0 or twin.task or twin.name in _SOME
]


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """Result and folder of a quick run of many twins, with seed 1."""
    folder = tmp_path_factory.mktemp("whole") / "out"
    with pytest.MonkeyPatch.context() as monkeypatch:
        shrink(monkeypatch)
        monkeypatch.setattr("twinsolve.bench.check.checks.catalogue", lambda: _MANY)
        return run("--output", str(folder), "--seed", "1", "--quick"), folder


@pytest.fixture
def few(small, monkeypatch):
    """Some twins of several families, for what does not depend on which they are."""
    twins = [twin for twin in catalogue() if twin.name in _SOME]
    monkeypatch.setattr("twinsolve.bench.check.checks.catalogue", lambda: twins)
    return twins


def run(*arguments):
    return CliRunner().invoke(app, ["check", *arguments])


def test_check_passes_and_writes_its_results(whole):
    result, folder = whole
    assert result.exit_code == 0, result.output
    rows = json.loads((folder / "table.json").read_text())
    assert all(row.keys() == KEYS for row in rows)
    assert {row["verdict"] for row in rows} == {"holds"}
    for task in ("clustering", "vision"):
        assert len({row["twin"] for row in rows if row["task"] == task}) >= 5
    assert {row["twin"] for row in rows} == {twin.name for twin in _MANY}
    on_data = [row for row in rows if row["task"] is not None]
    with_task = {twin.name for twin in _MANY if twin.task}
    assert {row["twin"] for row in rows if row["case"] == "for its task"} == with_task
    assert {row["data"] for row in on_data} == {"digits", "china"}
    assert {row["data"] for row in rows} - {row["data"] for row in on_data} == {"drawn"}
    without_graph = {"token-statistics", "token-statistics-descent"}  # no pair is compared
    for row in on_data:
        assert row["dtype"] == "float64"
        if (row["twin"] in with_task and row["case"] == "as built") or (
            row["twin"] in without_graph and row["task"] == "clustering"
        ):
            assert row["task_number_solver"] is None
        else:
            assert abs(row["task_number_solver"] - row["task_number_layer"]) <= 0.01
        assert row["tolerance"] <= {"limit": 1.0}.get(row["relation"], 1e-8)
    settings = json.loads((folder / "settings.json").read_text())
    assert settings["settings"]["seed"] == 1
    assert "torch" in settings["versions"]
    summary = (folder / "summary.md").read_text()
    assert all(f"| {twin.name} |" in summary for twin in _MANY)
    with Image.open(folder / "deviations.png") as figure:
        assert figure.size[0] > 800
    verdict = f"{len(rows)} of {len(rows)} rows hold"
    assert verdict in result.output
    assert verdict in summary
    start = result.output.splitlines()[0].index("of case")
    assert start < 105
    for twin in _MANY:  # a line each, nothing cut off
        (line,) = (x for x in result.output.splitlines() if x.split()[:1] == [twin.name])
        own = [row for row in rows if row["twin"] == twin.name]
        assert line[:start].split()[-1] == "holds"
        assert line[start:] in {row[name] for row in own for name in ("data", "case")}
        assert twin.relation.name in line
        assert twin.evidence in line


FAULTS = {
    "threshold scaled by 2": (
        "sparse_coding.code_blocks._shrink_",
        lambda z, one_sided: _shrink_(z / 2, one_sided) * 2,
    ),
    "diagonal left in": (
        "sparse_coding.code_blocks._restrict_",
        lambda codes, block, hidden, settings: _restrict_(
            codes, block, hidden, settings._replace(zero_diagonal=False)
        ),
    ),
    "bandwidth squared wrongly": (
        "kernel_smoothing.gaussian.Gaussian.bandwidth_for",
        lambda self, q, right=Gaussian.bandwidth_for: right(self, q) ** 2,
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_in_the_layer_alone_fails_the_check(few, tmp_path, monkeypatch, fault):
    target, value = FAULTS[fault]
    monkeypatch.setattr(f"twinsolve.unrolled.{target}", value)
    result = run("--output", str(tmp_path), "--data", "digits")
    assert result.exit_code == 1, result.output
    failed = {row["twin"] for row in json.loads((tmp_path / "table.json").read_text())
              if row["verdict"] == "broken"}  # fmt: skip
    assert "as built on digits (float64): deviation" in result.output
    expected = "gaussian-attention" if "bandwidth" in fault else "self-expression-iterates"
    assert expected in failed
    assert "locally-linear" not in failed


def test_a_layer_that_raises_fails_its_rows_and_hides_no_others(few, tmp_path, monkeypatch):
    def broken(*args, **kwargs):
        raise RuntimeError("out of order")

    monkeypatch.setattr(SparseCoding, "forward", broken)
    result = run("--output", str(tmp_path))
    assert result.exit_code == 1
    assert "RuntimeError: out of order" in result.output
    rows = json.loads((tmp_path / "table.json").read_text())
    broken_twins = {twin.name for twin in few if twin.layer is SparseCoding}
    broken_rows = [
        row for row in rows if row["twin"] in broken_twins and "matrix" not in row["case"]
    ]
    assert {row["verdict"] for row in broken_rows} == {"broken"}
    assert all(row["deviation"] is None for row in broken_rows)
    others = {row["verdict"] for row in rows if row["family"] == "kernel_smoothing"}
    assert others == {"holds"}


def test_nothing_but_broken_layers_still_makes_a_table(few, monkeypatch):
    monkeypatch.setattr("twinsolve.bench.check.checks._Run.measure", lambda *a: 1 / 0)
    monkeypatch.setattr("twinsolve.bench.check.checks._measure_trial", lambda *a: 1 / 0)
    table = check_twins()
    assert set(table) >= KEYS
    assert set(table.verdict) == {"broken"}
    assert set(table.why) == {"ZeroDivisionError: division by zero"}


def test_numbers_that_are_not_finite_are_null(tmp_path):
    table = pd.DataFrame({"deviation": [np.inf, np.nan, 1e-15], "holds": [False, False, True]})
    write_table(table, tmp_path)
    rows = json.loads((tmp_path / "table.json").read_text())
    assert [row["deviation"] for row in rows] == [None, None, 1e-15]
    draw = table.assign(twin="a", family="b", task="vision", dtype="float64", tolerance=1.0)
    draw_deviations(draw, tmp_path / "figure.png")
    with Image.open(tmp_path / "figure.png") as figure:
        assert figure.size[0] > 800


def test_an_incomplete_data_root_is_left_out(tmp_path, monkeypatch):
    (tmp_path / "set12").mkdir()
    monkeypatch.setenv("TWINSOLVE_DATA", str(tmp_path))
    assert len(samples.check_samples(0)) == 4


def test_load_registers_twins_of_the_users_own(few, tmp_path, monkeypatch):
    (tmp_path / "my_twins.py").write_text(
        "from twinsolve.solvers import smoother_matrix\n"
        "from twinsolve.unrolled import Gaussian\n"
        "from twinsolve.twins import Identity, Twin, head_value, register\n"
        "register(Twin(name='mine', family='mine', relation=Identity(), equation='-', source='-',\n"
        "    layer=Gaussian, build=lambda q, k, v: Gaussian(1.0).double(),\n"
        "    solve=lambda layer, call:\n"
        "        smoother_matrix(\n"
        "            call.q, call.k, bandwidth=head_value(layer.bandwidth, call.head)) @ call.v))\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(
        "twinsolve.bench.check.checks.catalogue",
        lambda: [*few, *(t for t in catalogue() if t.name == "mine")],
    )
    for source in ("my_twins", "my_twins.py"):
        try:
            result = run("--load", source, "--twin", "mine", "--output", "out")
            assert result.exit_code == 0, result.output
            rows = json.loads((tmp_path / "out" / "table.json").read_text())
            assert {row["twin"] for row in rows} == {"mine"}
            on_data = sorted((row["data"], row["dtype"]) for row in rows if row["data"] != "drawn")
            assert on_data == [
                ("china", "float32"), ("china", "float64"), ("digits", "float32"),
                ("digits", "float64"), ("flower", "float64"), ("subspaces", "float64"),
            ]  # fmt: skip
        finally:
            unregister("mine")
            sys.modules.pop("my_twins", None)
    result = run("--load", "no_such_module")
    assert result.exit_code == 2
    assert "no_such_module" in result.output


def test_seed_changes_the_data_and_repeats(few):
    first, again, other = (check_twins(seed=seed, quick=True) for seed in (0, 0, 1))
    assert first.equals(again)
    assert not first.task_number_solver.equals(other.task_number_solver)
    with pytest.raises(ValueError, match="seed: must be >= 0"):
        check_twins(seed=-1)


def test_rows_do_not_depend_on_random_numbers_drawn_before_nor_draw_any(small, monkeypatch):
    def draw(*inputs):
        return Gaussian(1 + float(torch.rand(())))

    drawing = replace(next(t for t in catalogue() if t.name == "gaussian-attention"), build=draw)
    monkeypatch.setattr("twinsolve.bench.check.checks.catalogue", lambda: [drawing])
    before = torch.random.get_rng_state()
    first = check_twins(data=["digits"])
    assert before.equal(torch.random.get_rng_state())
    torch.rand(())
    assert first.equals(check_twins(data=["digits"]))


def test_is_held_to_twins_families_and_data_by_name(small):
    table = check_twins(twins=["softmax-attention", "ridge-attention"], data=["digits"])
    assert set(table.twin) == {"softmax-attention", "ridge-attention"}
    assert set(table.data) == {"digits"}
    table = check_twins(families=["conditioning"], data=["drawn", "china"])
    assert set(table.family) == {"conditioning"}
    assert set(table.data) == {"drawn", "china"}
    quick = check_twins(twins=["softmax-attention"], quick=True)
    assert set(quick[quick.data != "drawn"].data) == {"digits", "china"}
    assert set(quick[quick.data != "drawn"]["dtype"]) == {"float64"}


def test_rows_do_not_depend_on_the_number_of_processes_and_come_as_they_are_done(few):
    seen = []
    one, two = check_twins(), check_twins(n_jobs=2, progress=seen.append)
    assert one.equals(two)
    assert sorted(rows.twin.iloc[0] for rows in seen) == sorted(twin.name for twin in few)
    assert sum(len(rows) for rows in seen) == len(two)


@pytest.mark.parametrize("twins", [_SOME, pytest.param(None, marks=pytest.mark.slow)])
def test_real_data_join_when_the_data_root_has_them(real_data, monkeypatch, twins):
    if twins is not None:
        shrink(monkeypatch)
        monkeypatch.setenv("TWINSOLVE_DATA", str(real_data))
        chosen = [twin for twin in catalogue() if twin.name in twins]
        monkeypatch.setattr("twinsolve.bench.check.checks.catalogue", lambda: chosen)
    found = samples.check_samples(0)
    assert {sample.name for sample in found} == {
        "digits", "subspaces", "china", "flower", "yale-b", "set12-01",
    }  # fmt: skip
    table = check_twins()
    assert set(table.verdict) == {"holds"}
    assert set(table.data) >= {"yale-b", "set12-01"}


def test_help_explains_itself():
    assert "check" in command("--help")
    said = command("check --help")
    words = ("--twin", "--family", "--data", "--quick", "--seed", "--output", "--load", "--n-jobs")
    assert not [word for word in (*words, "TWINSOLVE_DATA", "status is 1") if word not in said]


WRONG = [
    (("nothing",), "No such command 'nothing'"),
    (("check", "--seed", "-1"), "Invalid value for .--seed."),
    (("check", "--output", "file"), "--output: file: .*file is not a folder"),
    (("check", "--output", "locked"), "--output: locked: .* may not be written to"),
    *(
        ((*command, "--load", source), f"--load: '{source}' is neither a Python file nor a module")
        for command, source in (
            (("check",), "./own.py"),
            (("speed", "attention"), "./own.py"),
            (("check",), ""),
        )
    ),
    *(
        (("check", option, name), f"^(?!.*evidence).*{words}")
        for option, name, words in (
            ("--twin", "softmax", "twins: there is no 'softmax'; close ones are softmax-"),
            ("--twin", "nope", r"there is no 'nope'; twinsolve.twins.catalogue\(\) lists all"),
            ("--family", "smoothing", "families: there is no 'smoothing'; close ones are"),
            ("--family", "nope", "there is no 'nope'; there are associative_memory, boosting, "),
            ("--data", "digit", "data: there is no 'digit'; close ones are digits"),
            ("--data", "nope", "data: there is no 'nope'; there are digits, .*, drawn"),
        )
    ),
    (("check", "--n-jobs", "0"), "--n-jobs.: must be -1 or at least 1, got 0"),
    (("check", "--load", "broken"), "--load: 'broken': SyntaxError"),
    (("check", "--load", "raising"), "--load: 'raising': KeyError: 'no such twin'"),
    (("cluster", "mnist"), "mnist/train-images-idx3-ubyte.*is not in .*Source: MNIST.*no network"),
    (("cluster", "emnist:split=letters"), "emnist-letters-train-images.*is not in .*Source: EMN"),
    (("cluster", "hopkins"), "hopkins155/NAME/NAME_truth.mat is not in .*Source: Hopkins"),
    (("cluster", "yaleb-2"), "ExtendedYaleB.mat is not in .*Source: Extended Yale B"),
    (
        ("cluster", "cifar10", "--data-home", "file"),
        "cifar-10-images.tar.xz is not in file.*Source",
    ),
    (("cluster", "--preset", "mnist"), "is not in .*Source"),
    (("cluster", "--preset", "fast"), "preset: must be among quick"),
    (("cluster", "digit"), "there is no file 'digit'.*close ones are digits"),
    (("cluster", "."), "data: there is no file"),
    (("cluster", "no/such.npz"), "no file 'such.npz' in .*no, .*these are digits"),
    (("cluster", "bare.csw"), "close ones are bare.csv"),
    (("cluster", "digits:40"), "settings are NAME=VALUE"),
    (("cluster", "synthetic:random_state=1"), "synthetic has no setting 'random_state'"),
    (("cluster", "yaleb-2:load=1"), "yaleb-2 has no setting 'load'"),
    (("cluster", "hopkins:trial=1"), "hopkins has no setting 'trial'"),
    (("cluster", "file"), "path: must end in .csv, .tsv, .txt, .dat or .data, plain or with .gz;"),
    (
        ("cluster", "bare.csv"),
        "bare.csv: holds no labels: name them by target_key, or say how many clusters",
    ),
    (("cluster", "bare.csv:target_key=z"), "target_key: no column 'z'"),
    (("cluster", "bare.csv:colour=z"), "bare.csv has no setting .colour.*bare.csv:colour=z"),
    (("cluster", "cut.h5"), "cut.h5: truncated, corrupted or no HDF5 file"),
    (("cluster", "my-images-idx3-ubyte"), "my-images-idx3-ubyte: is no IDX file"),
    (("cluster", "mnist:subset=rain"), "subset: must be 'train', 'test' or 'all', got 'rain'"),
    (("cluster", "mnist:part=test"), "mnist has no setting 'part'"),
    (("cluster", "mnist:data_home=x"), "mnist has no setting .data_home."),
    (("cluster", "emnist:split=x"), "split: must be one of"),
    (("cluster", "digits:subset=test"), "digits has no setting .subset"),
    (
        ("cluster", "digits:n_points=few"),
        "n_points: must be a whole number in .1, 1797., got 'few'",
    ),
    (("cluster", "digits:n_points=a b"), "cannot read 'a b'"),
    (("cluster", "synthetic:noise=loud"), "cannot make trial .* of synthetic:noise=loud"),
    (("cluster", "digits", "--method", "SSD"), "method: must be package.module:Class or among"),
    (("cluster", "digits", "--method", "ssc"), "close ones are SSC"),
    (
        ("cluster", "digits", "--method", "SSC:gama=1"),
        "SSC has no setting 'gama'; it has affinity.*close ones are gamma",
    ),
    (("cluster", "digits", "--method", "attention (softmx)"), "close ones are softmax"),
    (("cluster", "digits", "--method", "attention (ridge):gamma=1"), "it has temperature"),
    (("cluster", "digits", "--method", "sklearn.decomposition:PCA"), "has no fit_predict"),
    (("cluster", "digits", "--preset", "quick"), "--preset quick: cannot be combined with DATA"),
    (("cluster", "--affinity", "symmetrize"), "preset quick: cannot be combined with --affinity"),
    (("cluster", "digits", "--method", "./own:X"), "cannot make './own:X': TypeError"),
    (("cluster", "digits", "--method", "broken:X"), "cannot make 'broken:X': SyntaxError"),
    (
        ("cluster", "digits", "--affinity", "cluster-qr"),
        "cluster-qr behind a step; got 'cluster-qr'",
    ),
    (("cluster", "digits", "--affinity", "PP9"), "affinity: must be among keep-mass"),
    (("cluster", "digits", "--features", "colour"), "features: must be among raw"),
    (("cluster", "digits", "--seeds", "0"), "Invalid value for .--seeds."),
    (("cluster", "digits", "--n-jobs", "-2"), "--n-jobs.: must be -1 or at least 1, got -2"),
    (
        ("cluster", "digits", "--output", "/proc/x"),
        "--output: /proc/x: /proc may not be written to",
    ),
    *(
        (("speed", name, "--case", "none"), "cases: must be among .*got .'none'.")
        for name in ("self-expression", "sparse-coding", "filters", "attention", "scale")
    ),
    (("speed", "filters", "--rounds", "0"), "Invalid value for .--rounds."),
    (("speed", "filters", "--output", "file"), "--output: file: .*file is not a folder"),
    (("speed", "scale", "--size", "10"), "sizes: must be one or more numbers, each 100 or more"),
    *(
        (("speed", name, "--peer", "none"), "peers: must be among .*got .'none'.")
        for name in ("self-expression", "sparse-coding", "filters")
    ),
    (("speed", "attention", "--operator", "none"), "operators: must be among"),
    (("speed", "attention", "--dtype", "int8"), "dtype: must be one of float32"),
    (("language", "generated", "--row", "LM:operator=sinkhorn"), "does not support causal masks"),
    (("language", "wikitext2", "--quick"), "leave out wikitext2"),
    (("longrange", "lists"), "data: must be one of listops"),
    (("longrange", "--row", "ConvMixer"), "elliptical; got 'ConvMixer'"),
    (("longrange", "--recipe", "patch_size=2"), "no setting 'patch_size'; close ones are"),
    (("longrange", "listops:size=3"), "listops takes n_train.*not 'size'"),
    (("longrange", "listops", "--quick"), "has data of its own: leave out listops"),
    (("segment", "--row", "softmx"), "got 'softmx'; close ones are softmax"),
    *(
        ((name, "--device", "nowhere", *quick), "device: .nowhere. cannot be used")
        for name, *quick in (("classify",), ("language", "--quick"), ("longrange",), ("segment",))
    ),
    (("speed", "attention", "--device", "nowhere"), "device: .nowhere. cannot be used"),
]


@pytest.mark.parametrize(("arguments", "words"), WRONG, ids=[" ".join(case[0]) for case in WRONG])
@pytest.mark.filterwarnings("ignore:A network error occurred")
def test_wrong_arguments_end_in_one_clear_message_and_leave_nothing(
    arguments, words, tmp_path, monkeypatch
):
    """Offline, with no data, twice: the first run leaves nothing that a second stumbles on."""

    def unreachable(*args, **kwargs):
        raise URLError("no network")

    monkeypatch.setattr(_openml, "urlopen", unreachable)
    monkeypatch.setattr(_openml.time, "sleep", lambda seconds: None)  # before it tries again
    monkeypatch.setattr("os.access", _access_to_all_but_locked)
    monkeypatch.setenv("TWINSOLVE_DATA", str(tmp_path / "data"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.dont_write_bytecode", True)
    (tmp_path / "file").touch()
    (tmp_path / "locked").mkdir()
    (tmp_path / "bare.csv").write_text("a,b\n1,2\n3,4\n")
    (tmp_path / "cut.h5").write_bytes(b"\x89HDF\r\n\x1a\n")
    (tmp_path / "my-images-idx3-ubyte").write_bytes(b"1,2,3,4,5")
    (tmp_path / "broken.py").write_text("class X(:")
    (tmp_path / "raising.py").write_text("raise KeyError('no such twin')")
    before = sorted(tmp_path.rglob("*"))
    quick = (
        ("--method", "k-means") if arguments[0] == "cluster" and "--" not in str(arguments) else ()
    )
    for _ in range(2):
        result = CliRunner().invoke(app, [*arguments, *quick])
        assert result.exit_code == 2, result.output
        assert isinstance(result.exception, SystemExit)
        text = re.sub(r"[\s│╭╮╰╯─]+", "", result.output)
        assert re.search(re.sub(r"\s+", "", words), text), result.output
        assert sorted(tmp_path.rglob("*")) == before


def _access_to_all_but_locked(path, mode, access=os.access):
    """What others than root are told, whom nothing stops."""
    return access(path, mode) and not (Path(path).name == "locked" and mode & os.W_OK)


def test_the_version_is_said():
    assert command("--version") == f"twinsolve {twinsolve.__version__}"
