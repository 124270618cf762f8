"""`twinsolve check LAYER`: a user's layer by its solver."""

import pytest
from typer.testing import CliRunner

from twinsolve.bench.cli import app

OWN = """
import torch
from twinsolve.unrolled import Attention, Gaussian, Softmax, VisionTransformer

class Wide(Gaussian):
    def bandwidth_for(self, q):
        return 1.5 * super().bandwidth_for(q)

class Deaf(Softmax):
    def check_inputs(self, *args, **options):
        pass

narrow = Gaussian(0.5)

def model():
    return VisionTransformer(8, 2, 1, 3, 8, 1, 2), torch.randn(2, 1, 8, 8)

def shell(dim):
    return Attention(dim, 2, operator=Softmax())

def nothing():
    return 3

def thick():
    return torch.nn.Linear(2, 2)
"""


@pytest.fixture
def check(tmp_path, monkeypatch):
    (tmp_path / "own_layers.py").write_text(OWN)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.chdir(tmp_path)

    def run(*words):
        return CliRunner().invoke(app, ["check", *words])

    yield run
    assert [path.name for path in tmp_path.iterdir() if path.suffix != ""] == ["own_layers.py"]


@pytest.mark.parametrize(
    ("name", "code", "words"),
    [
        ("own_layers:narrow", 0, "Gaussian: 1 holds\n  gaussian-attention [SE-6, identity]: holds"),
        ("twinsolve.unrolled:SparseCoding:lam=0.5,n_iter=3", 0, "SparseCoding: 1 holds\n"),
        ("own_layers:shell:dim=12", 0, "Attention: 1 holds\n"),
        ("own_layers:model", 0, "VisionTransformer: 4 hold"),
        ("own_layers:Wide:bandwidth=1.0", 1, "Wide: 9 broken"),
        ("own_layers:Wide:bandwidth=1.0", 1, "; 25 of 33 laws hold\n"),
        ("own_layers:narrow", 0, "1.0e-10; 33 of 33 laws hold\n"),
        ("own_layers:Deaf", 1, "refused: broken"),
    ],
)
def test_a_layer_is_judged_by_its_solver_and_its_laws(check, name, code, words):
    result = check(name)
    assert result.exit_code == code, result.output
    assert words in result.output


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["softmax"], "layer: must be package.module:name:SETTING=VALUE"),
        (["own_layers:Absent"], "layer: there is no 'own_layers:Absent'"),
        (["own_layers:shell"], "layer: cannot make 'own_layers:shell'"),
        (["own_layers:nothing"], "must make a torch.nn.Module, got a int"),
        (["own_layers:thick"], "no twin is registered for Linear"),
        (["own_layers:thick"], "twinsolve.twins.register adds one, or put in an operator"),
        (["own_layers:thick"], "in one that --load names, as the page Extend shows"),
        (["own_layers:shell:dim=12", "--quick"], "only --seed and --load"),
    ],
)
def test_mistakes_are_named(check, words, message):
    result = check(*words)
    assert result.exit_code == 2
    assert message in " ".join(result.output.replace("│", " ").split())
