import os
from pathlib import Path

# Before NumPy and torch load: on tensors this small, threads cost far more than they give.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import pytest
import torch
from hypothesis import settings

# A warning that torch gives once a process would fail whichever test comes first.
torch.set_warn_always(True)

# The same examples in every run, however long they take; --hypothesis-profile=default draws others.
settings.register_profile("fixed", derandomize=True, deadline=None)
settings.load_profile("fixed")

# Only a test that asks for `real_data` finds them: one that does not fails on every machine.
_HIDDEN = "TWINSOLVE_TEST_DATA"  # which the processes of pytest-xdist inherit
if "TWINSOLVE_DATA" in os.environ:
    os.environ[_HIDDEN] = os.environ.pop("TWINSOLVE_DATA")


@pytest.fixture
def real_data(monkeypatch):
    """The folder of real data sets, which TWINSOLVE_DATA named; skips without it."""
    if _HIDDEN not in os.environ:
        pytest.skip("TWINSOLVE_DATA names no folder of data sets")
    monkeypatch.setenv("TWINSOLVE_DATA", os.environ[_HIDDEN])
    return Path(os.environ[_HIDDEN])


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    """Mark what needs `real_data` as `data`, before pytest deselects by marker."""
    for item in items:
        if "real_data" in item.fixturenames:
            item.add_marker("data")
