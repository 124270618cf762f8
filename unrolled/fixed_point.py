"""Iterations run to convergence, differentiated through the implicit function theorem."""

import warnings
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from .attention import Context, Correction, Operator, check_count, check_positive, hidden_by
from .nonlocal_energy import Neutreno

Step = Callable[..., Tensor]

_WHY_EAGER = "the number of iterations of a fixed point depends on the data"


class ConvergenceWarning(UserWarning):
    """A fixed point, or its gradient, was not reached to the tolerance asked for."""


class FixedPoint(nn.Module):
    """The fixed point ``z = T(z)`` of a map, with the implicit gradient.

    Forward, z is iterated without a graph until ::

        max |T(z) - z| <= tol max |z|

    in each problem: the last two axes, or with `momentum` the last. Backward, with J the Jacobian
    of T at z, the gradient g becomes ``(I - J^T)^-1 g``, found as the fixed point of
    ``y = g + J^T y`` to the same tolerance, and passes through one application of T to whatever T
    depends on. So the memory is that of one application and a few iterates, and the gradient that
    of infinitely many unrolled steps.

    With `momentum`, both iterations are accelerated as FISTA is. That is for maps whose rows are
    proximal gradient steps, such as those of ISTA; other contractions, such as averages by an
    attention matrix with q != k, it may make diverge.

    The start gets no gradient, and there is no second derivative. As the work depends on the data,
    ``torch.export`` and compilation to a full graph are refused.

    Parameters
    ----------
    step : callable
        ``step(z, *inputs)`` is T. It may be a module, and may close over tensors.
    tol : float, default=1e-6
        Tolerance > 0; never less than 16 eps of the dtype of z is asked for.
    max_iter : int, default=1000
        Largest number of applications of T, or of J^T.
    momentum : bool, default=False
        Nesterov's extrapolation between steps, restarted in each row (last axis) where it leads
        uphill.

    Raises
    ------
    ValueError
        If a number is out of range.
    RuntimeError
        Under ``torch.export``, or if a second derivative is asked for.

    Warns
    -----
    ConvergenceWarning
        If `tol` is not reached within `max_iter`. Where ``I - J`` is singular there is no gradient;
        the backward iteration then stops at `max_iter` and says so.

    References
    ----------
    EQUATIONS LS-4; Bai, Kolter and Koltun, "Deep equilibrium models" (2019); O'Donoghue and
    Candes, "Adaptive restart for accelerated gradient schemes" (2015).

    Examples
    --------
    >>> import torch
    >>> from twinsolve.unrolled import FixedPoint
    >>> a = torch.tensor(2.0, dtype=torch.float64, requires_grad=True)
    >>> root = FixedPoint(lambda z: (z + a / z) / 2, tol=1e-12)(torch.ones_like(a))
    >>> root.backward()
    >>> round(root.item() ** 2, 6), round(4 * a.grad.item() ** 2, 6)
    (2.0, 0.5)
    """

    def __init__(
        self,
        step: Step,
        *,
        tol: float = 1e-6,
        max_iter: int = 1000,
        momentum: bool = False,
    ) -> None:
        super().__init__()
        self.step = step
        self.tol = check_positive(tol, "tol")
        self.max_iter = check_count(max_iter, "max_iter", 1)
        self.momentum = momentum

    def forward(self, start: Tensor, *inputs: Any) -> Tensor:
        """Iterate from `start`.

        Parameters
        ----------
        start : Tensor
        *inputs
            Handed on to `step`.

        Returns
        -------
        Tensor of the shape of `start`
        """
        if torch.compiler.is_exporting():
            raise RuntimeError(f"FixedPoint: cannot be exported, as {_WHY_EAGER}")
        return self._eager(start, *inputs)

    @torch.compiler.disable(reason=_WHY_EAGER)
    def _eager(self, start: Tensor, *inputs: Any) -> Tensor:
        with torch.no_grad():
            z = self._iterate(lambda z: self.step(z, *inputs), start.detach(), "the fixed point")
        if not (torch.is_grad_enabled() and self.step(z, *inputs).requires_grad):
            return z
        leaf = z.detach().requires_grad_()
        applied = self.step(leaf, *inputs)

        def solve(grad: Tensor) -> Tensor:
            def transposed(y: Tensor) -> Tensor:
                (product,) = torch.autograd.grad(
                    applied, leaf, y, retain_graph=True, allow_unused=True, materialize_grads=True
                )
                return grad + product

            return self._iterate(transposed, grad, "the gradient of the fixed point")

        return _Implicit.apply(applied, solve)

    def _iterate(self, function: Callable[[Tensor], Tensor], start: Tensor, what: str) -> Tensor:
        """Iterate a function to the tolerance; warn if it is not reached.

        A problem that has converged stays as it is, whatever the others still need.
        """
        if start.numel() == 0:
            return start
        tol = max(self.tol, 16 * torch.finfo(start.dtype).eps)
        problem = tuple(range(-min(1 if self.momentum else 2, start.ndim), 0))
        z = result = last = start
        converged = torch.zeros((), dtype=torch.bool, device=start.device)
        t = torch.ones_like(start[..., :1]) if self.momentum else None
        for _ in range(self.max_iter):
            image = function(z)
            change = (image - z).abs().amax(dim=problem, keepdim=True)
            size = image.abs().amax(dim=problem, keepdim=True)
            result = torch.where(converged, result, image)
            converged = converged | ((change <= tol * size) & change.isfinite())
            if bool((converged | ~change.isfinite()).all()):
                break
            z, t = (image, None) if t is None else _momentum(z, image, last, t)
            z, last = torch.where(converged, result, z), image
        if not bool(converged.all()):
            worst = float((change / size)[~converged].max())
            warnings.warn(
                f"{what} was not reached in {self.max_iter} iterations: the relative residual is "
                f"{worst:.3g}, against tol={tol:.3g}; increase max_iter or tol",
                ConvergenceWarning,
                stacklevel=3,
            )
        return result

    def extra_repr(self) -> str:
        return f"tol={self.tol:.3g}, max_iter={self.max_iter}, momentum={self.momentum}"


