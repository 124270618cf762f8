"""How much an attention matrix smooths tokens: in one layer, in its powers, and over depth."""

import math

import numpy as np
from numpy.typing import ArrayLike

from ...validation import check_integer, check_positive
from ..inputs import Array, check_matrix, check_row_stochastic, check_square
from ..kernels.compiled import jit_reordered
from ..scales import frobenius_norm, unit_size
from .frequencies import centre

_BLOCK_ROWS = 16


def low_pass_ratio(A: ArrayLike, values: ArrayLike, *, n_steps: int) -> Array:
    """Ratio of high frequencies to the mean along repeated filtering with one attention matrix.

    ::

        r_t = |HC[A^t Z]|_F / |DC[A^t Z]|_F,     t = 0, ..., n_steps

    with Z the `values`. Let pi be the stationary distribution of A (e_1 under a causal mask) and
    mu_2 the second largest eigenvalue. If A is positive and ``pi^T Z != 0``, the output tends to
    ``1 pi^T Z`` and the ratio to 0 at the rate ``|mu_2|``. Small ratios are accurate in relative
    terms, as high frequencies and mean are computed separately.

    Parameters
    ----------
    A : array-like of shape (n_tokens, n_tokens)
        Rows sum to 1.
    values : array-like of shape (n_tokens, n_values)
    n_steps : int
        Number of filter steps, >= 0.

    Returns
    -------
    ndarray of shape (n_steps + 1,)
        float64. Infinity where the mean is zero, 0 where the high frequencies are zero.

    Raises
    ------
    ValueError
        On bad shapes, entries that are not finite, or rows that do not sum to 1.

    References
    ----------
    EQUATIONS AO-T1 and NT-20. Theorem 1 is printed for all Z, but ``pi^T Z = 0`` is an exception
    (erratum E1-c), and its proof divides by ``|Z|`` in place of ``|A^t Z|`` (erratum E1-d).

    Examples
    --------
    >>> from twinsolve.solvers.spectral_filtering import low_pass_ratio
    >>> low_pass_ratio([[0.75, 0.25], [0.25, 0.75]], [[3.0], [1.0]], n_steps=2)
    array([0.5  , 0.25 , 0.125])
    """
    values = unit_size(check_matrix(values, "values"))
    smoother = check_square(check_row_stochastic(A, "A")[0], "A", len(values))
    ratios = np.empty(check_integer(n_steps, "n_steps", minimum=0) + 1)
    mean, high = centre(values)
    for t in range(len(ratios)):
        dc, hc = math.sqrt(len(values)) * frobenius_norm(mean), frobenius_norm(high)
        ratios[t] = hc / dc if dc > 0 else math.inf if hc > 0 else 0.0
        shift, high = centre(smoother @ high)
        mean = mean + shift
    return ratios


def ergodicity_coefficient(A: ArrayLike) -> float:
    """Dobrushin's ergodicity coefficient: the factor by which A contracts the range of a vector.

    ::

        tau(A) = 1/2 max_ij |a_i - a_j|_1,     max Az - min Az <= tau(A) (max z - min z)  for all z

    with a_i the rows of A. It is the smallest such factor. It is also submultiplicative, so for L
    layers of any number N of tokens::

        |HC[A_L ... A_1 z]| <= sqrt(N / 2) tau(A_L) ... tau(A_1) |HC z|

    The softmax of unmasked logits has ``tau <= tanh(alpha)``, where alpha is half the largest range
    of a row of logits. Takes O(N^3) operations and the memory of one copy of A in float64.

    Parameters
    ----------
    A : array-like of shape (n_queries, n_keys)
        Rows sum to 1; entries may be negative.

    Returns
    -------
    float
        In [0, 1] if A is nonnegative; 0 iff all rows are the same.

    Raises
    ------
    ValueError
        On entries that are not finite or rows that do not sum to 1.

    References
    ----------
    Dobrushin (1956); EQUATIONS AO-C2 and AO-MIX. This bound replaces Corollary 2, which does not
    hold in the limit of depth (erratum E1-e). The rate of mixing holds in the l1 norm, but not in
    the Euclidean norm (erratum E1-k).

    Examples
    --------
    >>> from twinsolve.solvers.spectral_filtering import ergodicity_coefficient
    >>> ergodicity_coefficient([[0.75, 0.25], [0.25, 0.75]])
    0.5
    """
    A, _ = check_row_stochastic(A, "A")
    coefficient = float(_largest_l1_distance(np.ascontiguousarray(A))) / 2
    return coefficient if A.min() < 0 else min(coefficient, 1.0)


