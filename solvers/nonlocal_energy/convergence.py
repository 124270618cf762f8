"""Convergence of the NeuTRENO iteration: spectral radius, and limits of its weight."""

import warnings
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from scipy.sparse.linalg import ArpackNoConvergence
from sklearn.exceptions import ConvergenceWarning

from ..inputs import Array, check_lam
from .spectrum import SMALL, largest_moduli, smallest_eigenvalue
from .weights import Transitions, check_transitions, check_weights, not_callable

# For the check before an iteration: number of tokens, tolerance, and error if A is far from normal.
_QUICK, _ROUGH, _DOUBT = 200, 1e-3, 0.1


def neutreno_spectral_radius(A: Any, lam: float | ArrayLike) -> float:
    """Spectral radius of ``A - diag(lam)``: the NeuTRENO iteration converges iff it is below 1.

    For any A, ``lam < 2 min_i a_ii`` is sufficient for convergence, while ``lam >= 2`` prevents it,
    as constant tokens have the factor ``1 - lam``. For a triangular A, as under a causal mask, the
    radius is ``max_i |a_ii - lam_i|``. For other A with more than 1,000 tokens, the radius comes
    from an Arnoldi iteration.

    Parameters
    ----------
    A : array-like or sparse array of shape (n_tokens, n_tokens)
        Nonnegative with row sums 1.
    lam : float or array-like of shape (n_tokens,)
        Weight > 0.

    Returns
    -------
    float

    Raises
    ------
    ValueError
        As `neutreno_iteration`, and if A is a function.
    scipy.sparse.linalg.ArpackNoConvergence
        If the Arnoldi iteration fails.

    References
    ----------
    EQUATIONS NT-CONV; errata E2-d, E2-e.

    Examples
    --------
    >>> from twinsolve.solvers.nonlocal_energy import neutreno_spectral_radius
    >>> round(neutreno_spectral_radius([[0.1, 0.9], [0.9, 0.1]], lam=0.6), 6)
    1.4
    """
    transitions = check_transitions(not_callable(A, "A"))
    lams = check_lam(lam, transitions.matrix.shape[0])[:, None]
    return float(largest_moduli(transitions, lams, 1)[0])


def neutreno_lam_limit(K: Any) -> float:
    """Limit of lam below which the NeuTRENO iteration converges, for symmetric weights K.

    The limit is ``1 + mu_min`` with mu_min the smallest eigenvalue of ``A = diag(d)^-1 K``: the
    iteration converges iff ``0 < lam < 1 + mu_min``. It is at least 1 for positive semidefinite K,
    such as ``exp(k_i . k_j)``, and 0 on a bipartite graph.

    Parameters
    ----------
    K : array-like or sparse array of shape (n_tokens, n_tokens)
        Symmetric and nonnegative, without zero rows.

    Returns
    -------
    float

    Raises
    ------
    ValueError
        On NaN, infinity, K not symmetric or not nonnegative, or a zero row.
    scipy.sparse.linalg.ArpackNoConvergence
        If K is sparse, of more than 1,000 tokens, and the Lanczos iteration fails.

    References
    ----------
    EQUATIONS NT-CONV.

    Examples
    --------
    >>> from twinsolve.solvers.nonlocal_energy import neutreno_lam_limit
    >>> round(neutreno_lam_limit([[3.0, 1.0], [1.0, 3.0]]), 6)
    1.5
    """
    weights = check_weights(not_callable(K, "K"))
    if not (sums := weights.degrees + weights.loops).all():
        raise ValueError(f"K: row {int(sums.argmin())} is zero, so A = diag(d)^-1 K is undefined")
    return 1 + smallest_eigenvalue(weights)


def warn_if_diverging(transitions: Transitions, lam: Array) -> None:
    """Warn, on behalf of the public function that calls this one, if its iteration diverges."""
    A = transitions.matrix
    if A is not None and (lam[:, 0] < 2 * A.diagonal()).all():
        return
    try:
        if (radius := _rough_radius(transitions, lam)) < 1 - 1e-12:
            return
        finding = f"diverges: A - diag(lam) has spectral radius {radius:.3g}"
    except ArpackNoConvergence:
        finding = "may diverge: the spectral radius of A - diag(lam) was not found"
    warnings.warn(
        f"the iteration {finding}; decrease lam or set relaxed=True",
        ConvergenceWarning,
        stacklevel=3,
    )


def _rough_radius(transitions: Transitions, lam: Array) -> float:
    """Spectral radius, just accurate enough to tell on which side of 1 it lies."""
    if np.ptp(lam) == 0 and lam[0, 0] >= 2:
        return float(lam[0, 0] - 1)  # a lower bound, the factor of constant tokens
    try:
        radius = float(largest_moduli(transitions, lam, 1, small=_QUICK, tol=_ROUGH)[0])
        if abs(radius - 1) > _DOUBT:
            return radius
    except ArpackNoConvergence:
        if len(lam) > SMALL:
            raise
    return float(largest_moduli(transitions, lam, 1)[0])
