"""Rate reduction with a penalty on the tokens, and its optimum for given ranks of the groups."""

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from ...validation import check_integer, check_positive
from ..inputs import Array, as_numbers, check_matrix
from .projections import check_memberships, square_precision
from .rate import coding_rate


class RateOptimum(NamedTuple):
    """Squared singular values of orthogonal groups at which the rate reduction is critical.

    Attributes
    ----------
    squares : ndarray of shape (n_groups,)
        ``s_k``; 0 for a group that has no critical point but 0.
    value : float
        Rate reduction of groups of the given ranks with these values.
    bound : float
        No tokens of these groups have a larger one.
    """

    squares: Array
    value: float
    bound: float


def rate_reduction(X: ArrayLike, memberships: ArrayLike, *, eps: float, lam: float) -> float:
    """Coding rate of all tokens minus that of their groups, with a penalty on their size.

    ::

        R(X) - sum_k n_k / (2 N) logdet(I + al_k X^T diag(pi_k) X) - lam / 2 |X|_F^2
        al_k = n_features / (n_k eps^2),    n_k = sum_j pi_jk

    Parameters
    ----------
    X : array-like of shape (n_tokens, n_features)
    memberships : array-like of shape (n_tokens, n_groups)
        ``pi_jk >= 0``; rows sum to one. Those of labels are 0 and 1.
    eps : float
        Precision > 0.
    lam : float
        Penalty > 0.

    Returns
    -------
    float

    Raises
    ------
    ValueError
        On NaN, infinity, shapes that do not fit, memberships that are no distributions or a number
        that is not positive.

    References
    ----------
    Wang et al., "A global geometric analysis of maximal coding rate reduction" (2024); EQUATIONS
    CR-7.

    Examples
    --------
    >>> import numpy as np
    >>> from twinsolve.solvers.coding_rate import rate_reduction
    >>> rate_reduction(np.zeros((2, 2)), np.eye(2), eps=1.0, lam=0.1)
    0.0
    """
    X = check_matrix(X, "X").astype(np.float64, copy=False)
    Pi, lam = check_memberships(memberships, len(X)), check_positive(lam, "lam")
    total = coding_rate(X, eps=eps) - lam / 2 * float((X**2).sum())
    for share in Pi.T:
        if (n := float(share.sum())) > 0:
            s = np.linalg.svd(np.sqrt(share)[:, None] * X, compute_uv=False)
            total -= n / (2 * len(X)) * float(np.log1p(X.shape[1] / (n * eps**2) * s**2).sum())
    return total


def rate_reduction_optimum(
    counts: ArrayLike, ranks: ArrayLike, *, n_features: int, eps: float, lam: float
) -> RateOptimum:
    """Critical tokens of `rate_reduction` in orthogonal groups of given ranks.

    ::

        h_k(s) = 1/2 log(1 + al s) - n_k / (2 N) log(1 + al_k s) - lam s / 2
        al = n_features / (N eps^2),    al_k = n_features / (n_k eps^2)

    ``s_k`` is the larger root of
    ``lam al al_k s^2 + (lam (al + al_k) - al (al_k - al)) s + lam = 0``, where ``h_k`` is critical.
    Groups in orthogonal subspaces, of which group k has ``r_k`` singular values ``sqrt(s_k)`` and
    no others, have the value ``sum_k r_k h_k(s_k)``. No tokens exceed
    ``sum_k min(n_k, n_features) max(0, h_k(s_k))``, which is reached for ``N <= n_features``.

    Parameters
    ----------
    counts, ranks : array-like of int of shape (n_groups,)
        ``n_k >= 1``, and ``r_k`` from 0 to ``min(n_k, n_features)``.
    n_features : int
        >= 1.
    eps : float
        Precision > 0.
    lam : float
        Penalty > 0. A group has a root if
        ``lam <= al (sqrt al_k - sqrt al) / (sqrt al_k + sqrt al)``.

    Returns
    -------
    RateOptimum
        ``squares``, ``value`` and ``bound``.

    Raises
    ------
    ValueError
        If counts and ranks are no whole numbers that fit, or a number is not positive.

    References
    ----------
    Wang et al., "A global geometric analysis of maximal coding rate reduction" (2024); EQUATIONS
    CR-7.

    Examples
    --------
    >>> from twinsolve.solvers.coding_rate import rate_reduction_optimum
    >>> found = rate_reduction_optimum([2, 2], [2, 2], n_features=4, eps=0.5, lam=0.1)
    >>> found.squares.round(6), found.value == found.bound > 0
    (array([4.618233, 4.618233]), True)
    """
    D, lam = check_integer(n_features, "n_features", 1), check_positive(lam, "lam")
    n, r = _whole(counts, "counts"), _whole(ranks, "ranks")
    if n.min() < 1:
        raise ValueError(f"counts: must be >= 1, got {n.min():g}")
    if r.shape != n.shape or (r > np.minimum(n, D)).any():
        raise ValueError(f"ranks: must be from 0 to min(counts, n_features) each, got {ranks!r}")
    of_all = D / (float(n.sum()) * square_precision(eps))
    of_group = D / (n * eps**2)
    s = _larger_root(of_all, of_group, lam)
    h = (np.log1p(of_all * s) - n / n.sum() * np.log1p(of_group * s) - lam * s) / 2
    bound = float((np.minimum(n, D) * np.maximum(h, 0)).sum())
    return RateOptimum(s, float((r * h).sum()), bound)


def _larger_root(al: float, al_k: Array, lam: float) -> Array:
    """Return the larger root, 0 where there is no positive one."""
    half = (al * (al_k - al) - lam * (al + al_k)) / 2
    discriminant = half**2 - lam**2 * al * al_k
    root: Array = (half + np.sqrt(np.maximum(discriminant, 0))) / (lam * al * al_k)
    return np.where((half > 0) & (discriminant >= 0), root, 0.0)


def _whole(numbers: ArrayLike, name: str) -> Array:
    values = as_numbers(numbers, name, np.float64)
    if values.ndim != 1 or not len(values) or (values < 0).any() or (values % 1 != 0).any():
        raise ValueError(f"{name}: must be one whole number >= 0 for each group, got {numbers!r}")
    return values
