from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier

import numpy as np
import pandas as pd
import pytest

from twinsolve.bench.results import resume_parts, resume_table


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
