"""Arrays as users have them, and whether a function leaves them as they were."""

from itertools import pairwise

import numpy as np
from scipy.sparse import coo_array, csr_array, issparse

from twinsolve.solvers import Solution


def read_only(x):
    x = x.copy(order="K")
    x.flags.writeable = False
    return x


def sliced(x):
    wide = x.repeat(2, axis=0).repeat(2, axis=1)
    return wide[::2, ::2]


DENSE = {"read-only": read_only, "Fortran": np.asfortranarray, "slice": sliced}


def unsorted(x, index=np.int32):
    """The matrix with the entries of each row in reverse, as distances to neighbours come."""
    rows = csr_array(x)
    take = np.concatenate([np.arange(*ends)[::-1] for ends in pairwise(rows.indptr)])
    parts = rows.data[take], rows.indices[take].astype(index), rows.indptr.astype(index)
    return csr_array(parts, shape=rows.shape)


def duplicated(x):
    """Each entry as its half, twice, in no order."""
    rows, columns = np.nonzero(x)
    order = np.random.default_rng(0).permutation(2 * len(rows))
    values = np.tile(x[rows, columns] / 2, 2)[order]
    rows, columns = np.tile(rows, 2)[order], np.tile(columns, 2)[order]
    by_row = np.argsort(rows, kind="stable")
    indptr = np.searchsorted(rows[by_row], np.arange(len(x) + 1))
    return csr_array((values[by_row], columns[by_row], indptr), shape=x.shape)


def frozen(x):
    rows = unsorted(x, np.int64)
    for part in parts_of(rows):
        part.flags.writeable = False
    return rows


SPARSE = {
    "sorted": csr_array,
    "unsorted": unsorted,
    "int64": lambda x: unsorted(x, np.int64),
    "duplicates": duplicated,
    "frozen": frozen,
    "coo": coo_array,
}


def parts_of(thing):
    """The arrays of an argument or an answer, if that is no object that describes a problem."""
    if issparse(thing):
        found = [vars(thing)[name] for name in ("data", "indices", "indptr") if name in vars(thing)]
        return found + list(getattr(thing, "coords", ()))
    if isinstance(thing, np.ndarray):
        return [thing]
    if isinstance(thing, Solution):
        thing = tuple(vars(thing).values())
    if isinstance(thing, dict):
        thing = tuple(thing.values())
    return [part for x in thing for part in parts_of(x)] if type(thing) in (tuple, list) else []


def assert_kept(run, given):
    before = [part.tobytes() for part in parts_of(given)]
    answer = run(given)
    assert [part.tobytes() for part in parts_of(given)] == before
    for own in parts_of(answer):
        assert not any(np.shares_memory(own, part) for part in parts_of(given))
    return answer
