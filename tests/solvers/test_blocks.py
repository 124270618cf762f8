"""Blocks change nothing: with few rows, keys, patches or pixels at a time, solvers say the same.

A case makes its module's blocks so small, or is itself so large, that there are three at least, of
which the last is not full. Those that take `n_jobs` say the same to the last bit by threads.
"""

import ast
import importlib
from inspect import signature
from pathlib import Path
from tempfile import TemporaryDirectory

import joblib
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy.sparse import csr_array
from scipy.spatial.distance import cdist

from twinsolve import solvers
from twinsolve.solvers import (
    SparseSubspaceClustering,
    ThresholdingSubspaceClustering,
    anisotropic_nonlocal_means,
    bilateral_filter,
    local_linear_regression,
    locally_linear_weights,
    nadaraya_watson,
    nonlocal_means,
    omp_self_expression,
    outlier_self_expression,
    smoother_matrix,
    smoothness,
    sparse_code,
    sparse_self_expression,
)
from twinsolve.solvers.clustering import FiledClustering, nearest_rows_affinity
from twinsolve.solvers.kernel_smoothing import nadaraya_watson_residual
from twinsolve.solvers.nonlocal_energy import stationary_distribution
from twinsolve.solvers.sparse_coding import denoise_ista, denoise_low_rank, lam_max
from twinsolve.solvers.sparse_points import Coordinates

RNG = np.random.default_rng(0)
X, Y = RNG.standard_normal((2, 26, 5))
UNIT = X / np.linalg.norm(X, axis=1, keepdims=True)
IMAGE = RNG.random((17, 13))
TEXTS = csr_array(np.random.default_rng(1).random((26, 90)) ** 20)
WALK = RNG.random((26, 26)) / 13
WALK /= WALK.sum(axis=1, keepdims=True)
WEIGHTS = np.exp(-cdist(X, X))


def coded(found):
    return np.column_stack([found.coef.toarray(), found.objective, found.gap])


def clustered_in_files(n_jobs=None):
    model = SparseSubspaceClustering(2, gamma=9.0, tol=1e-12, random_state=0, n_jobs=n_jobs)
    with TemporaryDirectory() as folder:
        job = FiledClustering(model, X, folder)
        return np.column_stack([job.codes()["gap"], job.embedding.embedding, job.labels()])


