"""Reference iterations for sparse coding: what sparse attention unrolls.

An iteration is a generator of codes. It applies a map to codes for one step length after another,
see `repeated`.
"""

from collections.abc import Callable, Iterable, Iterator
from itertools import repeat
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import ArrayLike

from ...validation import check_integer, check_positive
from ..inputs import Array, as_numbers, check_matrix
from ..scales import squared_norms
from ..solution import Solution, certified
from .penalty import Penalty
from .problem import TOL, certify, check_signals

Move = Callable[[Array, Any], Array]
Callback = Callable[[int, Array], Any]


@np.errstate(over="ignore", invalid="ignore")  # a step too long diverges, and the gap says so
def ista(
    Y: ArrayLike,
    dictionary: ArrayLike,
    *,
    lam: float | ArrayLike,
    n_iter: int,
    step: float | ArrayLike | str | None = None,
    start: ArrayLike | None = None,
    zero_diagonal: bool = False,
    nonnegative: bool = False,
    history: bool = False,
    callback: Callback | None = None,
) -> Solution:
    """Run a given number of ISTA iterations on the sparse coding problem.

    ::

        C <- S_{step lam / 2}( C + step (Y - C D) D^T ),   then diag(C) <- 0 if zero_diagonal

    for ``min_C |Y - C D|_F^2 + lam |C|_1`` with D the `dictionary` and S_t the soft threshold.
    `step` multiplies half the gradient. For ``step <= 1 / |D|_2^2`` the objective never increases,
    and after k iterations it is at most ``|C* - C_0|_F^2 / (step k)`` above the optimum. A longer
    step may diverge, which `gap` shows. ``zero_diagonal=True`` with ``Y = dictionary = X`` is ISTA
    for sparse self-expression; zeroing the diagonal is part of the exact proximal step.

    Parameters
    ----------
    Y : array-like of shape (n_signals, n_features)
    dictionary : array-like of shape (n_atoms, n_features)
    lam : float or array-like of shape (n_signals,)
        Penalty > 0.
    n_iter : int
        Number of iterations, all of which are run.
    step : float, array-like of shape (n_iter,) or "support", optional
        Step length, or one step length for each iteration. None is ``1 / |D^T D|_F``, which is
        never longer than ``1 / |D|_2^2``. "support" tries ``1 / |D_S|_2^2`` for each row, D_S being
        the atoms on its support, and takes ``1 / |D|_2^2`` where that step would enlarge the
        support; the objective never increases.
    start : array-like of shape (n_signals, n_atoms), optional
        The codes C_0, which may violate the constraints: the first step meets them. None is zeros.
    zero_diagonal : bool, default=False
        Exclude atom i from the code of signal i; needs as many signals as atoms.
    nonnegative : bool, default=False
        Threshold one-sidedly: exact for the same problem with ``C >= 0``.
    history : bool, default=False
        Record `objective` and `gap` of C_0 to C_k, arrays of shape (n_iter + 1, n_signals).
    callback : callable, optional
        Called as ``callback(k, C_k)`` for k = 0 to n_iter.

    Returns
    -------
    Solution
        `coef` is a dense array; `tol` is 1e-6.

    Raises
    ------
    ValueError
        On NaN, infinity, wrong shapes, ``lam <= 0``, ``n_iter < 0`` or ``step <= 0``.

    References
    ----------
    Daubechies, Defrise and De Mol (2004); EQUATIONS SE-15, SE-15n, SE-18, CR-6 (start at
    the signals), LS-3 (default step) and LS-1 (Ablin et al. 2019, support-adaptive step).
    The papers print the threshold without the step and the factor 1/2 (erratum E3-d/e), as
    one-sided (E3-f), and without the zero diagonal (E3-g).

    Examples
    --------
    >>> from twinsolve.solvers import ista
    >>> ista([[3.0, 0.5]], [[1.0, 0.0], [0.0, 1.0]], lam=2.0, n_iter=1, step=1.0).coef
    array([[2., 0.]])
    """
    problem = _Problem.checked(Y, dictionary, lam, zero_diagonal, nonnegative)
    n_iter = check_integer(n_iter, "n_iter", minimum=0)
    move = problem.proximal_step
    if isinstance(step, str):
        if step != "support":
            raise ValueError(f'step: must be a number, an array or "support", got {step!r}')
        norm = np.linalg.norm(problem.D.astype(np.float64), 2)
        step, move = 1 / (norm**2 or 1.0), problem.support_step
    steps = _check_steps(step, n_iter, problem.gram)
    first = problem.zero_codes()
    if start is not None:
        given = check_matrix(start, "start")
        if given.shape != first.shape:
            raise ValueError(f"start: must have shape {first.shape}, got {given.shape}")
        first = given.astype(np.float64)
        problem = problem._replace(Y=problem.Y.astype(np.result_type(problem.Y, given)))
    return _run(problem, repeated(move, first, steps), n_iter, history, callback)


