"""Whatever a command writes is written whole, and what cannot be written is told in a sentence."""

import ast
import errno
import os
import re
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

import twinsolve
from twinsolve.bench.cli import app

from .report.made import make_classified
from .vision.test_segmentation import write_camvid

PACKAGE = Path(twinsolve.__file__).parent
COMMANDS = {
    "check": "check --quick --twin gaussian-attention --n-jobs 1",
    "cluster": "cluster digits:n_points=60 --method k-means --seeds 1",
    "cluster --auto": "cluster digits:n_points=60 --auto --method k-means",
    "denoise": "denoise photographs --method noisy",
    "train-denoiser": "train-denoiser FilterDiffusionDenoiser:n_layers=1 --steps 1 --batch-size 1 "
    "--patch-size 8 --data pictures",
    "classify": "classify digits --seeds 1 --steps 1",
    "inspect": "inspect digits",
    "segment": "segment --row softmax --seeds 1 --steps 1 --data-home .",
    "language": "language generated:n_words=20 --row NeuTRENO --seeds 1 --steps 1",
    "longrange": "longrange listops:n_train=100 --row GRC --seeds 1 --steps 1",
    "audit": "audit gpt2 --law determinism",
    "vectors": "vectors",
    "report": "report",
    "speed": "speed filters --case graying-dct-64 --peer torch --rounds 1",
}


def full(handle):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A present folder with pictures and results, and the folder to which results are written."""
    (tmp_path / "pictures").mkdir()
    for number in range(21):
        Image.fromarray(np.full((8, 8), number, np.uint8)).save(tmp_path / f"pictures/{number}.png")
    make_classified(tmp_path / "results")
    write_camvid(tmp_path, monkeypatch, train=3, val=1, test=1)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    return tmp_path / "out"


def invoke(command):
    run = CliRunner().invoke(app, [*COMMANDS[command].split(), "--output", "out"])
    assert run.exception is None or isinstance(run.exception, SystemExit), run.exception
    return run.exit_code, " ".join(run.output.split())


def test_every_command_is_tried():
    names = {command.name or command.callback.__name__ for command in app.registered_commands}
    known = {command.split()[0] for command in COMMANDS}
    assert {name.replace("_", "-") for name in names} | {"speed"} == known


@pytest.mark.parametrize("command", app.registered_commands)
def test_help_shows_every_word(command):
    """What stands between < and > would be taken for a tag, and not be shown."""
    assert not re.search(r"<\w+>", command.callback.__doc__)


@pytest.mark.parametrize(
    "command",
    [pytest.param(c, marks=pytest.mark.slow) if c == "inspect" else c for c in COMMANDS],
)
def test_a_full_disk_is_a_sentence_and_leaves_no_part_of_a_file(command, place, monkeypatch):
    monkeypatch.setattr(os, "fsync", full)
    code, output = invoke(command)
    assert code == 1, output
    assert "No space left on device. Free space there, or name another folder" in output
    assert "Written to" not in output
    assert not list(place.parent.rglob("*.part"))
    assert not [path for path in place.rglob("*") if path.is_file()]


@pytest.mark.parametrize("command", ["denoise", "cluster"])
def test_what_stands_where_a_file_should_be_is_named(command, place):
    for name in ("runs", "settings.json"):
        code, output = invoke(command)
        assert code == 0, output
        (place / name).rename(place / f"{name}-before")
        (place / name).touch() if name == "runs" else (place / name).mkdir()
        code, output = invoke(command)
        assert code == 1, output
        assert f"out/{name}: " in output
        assert "Remove what stands there, or name another folder" in output
        (place / name).unlink() if name == "runs" else (place / name).rmdir()


_OF_FILES = {"write_text", "write_bytes", "mkstemp", "NamedTemporaryFile", "savefig", "save_file"}


def test_no_file_is_written_but_whole():
    """Beside what goes to the kernel."""
    aside = {"datasets/files.py", "bench/timing.py"}
    for path in (path for wing in ("bench", "datasets") for path in (PACKAGE / wing).rglob("*.py")):
        if path.relative_to(PACKAGE).as_posix() in aside:
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call):
                name = getattr(node.func, "attr", getattr(node.func, "id", ""))
                given = [ast.unparse(argument) for argument in node.args]
                of_file = name == "savefig" and given in (["file"], ["drawn"])  # or of memory
                assert name not in _OF_FILES or of_file, (path, ast.unparse(node))
                assert name != "open" or not {"'w'", "'a'", "'wb'", "'ab'"} & set(given), path
                assert name != "to_csv" or given in ([], ["file"]), path
