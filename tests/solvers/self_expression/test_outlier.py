"""Sparse outliers: the Lasso with Huber's loss."""

import numpy as np
from numpy.testing import assert_allclose

from twinsolve.datasets import fetch_extended_yale_b
from twinsolve.solvers import outlier_self_expression
from twinsolve.solvers.oracles import self_expression as oracle
from twinsolve.solvers.self_expression import outlier_lams_from_alpha


def objective(X, C, lam, lam_outlier):
    missed = np.abs(X - C @ X)
    half = lam_outlier / 2
    huber = np.where(missed <= half, missed**2, lam_outlier * missed - half**2)
    return huber.sum(axis=1) + lam * np.abs(C).sum(axis=1)


def test_outliers_agree_with_the_oracle(X):
    penalties = {"lam": 0.5, "lam_outlier": 0.4}
    found = outlier_self_expression(X, tol=1e-10, **penalties)
    expected = oracle.outlier_self_expression(X, **penalties)
    assert_allclose(found.objective, objective(X, found.coef.toarray(), **penalties), atol=1e-12)
    assert_allclose(found.objective, objective(X, expected, **penalties), atol=1e-7)
    assert (found.coef.diagonal() == 0).all()


def test_faces_of_two_subjects_are_solved_to_the_certificate(real_data):
    faces = fetch_extended_yale_b()
    X = faces.data[np.isin(faces.target, np.unique(faces.target)[:2])].astype(np.float64)
    lam, lam_outlier = outlier_lams_from_alpha(X, 20.0)
    solution = outlier_self_expression(X, lam=lam, lam_outlier=lam_outlier)
    assert solution.converged.all()
    missed = np.abs(X - solution.coef @ X)
    # At the literature's penalties about half of the pixels are outliers: the two losses differ.
    assert 0.2 < (missed > lam_outlier / 2).mean() < 0.8
