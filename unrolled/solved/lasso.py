"""The Lasso as a layer: certified codes with exact gradients."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..attention import check_count
from .implicit import Array, Inexact, refuse_tracing
from .inputs import check_finite, check_numbers, check_rows, expand, find_batch
from .proof import Proved, SolvedRecord, Standard, solve_certified

_PACKED = 256  # rows, and atoms, up to which problems with dictionaries of their own become one


def solved_lasso(
    signals: Tensor,
    dictionary: Tensor,
    *,
    lam: Tensor | float,
    ridge: Tensor | float = 0.0,
    weights: Tensor | None = None,
    nonnegative: bool = False,
    zero_diagonal: bool = False,
    mask: Tensor | None = None,
    start: Tensor | None = None,
    tol: float = 1e-8,
    inexact: Inexact = "warn",
    max_iter: int = 100,
    n_jobs: int | None = None,
    return_record: bool = False,
) -> Any:
    """Sparse codes of signals in a dictionary, solved to optimality, with exact gradients.

    ::

        argmin_C  |X - C A|_F^2 + sum_i ridge_i |c_i|^2 + sum_i lam_i sum_j t_j |c_ij|

    with the signals as rows of X, the atoms as rows of A and t the `weights`. The codes are those
    of `twinsolve.solvers.sparse_code`, optimal up to rounding. On its support S
    with signs s a code is ``c_S = (x B^T - lam/2 t_S s) (B B^T + ridge I)^-1``, B = A_S; gradients
    in X, A, lam, ridge and t are those of this formula, by the Cholesky factors of the forward
    pass. All of it is computed in float64 on the CPU, about 0.1 ms for a signal of 64 features.

    Where the codes are not differentiable, as an atom off the support is at the threshold, the
    gradient returned is still that of the formula, so that this atom stays at zero: one of the
    limits of the gradients nearby. Equal atoms are such a case: one of them has the code, and the
    message names them. A positive ridge makes their codes unique, and differentiable.

    Parameters
    ----------
    signals : Tensor of shape (..., n_signals, n_features)
    dictionary : Tensor of shape (..., n_atoms, n_features)
        Leading axes broadcast with those of the signals; a single dictionary for all is fastest.
    lam : float or Tensor broadcastable to (..., n_signals, 1)
        Penalty > 0. scikit-learn's Lasso has ``alpha = lam / (2 n_features)``.
    ridge : float or Tensor broadcastable to (..., n_signals, 1), default=0.0
        Weight >= 0 of the squares: the elastic net. With `weights` it must be one number.
    weights : Tensor broadcastable to (..., n_atoms), optional
        Weights t > 0 of the penalties of atoms.
    nonnegative : bool, default=False
        Add the constraint ``C >= 0``.
    zero_diagonal : bool, default=False
        Exclude atom i from the code of signal i: self-expression.
    mask : bool Tensor broadcastable to (..., n_signals, n_atoms), optional
        True for the atoms that a row may use.
    start : Tensor of the shape of the codes, optional
        Codes at which the search begins, such as those of the last step of a training. They change
        the time and not the answer, and get no gradient.
    tol : float, default=1e-8
        Largest relative gap, and largest bound of the relative error of the gradients, that are
        accepted.
    inexact : {"warn", "raise", "ignore"}, default="warn"
        What happens if one of them is larger, or if gradients are needed of a row that is not
        proved to be differentiable: whose margin is below 1e-9.
    max_iter : int, default=100
        Largest number of working sets for a row.
    n_jobs : int, optional
        Number of threads. The answer does not depend on it.
    return_record : bool, default=False
        Return the pair of codes and `SolvedRecord`. Its gap is ``(P(c) - D(nu)) / |x|^2`` of
        each row, for the objective P and a feasible dual point nu. Its margin is the smaller of
        ``1 - |2 r.a_j| / (lam t_j)`` over the atoms off the support, with the residual r, and of
        ``2 |t_j c_j| |a_j / t_j|^2 / lam`` over those on it, less a bound on their rounding and
        the relative error of the equations on the support.

    Returns
    -------
    Tensor of shape (..., n_signals, n_atoms)
        In the dtype and on the device of the signals.

    Raises
    ------
    ValueError
        On NaN, infinity, shapes that do not fit, ``lam <= 0``, ``ridge < 0``, ``weights <= 0``, or
        a ridge that differs from row to row beside weights.
    RuntimeError
        If a result is inexact and `inexact` is "raise", a second derivative is asked for, or under
        ``torch.export``, full-graph compilation or ``torch.func``.

    Warns
    -----
    sklearn.exceptions.ConvergenceWarning
        If a result is inexact and `inexact` is "warn".

    References
    ----------
    EQUATIONS SE-17, IG-1, IG-2; Mairal, Bach and Ponce, "Task-driven dictionary learning" (2012).

    Examples
    --------
    >>> import torch
    >>> from twinsolve.unrolled import solved_lasso
    >>> x = torch.tensor([[3.0, 0.5]], requires_grad=True)
    >>> codes = solved_lasso(x, torch.eye(2), lam=2.0)
    >>> codes.sum().backward()
    >>> codes.tolist(), x.grad.tolist()
    ([[2.0, 0.0]], [[1.0, 0.0]])
    """
    refuse_tracing("solved_lasso", signals, dictionary)
    X, A = (check_rows(x, name) for x, name in ((signals, "signals"), (dictionary, "dictionary")))
    if X.shape[-1] != A.shape[-1]:
        raise ValueError(
            f"dictionary: has {A.shape[-1]} features, but the signals have {X.shape[-1]}"
        )
    if zero_diagonal and X.shape[-2] != A.shape[-2]:
        raise ValueError(
            f"zero_diagonal: needs as many signals as atoms, got {X.shape[-2]} and {A.shape[-2]}"
        )
    if mask is not None and mask.dtype != torch.bool:
        raise ValueError(f"mask: must be boolean, got {mask.dtype}")
    penalty, squares = check_numbers(lam, "lam", X), check_numbers(ridge, "ridge", X, least=0)
    if weights is not None:
        weights = check_numbers(weights, "weights", X)[..., None, :]
        expand(weights, (*weights.shape[:-2], 1, A.shape[-2]), "weights")
        X, A, squares = _scale_atoms(X, A, squares, weights)
        start = None if start is None else start * weights
    start = None if start is None else check_finite(start, "start")

    def explain() -> str:
        return "" if bool((squares > 0).any()) else _name_equal_atoms(A, nonnegative)

    problem = _Lasso(
        nonnegative=nonnegative,
        zero_diagonal=zero_diagonal,
        standard=Standard("solved_lasso", tol, inexact, "; increase max_iter", explain),
        max_iter=check_count(max_iter, "max_iter", 1),
        n_jobs=n_jobs,
    )
    codes, record = problem.codes(X, A, penalty, squares, mask, start)
    codes = (codes if weights is None else codes / weights).to(signals.dtype)
    return (codes, record) if return_record else codes


@dataclass
class _Lasso:
    """The problems of one call."""

    nonnegative: bool
    zero_diagonal: bool
    standard: Standard
    max_iter: int
    n_jobs: int | None

    def codes(
        self,
        X: Tensor,
        A: Tensor,
        lam: Tensor,
        ridge: Tensor,
        mask: Tensor | None,
        start: Tensor | None,
    ) -> tuple[Tensor, SolvedRecord]:
        """Return the codes and their record, in the batch that the inputs broadcast to."""
        n, m = X.shape[-2], A.shape[-2]
        batch = find_batch(signals=X, dictionary=A, lam=lam, ridge=ridge, mask=mask, start=start)
        if not batch.numel() * n * m * X.shape[-1]:
            empty = SolvedRecord(*(X.new_zeros(*batch, n) for _ in range(2)))
            return X.new_zeros(*batch, n, m), empty
        # Signals that share their dictionary are rows of one problem.
        n_groups = 1 if A.shape[:-2].numel() == 1 else batch.numel()

        def group(x: Tensor, name: str, *shape: int) -> Tensor:
            return expand(x, (*batch, *shape), name).reshape(n_groups, -1, shape[-1])

        self._own = np.tile(np.arange(n), batch.numel() // n_groups) if self.zero_diagonal else None
        self._hidden = self._start = None
        if mask is not None:
            self._hidden = group(~mask, "mask", n, m).cpu().numpy()
        if start is not None:
            self._start = group(start, "start", n, m).detach().cpu().double().numpy()
        one = n_groups == 1
        A = A.reshape(1, *A.shape[-2:]) if one else group(A, "dictionary", *A.shape[-2:])
        columns = group(lam, "lam", n, 1), group(ridge, "ridge", n, 1)
        inputs = group(X, "signals", *X.shape[-2:]), A, *columns
        codes, record = solve_certified(self.standard, self._solve, *inputs)
        return codes.view(*batch, n, m), SolvedRecord(*(x.view(*batch, n) for x in record))

    def _solve(self, X: Array, A: Array, lam: Array, ridge: Array) -> Proved:
        """Solve for NumPy arrays (groups, rows, ...); return codes, pull-back, gaps and margins."""
        from scipy.linalg import block_diag

        from ...solvers.kernels.workers import spread

        # Threads share the packs if there are several, else the rows.
        size = max(_PACKED // max(X.shape[1], A.shape[1]), 1) if _have_like_sizes(A) else 1
        packs = np.array_split(np.arange(len(A)), -(-len(A) // size))
        n_jobs = self.n_jobs if len(packs) == 1 else None
        tasks = [(p, X[p], A[p], lam[p], ridge[p], n_jobs) for p in packs]
        solved = list(spread(self._solve_pack, tasks, self.n_jobs))

        def pull(gradient: Array) -> tuple[Array, ...]:
            W = gradient.reshape(len(A), X.shape[1], A.shape[1])
            pulled = [x.gradients(block_diag(*W[p])) for x, p in zip(solved, packs, strict=True)]
            *gradients, error = map(np.concatenate, zip(*pulled, strict=True))
            pairs = zip(gradients, (X, A, lam, ridge), strict=True)
            return *(g.reshape(x.shape) for g, x in pairs), error

        codes = np.concatenate([_read_blocks(x.coef.toarray(), X.shape[1]) for x in solved])
        gap, margin = (
            np.concatenate([getattr(x, name) for x in solved]).reshape(lam.shape[:-1])
            for name in ("gap", "margin")
        )
        return codes, pull, gap, margin

    def _solve_pack(
        self, pack: Array, X: Array, A: Array, lam: Array, ridge: Array, n_jobs: int | None
    ) -> Any:
        """Solve several dictionaries as one problem, in which a row sees only its own atoms."""
        from scipy.linalg import block_diag
        from scipy.sparse import csr_array

        from ...solvers.sparse_coding.implicit import implicit_codes
        from ...solvers.sparse_coding.penalty import Penalty

        g, n, m = len(A), X.shape[1], A.shape[1]
        hidden = None if self._hidden is None else self._hidden[pack]
        if g > 1:
            visible = np.ones((g, n, m), dtype=bool) if hidden is None else ~hidden
            hidden = ~block_diag(*visible)
        elif hidden is not None:
            hidden = hidden[0]
        own_atoms = None
        if self._own is not None:
            own_atoms = (self._own + m * np.arange(g)[:, None]).ravel()
        total_penalty = (lam + 2 * ridge).ravel()
        penalty = Penalty(
            total_penalty, lam.ravel() / total_penalty, self.nonnegative, own_atoms, hidden
        )
        start = None
        if self._start is not None:
            start_codes = self._start[pack]
            start = block_diag(*(np.maximum(start_codes, 0) if self.nonnegative else start_codes))
            start[penalty.excluded] = 0
            start = csr_array(start)
        rows, atoms = (x.reshape(-1, x.shape[-1]) for x in (X, A))
        return implicit_codes(
            rows, atoms, penalty, start=start, max_iter=self.max_iter, n_jobs=n_jobs
        )


def _have_like_sizes(A: Array) -> bool:
    """Whether entries of one dictionary are not so large that their rounding hides another's."""
    largest = np.abs(A).max(axis=(1, 2))
    return bool(largest.max() <= 1e3 * largest[largest > 0].min(initial=np.inf))