CASES = {
    "kernel_smoothing.weights": (
        {"_ROWS": 4, "_ROW_BYTES": 32, "_WHOLE_ENTRIES": 100},
        lambda **jobs: np.vstack(
            [
                nadaraya_watson(X, Y, X, bandwidth=1.5, **jobs),
                nadaraya_watson(X, Y, X, bandwidth=0.1, kernel="laplace", **jobs),
                smoother_matrix(X, Y, bandwidth=1.5, kernel=abs, **jobs)[:, :5],
                nadaraya_watson_residual(X, Y, X, Y, bandwidth=1.5, **jobs)[:, None] * np.ones(5),
                local_linear_regression(X, Y, X, bandwidth=1.5, **jobs),
                anisotropic_nonlocal_means(X, Y, metric=X**2, h=2.0, **jobs),
            ]
        ),
    ),
    "kernels.window_average": (
        {"_BLOCK_ROWS": 3},
        lambda **jobs: nonlocal_means(IMAGE, patch_size=3, patch_distance=4, h=0.2, **jobs),
    ),
    "image_filters.level_average": (
        {"_QUERIES": 50, "_KEYS": 40},
        lambda **jobs: bilateral_filter(IMAGE, sigma_color=0.2, sigma_spatial=np.inf, **jobs),
    ),
    "image_filters.shifted_average": (
        {"_SLAB": 1},
        lambda **jobs: nonlocal_means(
            IMAGE, patch_size=3, patch_distance=4, h=0.2, mask=IMAGE > 0.1, **jobs
        ),
    ),
    "sparse_points": ({"_BLOCK_ROWS": 4}, lambda: Coordinates.build(TEXTS)[1]),
    "clustering.neighbors": (
        {"_BLOCK_ENTRIES": 4 * len(X)},
        lambda: ThresholdingSubspaceClustering(2, n_neighbors=3).fit(X).coef_.toarray(),
    ),
    "clustering.affinity": (
        {"_BATCH": 4},
        lambda: nearest_rows_affinity(UNIT @ UNIT.T, n_neighbors=3).toarray(),
    ),
    "nonlocal_energy.functionals": (
        {"_BLOCK_ENTRIES": 4 * len(X)},
        lambda: smoothness(X, WEIGHTS),
    ),
    "nonlocal_energy.state_reduction": ({"_BLOCK": 4}, lambda: stationary_distribution(WALK)),
    "locally_linear.neighbors": (
        {"_ROWS": 4},
        lambda **jobs: locally_linear_weights(X, n_neighbors=4, **jobs).toarray(),
    ),
    "locally_linear.weights": (
        {"_ROWS": 4},
        lambda **jobs: locally_linear_weights(X, n_neighbors=4, **jobs).toarray(),
    ),
    "self_expression.constrained": (
        {"_BLOCK_ROWS": 4},
        lambda **jobs: coded(sparse_self_expression(X, lam=0.3, affine=True, **jobs)),
    ),
    "self_expression.huber": (
        {"_BLOCK_ROWS": 4},
        lambda **jobs: coded(outlier_self_expression(X, lam=0.3, lam_outlier=0.5, **jobs)),
    ),
    "sparse_coding.matching_pursuit": (
        {"_BLOCK_ROWS": 4},
        lambda **jobs: omp_self_expression(X, n_nonzero=3, **jobs).toarray(),
    ),
    "sparse_coding.filed_atoms": (
        {"_PIECE": 8 * 5 * 4},
        lambda **jobs: clustered_in_files(**jobs),
    ),
    "sparse_coding.problem": (
        {"_BLOCK_ROWS": 4, "_PART_ATOMS": 8},
        lambda: np.column_stack(
            [lam_max(X, X, zero_diagonal=True), coded(sparse_self_expression(X, lam=0.3))]
        ),
    ),
    "sparse_coding.lasso": (
        {"_CERTIFIED_ROWS": 4},
        lambda: coded(sparse_code(X, Y, lam=0.3, tol=1e-14)),
    ),
    "sparse_coding.row_blocks": (
        {"_MOST_ROWS": 4},
        lambda **jobs: coded(sparse_code(X, Y, lam=0.3, tol=1e-14, **jobs)),
    ),
    "kernels.row_pool": (  # with a stored Gram matrix, and for few signals without one
        {"_SLOTS": 2, "_PART": 8},
        lambda: np.vstack([coded(sparse_code(x, Y, lam=0.3, tol=1e-14)) for x in (X, X[:5])]),
    ),
    "sparse_coding.patch_groups": (
        {"_BLOCK_GROUPS": 5},
        lambda: denoise_low_rank(IMAGE, sigma=0.1, patch_size=4, n_similar=6, window=3),
    ),
    "sparse_coding.image_patches": (
        {"_BAND_PATCHES": 40},
        lambda: denoise_ista(IMAGE, np.eye(9), lam=0.2, n_iter=3),
    ),
}
BY_SIZE = {"spectral_filtering.smoothing", "kernels.selection", "clustering.kmeans"}


@pytest.mark.parametrize("module", CASES)
def test_small_blocks_change_nothing(module, monkeypatch):
    small, call = CASES[module]
    expected = call()
    for name, size in small.items():
        monkeypatch.setattr(importlib.import_module(f"{solvers.__name__}.{module}"), name, size)
    # Sums of up to 221 terms in another order, and where blocks are certified anew gaps of 1e-6.
    serial = call()
    assert_allclose(serial, expected, rtol=1e-12, atol=1e-13)
    if signature(call).parameters:
        assert_array_equal(call(n_jobs=2), serial)


@pytest.mark.parametrize("module", [m for m, (_, f) in CASES.items() if signature(f).parameters])
def test_what_came_through_a_network_changes_nothing(module, network, monkeypatch):
    small, call = CASES[module]
    for name, size in small.items():
        monkeypatch.setattr(importlib.import_module(f"{solvers.__name__}.{module}"), name, size)
    serial = call()
    with joblib.parallel_config(network, n_jobs=2):
        assert_array_equal(call(), serial)
        assert_array_equal(call(n_jobs=2), serial)


def test_the_largest_products_are_in_all_blocks():
    """Blocks of 64 atoms are a constant of the kernel: each atom in turn is the one that serves."""
    D = np.random.default_rng(0).standard_normal((205, 6))
    D /= np.linalg.norm(D, axis=1, keepdims=True)
    found = sparse_code(D, D, lam=1.9)
    assert_allclose(found.coef.toarray(), 0.05 * np.eye(205), atol=1e-12)


def steps(path):
    """Calls that go through something by blocks of a size that is not a literal."""
    for node in ast.walk(ast.parse(path.read_text())):
        name = getattr(getattr(node, "func", None), "id", "")
        if (name == "range" and len(node.args) == 3) or name == "gen_batches":
            try:
                ast.literal_eval(node.args[-1])
            except ValueError:
                yield node


def test_every_module_with_blocks_is_a_case():
    folder = Path(solvers.__file__).parent
    found = {
        ".".join(path.relative_to(folder).with_suffix("").parts)
        for path in folder.rglob("*.py")
        if any(True for _ in steps(path))
    }
    assert found <= CASES.keys() | BY_SIZE
    assert len(found) >= 14
