import inspect
from contextlib import suppress

import numpy as np
import pytest
from scipy.sparse import csr_array, issparse

from twinsolve.datasets import make_union_of_subspaces

from ..public import public
from .test_bad_input import ALLOWED, call

X, y = make_union_of_subspaces(12, n_subspaces=3, noise=0.1, random_state=0)
OFFERED = {**public("unrolled"), **public("solvers")}
CLUSTERERS = {
    name: thing
    for name, thing in OFFERED.items()
    if inspect.isclass(thing) and hasattr(thing, "fit_predict") and not inspect.isabstract(thing)
}


def widths(matrix):
    return {matrix.indices.dtype.itemsize, matrix.indptr.dtype.itemsize}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", CLUSTERERS)
def test_estimators_have_indices_that_scikit_learn_takes(name):
    model = CLUSTERERS[name](3)
    steps = {"max_iter": 2} if "max_iter" in model.get_params() else {}
    model.set_params(**steps).fit(X)
    for attribute, value in vars(model).items():
        if issparse(value):
            assert widths(value) == {4}, attribute


WIDE = csr_array(np.eye(6, k=1) + np.eye(6, k=-2))
WIDE.indices, WIDE.indptr = WIDE.indices.astype(np.int64), WIDE.indptr.astype(np.int64)


@pytest.mark.filterwarnings("ignore")
def test_functions_have_indices_that_scikit_learn_takes():
    sparse = set()
    for name, allowed in ALLOWED.items():
        found = [call(name)]
        if "coef" in allowed:
            with suppress(ValueError):  # some take dense coefficients alone
                found.append(call(name, coef=WIDE))
        parts = [part for x in found for part in (x if isinstance(x, tuple | list) else [x])]
        for part in (getattr(part, "coef", part) for part in parts):
            if issparse(part):
                assert widths(part) == {4}, name
                sparse.add(name)
    assert len(sparse) >= 14
