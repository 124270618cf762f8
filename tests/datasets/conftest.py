import pytest


@pytest.fixture(autouse=True)
def cache(monkeypatch, tmp_path_factory):
    """Where archives are kept unpacked: a folder of the test's own."""
    folder = tmp_path_factory.mktemp("cache")
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder))
    return folder / "twinsolve" / "unpacked"
