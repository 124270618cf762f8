"""The command `twinsolve speed filters` on small inputs, with the peers that are installed."""

import json
import re
import sys
import time
from dataclasses import replace
from functools import partial

import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_allclose
from PIL import Image
from skimage.metrics import peak_signal_noise_ratio
from threadpoolctl import threadpool_info
from typer.testing import CliRunner

from twinsolve import __version__
from twinsolve.bench import provenance, time_filters
from twinsolve.bench.cli import app
from twinsolve.bench.speed import contest, filters
from twinsolve.bench.speed.contest import Rounds
from twinsolve.bench.speed.figures import draw_quality
from twinsolve.bench.speed.peers import Calls, Contest, ContestCase, Method
from twinsolve.bench.timing import threads

from ..command import run as words_of

# How far another package's result may lie from ours, and why it differs at all.
NEAR = {
    "nlm-7-21": 0.25,  # 8 bits; another box and exponential
    "nlm-5-13": 0.25,  # the same
    "nlm-gaussian-7-21": 0.05,  # another exponential
    "bilateral-disk-11": 1e-5,
    "bilateral-square-11": 0.3,  # position weights that are skewed
    "regression-float64": 1e-10,
    "regression-float32": 1e-4,
    "lle-weights": 1e-6,
}


@pytest.fixture
def small(monkeypatch):
    """Few points and pixels; memory is measured only where the test asks for it."""
    monkeypatch.setattr(filters, "camera", lambda: CAMERA)
    monkeypatch.setattr(filters, "_N_POINTS", 300)
    monkeypatch.setattr(filters, "_N_IMAGES", 2)
    monkeypatch.setattr(contest, "alone", lambda entrant: {"memory_mib": 1.0})
    for name in ("regression-float64", "regression-float32"):
        case = filters.CASES[name]
        make = partial(case.make.func, **case.make.keywords | {"n_points": 1100})
        monkeypatch.setitem(filters.CASES, name, replace(case, make=make))


CAMERA = filters.camera()[100:164, 200:280]


def run(*arguments):
    return CliRunner().invoke(app, ["speed", "filters", *arguments])


@pytest.mark.parametrize("name", [name for name in filters.CASES if name != "set12"])
def test_table_of_every_case(small, name):
    table = time_filters(cases=[name], rounds=2)
    kind = name if name in NEAR else re.sub("-float(32|64)$", "", name)
    assert table.package[0] == "twinsolve"
    assert len(table) > 1
    for row in table.itertuples():
        if row.note:
            assert row.note.endswith("is not installed")
            continue
        assert row.ms_lowest <= row.ms <= row.ms_highest
        assert row.ratio_lowest <= row.ratio <= row.ratio_highest
        assert row.n_jobs == 1
        assert row.dtype == filters.CASES[name].dtype
        if kind in NEAR:
            assert row.difference <= NEAR[kind]
    assert table.ratio[0] == 1
    if kind in ("nlm-7-21", "nlm-5-13"):
        same_patches, theirs = table.psnr[1:3]
        assert_allclose(same_patches, theirs, atol=0.05)
    if name.startswith("lle") and name != "lle-weights":
        assert_allclose(table.cost, table.cost[0], rtol=1e-6, atol=1e-9)
    if name.startswith("graying-svd"):
        assert_allclose(table.log_kappa[0], 0.95 * table.log_kappa[2], rtol=1e-4)  # SK-A1
    if name.startswith("graying"):
        assert_allclose(table.log_kappa[0], table.log_kappa[1], rtol=1e-3)
        assert table.inputs[0] == 2


