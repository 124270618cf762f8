"""Iterative operators run to convergence, with the implicit gradient."""

from typing import Any

import torch
from torch import Tensor

from .attention import (
    Call,
    Correction,
    Operator,
    check_count,
    check_positive,
    drop_hidden,
    hidden_by,
)
from .fixed_point import FixedPoint
from .nonlocal_energy import Neutreno, own_rows
from .solved import solved_lasso
from .solved.implicit import refuse_tracing
from .sparse_coding import SparseCoding


class Solved(Correction):
    """An iterative operator run to convergence, with the implicit gradient.

    ::

        Solved(SparseCoding(lam)):      C* v,   C* = argmin_C |q - C k|_F^2 + lam |C|_1
        Solved(Neutreno(base, lam)):    u* = lam ((1 + lam) I - A)^-1 v0,   v0 the first values

    It has the parameters of `base` and no others, so that a network with the solver inside can be
    compared with the unrolled one; a step length, which does not move the solution, gets no
    gradient. Codes are certified and exact on their supports (`solved_lasso`); they take n_queries
    x n_keys numbers in float64 and are solved for on the CPU. `Neutreno` is iterated by its safe
    form, whichever is set (`FixedPoint`).

    Parameters
    ----------
    base : SparseCoding, Neutreno or another Operator
        Others need a method ``iteration(call)`` that returns a contraction of codes of shape (...,
        n_queries, n_keys); it is iterated from zero.
    tol : float, default=1e-10
        Largest relative error > 0 of the output and of the implicit system. For SparseCoding it is
        at least 1e-8: the relative duality gap of the codes, and a bound of the relative error of
        gradients. For Neutreno of weights of sum one it is proved for the output. Else it is
        estimated.
    max_iter : int, default=10000
        Largest number of working sets of a code, or of iterations, forward and backward.

    Raises
    ------
    ValueError
        If `base` has no iteration or has separate parameters for each, or is Neutreno of a smoother
        that is not linear in its values, such as another Neutreno; or if a number is out of range.
    RuntimeError
        Under ``torch.export``.

    Warns
    -----
    sklearn.exceptions.ConvergenceWarning
        If `tol` is not reached, forward or backward, or codes are not differentiable.

    Notes
    -----
    The gradient through a code flows over its support, on which it is affine in the query; outside
    it is zero. It exists where no other key is at the threshold; else it is still that of the
    support. Of equal keys one has the code.

    Neutreno's form converges for any base with nonnegative rows of sum one. Its output is linear in
    v0 and does not depend on v (in the first layer they are the same); `matrix` is ``lam ((1 + lam)
    I - A)^-1``, which acts on v0.

    References
    ----------
    EQUATIONS IG-1, LS-4, SE-12, SE-17, NT-FP, NT-rel, FF-3b.

    Examples
    --------
    >>> import torch
    >>> from twinsolve.unrolled import Solved, SparseCoding
    >>> q = torch.tensor([[3.0, 0.5]])
    >>> Solved(SparseCoding(2.0)).matrix(q, torch.eye(2)).round(decimals=3)
    tensor([[2., 0.]])
    """

    def __init__(self, base: Operator, *, tol: float = 1e-10, max_iter: int = 10_000) -> None:
        super().__init__(base)
        if not hasattr(base, "iteration"):
            raise ValueError(
                "base: must be iterative, such as SparseCoding(...) or Neutreno(...), got "
                f"{type(base).__name__}"
            )
        if getattr(base, "per_iteration", False):
            raise ValueError(
                "base: must have one set of parameters for all iterations, got per_iteration=True"
            )
        self.tol = check_positive(tol, "tol")
        self.max_iter = check_count(max_iter, "max_iter", 1)
        self.data_dependent = True
        if isinstance(base, Neutreno):
            smoother = base.base
            if not smoother.linear_in_values:
                raise ValueError(
                    "base: Neutreno(...) must hold a smoother that is linear in its values, from "
                    f"which `matrix` is computed, got {smoother!r}"
                )
            self.of_first_values = True
            self.row_stochastic = smoother.row_stochastic
            self.nonnegative = smoother.row_stochastic and smoother.nonnegative

    def attend(self, call: Call) -> Tensor:
        if isinstance(self.base, Neutreno):
            return self._solve_values(self.base, call)
        return self._solve_codes(self.base, call).to(call.v.dtype) @ drop_hidden(call.v, call.mask)

    def coefficients(self, call: Call) -> Tensor:
        if not isinstance(self.base, Neutreno):
            return self._solve_codes(self.base, call).to(call.q.dtype)
        A = call._replace(q=own_rows(call.q, call.mask)).matrix_of(self.base.base)
        wide = torch.promote_types(A.dtype, torch.float32)
        identity = torch.eye(A.shape[-1], dtype=wide, device=A.device)
        lam = self.base.lam().to(wide)
        M = torch.linalg.solve((1 + lam) * identity - A, lam * identity).to(A.dtype)
        return M.clamp(min=0) if self.nonnegative else M  # zeros are solved for to rounding

    def _solve_codes(self, base: Any, call: Call) -> Tensor:
        """Return the converged codes of an operator on codes, in float64."""
        # In float64, as codes may be far smaller than the threshold that rounds them.
        q, k = call.q.double(), drop_hidden(call.k, call.mask).double()
        if not isinstance(base, SparseCoding):
            step = base.iteration(call._replace(q=q, k=k))
            fixed = FixedPoint(step, tol=self.tol, max_iter=self.max_iter)
            return fixed(torch.zeros_like(q @ k.mT))
        refuse_tracing("Solved", q, k)
        visible = call.hiding("Solved").pairs()
        lam = base.penalties(q, k, visible)
        is_finite = q.isfinite().all(dim=-1, keepdim=True) & lam.isfinite()
        bad_keys = ~k.isfinite().all(dim=-1)[..., None, :]
        if bool(bad_keys.any()):
            seen_bad_keys = bad_keys if visible is None else bad_keys & visible
            is_finite = is_finite & ~seen_bad_keys.any(dim=-1, keepdim=True)
        codes = solved_lasso(
            torch.where(is_finite, q, 0),
            torch.where(bad_keys.mT, 0, k),
            lam=torch.where(is_finite, lam, 1),
            nonnegative=base.nonnegative,
            zero_diagonal=base.zero_diagonal,
            mask=visible,
            tol=max(self.tol, 1e-8),
            max_iter=self.max_iter,
        )
        return torch.where(is_finite, codes, torch.nan)

    def _solve_values(self, base: Neutreno, call: Call) -> Tensor:
        """Return the converged values of NeuTRENO."""
        q, k, v, mask, is_causal, context = call
        wide = torch.promote_types(v.dtype, torch.float32)
        if context is not None and context.first_values is not None:
            context = context._replace(first_values=context.first_values.to(wide))
        if mask is not None and mask.dtype != torch.bool:
            mask = mask.to(wide).masked_fill(hidden_by(mask), -torch.inf)
        q, k, u = q.to(wide), k.to(wide), v.to(wide)
        step = base.iteration(Call(q, k, u, mask, is_causal, context), relaxed=True)
        contraction = 1 / (1 + base.lam().detach().to(wide)) if self.nonnegative else 0.0
        fixed = FixedPoint(step, tol=self.tol, max_iter=self.max_iter, contraction=contraction)
        return fixed(torch.zeros_like(u)).to(v.dtype)

    def extra_repr(self) -> str:
        return f"tol={self.tol:.3g}, max_iter={self.max_iter}"
