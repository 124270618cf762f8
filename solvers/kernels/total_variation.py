"""Total variation of signals, by dynamic programming over their samples.

With ``m_1(x) = 0``, the best cost of the samples before i, as a function of the value x of sample
i, is ``m_i(x) = min_v m_{i-1}(v) + (v - f_{i-1})^2 / 2 + lam |v - x|``. The derivative of what is
minimised is increasing and piecewise linear; the minimum clips it to [-lam, lam]. It is kept as
its knots, with the slope and the intercept that each adds to the line on its left.
"""

import numpy as np

from .compiled import jit


@jit
def denoise_rows(signals, lam, solution):
    """Write ``argmin_u |u - f|^2 / 2 + lam sum_i |u_{i+1} - u_i|`` for rows f of `signals`."""
    n = signals.shape[1]
    knots, slopes, intercepts = np.empty(2 * n), np.empty(2 * n), np.empty(2 * n)
    low, high = np.empty(n), np.empty(n)
    for row in range(len(signals)):
        f, u, bound = signals[row], solution[row], lam[row]
        left, right = n, n - 1  # the knots in use, none at first
        at_left = at_right = -f[0]  # intercepts of the outer lines, of slope 1
        for i in range(n - 1):
            # Where the derivative leaves [-lam, lam].
            slope, intercept = 1.0, at_left
            while left <= right and slope * knots[left] + intercept <= -bound:
                slope += slopes[left]
                intercept += intercepts[left]
                left += 1
            low[i] = (-bound - intercept) / slope
            left_slope, left_intercept = slope, intercept
            slope, intercept = 1.0, at_right
            while right >= left and slope * knots[right] + intercept >= bound:
                slope -= slopes[right]
                intercept -= intercepts[right]
                right -= 1
            high[i] = (bound - intercept) / slope
            # The clipped derivative is constant outside; the next sample adds x - f.
            left -= 1
            right += 1
            knots[left], knots[right] = low[i], high[i]
            slopes[left], slopes[right] = left_slope, -slope
            intercepts[left], intercepts[right] = left_intercept + bound, bound - intercept
            at_left, at_right = -bound - f[i + 1], bound - f[i + 1]
        slope, intercept = 1.0, at_left
        while left <= right and slope * knots[left] + intercept <= 0.0:
            slope += slopes[left]
            intercept += intercepts[left]
            left += 1
        u[n - 1] = -intercept / slope
        for i in range(n - 2, -1, -1):
            u[i] = min(max(u[i + 1], low[i]), high[i])
