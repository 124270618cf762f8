"""Searches where the bounds of groups and cells are attained, up to rounding."""

import numpy as np
import pytest

from twinsolve.solvers.kernels.cells import make_cells, violators

KINDS = ["all directions", "few directions", "cone", "integers", "equal entries", "near bases"]


def draw(kind, rng):
    n, p, d = rng.choice([5, 5, 5, 400]), rng.choice([1, 2, 5, 17, 40]), rng.integers(1, 5)
    noise = 10.0 ** rng.uniform(-12, 0)
    atoms = rng.standard_normal((n, p))
    if kind == "few directions":
        atoms = rng.standard_normal((n, d)) @ rng.standard_normal((d, p)) + noise * atoms
    elif kind == "cone":
        atoms = rng.standard_normal(p) + noise * atoms
    elif kind == "integers":
        atoms = rng.integers(-2, 3, (n, p)).astype(float)
        atoms[0] = 1
    elif kind == "equal entries":
        atoms = 0.1 + 1e-3 * rng.integers(0, 2, (n, p))
    elif kind == "near bases":
        atoms = rng.standard_normal((12, p))[rng.integers(0, 12, n)] + 1e-6 * noise * atoms
    if rng.integers(2):
        atoms *= 10.0 ** rng.uniform(-8, 8, (n, 1))
    return np.ascontiguousarray(rng.choice([1, 1e100, 1e-100]) * atoms)


def unit(v):
    return v / max(np.linalg.norm(v), 1e-300)


def aimed(cells, atoms, rng):
    """A residual whose product with an atom is the bound of a cap that it lies in, and that atom.

    Either it is outside of the span, along the atom that is furthest from it. Or its part in the
    span is, seen from the cap's centre, beyond the outermost atom, and the other, if any, along
    that of the atom.
    """
    s = rng.integers(len(cells.first) - 1)
    g = rng.integers(cells.group[s], cells.group[s + 1])
    whole, end = cells.begin[g], cells.begin[g + 1]
    c = rng.integers(whole, end)
    held = cells.atom[cells.start[c] : cells.start[end if c == whole else c + 1]]
    basis = cells.basis[cells.first[s] : cells.first[s + 1]]
    centre = cells.centre[c, : len(basis)]
    units = atoms[held] / np.linalg.norm(atoms[held], axis=1, keepdims=True)
    inside = np.array([unit(a) for a in units @ basis.T])
    left = units - units @ basis.T @ basis
    furthest = (left**2).sum(axis=1).argmax()
    if rng.integers(3) == 0 and left[furthest].any():
        return unit(left[furthest]), held[furthest]
    at = (inside @ centre).argmin()
    cosine = inside[at] @ centre
    angle = np.arccos(np.clip(cosine, -1, 1)) + rng.choice([0, 1e-8, 0.1, 1])
    across = unit(inside[at] - cosine * centre)
    r = (np.cos(angle) * centre + np.sin(angle) * across) @ basis
    return unit(r + rng.choice([0, 1]) * unit(left[at])), held[at]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("nonneg", [False, True])
def test_no_atom_is_missed_where_a_bound_is_attained(kind, nonneg):
    rng = np.random.default_rng(0)
    searches = 0
    for _ in range(40):
        atoms = draw(kind, rng)
        n, p = atoms.shape
        cells = make_cells(atoms)
        lengths, key, index = np.empty(len(cells.first) - 1), np.empty(n), np.empty(n, np.int64)
        error = (p + 2) * 2.0**-53 * np.linalg.norm(atoms, axis=1)  # of a product with a unit r
        for _ in range(25):
            r, j = aimed(cells, atoms, rng)
            products = np.sum(atoms.astype(np.longdouble) * r, axis=1)
            products = products if nonneg else abs(products)
            low = float(products[j] - 2 * error[j])
            if low > 0:
                found, _ = violators(
                    r, low, 0.0, n, -1, index[:0], nonneg, atoms, cells, lengths, key, index
                )  # fmt: skip
                assert {j, *np.flatnonzero(products > low + error)} <= set(index[:found])
                searches += 1
    assert searches > 100
