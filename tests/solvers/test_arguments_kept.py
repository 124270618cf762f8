"""No public function changes an array that it is given, or shares one with its answer.

The arrays come as users have them: read-only, in Fortran order, as slices; sparse ones with
unsorted indices, indices of 64 bits, duplicates, and read-only.
"""

from inspect import isclass, isfunction, signature

import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy.sparse import csr_array, issparse
from sklearn.base import BaseEstimator
from sklearn.neighbors import NearestNeighbors

from twinsolve.solvers import SparseSubspaceClustering
from twinsolve.solvers.clustering import (
    eigengap_n_clusters,
    scale_by_row_maximum,
    spectral_labels,
    symmetric_affinity,
)

from ..kept import DENSE, SPARSE, assert_kept, duplicated, parts_of, unsorted
from .test_bad_input import ALLOWED, PUBLIC, call

quietly = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
PICTURE = np.random.default_rng(1).random((16, 16))
ATOMS = np.eye(9)
CODED = {"image": PICTURE, "dictionary": ATOMS}
# Functions of images, and what they need.
OF_IMAGES = {
    "bilateral_filter": {"image": PICTURE},
    "bilateral_matrix": {"image": PICTURE},
    "denoise_ista": CODED | {"lam": 0.1, "n_iter": 2},
    "denoise_lasso": CODED | {"lam": 0.1},
    "denoise_low_rank": {"image": PICTURE, "sigma": 0.1, "patch_size": 4, "n_similar": 6},
    "denoise_matching": CODED | {"threshold": 0.1, "n_iter": 2},
    "denoise_patches": {"image": PICTURE, "code": lambda rows: rows, "patch_size": 3},
    "denoise_pursuit": CODED | {"sigma": 0.1},
    "nonlocal_means": {"image": PICTURE, "h": 0.1},
    "nonlocal_means_matrix": {"image": PICTURE, "h": 0.1},
    "oriented_metric": {"image": PICTURE},
}


def assert_close(answer, expected):
    for a, b in zip(values_of(answer), values_of(expected), strict=True):
        assert_allclose(dense(a), dense(b), rtol=1e-5, atol=1e-7)


def values_of(answer):
    answer = getattr(answer, "coef", answer)
    answer = list(answer.values()) if isinstance(answer, dict) else answer
    parts = answer if isinstance(answer, tuple | list) else [answer]
    return [getattr(part, "coef", part) for part in parts]


def dense(x):
    return x.toarray() if issparse(x) else np.asarray(x)


def refused(name, argument, given):
    """Whether the function takes no sparse array there."""
    try:
        call(name, **{argument: given})
    except ValueError as error:
        return "parse" in str(error)
    return False


@quietly
@pytest.mark.parametrize("name", ALLOWED)
def test_arguments_are_left_as_they_were(name):
    seeded = {"random_state": 0} if "random_state" in signature(PUBLIC[name]).parameters else {}
    for argument, good in ALLOWED[name].items():
        if not (isinstance(good, np.ndarray) and good.ndim == 2):
            continue

        def run(x, argument=argument):
            return call(name, **seeded | {argument: x})

        for make in DENSE.values():
            assert_kept(run, make(good))
        if not refused(name, argument, csr_array(good)):
            for make in SPARSE.values():
                assert_close(assert_kept(run, make(good)), run(csr_array(good)))


@quietly
def test_sparse_arguments_are_tried_where_they_are_taken():
    taken = {
        (name, argument)
        for name, allowed in ALLOWED.items()
        for argument, good in allowed.items()
        if isinstance(good, np.ndarray) and good.ndim == 2
        if not refused(name, argument, csr_array(good))
    }
    assert len(taken) > 15
    assert ("spectral_labels", "affinity") in taken


def test_no_function_of_images_is_missing_here():
    functions = {name: f for name, f in PUBLIC.items() if isfunction(f)}
    assert OF_IMAGES.keys() == {
        name for name, f in functions.items() if "image" in signature(f).parameters
    }


@pytest.mark.parametrize("name", OF_IMAGES)
def test_images_and_dictionaries_are_left_as_they_were(name):
    needed = OF_IMAGES[name]
    for argument in needed.keys() & {"image", "dictionary"}:
        for make in DENSE.values():
            given = make(needed[argument])
            assert_kept(lambda x, a=argument: PUBLIC[name](**needed | {a: x}), given)


ESTIMATORS = [
    f
    for f in PUBLIC.values()
    if isclass(f) and issubclass(f, BaseEstimator) and "Chosen" not in f.__name__
]


@pytest.mark.parametrize("name", OF_IMAGES)
def test_masked_images_are_refused(name):
    needed = OF_IMAGES[name]
    for argument in needed.keys() & {"image", "dictionary"}:
        masked = np.ma.masked_equal(needed[argument], needed[argument][0, 0])
        with pytest.raises(ValueError, match=f"^{argument}: must not be a masked array"):
            PUBLIC[name](**needed | {argument: masked})


@pytest.mark.parametrize("kind", ESTIMATORS, ids=lambda kind: kind.__name__)
def test_masked_points_are_refused(kind):
    options = {} if "n_clusters" not in signature(kind).parameters else {"n_clusters": 2}
    X = np.ma.masked_greater(np.random.default_rng(0).standard_normal((16, 4)), 1.0)
    with pytest.raises(ValueError, match="X: must not be a masked array"):
        kind(**options).fit(X)


@quietly
@pytest.mark.parametrize("kind", ESTIMATORS, ids=lambda kind: kind.__name__)
def test_estimators_leave_their_points_as_they_were(kind):
    options = {} if "n_clusters" not in signature(kind).parameters else {"n_clusters": 2}
    X = np.random.default_rng(0).standard_normal((16, 4))
    for make in DENSE.values():
        given = make(X)
        before = given.tobytes()
        fitted = kind(**options).fit(given)
        for method in ("predict", "transform"):
            if hasattr(fitted, method):
                getattr(fitted, method)(given)
        assert given.tobytes() == before


def make_graph():
    """Of two blobs, as scikit-learn makes it: 64-bit indices, each row sorted by distance."""
    points = np.random.default_rng(0).standard_normal((30, 2)) + np.repeat([[0.0], [9.0]], 15, 0)
    search = NearestNeighbors(radius=30.0).fit(points)
    return search.radius_neighbors_graph(mode="distance", sort_results=True), points


def test_a_graph_of_scikit_learn_serves_again_and_again():
    graph, _ = make_graph()
    graph.data = 1 / (1 + graph.data)
    expected = graph.toarray()
    for _ in range(2):
        assert_allclose(scale_by_row_maximum(graph).toarray(), scale_by_row_maximum(expected))
        assert eigengap_n_clusters(graph) == eigengap_n_clusters(expected) == 2
        labels = spectral_labels(graph, 2, random_state=0)
        assert len(set(labels[:15])) == len(set(labels[15:])) == 1
        assert_allclose(symmetric_affinity(graph).toarray(), 2 * expected)
        np.testing.assert_array_equal(graph.toarray(), expected)


def test_what_a_users_affinity_returns_stays_as_it_was():
    graph, points = make_graph()
    graph.data = 1 / (1 + graph.data)
    for made in (graph, unsorted(graph), duplicated(graph.toarray())):
        before = [part.tobytes() for part in parts_of(made)]
        model = SparseSubspaceClustering(2, affinity=lambda coef, own=made: own, random_state=0)
        for _ in range(2):
            labels = model.fit_predict(points)
            assert len(set(labels[:15])) == len(set(labels[15:])) == 1
            assert [part.tobytes() for part in parts_of(model.affinity_matrix_)] == before