def high_frequency_gain(A: ArrayLike) -> float:
    """Largest factor by which one attention matrix amplifies high frequencies.

    ::

        |H A H|_2 = max_Z |HC[A Z]|_F / |HC Z|_F,     H = I - 1 1^T / N

    The left H has size n_queries, the right one size n_keys. With weights W,
    ``|HC[A X W]|_F <= |H A H|_2 |W|_2 |HC X|_F``. The factor is at most 1 for a doubly stochastic A
    without negative entries, at most ``sqrt(n_queries / 2)`` for any other A without negative
    entries, and possibly larger with negative entries.

    Parameters
    ----------
    A : array-like of shape (n_queries, n_keys)
        Rows sum to 1; entries may be negative.

    Returns
    -------
    float

    Raises
    ------
    ValueError
        On entries that are not finite or rows that do not sum to 1.

    References
    ----------
    EQUATIONS AO-6. A layer need not erase high frequencies: it may amplify them (erratum E1-g).

    Examples
    --------
    Half of the queries attend to one token, half to another.

    >>> import numpy as np
    >>> from twinsolve.solvers.spectral_filtering import high_frequency_gain
    >>> A = np.repeat(np.eye(8)[:2], 4, axis=0)
    >>> round(high_frequency_gain(A), 12)
    2.0
    """
    # H A is H A H, as the rows sum to 1.
    high = centre(check_row_stochastic(A, "A")[0])[1]
    # All eigenvalues, as the driver for a subset fails on large multiplicities.
    return math.sqrt(max(np.linalg.eigvalsh(high @ high.T)[-1], 0.0))


def high_frequency_gain_bound(n_tokens: int, alpha: float, *, n_layers: int = 1) -> float:
    """Bound, from the logits, on the gain of high frequencies through layers of softmax attention.

    ::

        |HC[A_L ... A_1 X W]|_F <= bound |W|_2 |HC X|_F
        bound = min{ sqrt(N / 2) tanh(alpha)^L,  (N e^(2 alpha) / (e^(2 alpha) + N - 1))^(L / 2) }

    with W the product of the weights. The first term tends to 0 with depth; the second term is
    smaller for few layers, many tokens and moderate logits. No logit may be masked. One layer with
    heads has the factor ``rho = n_heads max|Wv|_2 max|Wo|_2 bound``. A skip connection makes it
    ``1 + rho``, and a feed-forward layer multiplies it by its Lipschitz constant.

    Parameters
    ----------
    n_tokens : int
        Number N of tokens.
    alpha : float
        Bound on the absolute logits, or half the largest range of a row of logits:
        ``np.ptp(logits, axis=1).max() / 2``.
    n_layers : int, default=1
        Number L of layers.

    Returns
    -------
    float

    Raises
    ------
    ValueError
        If a number is out of range.

    References
    ----------
    EQUATIONS AO-6 (Theorem 3), AO-P4 to AO-P6 and AO-C2. The factor of Theorem 3 is at least 1, so
    that it shows no decay by itself (erratum E1-f); upper bounds do not show that a skip connection
    prevents smoothing (erratum E1-h).

    Examples
    --------
    >>> from twinsolve.solvers.spectral_filtering import high_frequency_gain_bound
    >>> round(high_frequency_gain_bound(50, 0.5), 3), round(high_frequency_gain_bound(50, 6.0), 3)
    (1.621, 5.0)
    >>> high_frequency_gain_bound(50, 0.5, n_layers=24) < 1e-6
    True
    """
    N = check_integer(n_tokens, "n_tokens", minimum=1)
    L = check_integer(n_layers, "n_layers", minimum=1)
    alpha = check_positive(alpha, "alpha", allow_zero=True)
    mixing = math.sqrt(N / 2) * math.tanh(alpha) ** L
    # Take the logarithm: the power may overflow where the first term is smaller.
    log_theorem = L / 2 * math.log(N / (1 + (N - 1) * math.exp(-2 * alpha)))
    return min(mixing, math.exp(min(log_theorem, math.log(N))))


@jit_reordered
def _largest_l1_distance(A):  # type: ignore[no-untyped-def]
    """Return the largest l1 distance between two rows of A, by blocks that fit the cache."""
    n, m = A.shape
    largest = 0.0
    for start in range(0, n, _BLOCK_ROWS):
        for j in range(start + 1, n):
            for i in range(start, min(start + _BLOCK_ROWS, j)):
                distance = 0.0
                for k in range(m):
                    distance += abs(A[i, k] - A[j, k])
                largest = max(largest, distance)
    return largest
