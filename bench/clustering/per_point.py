"""Time of a point, of several methods in turns."""

import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ...solvers.solution import Array
from ..speed.rounds import in_turns


def ms_per_point(
    methods: Sequence[Callable[[Array], Any]], inputs: Sequence[Array], rounds: int
) -> Array:
    """Milliseconds a point, of shape (n_methods, rounds); `inputs` are given one after another."""
    n_points = sum(len(points) for points in inputs)
    times: list[list[float]] = [[] for _ in methods]
    for method in methods:
        method(inputs[0][:1])  # compile
    for i, _ in in_turns(range(len(methods)), rounds):
        start = time.perf_counter()
        for points in inputs:
            methods[i](points)
        times[i].append(1000 * (time.perf_counter() - start) / n_points)
    return np.array(times)
