import ast
import inspect
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from threading import Barrier

import numpy as np
import pandas as pd
import pytest

from twinsolve.bench.jobs import SHOWING, resume_parts, resume_table, source_hash, source_of

SHOWN = (
    "draw_", "write_", "Lines", "number", "markdown", "console", "results_folder", "progress",
    "Cell", "lines_of", "folded", "over_seeds", "with_deviation", "shown", "Output",
    "present_folder", "forget",
)  # fmt: skip


def table(directory):
    return resume_table(lambda: pd.DataFrame({"n": [1, 2]}), {"seed": 0}, directory).n.tolist()


def parts(directory):
    found = resume_parts(lambda: [({"n": 3}, {"X": np.arange(4.0)})], {"seed": 0}, directory)
    return [(row, arrays["X"].tolist()) for row, arrays in found]


@pytest.mark.parametrize("kept", [table, parts])
def test_writers_of_the_same_key_do_not_meet(kept, tmp_path, monkeypatch):
    replace, written = Path.replace, Barrier(2, timeout=30)

    def once_both_have_written(path, target):
        written.wait()
        return replace(path, target)

    monkeypatch.setattr(Path, "replace", once_both_have_written)
    with ThreadPoolExecutor(2) as pool:
        first, second = pool.map(kept, [tmp_path] * 2)
    assert first == second == kept(tmp_path)
    assert len(list(tmp_path.iterdir())) == 1


@pytest.mark.parametrize("share", [0, 1 / 3, 0.9])
@pytest.mark.parametrize("kept", [table, parts])
def test_what_is_kept_damaged_is_made_anew(kept, share, tmp_path):
    whole = kept(tmp_path)
    (path,) = tmp_path.iterdir()
    size = path.stat().st_size
    path.write_bytes(path.read_bytes()[: int(share * size)])
    assert kept(tmp_path) == whole
    assert path.stat().st_size == size


def _as_array(path):
    with path.open("wb") as file:
        np.save(file, np.arange(3))


def _as_scalar(path):
    with path.open("wb") as file:
        np.savez(file, rows="5")


def _as_another_job(path):
    resume_table(lambda: pd.DataFrame({"n": [9]}), {"seed": 1}, path.parent)
    (other,) = {*path.parent.iterdir()} - {path}
    other.replace(path)


@pytest.mark.parametrize("foreign", [_as_array, _as_scalar, _as_another_job])
@pytest.mark.parametrize("kept", [table, parts])
def test_what_is_foreign_is_not_taken_for_what_was_kept(kept, foreign, tmp_path):
    whole = kept(tmp_path)
    (path,) = tmp_path.iterdir()
    foreign(path)
    assert kept(tmp_path) == whole


def hash_of(package, source, file="bench/clustering/clusters.py"):
    path = package / file
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(source)
    source_hash.cache_clear()
    found = source_hash(package)
    path.unlink()
    return found


def test_words_and_lines_of_the_source_decide_nothing(tmp_path):
    source = '"""A."""\ndef f(x):\n    """Twice."""\n    return 2 * x\n'
    same = '"""A file."""\n\n# why\ndef f(x):\n    """Two."""\n\n    return 2 * x  # so\n'
    known = hash_of(tmp_path, source)
    assert hash_of(tmp_path, same) == known
    for other in (source.replace("2", "3"), source.replace("(x)", "(x, y=0)")):
        assert hash_of(tmp_path, other) != known


BARE = "class A:\n    n = 1\n    def f(self, x=2):\n        y = 3\n        return x * y\n"
HINTED = (
    "from typing import TYPE_CHECKING, Any\nfrom collections.abc import Sequence\n"
    "if TYPE_CHECKING:\n    import pandas\n"
    "class A:\n    n = 1\n    def f(self: Any, x: int = 2) -> 'int':\n"
    "        y: int = 3\n        return x * y\n"
)


def test_type_hints_decide_nothing(tmp_path):
    assert hash_of(tmp_path, HINTED) == hash_of(tmp_path, BARE)


@pytest.mark.parametrize(
    ("old", "new"),
    [("x: int = 2", "x: int = 4"), ("y: int = 3", "y: int = 4"), ("n = 1", "n: int = 1")],
    ids=["default", "value", "field of a class"],
)
def test_what_stands_beside_type_hints_decides(old, new, tmp_path):
    assert hash_of(tmp_path, HINTED.replace(old, new)) != hash_of(tmp_path, HINTED)


def test_files_that_only_show_results_decide_none(tmp_path):
    shown = {hash_of(tmp_path, f"x = {i}", f"bench/speed/{n}") for i, n in enumerate(SHOWING)}
    assert len(shown) == 1
    assert len({hash_of(tmp_path, f"x = {i}", "solvers/figures.py") for i in range(2)}) == 2
    source_hash.cache_clear()


def test_no_file_that_computes_takes_a_number_from_one_that_shows():
    bench = Path(inspect.getfile(resume_table)).parent
    aside = (*SHOWING, "__init__.py")
    for path in (path for path in bench.rglob("*.py") if not path.name.endswith(aside)):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and f"{node.module}.py".endswith(SHOWING):
                for alias in node.names:
                    assert alias.name.startswith(SHOWN) or alias.name.endswith("_lines"), path


def _scaled(image, sigma=1.0, *, factor=2.0):
    return factor * image


class Scaled:
    def __init__(self, factor):
        self.factor = factor

    def __call__(self, image):
        return self.factor * image


def test_what_tells_a_function_is_the_same_in_each_process(tmp_path):
    (tmp_path / "named.py").write_text(
        "def known(image, name='a'):\n    return image if name in {'a', 'b', 'c', 'd'} else None\n"
    )
    program = (
        "from twinsolve.bench.jobs import source_of; import named; print(source_of(named.known))"
    )
    found = {
        subprocess.run(
            [sys.executable, "-c", program], capture_output=True, text=True, check=True,
            env=os.environ | {"PYTHONHASHSEED": str(seed), "PYTHONPATH": str(tmp_path)},
        ).stdout
        for seed in (1, 2, 3)
    }  # fmt: skip
    assert len(found) == 1


def test_what_a_function_of_the_users_holds_is_part_of_what_tells_it():
    def around(value):
        return lambda image: image * value

    array, big = np.arange(3.0), np.zeros(2000)
    other = big.copy()
    other[1000] = 1  # which its words leave out
    ways = [
        _scaled, partial(_scaled, factor=3.0), partial(_scaled, factor=4.0), around(1.0),
        around(2.0),
        around(array), around(array + 1),
        partial(_scaled, factor=big), partial(_scaled, factor=other),
        Scaled(2.0), Scaled(3.0),
    ]  # fmt: skip
    assert len({source_of(way) for way in ways}) == len(ways)
    assert source_of(around(array)) == source_of(around(array.copy()))
    assert source_of(around(object())) == source_of(around(object()))


def test_a_default_that_changed_tells_a_function_from_what_it_was():
    first = source_of(_scaled)
    try:
        _scaled.__kwdefaults__["factor"] = 5.0
        assert source_of(_scaled) != first
    finally:
        _scaled.__kwdefaults__["factor"] = 2.0
