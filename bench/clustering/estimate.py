"""Estimate the time of a fit before it starts, by small trials."""

import warnings
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from math import log2
from numbers import Real
from typing import Any, NamedTuple

import numpy as np
from sklearn.base import clone

from ...solvers import ElasticNetSubspaceClustering, SparseSubspaceClustering
from ...solvers.sparse_coding import lam_max, sparse_code
from ..terminal import LONG, tell, write_time
from ..timing import seconds_of

LARGE = 10_000  # points; fits with more take minutes
_FEWEST = 100  # points of the first sample
_ENOUGH = 2.0  # seconds of a trial that tell
_MOST_ROWS = 16
_SHARE = 20  # a trial has one of so many training steps
_tried: set[str] = set()


def tell_seconds(words: str, model: Any, X: Any, n_clusters: int, family: str) -> None:
    """Say how long ``model.fit(X)`` takes, if that is long; once for the same words.

    Nothing is said if the trials fail, as for a sample with fewer points than neighbours.
    """
    if words in _tried:
        return
    _tried.add(words)
    with suppress(Exception), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        seconds = _estimate_seconds(model, X, n_clusters, family)
        if seconds >= LONG:
            tell(f"{words}: about {write_time(seconds)}.")


def _estimate_seconds(model: Any, X: Any, n_clusters: int, family: str) -> float:
    sparse = isinstance(model, SparseSubspaceClustering | ElasticNetSubspaceClustering)
    if X.shape[0] > LARGE and sparse and not model.affine and isinstance(model.gamma, Real):
        return seconds_by_rows(model, X)
    if family == "learned" and getattr(model, "max_iter", 0) >= _SHARE:
        return seconds_by_steps(model, X)
    return seconds_by_samples(lambda rows: clone(model).fit(rows), X, n_clusters)


def seconds_by_samples(fit: Callable[[Any], Any], X: Any, n_clusters: int) -> float:
    """Estimate the seconds of ``fit(X)`` by fits of random samples; 0 if X has few points.

    Sizes double until a fit takes two seconds, or has half of the points. Seconds are taken to grow
    as a power of the size, at least linearly: the power between the last two samples.
    """
    n = X.shape[0]
    order = np.random.default_rng(0).permutation(n)
    *before, last = _double_until_told(
        lambda size: seconds_of(partial(fit, X[np.sort(order[:size])])),
        max(_FEWEST, 4 * n_clusters),
        n // 2,
    )
    power = max(log2(last.seconds / before[-1].seconds), 1.0) if before else 1.0
    return last.seconds * float(n / last.size) ** power


def seconds_by_steps(model: Any, X: Any) -> float:
    """Estimate the seconds of a training by one of a twentieth of its steps."""
    trial = clone(model).set_params(max_iter=model.max_iter // _SHARE)
    return seconds_of(lambda: trial.fit(X)) * _SHARE


def seconds_by_rows(model: Any, X: Any) -> float:
    """Estimate the seconds of the codes of all points by coding a few, up to 16, in all others.

    What codes that are zero take is subtracted. The estimate is high where many points save time by
    sharing products.
    """
    names = ("l1_ratio", "nonnegative", "tol", "max_iter")
    options = {name: getattr(model, name) for name in names}
    order = np.random.default_rng(0).permutation(X.shape[0])
    others = X[np.sort(order[_MOST_ROWS:])]

    def code(count: int, gamma: float) -> float:
        points = X[order[:count]]
        lam = lam_max(points, others) / (gamma * model.l1_ratio)
        lam = np.where(lam > 0, lam, 1.0)
        return seconds_of(partial(sparse_code, points, others, lam=lam, **options))

    shared = code(1, 1.0)
    last = _double_until_told(lambda n: code(n, model.gamma) - shared, 1, _MOST_ROWS)[-1]
    return last.seconds * X.shape[0] / last.size


class _Trial(NamedTuple):
    size: int
    seconds: float


def _double_until_told(time: Callable[[int], float], size: int, largest: int) -> list[_Trial]:
    """Time runs at sizes that double, up to the largest, until one takes two seconds."""
    found = [_Trial(1, 0.0)]
    while size <= largest and found[-1].seconds < _ENOUGH:
        found.append(_Trial(size, time(size)))
        size *= 2
    return found[1:] or found
