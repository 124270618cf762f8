"""Gradients held to central differences."""

import numpy as np

EPS = np.finfo(np.float64).eps


def assert_gradient(function, X, gradient, *, step=1e-4, seeds=3):
    """Hold a gradient to the slopes of a function along random directions of norm one.

    The error of a central difference is a third of what half of its step changes, plus rounding of
    the function over the step: each counts three times.
    """
    for seed in range(seeds):
        direction = np.random.default_rng(seed).standard_normal(X.shape)
        direction /= np.linalg.norm(direction)
        short, long = (
            (function(X + h * direction) - function(X - h * direction)) / (2 * h)
            for h in (step, 2 * step)
        )
        rounding = EPS * max(abs(function(X)), 1.0) * X.size / step
        slope = float((gradient * direction).sum())
        assert abs(short - slope) <= abs(long - short) + 3 * rounding, (short, slope)
        assert abs(long - short) + 3 * rounding <= 1e-4 * np.linalg.norm(gradient) + 1e-6