def test_quality_is_that_of_scikit_image():
    clean, noisy = filters._add_noise([CAMERA / 255], 0, "float32")
    assert noisy[0].dtype == np.float32
    found = filters._measure_quality(clean, noisy, clean)
    expected = peak_signal_noise_ratio(clean[0], noisy[0], data_range=1.0)
    assert_allclose(found["psnr"], expected)
    assert_allclose(expected, 20.17, atol=0.3)  # noise of 25 grey levels
    inside = (slice(10, -10), slice(10, -10))
    assert_allclose(found["difference"], np.abs(noisy[0] - clean[0])[inside].max())
    half = [image / 2 for image in clean]
    assert 0 < filters._measure_quality(clean, half, clean)["ssim"] < 1


def test_blocks_of_numpy_are_the_attention_of_torch():
    q, k, v = np.random.default_rng(0).standard_normal((3, 50, 4))
    found = filters._smooth_in_blocks(q, k, v, s=0.7, block=8)
    assert_allclose(found, filters._smooth_by_attention(q, k, v, s=0.7), atol=1e-12)
    weights = np.exp(-((q[:, None] - k) ** 2).sum(axis=-1) / (2 * 0.7**2))
    assert_allclose(found, weights @ v / weights.sum(axis=1, keepdims=True), atol=1e-12)


def test_patches_hold_every_pixel_once():
    image = np.arange(4 * 6 * 3).reshape(4, 6, 3)
    tokens = filters._cut_patches(image, 2)
    assert tokens.shape == (6, 12)
    assert_allclose(tokens[4].reshape(2, 2, 3), image[2:4, 2:4])


def test_two_threads_join_one(small):
    table = time_filters(cases=["nlm-5-13-float32"], n_jobs=2, rounds=1)
    assert table.method[:2].tolist() == ["twinsolve", "twinsolve, one thread"]
    assert table.n_jobs[:4].tolist() == [2, 1, 2, 1]  # scikit-image offers none
    assert table.difference[1] == 0


def test_memory_is_of_a_fresh_process():
    make = partial(filters.make_regression, n_points=1100, dtype="float32")
    made = make(0, 1)
    memory = contest.alone(Calls(made.methods[0], made.inputs, None))["memory_mib"]
    if sys.platform == "linux":
        assert 1100 * 32 * 4 / 2**20 < memory < 60  # more than the result


def test_set12_runs_every_method_once(small, monkeypatch):
    monkeypatch.setattr(
        filters, "fetch_set12", lambda: type("Set12", (), {"images": [CAMERA / 255] * 2})
    )
    table = time_filters(cases=["set12"], peers=["scikit-image"], rounds=3)
    assert table.method[0] == "twinsolve, defaults"
    assert (table.ms_lowest == table.ms_highest).all()
    assert set(table.package) == {"twinsolve", "scikit-image"}
    assert (table.psnr > 22).all()
    assert "twinsolve, twicing" in set(table.method)


def test_peers_that_are_not_installed_are_said(small, monkeypatch):
    monkeypatch.setattr(filters, "installed", lambda module: None if module == "cv2" else "1")
    table = time_filters(cases=["bilateral-disk-11-float32"], rounds=1)
    assert table.note.tolist() == ["", "cv2 is not installed"]
    assert np.isnan(table.ms[1])


def test_command_writes_its_results_and_resumes(small, tmp_path, monkeypatch):
    monkeypatch.setenv("TWINSOLVE_DATA", str(tmp_path))
    out = tmp_path / "out"
    arguments = ("--output", str(out), "--case", "nlm-5-13-float32", "--rounds", "1")
    result = run(*arguments, "--case", "set12")
    assert result.exit_code == 0, result.output
    text = " ".join(result.output.split())
    for words in (
        "nlm-5-13-float32",
        "scikit-image fast mode",
        " dB, 0.",
        "set12: set12/01.png is not in",
    ):
        assert words in text
    rows = json.loads((out / "table.json").read_text())
    assert rows[0]["memory_mib"] == 1
    assert "| nlm-5-13-float32 | twinsolve | float32 | 1 |" in (out / "summary.md").read_text()
    assert not (out / "quality.png").exists()

    monkeypatch.setattr(filters, "hold", lambda: None)  # nothing is left to compute
    assert run(*arguments).exit_code == 0
    assert isinstance(run(*arguments, "--seed", "1").exception, TypeError)
    monkeypatch.setattr(provenance, "_BLAS", ["another"])
    assert isinstance(run(*arguments).exception, TypeError)


