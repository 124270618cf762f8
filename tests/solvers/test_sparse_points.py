"""Sparse points give what the same points give as a dense array, or are refused with a reason."""

import inspect
from inspect import signature
from itertools import pairwise

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy.sparse import csc_array, csr_array, csr_matrix, issparse

from twinsolve.solvers import (
    OutlierSubspaceClustering,
    SparseSubspaceClustering,
    omp_self_expression,
    outlier_self_expression,
    sparse_code,
    sparse_self_expression,
)
from twinsolve.solvers.locally_linear import locally_linear_weights
from twinsolve.solvers.sparse_coding import duality_gap, lam_max
from twinsolve.solvers.sparse_points import Coordinates

from ..public import public
from .test_bad_input import ALLOWED, PUBLIC, call
from .test_sparse_results import CLUSTERERS

quietly = pytest.mark.filterwarnings("ignore")
rng = np.random.default_rng(0)
WIDE, NARROW = (
    csr_array(rng.random((6, d)) * (rng.random((6, d)) < share))
    for d, share in ((40, 0.3), (4, 0.7))
)
WITH_POINTS = [name for name, allowed in ALLOWED.items() if {"X", "Y"} & allowed.keys()]


def tf_idf(n=90, d=600, topics=3, seed=0):
    """Counts of words of which most belong to one topic, weighted and scaled to unit rows."""
    rng = np.random.default_rng(seed)
    chances = np.full((topics, d), 0.02)
    for topic, own in enumerate(np.array_split(np.arange(d), topics)):
        chances[topic, own] = 1.0
    target = np.arange(n) % topics
    weights = chances[target] * rng.pareto(1.5, d)
    counts = rng.poisson(40 * weights / weights.sum(axis=1, keepdims=True))
    values = counts * np.log((1 + n) / (1 + (counts > 0).sum(axis=0)))
    return csr_array(values / np.linalg.norm(values, axis=1, keepdims=True)), target


def parts_of(answer):
    """The arrays of an answer that do not depend on coordinates of features."""
    if hasattr(answer, "coef"):
        return [answer.coef, answer.objective]
    answer = list(answer.values()) if isinstance(answer, dict) else answer
    return answer if isinstance(answer, tuple | list) else [answer]


def dense(x):
    return x.toarray() if issparse(x) else np.asarray(x)


def points_of(name, given):
    """The arguments of the function that hold points, and the rest that fits these."""
    allowed = ALLOWED[name]
    names = [x for x in ("X", "Y", "dictionary", "targets") if x in allowed]
    return dict.fromkeys(names, given)


TAKES = {
    "admm_low_rank_self_expression", "admm_self_expression", "basis_pursuit_self_expression",
    "coordinate_descent", "duality_gap", "fista", "ista", "lam_from_alpha", "lam_from_gamma",
    "lam_max", "lasso_objective",
    "least_squares_residual", "least_squares_self_expression", "locally_linear_residual",
    "locally_linear_weights", "low_rank_gap", "low_rank_self_expression",
    "low_rank_sparse_self_expression", "omp_self_expression", "proximal_self_expression",
    "robust_low_rank_self_expression", "sparse_code", "sparse_code_path", "sparse_self_expression",
}  # fmt: skip


@quietly
@pytest.mark.parametrize("given", [WIDE, NARROW], ids=["more features", "fewer features"])
@pytest.mark.parametrize("name", WITH_POINTS)
def test_functions_take_sparse_points_as_dense_ones_or_refuse_them(name, given):
    tight = {"tol": 1e-10, "max_iter": 20000}
    more = {x: value for x, value in tight.items() if x in signature(PUBLIC[name]).parameters}
    more = {} if name == "omp_self_expression" else more  # whose tol is another
    if name in ("choose_clusterer", "choose_settings"):  # of estimators, below
        return
    if name not in TAKES:
        with pytest.raises((ValueError, TypeError), match=r"parse|shape"):
            call(name, **points_of(name, given))
        return
    found = call(name, **points_of(name, given), **more)
    expected = call(name, **points_of(name, given.toarray()), **more)
    for one, other in zip(parts_of(found), parts_of(expected), strict=True):
        one, other = (dense(getattr(x, "coef", x)) for x in (one, other))
        if given is NARROW and name not in ("sparse_code", "sparse_self_expression"):
            assert_array_equal(one, other)
        # Gaps of 1e-10 leave coefficients of size 1 some 1e-5 apart.
        assert_allclose(one, other, rtol=1e-4, atol=1e-4)


