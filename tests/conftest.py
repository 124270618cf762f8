import os

# Before NumPy and torch load: on tensors this small, threads cost far more than they give.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import pytest
import torch
from hypothesis import settings

from twinsolve.datasets import data_root

# A warning that torch gives once a process would fail whichever test comes first.
torch.set_warn_always(True)

# The same examples in every run, however long they take; --hypothesis-profile=default draws others.
settings.register_profile("fixed", derandomize=True, deadline=None)
settings.load_profile("fixed")


@pytest.fixture
def real_data():
    """Skip unless the user named a folder with real data sets."""
    if "TWINSOLVE_DATA" not in os.environ:
        pytest.skip("TWINSOLVE_DATA names no folder of data sets")
    return data_root()