def fista(
    Y: ArrayLike,
    dictionary: ArrayLike,
    *,
    lam: float | ArrayLike,
    n_iter: int,
    step: float | None = None,
    zero_diagonal: bool = False,
    nonnegative: bool = False,
    history: bool = False,
    callback: Callback | None = None,
) -> Solution:
    """Run a given number of FISTA iterations on the sparse coding problem, from zero codes.

    ::

        C_k = S_{step lam / 2}( B + step (Y - B D) D^T ),   then diag(C_k) <- 0 if zero_diagonal
        t'  = (1 + sqrt(1 + 4 t^2)) / 2,   B = C_k + (t - 1) / t' (C_k - C_{k-1}),   t <- t'

    for ``min_C |Y - C D|_F^2 + lam |C|_1``, starting from ``B = 0, t = 1``, with D the `dictionary`
    and S_t the soft threshold. For ``step <= 1 / |D|_2^2`` the objective after k iterations is at
    most ``4 |C* - C_0|_F^2 / (step (k + 1)^2)`` above the optimum. It may increase at single
    iterations.

    Parameters
    ----------
    Y : array-like of shape (n_signals, n_features)
    dictionary : array-like of shape (n_atoms, n_features)
    lam : float or array-like of shape (n_signals,)
        Penalty > 0.
    n_iter : int
        Number of iterations, all of which are run.
    step : float, optional
        Step length. None is ``1 / |D^T D|_F``, which is never longer than ``1 / |D|_2^2``.
    zero_diagonal : bool, default=False
        Exclude atom i from the code of signal i; needs as many signals as atoms.
    nonnegative : bool, default=False
        Threshold one-sidedly: exact for the same problem with ``C >= 0``.
    history : bool, default=False
        Record `objective` and `gap` of C_0 to C_k, arrays of shape (n_iter + 1, n_signals).
    callback : callable, optional
        Called as ``callback(k, C_k)`` for k = 0 to n_iter.

    Returns
    -------
    Solution
        `coef` is a dense array; `tol` is 1e-6.

    Raises
    ------
    ValueError
        On NaN, infinity, wrong shapes, ``lam <= 0``, ``n_iter < 0`` or ``step <= 0``.

    References
    ----------
    Beck and Teboulle (2009); EQUATIONS SE-15, SE-18.

    Examples
    --------
    >>> from twinsolve.solvers import fista
    >>> fista([[3.0, 0.5]], [[1.0, 0.0], [0.0, 1.0]], lam=2.0, n_iter=1, step=1.0).coef
    array([[2., 0.]])
    """
    problem = _Problem.checked(Y, dictionary, lam, zero_diagonal, nonnegative)
    n_iter = check_integer(n_iter, "n_iter", minimum=0)
    step = step if step is None else check_positive(step, "step")
    steps = _check_steps(step, n_iter, problem.gram)
    codes = accelerated(problem.proximal_step, problem.zero_codes(), steps)
    return _run(problem, codes, n_iter, history, callback)


