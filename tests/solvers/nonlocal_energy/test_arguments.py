"""Matrices and functions are checked; of other arguments see tests/solvers/test_bad_input.py."""

import numpy as np
import pytest
from scipy.sparse import csr_array

from twinsolve.solvers import nonlocal_energy

rng = np.random.default_rng(0)
TOKENS, OTHER = rng.standard_normal((2, 5, 2))
WEIGHTS = np.ones((5, 5))
WALK = np.full((5, 5), 0.2)
ENERGY = {"f": TOKENS, "K": WEIGHTS, "lam": 1.0, "fidelity": "degree"}
ALLOWED = {
    "energy_gradient": {"u": OTHER} | ENERGY,
    "exact_gradient_flow": ENERGY | {"time": 1.0},
    "gradient_flow": ENERGY | {"n_iter": 3, "step": 0.1},
    "minimize_energy": ENERGY | {"tol": 1e-6, "max_iter": 100},
    "neutreno_fixed_point": {"f": TOKENS, "A": WALK, "lam": 0.5, "tol": 1e-6, "max_iter": 100},
    "neutreno_iteration": {"f": TOKENS, "A": WALK, "lam": 0.3, "n_iter": 3},
    "neutreno_lam_limit": {"K": WEIGHTS},
    "neutreno_spectral_radius": {"A": WALK, "lam": 0.5},
    "random_walk_limit": {"values": TOKENS, "A": WALK},
    "random_walk_rate": {"A": WALK},
    "random_walk_values": {"values": TOKENS, "A": WALK, "n_steps": 3},
    "regularized_energy": {"u": OTHER} | ENERGY,
    "smoothness": {"u": OTHER, "K": WEIGHTS},
    "smoothness_gradient": {"u": OTHER, "K": WEIGHTS},
    "stationary_distribution": {"A": WALK},
}
TAKE_FUNCTIONS = {
    "gradient_flow", "minimize_energy", "neutreno_fixed_point", "neutreno_iteration",
    "random_walk_values",
}  # fmt: skip


def call(name, **changed):
    return getattr(nonlocal_energy, name)(**ALLOWED[name] | changed)


def having(*arguments):
    return [(name, a) for name, allowed in ALLOWED.items() for a in arguments if a in allowed]


def test_tokens_must_be_as_many_as_the_matrix_says():
    for name, argument in having("u", "f", "values"):
        with pytest.raises(ValueError, match=r"^(u|K|A): (has|must be) .*4"):
            call(name, **{argument: TOKENS[:4]})


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
            (good[:, :4], "must be 5 x 5|must be square"),
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
        (lambda u: u[:2], r"must return the shape .* got \(2, 1\)"),
        (lambda u: np.nan * u, "NaN"),
        (lambda u: -2 * u, "must be nonnegative|must sum to 1"),
    ]:
        with pytest.raises(ValueError, match=f"^{argument}: .*({words})"):
            call(name, **{argument: bad})


@pytest.mark.parametrize(("name", "argument"), having("fidelity"))
def test_unknown_fidelities_are_refused(name, argument):
    for bad in ("none", None, ["degree"]):
        with pytest.raises(ValueError, match=r"^fidelity: must be one of \('constant', 'degree'\)"):
            call(name, fidelity=bad)


def test_directed_weights_are_told_what_to_pass():
    with pytest.raises(ValueError, match=r"for directed weights k pass k \+ k\.T"):
        call("smoothness", K=np.triu(WEIGHTS))


def test_rounding_errors_of_the_symmetry_are_averaged_out():
    uneven = WEIGHTS + 1e-14 * rng.standard_normal((5, 5))
    assert call("smoothness", K=uneven) == pytest.approx(call("smoothness"), rel=1e-13)
    even = WEIGHTS + 1e-14 * np.eye(5)
    single = (even + 1e-6 * rng.standard_normal((5, 5))).astype(np.float32)
    assert call("smoothness", K=single) == pytest.approx(call("smoothness"), rel=1e-5)


def test_weights_a_token_must_fit():
    with pytest.raises(ValueError, match=r"^lam: must be a number or hold one entry for each"):
        call("neutreno_fixed_point", lam=np.ones(4))
    with pytest.raises(ValueError, match=r"^K: row 1 is zero"):
        call("neutreno_lam_limit", K=np.diag([1.0, 0.0]))
    with pytest.raises(ValueError, match=r"^u: (has|Found)|columns"):
        call("regularized_energy", u=OTHER[:, :1])
