"""The command `twinsolve speed steps` on small inputs."""

from dataclasses import replace
from functools import partial

import pytest

from twinsolve.bench.speed import contest, steps
from twinsolve.bench.speed.steps import time_steps

SMALL = {
    "omp": {"n_signals": 40, "n_atoms": 30, "n_features": 20, "n_nonzero": 3},
    "spectral": {"n_points": 600, "noise": 0.02},
    "robust": {"n_subspaces": 3, "n_points": 60},
    "lam": {"n_points": 400},
}
# Labels may differ in some points, and the growing penalty stops short of the optimum.
MOST = {"spectral": 0.05, "robust": 0.01}


@pytest.mark.parametrize("name", list(steps.CASES))
def test_methods_agree(name, monkeypatch):
    case = steps.CASES[name]
    small = partial(case.make.func, **SMALL[name.split("-")[0]])
    monkeypatch.setitem(steps.CASES, name, replace(case, make=small))
    monkeypatch.setattr(contest, "alone", lambda entrant: {"memory_mib": 1.0})
    table = time_steps(cases=[name], rounds=1)
    assert list(table.columns) == steps.COLUMNS
    assert table.package[0] == "twinsolve"
    assert (table.ratio[0], table.difference[0], table.memory_mib[0]) == (1, 0, 1)
    ran = table[table.note == ""]
    assert len(ran) > 1
    ran = ran[ran.package != "spams"]  # it chooses atoms by another rule
    assert ran.difference.max() < MOST.get(name.split("-")[0], 1e-9)
    missing = table[table.note != ""]
    assert missing.note.str.endswith("is not installed").all()


def test_unknown_names_are_refused():
    with pytest.raises(ValueError, match="cases: must be among"):
        time_steps(cases=["no"])
    with pytest.raises(ValueError, match="peers: must be among"):
        time_steps(peers=["no"])