def _read_blocks(C: Array, n: int) -> Array:
    """Return the diagonal blocks, of n rows each, of a block-diagonal matrix."""
    g = len(C) // n
    return np.einsum("gngm->gnm", C.reshape(g, n, g, -1))


def _scale_atoms(
    X: Tensor, A: Tensor, ridge: Tensor, weights: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Return signals, atoms and ridge of the problem for ``t_j c_j``, whose penalty has no weights.

    A ridge on c_j becomes one of another size for each atom, written as further features.
    """
    t = weights[..., 0, :, None]
    if not bool((ridge > 0).any()):
        return X, A / t, ridge
    if ridge.numel() > 1:
        raise ValueError(
            f"ridge: must be one number where weights are given, got shape {tuple(ridge.shape)}"
        )
    m = A.shape[-2]
    ridge_features = ridge.sqrt() * torch.eye(m, dtype=A.dtype, device=A.device)
    A = torch.cat([A, ridge_features.expand(*A.shape[:-2], m, m)], dim=-1) / t
    X = torch.cat([X, X.new_zeros(*X.shape[:-1], m)], dim=-1)
    return X, A, torch.zeros_like(ridge)


def _name_equal_atoms(A: Tensor, nonnegative: bool) -> str:
    """Return words that name two equal or opposite atoms; none if there are no such atoms."""
    for D in A.detach().cpu().numpy().reshape(-1, *A.shape[-2:]):
        atoms = np.round(D / (np.abs(D).max() or 1), 12) + 0.0  # which makes -0 a 0
        if not nonnegative:
            first = np.take_along_axis(atoms, (atoms != 0).argmax(axis=1)[:, None], axis=1)
            atoms = np.where(first < 0, 0.0 - atoms, atoms)
        _, group, counts = np.unique(atoms, axis=0, return_inverse=True, return_counts=True)
        repeated = np.flatnonzero((counts[group.ravel()] > 1) & atoms.any(axis=1))
        if repeated.size:
            i, j = np.flatnonzero(group.ravel() == group.ravel()[repeated[0]])[:2]
            kind = "equal" if D[i] @ D[j] > 0 else "opposite"
            return f"; atoms {i} and {j} are {kind}, and codes not unique; ridge > 0 makes them so"
    return ""