@quietly
@pytest.mark.parametrize("name", CLUSTERERS)
def test_estimators_take_sparse_points_as_dense_ones_or_refuse_them(name):
    X, _ = tf_idf()
    make = CLUSTERERS[name]
    solved = name in public("solvers")
    model = make(3, random_state=0)
    steps = {"max_iter": 2} if not solved and "max_iter" in model.get_params() else {}
    model.set_params(**steps)
    if name in ("KSubspaces", "MotionSegmentation", "OutlierSubspaceClustering") or not solved:
        with pytest.raises((ValueError, TypeError), match=r"[Ss]parse"):
            model.fit(X)
        return
    model.fit(X)
    expected = make(3, random_state=0).fit(X.toarray())
    assert_allclose(dense(model.coef_), dense(expected.coef_), atol=1e-4)
    assert_array_equal(model.labels_, expected.labels_)
    assert model.n_features_in_ == X.shape[1]
    new = tf_idf(12, seed=1)[0]
    coef = model.coefficients(new)
    assert_allclose(dense(coef), dense(expected.coefficients(new.toarray())), atol=1e-4)
    assert_array_equal(model.predict(new), expected.predict(new.toarray()))
    assert_array_equal(model.predict(new.toarray()), model.predict(new))
    assert_array_equal(expected.predict(new), expected.predict(new.toarray()))
    assert_array_equal(model.assign(new, coef, model.labels_), model.predict(new))
    assert_array_equal(make(3, random_state=0).fit_predict(csr_matrix(X)), model.labels_)
    with pytest.raises(ValueError, match="599 features"):
        model.predict(new[:, 1:])


def test_topics_are_found():
    X, target = tf_idf()
    labels = SparseSubspaceClustering(3, random_state=0).fit_predict(X)
    for topic in range(3):
        assert len(set(labels[target == topic])) == 1
    assert len(set(labels)) == 3


@pytest.mark.parametrize("l1_ratio", [1.0, 0.7])
@pytest.mark.parametrize("nonnegative", [False, True])
def test_the_certificate_is_of_the_points_that_were_given(nonnegative, l1_ratio):
    """Objective, gap and dual point by their definitions, with the points themselves."""
    X = tf_idf(40)[0]
    lam = lam_max(X, X, zero_diagonal=True) / 5
    options = {"lam": lam, "l1_ratio": l1_ratio, "nonnegative": nonnegative}
    for tol in (1e-2, 1e-8):
        found = sparse_self_expression(X, tol=tol, **options)
        assert issparse(found.dual)
        assert found.converged.all()
        A, C, nu = X.toarray(), found.coef.toarray(), found.dual.toarray()
        ridge = lam * (1 - l1_ratio) / 2
        objective = ((A - C @ A) ** 2).sum(axis=1) + lam * l1_ratio * np.abs(C).sum(axis=1)
        objective += ridge * (C**2).sum(axis=1)
        assert_allclose(found.objective, objective, rtol=1e-12)
        gaps = duality_gap(A, A, C, zero_diagonal=True, **options)
        assert_allclose(found.gap, gaps, atol=1e-13)
        if l1_ratio == 1.0:
            products = nu @ A.T if nonnegative else np.abs(nu @ A.T)
            np.fill_diagonal(products, 0)
            assert (products.max(axis=1) <= lam * (1 + 1e-12)).all()
            dual = (nu * A).sum(axis=1) - (nu**2).sum(axis=1) / 4
            assert_allclose(found.gap, objective - dual, atol=1e-13)  # unit rows


def test_coordinates_keep_all_inner_products():
    """Also of rows of very different sizes, equal rows, zero rows, and with new points."""
    X = tf_idf(30)[0].toarray()
    X[3], X[7], X[11] = X[4], 0, 2 * X[4] - X[5]
    X *= 10.0 ** rng.integers(-80, 80, 30)[:, None]
    new = np.vstack([X[:3] * 1e3, 0 * X[:1], tf_idf(8, seed=2)[0].toarray(), X[2:3] + 1e-90])
    places, Z = Coordinates.build(csr_array(X))
    W = places(csr_array(new))
    assert Z.shape[1] <= 31
    for A, B, one, other in [(X, X, Z, Z), (X, new, Z, W)]:
        sizes = np.outer(np.linalg.norm(A, axis=1), np.linalg.norm(B, axis=1))
        assert (np.abs(one @ other.T - A @ B.T) <= 1e-12 * sizes).all()
    # A root of what is left of a square loses half the digits.
    assert_allclose(np.linalg.norm(W, axis=1), np.linalg.norm(new, axis=1), rtol=1e-7)
    assert not Z[7].any()


