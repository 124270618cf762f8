import runpy
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier

import numpy as np
import pandas as pd
import pytest

from twinsolve.bench import denoise
from twinsolve.bench.jobs import (
    Options,
    resume_parts,
    resume_table,
    run_jobs,
)
from twinsolve.bench.sources import source_hash


@pytest.mark.parametrize("folder", ["kept", Path("kept")])
def test_a_folder_may_be_named_in_words(folder, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    denoise(methods=["noisy"], directory=folder)
    assert list(Path("kept").rglob("*.npz"))
    assert Options(directory=folder).directory == Path("kept")


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


@pytest.mark.parametrize("share", [0, 0.9])
def test_what_is_kept_damaged_is_made_anew(share, tmp_path):
    whole = parts(tmp_path)
    (path,) = tmp_path.iterdir()
    size = path.stat().st_size
    path.write_bytes(path.read_bytes()[: int(share * size)])
    assert parts(tmp_path) == whole
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
def test_what_is_foreign_is_not_taken_for_what_was_kept(foreign, tmp_path):
    whole = parts(tmp_path)
    (path,) = tmp_path.iterdir()
    foreign(path)
    assert parts(tmp_path) == whole


def test_a_script_beside_the_package_decides_too(tmp_path):
    """The functions of studies stand in scripts, whose helpers lie beside them."""
    (tmp_path / "study.py").write_text("def rows(seed):\n    return [{'n': seed}]\n")
    rows = runpy.run_path(str(tmp_path / "study.py"), run_name="study")["rows"]
    options = Options(directory=tmp_path / "runs")
    for text in ("y = 1\n", "y = 2\n", "y = 2\n"):
        (tmp_path / "helper.py").write_text(text)
        source_hash.cache_clear()
        assert run_jobs(rows, [{"seed": 3}], options).n.tolist() == [3]
    assert len(list((tmp_path / "runs").iterdir())) == 2


def test_an_interrupted_run_says_what_it_keeps(tmp_path):
    def rows(seed):
        if seed == 2:
            raise KeyboardInterrupt
        return [{"n": seed}]

    with pytest.raises(KeyboardInterrupt) as stop:
        run_jobs(rows, [{"seed": n} for n in range(4)], Options(directory=tmp_path))
    (note,) = stop.value.__notes__
    assert note == f"{tmp_path} keeps the results of 2 of 4 jobs; the same call goes on."
    assert len(list(tmp_path.iterdir())) == 2


def test_listeners_are_called_and_decide_nothing(tmp_path):
    heard = []

    def rows(seed, tell):
        tell(seed)
        return [{"n": seed}]

    for tell in (heard.append, lambda seed: heard.append("again")):
        run_jobs(rows, [{"seed": 3}], Options(directory=tmp_path), listeners={"tell": tell})
    assert heard == [3]
