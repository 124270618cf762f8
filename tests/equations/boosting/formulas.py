"""Formulas that the statements on boosting share with the tests of its solvers."""

import numpy as np


def kernel_smoother(seed=0, n=6):
    """A = Dg^-1 K of a Gaussian kernel: real eigenvalues in (0, 1]."""
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, 2))
    K = np.exp(-((X[:, None] - X) ** 2).sum(-1))
    return K / K.sum(1, keepdims=True), rng.standard_normal((n, 2))


def limit(A, y, rho):
    return np.linalg.solve(np.eye(len(A)) + rho * (np.eye(len(A)) - A), A @ y)


def update_atom(S, C, dictionary, j):
    """Rank-1 SVD of what the other atoms leave, on the rows that use atom j."""
    users = np.flatnonzero(C[:, j])
    C, dictionary = C.copy(), dictionary.copy()
    if len(users):
        left = S[users] - C[users] @ dictionary + np.outer(C[users, j], dictionary[j])
        U, s, Vt = np.linalg.svd(left, full_matrices=False)
        dictionary[j], C[users, j] = Vt[0], s[0] * U[:, 0]
    return C, dictionary
