"""Matching pursuit by updates of correlations, beside products with all atoms."""

import numpy as np
import pytest
from numpy.testing import assert_allclose

from twinsolve.solvers.sparse_coding import matching_pursuit
from twinsolve.solvers.sparse_coding.matching_pursuit import pursue_rows


def draw(n=60, m=50, p=20, seed=0):
    rng = np.random.default_rng(seed)
    return rng.standard_normal((n, p)), rng.standard_normal((m, p))


def nearly_equal_atoms():
    """Pairs of atoms that float32 cannot tell apart: the second leans a little to the signals."""
    Y, D = draw()
    return Y, np.concatenate([D, D + 1e-8 * Y[: len(D)] + 1e-9 * D])


def nearly_dependent_atoms():
    """Correlations with what is left of atoms beside the basis lose their digits in float32."""
    Y, D = draw()
    return Y, np.concatenate([D[:5] + 1e-6 * draw(seed=1)[1][:5], D])


def atoms_of_all_lengths():
    Y, D = draw()
    return Y * 1e20, D * 10.0 ** np.linspace(-40, 10, len(D))[:, None]


def short_atoms_beside_long_ones():
    """Rounding of correlations with the long ones exceeds those with the short ones."""
    Y, D = draw()
    return Y, D * np.where(np.arange(len(D)) < 3, 1e10, 1e-40)[:, None]


def smooth_atoms():
    """Wide bumps, each nearly a sum of the others; none has two at the same distance."""
    at, centres = np.linspace(0, 1, 20), np.linspace(0, 1, 45) ** 1.1
    return draw()[0], np.exp(-4 * (at - centres[:, None]) ** 2)


def small_residuals():
    """Signals of coefficients that fall by a factor of 100, whose last atoms are found late."""
    _, D = draw(m=30)
    rng = np.random.default_rng(1)
    C = np.zeros((60, 30))
    for c in C:
        c[rng.permutation(30)[:5]] = 100.0 ** -np.arange(5)
    return C @ D, D


def duplicates():
    Y, D = draw()
    return Y, np.repeat(D, 2, axis=0)


def signals_in_few_atoms():
    _, D = draw()
    return D[:25] + D[25:], D


MAKERS = [
    nearly_equal_atoms, nearly_dependent_atoms, atoms_of_all_lengths, small_residuals, duplicates,
    short_atoms_beside_long_ones, smooth_atoms, signals_in_few_atoms, draw,
]  # fmt: skip


@pytest.mark.parametrize("tol", [0.0, 1e-6])
@pytest.mark.parametrize("make", MAKERS)
def test_updates_find_the_atoms_that_products_find(make, tol, monkeypatch):
    Y, D = make()
    found = pursue_rows(Y, D, 8, tol)
    own = pursue_rows(D, D, 8, tol, exclude_self=True)
    monkeypatch.setattr(matching_pursuit, "MOST_STORED", 0)
    assert_same(found, pursue_rows(Y, D, 8, tol))
    assert_same(own, pursue_rows(D, D, 8, tol, exclude_self=True))


def assert_same(found, expected):
    assert found.nnz
    assert np.array_equal(found.indptr, expected.indptr)
    assert np.array_equal(found.indices, expected.indices)
    assert_allclose(found.data, expected.data, rtol=1e-13)  # of the same triangle


def test_late_residuals_are_found_by_correlations_computed_anew(monkeypatch):
    """Where they are not, every atom is compared: a hundred times slower, and as right."""
    Y, D = small_residuals()
    compared = []
    correlate = matching_pursuit._correlate.py_func

    def count(*arguments):
        compared.append(1)
        correlate(*arguments)

    for name in ("_grow_to_end", "_strongest", "_top", "_exclude", "_update", "_add"):
        kernel = getattr(matching_pursuit, name)
        monkeypatch.setattr(matching_pursuit, name, kernel.py_func)
    monkeypatch.setattr(matching_pursuit, "_correlate", count)
    found = pursue_rows(Y[:20], D, 5, 0.0)
    assert_allclose(found @ D, Y[:20], atol=1e-12)
    assert 0 < len(compared) <= 2 * 20
