"""Iterations run to convergence, differentiated through the implicit function theorem."""

import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from .attention import check_count, check_positive, is_transformed, once_in, untraced

Step = Callable[..., Tensor]

_REFUSAL = "FixedPoint: has no second derivative"
_WHY_EAGER = "the number of iterations of a fixed point depends on the data"


class FixedPoint(nn.Module):
    """The fixed point ``z = T(z)`` of a contraction, with the implicit gradient.

    The forward pass iterates z without a graph until for each row, along the last axis, ::

        r / (1 - r) max |T(z) - z| <= tol max |T(z)|

    where r is the largest of `contraction` and the last two ratios of successive changes of the
    row's problem, which is the last two axes. So rows of small numbers are as exact as others. The
    left side bounds the distance from the fixed point if changes shrink by r from then on, as they
    do where T is proved to contract by `contraction` in this norm; else it is an estimate. In the
    backward pass, with J the Jacobian of T at z, the gradient g becomes ``(I - J^T)^-1 g``, the
    fixed point of ``y = g + J^T y`` to the same tolerance. It then passes through one application
    of T to all that T depends on. So the memory is that of one application and a few iterates, and
    the gradient that of infinitely many unrolled steps.

    The start gets no gradient, and there is no second derivative. As the work depends on the data,
    ``torch.export``, the transforms of ``torch.func`` and compilation to a full graph are refused.

    Parameters
    ----------
    step : callable
        ``step(z, *inputs)`` is T. It may be a module, and may close over tensors.
    tol : float, default=1e-10
        Largest estimated relative error > 0 of each row of the fixed point, and of y. Where changes
        are below 16 eps of the problem's largest number, in the dtype of z, the iteration ends too:
        errors are then those changes over ``1 - r``, and no iteration undoes them.
    max_iter : int, default=1000
        Largest number of applications of T, or of J^T.
    contraction : float or Tensor broadcastable to (..., 1, 1), default=0.0
        Proved contraction factor of T, such as ``1 / (1 + lam)`` for NeuTRENO; 0 if unknown.

    Raises
    ------
    ValueError
        If a number is out of range.
    RuntimeError
        Under ``torch.export`` or ``torch.func``, or if a second derivative is asked for.

    Warns
    -----
    sklearn.exceptions.ConvergenceWarning
        If `tol` is not reached within `max_iter`, forward or backward. Where ``I - J`` is singular
        there is no gradient; the backward iteration then stops at `max_iter` and says so.

    References
    ----------
    EQUATIONS LS-4; Bai, Kolter and Koltun, "Deep equilibrium models" (2019).

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
        tol: float = 1e-10,
        max_iter: int = 1000,
        contraction: Tensor | float = 0.0,
    ) -> None:
        super().__init__()
        self.step = step
        self.tol = check_positive(tol, "tol")
        self.max_iter = check_count(max_iter, "max_iter", 1)
        if not isinstance(contraction, Tensor):
            check_positive(contraction, "contraction", allow_zero=True)
        self.contraction = contraction

    def forward(self, start: Tensor, *inputs: Any) -> Tensor:
        """Iterate from `start`.

        Parameters
        ----------
        start : Tensor
        *inputs
            Passed on to `step`.

        Returns
        -------
        Tensor of the shape of `start`
        """
        if torch.compiler.is_exporting():
            raise RuntimeError(f"FixedPoint: cannot be exported, as {_WHY_EAGER}")
        if start.is_meta:
            raise RuntimeError(f"FixedPoint: cannot run on the meta device, as {_WHY_EAGER}")
        if is_transformed():
            raise RuntimeError(f"FixedPoint: torch.func cannot transform it, as {_WHY_EAGER}")
        return self._refuse_tracing(start, *inputs)

    @untraced
    def _refuse_tracing(self, start: Tensor, *inputs: Any) -> Tensor:
        """Iterate to the fixed point; compiled programs call this uncompiled."""
        with torch.no_grad():
            z = self._reach(lambda z: self.step(z, *inputs), start.detach())
        if not (torch.is_grad_enabled() and self.step(z, *inputs).requires_grad):
            return z
        leaf = z.clone().requires_grad_()
        applied = self.step(leaf, *inputs)
        return with_gradient(z, applied, lambda grad: self._solve(applied, leaf, grad), _REFUSAL)

    def _reach(self, step: Callable[[Tensor], Tensor], start: Tensor) -> Tensor:
        """Return the fixed point of `step`, iterated from `start`."""
        return self._iterate(step, start, "the fixed point")

    def _solve(self, applied: Tensor, leaf: Tensor, grad: Tensor) -> Tensor:
        """Return ``(I - J^T)^-1 grad``, with J the Jacobian of `applied` in `leaf`."""

        def step(y: Tensor) -> Tensor:
            return grad + transposed_product(applied, leaf, y)

        return self._iterate(step, grad, "the gradient of the fixed point")

    def _iterate(self, step: Callable[[Tensor], Tensor], start: Tensor, what: str) -> Tensor:
        """Iterate a map until each problem has converged; warn if some have not.

        A problem that has converged keeps its value while others go on.
        """
        if start.numel() == 0:
            return start
        rounding = 16 * torch.finfo(start.dtype).eps
        problem_axes = tuple(range(-min(2, start.ndim), 0))
        row_axes = problem_axes[:-1]
        z = start
        converged = torch.zeros((), dtype=torch.bool, device=start.device)
        last_change = last_ratio = start.new_full((), torch.inf)
        for _ in range(self.max_iter):
            image = step(z)
            changes = (image - z).abs().amax(dim=problem_axes[-1:], keepdim=True)
            sizes = image.abs().amax(dim=problem_axes[-1:], keepdim=True)
            change, size = (_largest_entry(x, row_axes) for x in (changes, sizes))
            ratio = change / last_change
            rate = torch.maximum(ratio, last_ratio).clamp(min=self.contraction)
            errors = torch.where(rate < 1, changes * rate / (1 - rate), torch.inf)
            z = torch.where(converged, z, image)
            converged_rows = (errors <= self.tol * sizes) | (changes <= rounding * size)
            converged_rows = converged_rows & changes.isfinite()
            converged = converged | ~_largest_entry(~converged_rows, row_axes)
            if bool((converged | ~change.isfinite()).all()):
                break
            last_change, last_ratio = change, ratio
        if not bool(converged.all()):
            wrong = ~converged_rows & ~converged
            residual, worst = (float((x / sizes)[wrong].max()) for x in (changes, errors))
            warn_of_convergence(
                f"{what} was not reached in {self.max_iter} iterations: the relative residual is "
                f"{residual:.3g} and the relative error about {worst:.3g}, against "
                f"tol={self.tol:.3g}; increase max_iter or tol"
            )
        return z

    def extra_repr(self) -> str:
        shown = f"tol={self.tol:.3g}, max_iter={self.max_iter}"
        if isinstance(self.contraction, float) and self.contraction:
            shown += f", contraction={self.contraction:.3g}"
        return shown


def _largest_entry(x: Tensor, dim: tuple[int, ...]) -> Tensor:
    return x.amax(dim=dim, keepdim=True) if dim else x


def with_gradient(
    value: Tensor, applied: Tensor, solve: Callable[[Tensor], Tensor], refusal: str
) -> Tensor:
    """Return `value`, a fixed point z of T, as a function of what `applied` depends on.

    `applied` is ``T(z)``, with a graph of all that T depends on but z. `solve` maps a gradient g to
    ``(I - J^T)^-1 g``, with J the Jacobian of T at z. `refusal` is the error's message if a second
    derivative is asked for.
    """
    return _Implicit.apply(applied, value, solve, refusal)


def transposed_product(applied: Tensor, leaf: Tensor, y: Tensor) -> Tensor:
    """Return ``J^T y``, with J the Jacobian of `applied` in `leaf`."""
    (product,) = torch.autograd.grad(
        applied, leaf, y, retain_graph=True, allow_unused=True, materialize_grads=True
    )
    return product


def warn_of_convergence(message: str) -> None:
    """Issue scikit-learn's ConvergenceWarning, imported only here as that takes a second."""
    from sklearn.exceptions import ConvergenceWarning

    warnings.warn(message, ConvergenceWarning, stacklevel=3)


class _Implicit(torch.autograd.Function):
    """The fixed point as an autograd function; see `with_gradient`."""

    @staticmethod
    def forward(
        ctx: Any, applied: Tensor, value: Tensor, solve: Callable[[Tensor], Tensor], refusal: str
    ) -> Tensor:
        ctx.solve, ctx.refusal = solve, refusal
        ctx.save_for_backward(applied)
        return value.clone()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None]:
        with torch.no_grad():
            solved = ctx.solve(grad)
        return once_in(solved, ctx.refusal, grad, *ctx.saved_tensors), None, None, None