def made_of(*methods, measure=lambda results, first: {}, once=False):
    made = Contest([(1.0,), (2.0,)], [*methods], measure)
    return ContestCase("-", lambda seed, n_jobs: made, "float32", once=once, memory=False)


def test_figure_of_set12(tmp_path):
    quick = Method("quick", "twinsolve", lambda x: x)
    slow = Method("slow", "scikit-image", lambda x: 2 * x)
    case = made_of(quick, slow, measure=lambda found, first: {"psnr": 27 + found[1], "ssim": 0.5})
    rows = filters.hold(case, {"scikit-image": "skimage"}, Rounds(1, 1, 0, None, None))
    table = pd.DataFrame(rows).assign(case="set12")
    assert table.psnr.tolist() == [29, 31]
    draw_quality(table, tmp_path / "quality.png")
    with Image.open(tmp_path / "quality.png") as figure:
        assert figure.size[0] > 800


@pytest.mark.peers
def test_every_method_has_its_own_number_of_threads():
    """OpenCV and torch are told before their first call; libraries of linear algebra as well."""
    cv2 = pytest.importorskip("cv2")
    torch = pytest.importorskip("torch")
    seen = []

    def look(x):
        blas = {lib["num_threads"] for lib in threadpool_info() if lib["user_api"] == "blas"}
        seen.append((cv2.getNumThreads(), torch.get_num_threads(), blas))

    before = torch.get_num_threads()
    case = made_of(Method("a", "opencv", look, 1), Method("b", "torch", look, 2))
    with threads(2):
        filters.hold(case, {"opencv": "cv2", "torch": "torch"}, Rounds(2, 2, 0, None, None))
        assert (cv2.getNumThreads(), torch.get_num_threads()) == (2, 2)
    assert torch.get_num_threads() == before
    # Each warms up on one input; then two rounds, in turns the first, on both inputs.
    assert [count for count, *_ in seen] == [1, 2, 1, 1, 2, 2, 2, 2, 1, 1]
    assert all(in_torch == count for count, in_torch, _ in seen)
    assert all(max(blas) <= count for count, _, blas in seen)


def test_first_calls_are_not_timed():
    calls = []

    def slow_at_first(x):
        time.sleep(0.2 if not calls else 0)
        calls.append(x)

    case = made_of(Method("a", "twinsolve", slow_at_first), once=True)
    (row,) = filters.hold(case, {}, Rounds(3, 1, 0, None, None))
    assert row["ms"] < 100
    assert calls == [1.0, 1.0, 2.0]


def test_bad_settings_are_named():
    with pytest.raises(ValueError, match="cases: must name at least one"):
        time_filters(cases=[])
    for wrong in ({"rounds": 0}, {"n_jobs": 0}, {"seed": -1}):
        with pytest.raises(ValueError, match="rounds, n_jobs: must be >= 1 and seed >= 0"):
            time_filters(cases=[], **wrong)


def test_a_case_whose_data_are_missing_is_said_even_alone(tmp_path, monkeypatch):
    monkeypatch.setenv("TWINSOLVE_DATA", str(tmp_path))
    for command, case, file in (
        ("filters", "set12", "set12/01.png"),
        ("self-expression", "coil-20", "COIL20.mat"),
    ):
        said = words_of("speed", command, "--case", case, "--output", tmp_path / command)
        assert f"{case}: {file} is not in" in said


def test_the_version_of_a_source_tree_is_known(monkeypatch):
    monkeypatch.setattr(contest, "_distributions", dict)
    assert contest.installed("twinsolve") == __version__
