"""Small data of every kind that has broken a solver, for all solvers and their oracles."""

import pickle

import numpy as np
import pytest
from cvxpy import SolverError
from hypothesis import reject
from hypothesis import strategies as st
from joblib.parallel import BACKENDS, ThreadingBackend

KINDS = [
    "random",
    "wide",
    "coherent",
    "duplicated",
    "constant",
    "zero padded",
    "rank deficient",
    "affine",
]


def make_points(kind, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((9, 14 if kind == "wide" else 5))
    if kind == "coherent":
        X = 1 + 0.05 * X
    elif kind == "duplicated":
        X[5:] = X[:4]
    elif kind == "constant":
        X[:] = X[0]
    elif kind == "zero padded":
        X[3] = 0
        X = np.hstack([X, np.zeros((9, 2))])
    elif kind == "rank deficient":
        X[:, 3:] = X[:, :2]
    elif kind == "affine":
        plane = np.arange(9) % 2
        offset, frame = 3 * rng.standard_normal((2, 5)), rng.standard_normal((2, 2, 5))
        X = offset[plane] + np.einsum("id,idp->ip", rng.standard_normal((9, 2)), frame[plane])
    return X


@pytest.fixture(params=["coherent", "zero padded", "rank deficient", "affine"])
def X(request):
    """A data set of each kind that has failed by itself; `points` draws all of them."""
    return make_points(request.param)


@pytest.fixture(scope="session")
def points():
    """A strategy that draws data of every kind."""
    return st.builds(make_points, st.sampled_from(KINDS), st.integers(0, 10**6))


@pytest.fixture(scope="session")
def answer():
    """Ask an oracle; the rare example on which interior points fail is drawn anew."""

    def ask(oracle, *problem, **settings):
        try:
            return oracle(*problem, **settings)
        except SolverError:
            reject()

    return ask


def at_odd_address(buffer):
    """The bytes where no number can be aligned, as a message from the network may hold them."""
    content = np.frombuffer(buffer.raw(), np.uint8)
    room = np.empty(content.size + 16, np.uint8)
    start = (5 - room.ctypes.data) % 16
    room[start : start + content.size] = content
    return room[start : start + content.size]


class Network(ThreadingBackend):
    """Hands tasks over as messages: pickled, with arrays at odd addresses."""

    def submit(self, func, callback=None):
        buffers = []
        message = pickle.dumps(func, protocol=5, buffer_callback=buffers.append)
        received = pickle.loads(message, buffers=map(at_odd_address, buffers))
        return super().submit(received, callback)


@pytest.fixture
def network(monkeypatch):
    """The name of a joblib backend like a cluster's, in this process."""
    monkeypatch.setitem(BACKENDS, "network", Network)
    return "network"
