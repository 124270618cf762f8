"""Lasso layers in contest: problems, gradients against differences, rows."""

import numpy as np
import pytest

from twinsolve.bench.speed import lasso_layer as speed
from twinsolve.bench.speed.lasso_layer import (
    LassoCase,
    find_slopes,
    gradient_error,
    time_lasso_layer,
)

SMALL = LassoCase(30, 8, 16, 0.3)


def test_atoms_are_near_common_directions_or_not():
    for coherent in (False, True):
        A = LassoCase(4, 16, 80, 0.1, coherent).make(0).A
        near = np.sort(A @ A.T, axis=1)[:, -8:].mean()
        assert (near > 0.9) == coherent


def test_ours_and_those_that_converge_have_the_gradient_of_differences(monkeypatch):
    problem = SMALL.make(0)
    slopes = find_slopes(problem, 0)
    found = speed.ours(problem)
    assert gradient_error(found, slopes) < 1e-7
    assert gradient_error((found[0], *(1.01 * x for x in found[1:])), slopes) > 1e-3
    for layer in (speed.autograd_loop, speed.unrolled, speed.fixed_point):
        codes, *_ = of_layer = layer(problem)
        assert np.abs(codes - found[0]).max() < 1e-8
        assert gradient_error(of_layer, slopes) < 1e-7
    monkeypatch.setattr(speed, "_N_ITER", 3)
    assert gradient_error(speed.autograd_loop(problem), slopes) > 1e-2


@pytest.mark.peers
@pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")  # of cvxpylayers
@pytest.mark.parametrize("name", ["jaxopt", "cvxpylayers"])
def test_at_a_tolerance_peers_have_the_gradient_too(name):
    pytest.importorskip(name)
    problem = SMALL.make(0)
    slopes = find_slopes(problem, 0)
    errors = [
        gradient_error(speed.PEERS[name + end].run(problem), slopes) for end in ("", ", tol=1e-10")
    ]
    assert errors[1] < 1e-7 < errors[0]


def test_table_has_a_row_for_each_layer_and_says_what_is_missing(monkeypatch):
    monkeypatch.setitem(speed.CASES, "small", SMALL)
    missing = speed.Peer("not_there", speed.unrolled, 5)
    monkeypatch.setattr(speed, "PEERS", {"loop": speed.PEERS["autograd loop"], "none": missing})
    monkeypatch.setattr(speed, "alone", lambda entrant: {"memory_mib": entrant.count})
    table = time_lasso_layer(cases=["small"], rounds=1).set_index("method")
    assert list(table.columns) == [c for c in speed.COLUMNS if c != "method"]
    assert list(table.n_signals) == [30, 30, 20, 5]
    assert list(table.memory_mib[:3]) == [30, 30, 20]
    assert np.isnan(table.memory_mib["none"])
    assert table.note["none"] == "not_there is not installed"
    assert table.ratio["twinsolve"] == 1
    assert table.gap["twinsolve"] < 1e-12
    with pytest.raises(ValueError, match="cases: must be among"):
        time_lasso_layer(cases=["no"])
