import inspect

import numpy as np
import pytest
from scipy.sparse import csr_array, issparse

from twinsolve.datasets import make_union_of_subspaces

from ..public import public

X, y = make_union_of_subspaces(12, n_subspaces=3, noise=0.1, random_state=0)
OFFERED = {**public("unrolled"), **public("solvers")}
CLUSTERERS = {
    name: thing
    for name, thing in OFFERED.items()
    if inspect.isclass(thing) and hasattr(thing, "fit_predict") and not inspect.isabstract(thing)
}
WIDE = csr_array(np.eye(36, k=1) + np.eye(36, k=-2))
WIDE.indices, WIDE.indptr = WIDE.indices.astype(np.int64), WIDE.indptr.astype(np.int64)
LAM = {"lam": 0.1}
FUNCTIONS = {
    "sparse_self_expression": lambda f: f(X, **LAM).coef,
    "outlier_self_expression": lambda f: f(X, **LAM, lam_outlier=0.1).coef,
    "basis_pursuit_self_expression": lambda f: f(X).coef,
    "admm_self_expression": lambda f: f(X, **LAM, penalty=1.0, max_iter=2).coef,
    "admm_outlier_self_expression": lambda f: (
        f(X, **LAM, lam_outlier=0.1, penalty=1.0, max_iter=2).coef
    ),
    "sparse_code": lambda f: f(X, X, **LAM).coef,
    "sparse_code_path": lambda f: f(X, X, lams=[0.2, 0.1])[-1].coef,
    "omp_self_expression": lambda f: f(X, n_nonzero=3),
    "ksvd": lambda f: f(X, n_atoms=8, n_nonzero=2, n_iter=1, random_state=0)[1],
    "locally_linear_weights": lambda f: f(X, n_neighbors=3),
    "keep_l1_mass": lambda f: f(WIDE, 0.7),
    "keep_largest": lambda f: f(WIDE, 1),
    "scale_by_row_maximum": lambda f: f(WIDE),
    "unit_rows": lambda f: f(WIDE),
    "symmetric_affinity": lambda f: f(WIDE),
    "nearest_rows_affinity": lambda f: f(WIDE),
}  # fmt: skip


def widths(matrix):
    return {matrix.indices.dtype.itemsize, matrix.indptr.dtype.itemsize}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", CLUSTERERS)
def test_estimators_have_indices_that_scikit_learn_takes(name):
    model = CLUSTERERS[name](3).fit(X)
    for attribute, value in vars(model).items():
        if issparse(value):
            assert widths(value) == {4}, attribute


@pytest.mark.filterwarnings("ignore")
def test_functions_have_indices_that_scikit_learn_takes():
    for name, call in FUNCTIONS.items():
        found = call(OFFERED[name])
        assert not issparse(found) or widths(found) == {4}, name
