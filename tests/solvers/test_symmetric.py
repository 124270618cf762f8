"""Eigenvectors of rotated identities: there LAPACK's driver for subsets fails in one of ten."""

import numpy as np
import pytest
from numpy.testing import assert_allclose

from twinsolve.datasets import pca_features
from twinsolve.solvers import KSubspaces
from twinsolve.solvers.clustering import svd_power_affinity
from twinsolve.solvers.symmetric import leading_eigh


def rotation(seed):
    return np.linalg.qr(np.random.default_rng(seed).standard_normal((30, 30)))[0]


@pytest.mark.parametrize("k", [1, 5, 29])
def test_leading_eigenvectors_are_all_found_and_orthonormal(k):
    for seed in range(80):
        Q = rotation(seed)
        for spectrum in (np.ones(30), np.repeat([3.0, 1.0], [4, 26])):
            M = (Q * spectrum) @ Q.T
            values, vectors = leading_eigh(M, k)
            assert_allclose(values, spectrum[:k], rtol=1e-12)
            assert_allclose(vectors.T @ vectors, np.eye(k), atol=1e-11)
            assert_allclose(M @ vectors, vectors * values, atol=1e-11)


def test_users_of_few_eigenvectors_serve_orthonormal_points():
    for seed in range(80):
        Q = rotation(seed)
        for basis in KSubspaces(3, dimension=1 + seed % 4, n_init=3, random_state=0).fit(Q).bases_:
            assert_allclose(basis @ basis.T, np.eye(len(basis)), atol=1e-11)
        found = pca_features(np.vstack([Q, Q]), 5, center=False)
        assert found.shape == (60, 5)
        assert_allclose(found.T @ found, 2 * np.eye(5), atol=1e-11)
        affinity = svd_power_affinity(Q @ Q.T, 1, dimension=4, power=2.0)
        assert np.isfinite(affinity).all()