def test_any_sparse_format_works_and_is_left_as_it_was():
    X = tf_idf(20, 60)[0]
    order = np.concatenate([rng.permutation(np.arange(a, b)) for a, b in pairwise(X.indptr)])
    indices, data = X.indices[order], X.data[order]
    twice = np.repeat(indices, 2), np.repeat(data / 2, 2), 2 * X.indptr
    given = [
        csr_array((data, indices, X.indptr), shape=X.shape),
        csr_array((twice[1], twice[0], twice[2]), shape=X.shape),
        csr_array((data, indices.astype(np.int64), X.indptr.astype(np.int64)), shape=X.shape),
        csc_array(X), csr_matrix(X), X.astype(np.float32),
    ]  # fmt: skip
    for one in given:
        arrays = one.data, one.indices, one.indptr
        before = [array.copy() for array in arrays]
        for array in arrays:
            array.flags.writeable = False
        lam = 0.1
        expected = sparse_self_expression(X.toarray().astype(one.dtype), lam=lam)
        found = sparse_self_expression(one, lam=lam)
        assert found.coef.dtype == one.dtype
        assert_allclose(found.coef.toarray(), expected.coef.toarray(), atol=1e-4)
        SparseSubspaceClustering(3, random_state=0).fit(one).predict(one)
        omp_self_expression(one, n_nonzero=2)
        for array, kept in zip((one.data, one.indices, one.indptr), before, strict=True):
            assert_array_equal(array, kept)
            assert array.dtype == kept.dtype


def test_one_sparse_argument_beside_a_dense_one():
    X = tf_idf(20)[0]
    Y, D = X[:5], X[5:]
    expected = sparse_code(Y.toarray(), D.toarray(), lam=0.1).coef.toarray()
    for signals, atoms in [(Y, D), (Y.toarray(), D), (Y, D.toarray())]:
        found = sparse_code(signals, atoms, lam=0.1)
        assert_allclose(found.coef.toarray(), expected, atol=1e-4)
        assert found.converged.all()
    near = locally_linear_weights(D, n_neighbors=3, queries=Y).toarray()
    other = locally_linear_weights(D.toarray(), n_neighbors=3, queries=Y.toarray()).toarray()
    assert_allclose(near, other, atol=1e-9)


def test_bad_sparse_points_are_named():
    X = tf_idf(10)[0]
    broken = X.copy()
    broken.data[3] = np.nan
    for function, options in [
        (sparse_self_expression, {"lam": 0.1}), (omp_self_expression, {"n_nonzero": 1})
    ]:  # fmt: skip
        with pytest.raises(ValueError, match=r"X: .*NaN"):
            function(broken, **options)
        with pytest.raises(ValueError, match="X: "):
            function(X[:1], **options)
    with pytest.raises(ValueError, match="Y: has 599 columns, but 600 are needed"):
        sparse_code(X[:2, 1:], X, lam=0.1)
    for refuse in (
        lambda: outlier_self_expression(X, lam=1.0, lam_outlier=1.0),
        lambda: OutlierSubspaceClustering(3).fit(X),
    ):
        with pytest.raises(ValueError, match=r"X: must not be sparse, as .* takes 4.5e-05 GiB"):
            refuse()


def test_points_that_do_not_fit_say_how_large_they_are(monkeypatch):
    def fail(self):
        raise MemoryError

    monkeypatch.setattr(csr_array, "toarray", fail)
    with pytest.raises(
        MemoryError, match=r"10 sparse points of 600 features take 0.0 GiB as dense"
    ):
        Coordinates.build(tf_idf(10)[0])


def test_every_function_of_points_is_looked_at():
    functions = {name for name, f in PUBLIC.items() if inspect.isfunction(f)}
    takes = {name for name in functions if {"X", "Y"} & signature(PUBLIC[name]).parameters.keys()}
    assert takes <= set(WITH_POINTS)
    assert set(WITH_POINTS) >= TAKES
