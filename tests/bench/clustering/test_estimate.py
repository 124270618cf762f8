"""The time of a fit is told before it starts."""

import time

import numpy as np
import pytest
from scipy.sparse import csr_array
from sklearn.base import BaseEstimator

from twinsolve.bench.clustering import estimate
from twinsolve.bench.clustering.fitting import fit
from twinsolve.bench.clustering.methods import Method, find_method
from twinsolve.datasets import make_union_of_subspaces

POINTS, _ = make_union_of_subspaces(60, n_subspaces=4, random_state=0)


class Slow(BaseEstimator):
    """Takes ``max_iter / 40`` times the power of the number of points in microseconds."""

    clock = 0.0

    def __init__(self, power=2.0, max_iter=40):
        self.power, self.max_iter = power, max_iter

    def fit(self, X):
        Slow.clock += self.max_iter / 40 * 1e-6 * X.shape[0] ** self.power
        return self

    def fit_predict(self, X):
        self.fit(X)
        return np.zeros(X.shape[0], dtype=int)


@pytest.fixture
def _clock(monkeypatch):
    """Time is what `Slow` says it takes; nothing has been told yet."""
    monkeypatch.setattr(Slow, "clock", 0.0)
    monkeypatch.setattr(time, "perf_counter", lambda: Slow.clock)
    monkeypatch.setattr(estimate, "_tried", set())


@pytest.mark.usefixtures("_clock")
@pytest.mark.parametrize(("power", "n"), [(1.0, 5000), (2.0, 1000), (3.0, 1000)])
def test_samples_find_the_power_by_which_time_grows(power, n):
    model = Slow(power)
    found = estimate.seconds_by_samples(model.fit, np.zeros((n, 1)), 2)
    assert found == pytest.approx(1e-6 * n**power)
    # No sample is larger than half, and none follows one of two seconds.
    assert Slow.clock <= max(1e-6 * (n / 2) ** power * 2, 2**power * 2)


@pytest.mark.usefixtures("_clock")
def test_a_training_is_judged_by_a_twentieth_of_its_steps():
    assert estimate.seconds_by_steps(Slow(2.0, 1000), np.zeros((100, 1))) == pytest.approx(0.25)
    assert Slow.clock == pytest.approx(0.0125)


@pytest.mark.usefixtures("_clock")
@pytest.mark.parametrize("directory", [None, "runs"])
@pytest.mark.parametrize(("n", "seconds"), [(10_000, 100), (2000, 4)])
def test_a_command_tells_the_time_of_a_long_fit_once(directory, n, seconds, tmp_path, capfd):
    method = Method("slow", "baseline", lambda n_clusters, random_state, n_jobs: Slow())
    for _ in range(2):
        fit(method, np.zeros((n, 1)), 2, 0, {}, directory and tmp_path / directory)
    words = f"slow, {n:,} points: about {seconds} s.\n" if directory and seconds > 30 else ""
    assert capfd.readouterr().err == words


@pytest.mark.usefixtures("_clock")
def test_a_fit_that_refuses_samples_goes_on(tmp_path, capfd):
    class Picky(Slow):
        def fit(self, X):
            if X.shape[0] < 10_000:
                raise ValueError("too few points")
            return super().fit(X)

    method = Method("picky", "baseline", lambda n_clusters, random_state, n_jobs: Picky())
    assert len(fit(method, np.zeros((10_000, 1)), 2, 0, {}, tmp_path).labels) == 10_000
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("name", ["SSC", "SSC nonnegative", "EnSC", "SENet", "SSC affine"])
def test_the_time_of_each_kind_of_fit_is_judged(name, sparse, monkeypatch, capfd):
    """The points stay as they are; a zero point is none to fail at."""
    if sparse and name == "SENet":
        pytest.skip("the network needs features")
    monkeypatch.setattr(estimate, "LONG", -np.inf)  # so small fits may take less than is subtracted
    monkeypatch.setattr(estimate, "LARGE", 100)
    monkeypatch.setattr(estimate, "_tried", set())
    X = POINTS.copy()
    X[np.random.default_rng(0).permutation(len(X))[:2]] = 0.0  # the first rows that are tried
    X = csr_array(X) if sparse else X
    before = X.copy()
    method = find_method(name)
    settings = method.settings[0] | ({"max_iter": 40} if name == "SENet" else {})
    model = method.make(n_clusters=4, random_state=0, n_jobs=1, **settings)
    estimate.tell_seconds("words", model, X, 4, method.family)
    assert capfd.readouterr().err.startswith("words: about ")
    assert abs(X - before).max() == 0
