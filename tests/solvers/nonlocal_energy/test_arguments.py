"""Matrices and functions are checked; of other arguments see tests/solvers/test_bad_input.py."""

import numpy as np
import pytest
from scipy.sparse import csr_array

from ..test_bad_input import ALLOWED, POINTS, PUBLIC, call

TAKE_FUNCTIONS = {
    "gradient_flow", "minimize_energy", "neutreno_fixed_point", "neutreno_iteration",
    "random_walk_values",
}  # fmt: skip


def having(*arguments):
    """Functions of weights or transitions that have one of these arguments."""
    return [
        (name, argument)
        for name, allowed in ALLOWED.items()
        if "nonlocal_energy" in PUBLIC[name].__module__ and allowed.keys() & {"A", "K"}
        for argument in arguments
        if argument in allowed
    ]


def test_tokens_must_be_as_many_as_the_matrix_says():
    for name, argument in having("u", "f", "values"):
        with pytest.raises(ValueError, match=r"^(u|K|A): (has|must be) .*5"):
            call(name, **{argument: POINTS[:5]})


def test_matrices_are_checked():
    for name, argument in having("K", "A"):
        good = ALLOWED[name][argument]
        negative, marked, uneven = good.copy(), good.copy(), good.copy()
        negative[1, 2] = negative[2, 1] = -0.2
        marked[0, 0] = np.nan
        uneven[0, 1] += 1e-3
        for bad, words in [
            (negative, "must be nonnegative, got an entry of -0.2"),
            (marked, "NaN"),
            (uneven, "must be symmetric|must sum to 1"),
            (good[:, :5], "must be 6 x 6|must be square"),
            (good * 1j, "Complex"),
        ]:
            for form in (np.asarray, csr_array):
                with pytest.raises(ValueError, match=f"^{argument}: .*({words})"):
                    call(name, **{argument: form(bad)})


@pytest.mark.parametrize(("name", "argument"), having("K", "A"))
def test_functions_are_taken_or_refused(name, argument):
    good = ALLOWED[name][argument]
    if name not in TAKE_FUNCTIONS:
        with pytest.raises(ValueError, match=f"^{argument}: must be a matrix here"):
            call(name, **{argument: lambda u: good @ u})
        return
    call(name, **{argument: lambda u: good @ u})
    for bad, words in [
        (lambda u: u[:2], r"must return the shape of the tokens"),
        (lambda u: np.nan * u, "NaN"),
        (lambda u: -2 * u, "must be nonnegative|must sum to 1"),
    ]:
        with pytest.raises(ValueError, match=f"^{argument}: .*({words})"):
            call(name, **{argument: bad})


def test_unknown_fidelities_are_refused():
    for name in (name for name, _ in having("K") if "lam" in ALLOWED[name]):
        for bad in ("none", None, ["degree"]):
            with pytest.raises(ValueError, match=r"^fidelity: must be one of \('constant', 'deg"):
                call(name, fidelity=bad)