def coordinate_descent(
    Y: ArrayLike,
    dictionary: ArrayLike,
    *,
    lam: float | ArrayLike,
    n_iter: int,
    zero_diagonal: bool = False,
    nonnegative: bool = False,
    history: bool = False,
    callback: Callback | None = None,
) -> Solution:
    """Run a given number of sweeps of cyclic coordinate descent, from zero codes.

    A sweep minimises ``|Y - C D|_F^2 + lam |C|_1`` over one column c_j of C after another ::

        c_j <- S_{lam / 2}( c_j |d_j|^2 + (Y - C D) d_j ) / |d_j|^2

    with d_j the atoms and S_t the soft threshold. The objective never increases. This is a
    reference: on coherent atoms it stalls, while `sparse_code` does not.

    Parameters
    ----------
    Y : array-like of shape (n_signals, n_features)
    dictionary : array-like of shape (n_atoms, n_features)
    lam : float or array-like of shape (n_signals,)
        Penalty > 0.
    n_iter : int
        Number of sweeps, all of which are run.
    zero_diagonal : bool, default=False
        Exclude atom i from the code of signal i; needs as many signals as atoms.
    nonnegative : bool, default=False
        Add the constraint ``C >= 0``.
    history : bool, default=False
        Record `objective` and `gap` of C_0 to C_k, arrays of shape (n_iter + 1, n_signals).
    callback : callable, optional
        Called as ``callback(k, C_k)`` for k = 0 to n_iter.

    Returns
    -------
    Solution
        `coef` is a dense array; `tol` is 1e-6.

    Raises
    ------
    ValueError
        On NaN, infinity, wrong shapes, ``lam <= 0`` or ``n_iter < 0``.

    References
    ----------
    Friedman et al., "Pathwise coordinate optimization" (2007); EQUATIONS SE-12, SE-17 for the
    problem.

    Examples
    --------
    >>> from twinsolve.solvers.sparse_coding import coordinate_descent
    >>> coordinate_descent([[3.0, 0.5]], [[1.0, 0.0], [0.0, 1.0]], lam=2.0, n_iter=1).coef
    array([[2., 0.]])
    """
    problem = _Problem.checked(Y, dictionary, lam, zero_diagonal, nonnegative)
    n_iter = check_integer(n_iter, "n_iter", minimum=0)
    codes = repeated(problem.sweep, problem.zero_codes(), repeat(1.0, n_iter))
    return _run(problem, codes, n_iter, history, callback)


def repeated(move: Move, C: Array, steps: Iterable[Any]) -> Iterator[Array]:
    """Yield ``C_0, C_1, ...`` with ``C_k = move(C_{k-1}, step_k)``."""
    yield C
    for step in steps:
        C = move(C, step)
        yield C


def accelerated(move: Move, C: Array, steps: Iterable[Any]) -> Iterator[Array]:
    """Yield the codes of `repeated` with FISTA's momentum: moves start at extrapolated codes."""
    yield C
    ahead, t = C, 1.0
    for step in steps:
        previous, C = C, move(ahead, step)
        yield C
        following = (1 + np.sqrt(1 + 4 * t**2)) / 2
        ahead = C + (t - 1) / following * (C - previous)
        t = following


