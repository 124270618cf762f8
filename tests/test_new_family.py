"""A family is added by adding its files: nothing else has to change."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOLVER = '''
"""Regression with the Cauchy kernel."""

import numpy as np
from scipy.spatial.distance import cdist


def cauchy_regression(queries, keys, values, *, bandwidth):
    """``sum_j w_ij v_j / sum_j w_ij`` with ``w_ij = 1 / (1 + |q_i - k_j|^2 / bandwidth^2)``."""
    weights = 1 / (1 + cdist(queries, keys, "sqeuclidean") / bandwidth**2)
    return weights @ values / weights.sum(axis=1, keepdims=True)
'''
LAYER = '''
"""Attention by the Cauchy kernel."""

import torch

from .attention import Call, Positive, SoftmaxSmoother


class Cauchy(SoftmaxSmoother):
    """Weights ``1 / (1 + |q_i - k_j|^2 / bandwidth^2)``."""

    def __init__(self, bandwidth, *, num_heads=None, dtype=None):
        super().__init__()
        self.bandwidth = Positive(bandwidth, name="bandwidth", num_heads=num_heads, dtype=dtype)

    def logits(self, call: Call):
        squares = (call.q[..., :, None, :] - call.k[..., None, :, :]).square().sum(dim=-1)
        return -torch.log1p(squares / self.bandwidth() ** 2)


class Wrong(Cauchy):
    """Weights that are squares of these."""

    def logits(self, call: Call):
        return 2 * super().logits(call)
'''
TWIN = '''
"""Twin: regression with the Cauchy kernel."""

from ...solvers.cauchy import cauchy_regression
from ...unrolled.cauchy import Cauchy, Wrong
from ..heads import head_value
from ..registry import Twin, register
from ..relations import Identity


def _solve(layer, call):
    bandwidth = head_value(layer.bandwidth, call.head)
    return cauchy_regression(call.q, call.k, call.v, bandwidth=bandwidth)


for name, layer in (("cauchy-attention", Cauchy), ("wrong-attention", Wrong)):
    register(
        Twin(
            name=name,
            family="cauchy",
            relation=Identity(),
            source="a test",
            layer=layer,
            build=lambda q, k, v, layer=layer: layer(0.5, num_heads=len(q)),
            solve=_solve,
        )
    )
'''


@pytest.fixture
def package(tmp_path):
    """A copy of the package with the files of one more family."""
    copy = tmp_path / "twinsolve"
    for wing in ("solvers", "unrolled", "twins", "datasets", "bench"):
        shutil.copytree(ROOT / wing, copy / wing, ignore=shutil.ignore_patterns("__pycache__"))
    for module in ROOT.glob("*.py"):
        shutil.copy(module, copy)
    for file, text in (("solvers", SOLVER), ("unrolled", LAYER), ("twins/families", TWIN)):
        (copy / file / "cauchy.py").write_text(text)
    return copy


def test_the_check_finds_the_twins_of_a_new_family(package):
    done = subprocess.run(
        [
            *(sys.executable, "-c", "from twinsolve.bench.cli import main; main()"),
            *("check", "--family", "cauchy", "--quick", "--n-jobs", "1"),
            *("--output", str(package.parent / "out")),
        ],
        cwd=package.parent,
        env=os.environ | {"PYTHONPATH": str(package.parent), "PYTHONSAFEPATH": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 1, done.stdout + done.stderr
    row = re.compile(r"  (\S+-attention) .* (holds|broken) ", re.MULTILINE)
    found = dict(row.findall(done.stdout))
    assert found == {"cauchy-attention": "holds", "wrong-attention": "broken"}, done.stdout
