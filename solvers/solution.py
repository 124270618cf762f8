"""The result of a solve, with the certificate of its quality."""

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.sparse import csr_array, issparse
from sklearn.exceptions import ConvergenceWarning

from .inputs import Array, narrow
from .notebook import html_facts


@dataclass(frozen=True, eq=False, repr=False)
class Solution:
    """Answer of a solver with the certificate of its quality.

    If the rows are independent problems, every array but `history` has one entry for each row.
    Solvers make a solution by `certified`, so that objective, gap and dual belong to `coef` after
    rounding to its dtype. They are computed in float64.

    Attributes
    ----------
    coef : ndarray or csr_array of shape (n_rows, n_atoms)
        Coefficients; row i represents sample i.
    objective : ndarray of shape (n_rows,)
        Primal objective at `coef`, on the scale printed in the solver's docstring.
    gap : ndarray of shape (n_rows,)
        ``(objective - dual objective) / |x_i|^2``, or what the docstring of the solver says: an
        upper bound on the relative suboptimality. It is computed from the definition, not from the
        stopping rule of the algorithm. With constraints, it is at least their relative violation.
        Zero rows have gap 0; an infinite gap certifies nothing. With a tiny penalty the objective
        is far below ``|x_i|^2``: see `objective_gap`.
    dual : ndarray of shape (n_rows, n_features)
        The feasible dual point that proves `gap`.
    n_iter : ndarray of shape (n_rows,)
        Number of iterations.
    tol : float
        The requested tolerance.
    message : str
        Says whether every gap is at most `tol`, and which settings to change if not; first, which
        rule ended an iteration that has its own stopping rule.
    history : dict of str to ndarray, optional
        Quantities recorded in each iteration, if the solver was asked for them.
    n_passes : ndarray of shape (n_rows,), optional
        Number of passes of a working-set solver over the atoms: products of the residual of the row
        with all atoms, or searches for the atoms that matter. Passes over a sample of the atoms, to
        start from, do not count.
    objective_gap : ndarray of shape (n_rows,), optional
        The same gap relative to the objective, ``(objective - dual objective) / objective``: from 0
        to 1 unless constraints are violated, and 0 where both vanish. Near 1, the objective may be
        any multiple of the optimum. None where `gap` is relative to the objective itself, or is no
        difference of objectives.
    n_looked : ndarray of shape (n_rows,), optional
        Number of atoms that these passes looked at: all atoms in each pass, or the atoms in cells
        that no bound excluded. ``1 - n_looked.sum() / (n_passes.sum() * n_atoms)`` is the share
        skipped.
    """

    coef: Any
    objective: Array
    gap: Array
    dual: Array
    n_iter: Array
    tol: float
    message: str
    history: dict[str, Array] | None = None
    n_passes: Array | None = None
    n_looked: Array | None = None
    objective_gap: Array | None = None

    @property
    def converged(self) -> Array:
        """Whether `gap` is at most `tol`, an array of bool; nothing else is tested.

        So it does not say that `objective_gap` is small: at a tiny penalty, lower `tol`.
        """
        return np.asarray(self.gap <= self.tol)

    def __repr__(self) -> str:
        facts = self._facts()
        in_all = " in all" if np.ndim(self.gap) else ""
        return (
            f"Solution(coef {facts['coefficients']}, objective {facts['objective']}{in_all}, "
            f"largest gap {facts['largest gap']}, at most {facts['most iterations']} iterations, "
            f"converged to {self.tol:g}: {facts['converged']})"
        )

    def _facts(self) -> dict[str, str]:
        shape = " x ".join(map(str, self.coef.shape))
        nonzero = self.coef.count_nonzero() if issparse(self.coef) else np.count_nonzero(self.coef)
        reached, rows = self.converged, np.ndim(self.gap) > 0
        share = ""
        if self.objective_gap is not None:
            share = f" ({np.max(self.objective_gap, initial=0.0):.1e} of the objective)"
        return {
            "coefficients": f"{shape} with {nonzero} nonzeros",
            "objective": f"{np.sum(self.objective):.6g}",
            "largest gap": f"{np.max(self.gap, initial=0.0):.1e}{share}",
            "most iterations": str(np.max(self.n_iter, initial=0)),
            "converged": f"{reached.sum()} of {reached.size}" if rows else str(bool(reached)),
        }

    def _repr_html_(self) -> str:
        return html_facts("Solution", {**self._facts(), "message": self.message})


MORE = "increase max_iter, lam or tol"
ROUNDING = "rounding errors limit it: increase lam or tol"
Certify = Callable[[Any], tuple[Any, Any, Any]]


def certified(
    coef: Any,
    certify: Certify,
    *,
    dtype: Any,
    tol: float,
    n_iter: Any,
    cure: str = MORE,
    ended: str = "",
    unit: str = "row",
    history: dict[str, Array] | None = None,
    n_passes: Array | None = None,
    n_looked: Array | None = None,
    scale: Array | None = None,
) -> Solution:
    """Return a solution with `coef` in `dtype`, certified after this rounding.

    `certify` takes the rounded coefficients in float64 and returns objective, gap and dual point.
    If a gap exceeds `tol`, the message ends with `cure`, or with advice about the dtype if only the
    rounding is the cause. `ended` is a sentence that goes first in the message. `scale` is what the
    difference of the objectives was divided by to give the gap, if that is not the objective.
    """
    final = coef.astype(dtype, copy=False)
    final = narrow(final) if isinstance(final, csr_array) else final
    objective, gap, dual = certify(final.astype(np.float64, copy=False))
    gap = np.where(np.isnan(gap), np.inf, gap)
    above_tol = gap > tol
    remedy = cure
    if above_tol.any() and final.dtype != coef.dtype:
        rounded = above_tol & (certify(coef)[1] <= tol)
        advice = f"their rounding to {final.dtype} is the cause: pass float64 data, or increase tol"
        if rounded.any():
            remedy = (
                advice if (rounded == above_tol).all() else f"{cure}; of {rounded.sum()}, {advice}"
            )
    message = ended + "; " if ended else ""
    if not above_tol.any():
        message += f"the relative gap is at most tol={tol:.3g}"
    elif gap.ndim:
        message += (
            f"{above_tol.sum()} of {gap.size} {unit}s did not reach the relative gap tol={tol:.3g} "
            f"(worst {gap.max():.3g}); {remedy}"
        )
    else:
        message += f"the relative gap is {gap:.3g}, not tol={tol:.3g}; {remedy}"
    return Solution(
        final,
        np.asarray(objective),
        gap,
        dual,
        np.broadcast_to(n_iter, gap.shape).copy(),
        tol,
        message,
        history,
        n_passes,
        n_looked,
        None if scale is None else _share(gap * scale, np.asarray(objective)),
    )


def _share(excess: Array, objective: Array) -> Array:
    """Return ``excess / objective``: 0 if both are 0, infinite if the objective alone is."""
    unbounded = np.where(excess > 0, np.inf, 0.0)
    return np.divide(excess, objective, out=unbounded, where=objective > 0)


def aim(tol: float, dtype: Any) -> float:
    """Return the gap at which to stop: below `tol` in float32, where rounding adds to it."""
    return tol if dtype == np.float64 else 0.1 * tol


def warn_unless_converged(solution: Solution) -> None:
    """Warn, on behalf of the public function that calls this one, with the solution's message."""
    if not solution.converged.all():
        warnings.warn(solution.message, ConvergenceWarning, stacklevel=3)
