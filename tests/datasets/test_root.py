"""Data that are missing: what the error names, and that reading leaves the data root as it is."""

import re
from urllib.error import URLError

import pytest
from sklearn.datasets import _openml

from twinsolve import datasets

FETCHERS = [getattr(datasets, name) for name in datasets.__all__ if name.startswith("fetch_")]


def tree(folder):
    return sorted(path.relative_to(folder) for path in folder.rglob("*"))


@pytest.fixture
def offline(monkeypatch):
    def unreachable(*args, **kwargs):
        raise URLError("no network")

    monkeypatch.setattr(_openml, "urlopen", unreachable)
    monkeypatch.setattr(_openml.time, "sleep", lambda seconds: None)  # before it tries again


@pytest.mark.parametrize("root", ["a file", "empty folders"])
@pytest.mark.parametrize("fetch", FETCHERS)
@pytest.mark.filterwarnings("ignore:A network error occurred")
def test_missing_files_are_named_and_nothing_is_made(fetch, root, tmp_path, offline):
    folder = tmp_path / "data" / "root"
    if root == "a file":
        folder.parent.mkdir()
        folder.touch()
    else:
        for name in ("mnist", "set12", "hopkins155", "openml", "fashion-mnist", "emnist"):
            (folder / name).mkdir(parents=True)
        folder.chmod(0o500)
    before = tree(tmp_path)
    with pytest.raises(
        FileNotFoundError,
        match=rf"\S+ is not in {re.escape(str(folder))}\. .*TWINSOLVE_DATA.*Source: \w.*https?://\w",
    ):
        fetch(data_home=str(folder))
    assert tree(tmp_path) == before


def test_the_root_is_the_argument_then_the_variable_then_the_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("TWINSOLVE_DATA", str(tmp_path))
    assert datasets.data_root() == tmp_path
    assert datasets.data_root("elsewhere").name == "elsewhere"
    monkeypatch.delenv("TWINSOLVE_DATA")
    assert datasets.data_root().name == "twinsolve"


def test_what_is_no_folder_is_refused():
    with pytest.raises(TypeError, match="data_home: must be the path of a folder or None, got 3"):
        datasets.data_root(3)