class _Implicit(torch.autograd.Function):
    """Identity on ``T(z)``, whose gradient goes through ``(I - J^T)^-1`` first."""

    @staticmethod
    def forward(ctx: Any, applied: Tensor, solve: Callable[[Tensor], Tensor]) -> Tensor:
        ctx.solve = solve
        return applied.detach().clone()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        if torch.is_grad_enabled():
            raise RuntimeError("FixedPoint: has no second derivative (create_graph=True)")
        return ctx.solve(grad), None


def _momentum(z: Tensor, image: Tensor, last: Tensor, t: Tensor) -> tuple[Tensor, Tensor]:
    """The next point to apply the map to, and its Nesterov sequence t, restarted row by row.

    `image` is the map of z, and `last` the image before.
    """
    move = image - last
    uphill = ((z - image) * move).sum(dim=-1, keepdim=True) > 0
    grown = (1 + (1 + 4 * t * t).sqrt()) / 2
    weight = torch.where(uphill, 0, (t - 1) / grown)
    return image + weight * move, torch.where(uphill, 1, grown)


class Solved(Correction):
    """An iterative operator run to convergence, with the implicit gradient.

    ::

        Solved(SparseCoding(lam)):      C* v,   C* = argmin_C |q - C k|_F^2 + lam |C|_1
        Solved(Neutreno(base, lam)):    u* = lam ((1 + lam) I - A)^-1 v0,   v0 the first values

    It has the parameters of `base` and no others, so that a network with the solver inside can be
    compared with the unrolled one. `SparseCoding` is iterated by ISTA with momentum from zero, on
    n_queries x n_keys numbers in float64, and `Neutreno` by its safe form, whichever is set.

    Parameters
    ----------
    base : SparseCoding, Neutreno or another Operator
        Others need a method ``iteration(q, k, mask, is_causal)`` that returns a map on codes of
        shape (..., n_queries, n_keys), whose rows are proximal gradient steps.
    tol : float, default=1e-6
        Relative change of the last iteration, of each code or head; see `FixedPoint`. The error may
        be larger: up to 1 / lam times for Neutreno, and for codes by the condition of the keys.
    max_iter : int, default=10000
        Largest number of iterations, forward and backward.

    Raises
    ------
    ValueError
        If `base` has no iteration, or a number is out of range.
    RuntimeError
        Under ``torch.export``.

    Warns
    -----
    ConvergenceWarning
        If `tol` is not reached, forward or backward.

    Notes
    -----
    The gradient through a code flows over its support, on which it is affine in the query; outside
    it is zero. It exists where the support's keys are independent and no other key is at the
    threshold. If they are dependent, a code is not unique; if nearly so, the backward iteration is
    slow, and one that stops at `max_iter` is a damped gradient.

    Neutreno's form converges for any base with nonnegative rows of sum one. Its output is linear in
    v0 and does not depend on v (in the first layer they are the same); `matrix` is ``lam ((1 + lam)
    I - A)^-1``, which acts on v0.

    References
    ----------
    EQUATIONS LS-4, SE-12, SE-17, NT-FP, NT-rel, FF-3b.

    Examples
    --------
    >>> import torch
    >>> from twinsolve.unrolled import Solved, SparseCoding
    >>> q = torch.tensor([[3.0, 0.5]])
    >>> Solved(SparseCoding(2.0)).matrix(q, torch.eye(2)).round(decimals=3)
    tensor([[2., 0.]])
    """

    def __init__(self, base: Operator, *, tol: float = 1e-6, max_iter: int = 10_000) -> None:
        super().__init__(base)
        if not hasattr(base, "iteration"):
            raise ValueError(
                "base: must be iterative, such as SparseCoding(...) or Neutreno(...), got "
                f"{type(base).__name__}"
            )
        self.tol = check_positive(tol, "tol")
        self.max_iter = check_count(max_iter, "max_iter", 1)
        self.data_dependent = True
        if isinstance(base, Neutreno):
            smoother = base.base
            self.row_stochastic = smoother.row_stochastic
            self.nonnegative = smoother.row_stochastic and smoother.nonnegative

    def attend(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        mask: Tensor | None,
        is_causal: bool,
        context: Context | None,
    ) -> Tensor:
        if isinstance(self.base, Neutreno):
            return self._values(self.base, q, k, v, mask, is_causal, context)
        return self._codes(self.base, q, k, mask, is_causal).to(v.dtype) @ v

    def coefficients(
        self,
        q: Tensor,
        k: Tensor,
        mask: Tensor | None,
        is_causal: bool,
        context: Context | None,
    ) -> Tensor:
        if not isinstance(self.base, Neutreno):
            return self._codes(self.base, q, k, mask, is_causal).to(q.dtype)
        A = self.base.base.matrix(q, k, mask=mask, is_causal=is_causal, context=context)
        wide = torch.promote_types(A.dtype, torch.float32)
        identity = torch.eye(A.shape[-1], dtype=wide, device=A.device)
        lam = self.base.lam().to(wide)
        M = torch.linalg.solve((1 + lam) * identity - A, lam * identity).to(A.dtype)
        return M.clamp(min=0) if self.nonnegative else M  # zeros are solved for to rounding

    def _codes(
        self, base: Any, q: Tensor, k: Tensor, mask: Tensor | None, is_causal: bool
    ) -> Tensor:
        # In float64, as codes may be far smaller than the threshold that rounds them.
        q, k = q.double(), k.double()
        start = torch.zeros_like(q @ k.mT)
        return self._fixed_point(base.iteration(q, k, mask, is_causal), momentum=True)(start)

    def _values(
        self,
        base: Neutreno,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        mask: Tensor | None,
        is_causal: bool,
        context: Context | None,
    ) -> Tensor:
        wide = torch.promote_types(v.dtype, torch.float32)
        if context is not None and context.first_values is not None:
            context = replace(context, first_values=context.first_values.to(wide))
        if mask is not None and mask.dtype != torch.bool:
            mask = mask.to(wide).masked_fill(hidden_by(mask), -torch.inf)
        q, k, u = q.to(wide), k.to(wide), v.to(wide)
        step = base.iteration(q, k, u, mask, is_causal, context, relaxed=True)
        return self._fixed_point(step)(torch.zeros_like(u)).to(v.dtype)

    def _fixed_point(self, step: Step, *, momentum: bool = False) -> FixedPoint:
        return FixedPoint(step, tol=self.tol, max_iter=self.max_iter, momentum=momentum)

    def extra_repr(self) -> str:
        return f"tol={self.tol:.3g}, max_iter={self.max_iter}"
