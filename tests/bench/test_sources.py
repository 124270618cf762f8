"""The hash of what decides a result changes with it, and with nothing else."""

import json
import runpy
import subprocess
import sys
import threading
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from twinsolve.bench import sources
from twinsolve.bench.sources import code, imported_files, source_hash, source_of

PACKAGE = Path(sources.__file__).parents[1]


def test_any_byte_of_the_source_decides(tmp_path):
    (tmp_path / "bench").mkdir()
    found = set()
    for text in ("x = 1\n", "x = 2\n", "x = 2  # so\n"):
        (tmp_path / "bench/clusters.py").write_text(text)
        source_hash.cache_clear()
        found.add(source_hash(tmp_path))
    assert len(found) == 3
    source_hash.cache_clear()


_FILES = {
    "__init__.py": "",
    "bench/__init__.py": "",
    "bench/study.py": """
from typing import TYPE_CHECKING
if TYPE_CHECKING:
    from .typed import T
def run():
    from ..solvers.lasso import lasso
""",
    "bench/typed.py": "",
    "bench/methods.py": "PATH, WORDS = 'pack.solvers.ridge:Ridge', 'not pack.solvers.lasso'",
    "solvers/__init__.py": "",
    "solvers/lasso.py": "from . import norms\nimport numpy as np",
    "solvers/norms.py": "",
    "solvers/ridge.py": "import pack.solvers.norms",
    "solvers/grid.npz": "",
}
_ALWAYS = {"__init__.py", "bench/__init__.py"}
_SOLVERS = {"solvers/__init__.py", "solvers/norms.py", "solvers/grid.npz"}


@pytest.mark.parametrize(
    ("module", "files"),
    [
        ("bench.study", {"bench/study.py", "solvers/lasso.py", *_SOLVERS}),
        ("bench.methods", {"bench/methods.py", "solvers/ridge.py", *_SOLVERS}),
        ("bench.typed", {"bench/typed.py"}),
    ],
)
def test_what_a_module_imports_is_found(module, files, tmp_path, monkeypatch):
    for name, text in _FILES.items():
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    monkeypatch.setattr(sources, "_PACKAGE", tmp_path)
    monkeypatch.setattr(sources, "_NAME", "pack")
    found = {str(path.relative_to(tmp_path)) for path in imported_files(f"pack.{module}")}
    assert found == _ALWAYS | files


_STUDY = "twinsolve.bench.vision.classification.study"
_CLUSTERS = "twinsolve.bench.clustering.clusters"


@pytest.mark.parametrize("module", [_STUDY, _CLUSTERS])
def test_modules_that_python_loads_are_among_those_found(module):
    names = "[m.__file__ for n, m in sys.modules.items() if n.partition('.')[0] == 'twinsolve']"
    text = f"import json, sys, {module}; print(json.dumps({names}))"
    done = subprocess.run([sys.executable, "-P", "-c", text], check=True, capture_output=True)
    loaded = set(map(Path, json.loads(done.stdout)))
    assert len(loaded) > 100
    assert loaded - imported_files(module) == set()


def test_solvers_of_other_families_decide_clusters_but_no_trained_classifier():
    solvers = {path for path in imported_files(_CLUSTERS) if PACKAGE / "solvers" in path.parents}
    assert PACKAGE / "solvers/clustering/sparse.py" in solvers
    shared = imported_files("twinsolve.bench.study", _STUDY) & solvers
    # What solved layers run, and packages around it.
    families = {path.parent.name for path in shared if path.name != "__init__.py"}
    assert families == {
        "kernels", "solvers", "sparse_coding", "kernel_smoothing", "nonlocal_energy"
    }  # fmt: skip


def test_a_script_may_use_the_whole_package():
    assert code("study")["source"] == code()["source"] != code(_STUDY)["source"]


def _scaled(image, sigma=1.0, *, factor=2.0):
    return factor * image


class Scaled:
    def __init__(self, factor):
        self.factor = factor

    def __call__(self, image):
        return self.factor * image


class Slotted:
    __slots__ = ("factor",)

    def __init__(self, factor):
        self.factor = factor

    def __call__(self, image):
        return self.factor * image


def _closure(factor):
    return lambda image: factor * image


def test_the_file_of_a_users_object_and_what_it_was_made_with_tell_it(tmp_path):
    big = np.zeros(2000)
    other = big.copy()
    other[1000] = 1
    ways = [
        _scaled, partial(_scaled, factor=3.0), partial(_scaled, factor=4.0),
        partial(_scaled, factor=big), partial(_scaled, factor=other), Scaled(2.0), Scaled(3.0),
    ]  # fmt: skip
    assert len({source_of(way) for way in ways}) == len(ways)
    assert source_of(partial(_scaled, factor=big.copy())) == source_of(ways[3])
    for make in (_closure, lambda x: Scaled(x).__call__, Slotted, lambda x: Scaled(lambda: x)):
        assert source_of(make(1)) != source_of(make(2))
        assert source_of(partial(make(1), 3)) != source_of(partial(make(2), 3))
        assert source_of(make(1)) == source_of(make(1))
    with pytest.raises(ValueError, match="holds a lock, which cannot be pickled"):
        source_of(Scaled(threading.Lock()))
    path, found = tmp_path / "own.py", set()
    for value in (2, 3):
        path.write_text(f"def f(x):\n    return {value} * x\nclass C:\n    f = f\n")
        made = runpy.run_path(str(path), run_name="own")
        found |= {source_of(made["f"]), source_of(made["C"]), source_of(made["C"]())}
    assert len(found) == 6
    assert source_of(len) is None
