"""No function outside the solvers changes an array that it is given, or answers with it."""

from functools import partial
from inspect import isfunction, signature

import numpy as np
import pytest
import torch
from scipy.sparse import csr_array
from sklearn.base import BaseEstimator

import twinsolve
from twinsolve import datasets
from twinsolve.bench import Method, cluster, denoise_image
from twinsolve.bench.clustering.methods import METHODS
from twinsolve.solvers import sparse_self_expression
from twinsolve.unrolled import LISTA, Gaussian, Softmax
from twinsolve.unrolled.solved import LassoEncoder
from twinsolve.unrolled.sparse_coding import PatchSparseCoding

from .kept import DENSE, SPARSE, assert_kept, parts_of
from .unrolled.clustering.learned_cases import SMALLEST

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
rng = np.random.default_rng(0)
PICTURE, POINTS = rng.random((24, 20)), rng.standard_normal((16, 6))
IMAGES = rng.random((3, 16, 16))
LABELS = np.repeat([0, 1, 2, 3], 4)

# Functions of the data sets, by what they take; a name that is missing here fails a test.
OF_DATA = {
    "add_noise": (partial(datasets.add_noise, sigma=0.1, random_state=0), PICTURE),
    "fourier_energies": (datasets.fourier_energies, IMAGES),
    "homogeneous_coordinates": (datasets.homogeneous_coordinates, POINTS),
    "make_noisy_crop": (
        partial(datasets.make_noisy_crop, size=12, sigma=0.1, random_state=0), PICTURE,
    ),
    "pca_features": (lambda X: [datasets.pca_features(X, 3, center=c) for c in (0, 1)], POINTS),
    "project_trajectories": (lambda X: datasets.project_trajectories(X, 3), POINTS),
    "scattering_features": (partial(datasets.scattering_features, scales=2, angles=2), IMAGES),
    "select_classes": (lambda X: datasets.select_classes(X, LABELS, [2, 0]), POINTS),
}  # fmt: skip


def test_no_function_of_the_data_sets_is_missing_here():
    functions = [getattr(datasets, name) for name in datasets.__all__]
    taking = {
        f.__name__
        for f in functions
        if isfunction(f) and {"X", "image", "images"} & signature(f).parameters.keys()
    }
    assert taking == OF_DATA.keys()


def test_data_are_left_as_they_were():
    for run, given in OF_DATA.values():
        for make in DENSE.values():
            for dtype in (np.float64, np.float32):
                assert_kept(run, make(given.astype(dtype)))


@pytest.mark.parametrize("method", ["filter-diffusion", "total variation"])
def test_pictures_are_left_as_they_were(method):
    for image in (PICTURE, (255 * PICTURE).astype(np.uint8)):
        given = DENSE["read-only"](image)
        assert_kept(lambda x: denoise_image(x, method=method, sigma=0.1).image, given)


@pytest.mark.parametrize("kind", SMALLEST, ids=lambda kind: kind.__name__)
def test_learned_clusterers_leave_their_points_as_they_were(kind):
    for make in DENSE.values():
        given = make(POINTS)
        before = given.tobytes()
        fitted = kind(2, random_state=0, **SMALLEST[kind]).fit(given)
        assert_kept(fitted.predict, given)
        assert_kept(fitted.coefficients, given)
        assert given.tobytes() == before


def test_comparisons_leave_tokens_and_coefficients_as_they_were():
    solved = partial(sparse_self_expression, lam=0.1)
    coef = np.abs(rng.standard_normal((16, 16))) * (rng.random((16, 16)) < 0.5)
    layer = Gaussian(bandwidth=1.0).double()
    for make in DENSE.values():
        assert_kept(partial(twinsolve.check, layer), make(POINTS))
        assert_kept(partial(twinsolve.fit_origin, layer), make(POINTS))
        assert_kept(lambda X: twinsolve.compare(layer, solved, X), make(POINTS))
        assert_kept(lambda X: twinsolve.compare(layer, layer, POINTS, keys=X), make(POINTS))
        assert_kept(lambda C: twinsolve.compare(C, solved, POINTS), make(coef))
    for make in SPARSE.values():
        sources = [make(coef), make(coef)]
        found = assert_kept(lambda both: twinsolve.compare(*both, POINTS), sources)
        assert found["distance"] == 0


def test_layers_leave_tensors_as_they_were():
    tokens = torch.as_tensor(POINTS)
    before = tokens.clone()
    twinsolve.check(Softmax().double(), tokens)
    twinsolve.fit_origin(Softmax().double(), tokens)
    twinsolve.compare(Softmax().double(), Gaussian(bandwidth=1.0).double(), tokens)
    assert torch.equal(tokens, before)


@pytest.mark.parametrize("make", [partial(LISTA, n_iter=2), LassoEncoder, PatchSparseCoding])
def test_layers_share_no_memory_with_what_they_are_made_of(make):
    """A layer that did would change the caller's array when it loads a state."""
    dictionary = rng.standard_normal((12, 9))
    single = dictionary.astype(np.float32)
    for given in (dictionary, single, DENSE["read-only"](dictionary), torch.as_tensor(single)):
        before = np.asarray(given).copy()
        layer = make(given, lam=0.1)
        layer.load_state_dict({name: 2 * x for name, x in layer.state_dict().items()})
        np.testing.assert_array_equal(np.asarray(given), before)


STEPS = ["symmetrize", "keep-mass 0.7, scale-rows", "keep-largest 3", "unit-rows", "nearest-rows"]


class Graph(BaseEstimator):
    """A user's method that returns one and the same affinity."""

    made = csr_array((0, 0))

    def __init__(self, n_clusters=2):
        self.n_clusters = n_clusters

    def fit_predict(self, X):
        self.affinity_matrix_ = self.made
        return np.zeros(len(X), dtype=int)


class Coefficients(Graph):
    def fit_predict(self, X):
        self.coef_ = self.made
        return np.zeros(len(X), dtype=int)


@pytest.mark.parametrize("make", SPARSE.values(), ids=list(SPARSE))
@pytest.mark.parametrize("kind", [Graph, Coefficients])
def test_what_methods_of_users_return_stays_as_it_was(kind, make, monkeypatch):
    pairs = np.abs(rng.standard_normal((60, 60))) * (rng.random((60, 60)) < 0.3)
    monkeypatch.setattr(kind, "made", make(pairs + pairs.T))
    before = [part.tobytes() for part in parts_of(kind.made)]
    monkeypatch.setitem(METHODS, "kept", Method("kept", "user", lambda **settings: kind(2)))
    table = cluster(["digits:n_points=60"], methods=["kept"], affinity=STEPS, seeds=1)
    assert table.accuracy.notna().all()
    assert [part.tobytes() for part in parts_of(kind.made)] == before
