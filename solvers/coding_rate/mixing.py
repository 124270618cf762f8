"""What becomes of the coding rate when tokens are replaced by means of tokens."""

import numpy as np
from numpy.typing import ArrayLike

from ...validation import check_positive
from ..inputs import check_matrix, check_row_stochastic, check_square
from .rate import coding_rate


def mixing_rate_bound(X: ArrayLike, weights: ArrayLike, *, eps: float, share: float = 1.0) -> float:
    """Bound on the coding rate of tokens that move towards means of all tokens.

    ::

        R((1 - share) X + share A X) <= R((1 - share + share sqrt c) X)
        c = max_j sum_i A_ij

    for nonnegative A with row sums of one, since ``|A|_2^2 <= |A|_1 |A|_inf = c``. Where column
    sums are one too, no such step raises the rate. The column sums of a softmax are larger the more
    the tokens attend to a few of them. Both sides are equal for tokens that are all equal, if the
    columns of A sum to one.

    It says nothing of the sum ``X + A X``, which is outside of these steps. For ``A = D^-1 K`` with
    a positive semidefinite K and its row sums D, that sum has at least the rate of
    ``(min d / max d)^1/2 X``: where these are equal, adding the means never lowers the rate.

    Parameters
    ----------
    X : array-like of shape (n_tokens, n_features)
    weights : array-like of shape (n_tokens, n_tokens)
        ``A_ij >= 0``; rows sum to one.
    eps : float
        Precision > 0.
    share : float, default=1.0
        In (0, 1].

    Returns
    -------
    float

    Raises
    ------
    ValueError
        On NaN, infinity, shapes that do not fit, weights that are no distributions or a number out
        of range.

    References
    ----------
    EQUATIONS CR-3m.

    Examples
    --------
    >>> import numpy as np
    >>> from twinsolve.solvers.coding_rate import coding_rate, mixing_rate_bound
    >>> X, A = np.eye(2), np.array([[0.8, 0.2], [0.2, 0.8]])
    >>> coding_rate(A @ X, eps=1.0) < mixing_rate_bound(X, A, eps=1.0) == coding_rate(X, eps=1.0)
    True
    """
    X = check_matrix(X, "X").astype(np.float64, copy=False)
    A = check_square(check_row_stochastic(weights, "weights")[0], "weights", len(X))
    if A.min() < 0:
        raise ValueError(f"weights: must be >= 0, got {A.min():g}")
    if check_positive(share, "share") > 1:
        raise ValueError(f"share: must be in (0, 1], got {share!r}")
    largest = float(A.sum(axis=0).max()) ** 0.5
    return coding_rate((1 - share + share * largest) * X, eps=eps)
