"""Every command that takes ``package.module:Object``, and all that can be wrong with it."""

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

from twinsolve.bench.cli import app

MINE = """
import torch
from torch import nn

NUMBER = 3

class Plain:
    pass

class Cosines:
    def __init__(self, n_points):
        self.n_points = n_points

    def fit_predict(self, X):
        return [0] * len(X)

class Needs(nn.Module):
    def __init__(self, width_of_all):
        super().__init__()

class Fails(nn.Module):
    def __init__(self, *args, **settings):
        raise KeyError("no such luck")

    def fit_predict(self, X):
        return [0] * len(X)

class Exits(Fails):
    def __init__(self, *args, **settings):
        raise SystemExit(0)

def nothing(*args, **settings):
    return None

def fails(*args, **settings):
    raise RuntimeError("no such luck")
"""
COMMANDS = {
    "audit": "audit {name} --law determinism",
    "cluster": "cluster points.npz --seeds 1 --method {name}",
    "cluster --auto": "cluster points.npz --auto --method {name}",
    "denoise --noisy": "denoise pictures/a.png --noisy --sigma 25 --method {name}",
    "train-denoiser": "train-denoiser {name} --data pictures --steps 1",
    "classify": "classify digits:n_train=100 --seeds 1 --steps 1 --row {name}",
}
WRONG = {
    "missing_module:X": "missing_module",
    "mine_of_test:Missing": "Missing",
    "mine_of_test:NUMBER": "NUMBER",
    "mine_of_test:Plain": "Plain",
    "mine_of_test:Cosines": "Cosines",
    "mine_of_test:Needs": "Needs",
    "mine_of_test:Fails": "Fails",
    "mine_of_test:Exits": "Exits",
    "mine_of_test:nothing": "nothing",
    "mine_of_test:fails": "fails",
    "raises_of_test:X": "broken on purpose",
    "syntax_of_test:X": "syntax_of_test",
    "exits_of_test:X": "exits_of_test",
    "../mine_of_test:Plain": "../mine_of_test:Plain",
    "mine_of_test:": "mine_of_test",
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    place = tmp_path_factory.mktemp("users")
    for name, text in {
        "mine": MINE,
        "raises": "raise RuntimeError('broken on purpose')",
        "syntax": "def x(:",
        "exits": "raise SystemExit(0)",
    }.items():
        (place / f"{name}_of_test.py").write_text(text)
    np.savez(
        place / "points.npz", X=np.random.default_rng(0).normal(size=(8, 3)), y=np.arange(8) % 2
    )
    (place / "pictures").mkdir()
    for number in "abcdefghijklmnopqrstuv":
        levels = np.arange(48 * 48, dtype=np.uint8).reshape(48, 48)
        Image.fromarray(levels).save(place / f"pictures/{number}.png")
    return place


@pytest.mark.parametrize("command", COMMANDS)
def test_what_is_wrong_with_an_object_is_said_in_a_sentence(command, folder, monkeypatch):
    monkeypatch.chdir(folder)
    monkeypatch.setenv("COLUMNS", "1000")
    for name, word in WRONG.items():
        words = [w.format(name=name) for w in COMMANDS[command].split()]
        output = [] if "--noisy" in words else ["--output", "out"]
        done = CliRunner().invoke(app, [*words, *output])
        assert isinstance(done.exception, SystemExit), (name, done.exception)
        assert done.exit_code > 0, name
        assert word in " ".join(done.output.split()), (name, done.output)