class _Problem(NamedTuple):
    """Checked signals Y, atoms D and penalty, with ``gram = D D^T``, ``correlation = Y D^T``."""

    Y: Array
    D: Array
    penalty: Penalty
    gram: Array  # D D^T
    correlation: Array  # Y D^T

    @classmethod
    def checked(
        cls,
        Y: ArrayLike,
        dictionary: ArrayLike,
        lam: ArrayLike,
        zero_diagonal: bool,
        nonnegative: bool,
    ) -> Self:
        Y, D = check_signals(Y, dictionary, zero_diagonal=zero_diagonal)
        atoms = D.astype(np.float64)
        gram, correlation = atoms @ atoms.T, Y.astype(np.float64) @ atoms.T
        penalty = Penalty.checked(lam, len(Y), 1.0, nonnegative, zero_diagonal)
        return cls(Y, D, penalty, gram, correlation)

    def zero_codes(self) -> Array:
        return np.zeros_like(self.correlation)

    def certify(self, C: Array) -> tuple[Array, Array, Array]:
        return certify(self.Y, self.D, C, self.penalty)

    def proximal_step(self, C: Array, step: float | Array) -> Array:
        """Return ``prox_step(C + step (Y - C D) D^T)``."""
        n_atoms, n_features = self.D.shape
        # Take the order of products with fewer operations.
        narrow = 2 * n_features < n_atoms
        explained = C @ self.D @ self.D.T if narrow else C @ self.gram
        return self.penalty.prox(C + step * (self.correlation - explained), step)

    def support_step(self, C: Array, step: float | Array) -> Array:
        """Step by ``1 / |D_S|_2^2`` in rows that then keep their support S, else by `step`."""
        support = C != 0
        steps = [1 / self._square_norm(np.flatnonzero(S)) if S.any() else step for S in support]
        adaptive = self.proximal_step(C, np.array(steps)[:, None])
        same_support = ~((adaptive != 0) & ~support).any(axis=1)
        return np.where(same_support[:, None], adaptive, self.proximal_step(C, step))

    def _square_norm(self, S: Array) -> float:
        """Return ``|D_S|_2^2``, from the smaller Gram matrix of D_S."""
        small = len(S) <= self.D.shape[1]
        gram = self.gram[np.ix_(S, S)] if small else self.D[S].T @ self.D[S]
        return float(np.linalg.eigvalsh(gram.astype(np.float64))[-1])

    def sweep(self, C: Array, _: float) -> Array:
        """Minimise over one column after another."""
        C, zero_diagonal = C.copy(), self.penalty.own is not None
        for j, norm in enumerate(self.gram.diagonal()):
            if norm == 0:
                continue
            pull = self.correlation[:, j] - C @ self.gram[:, j] + norm * C[:, j]
            C[:, j] = self.penalty.shrink(pull[:, None], 1.0)[:, 0] / norm
            if zero_diagonal:
                C[j, j] = 0
        return C


def _run(
    problem: _Problem,
    iterates: Iterator[Array],
    n_iter: int,
    history: bool,
    callback: Callback | None,
) -> Solution:
    """Certify the last iterate, for `history` all of them; pass each to the callback."""
    record: dict[str, list[Array]] = {"objective": [], "gap": []}
    for count, C in enumerate(iterates):
        if callback is not None:
            callback(count, C)
        if history:
            for values, value in zip(record.values(), problem.certify(C)[:2], strict=True):
                values.append(value)
    return certified(
        C,
        problem.certify,
        dtype=np.result_type(problem.Y, problem.D),
        tol=TOL,
        n_iter=n_iter,
        cure="increase n_iter, or take `sparse_code`",
        ended=f"the {n_iter} iterations asked for were run",
        scale=squared_norms(problem.Y),
        history={name: np.array(v) for name, v in record.items()} if history else None,
    )


def _check_steps(step: float | ArrayLike | None, n_iter: int, gram: Array) -> Array:
    """Return one step length for each iteration."""
    if step is None:
        norm = np.linalg.norm(gram)
        step = 1 / norm if norm > 0 else 1.0
    steps = as_numbers(step, "step", np.float64)
    if steps.shape not in ((), (n_iter,)):
        raise ValueError(
            f"step: must be a number or hold {n_iter} entries, got shape {steps.shape}"
        )
    if not (np.isfinite(steps).all() and (steps > 0).all()):
        raise ValueError(f"step: must be finite and > 0, got {step!r}")
    return np.broadcast_to(steps, (n_iter,))
