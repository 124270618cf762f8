"""Iterations run to convergence, differentiated through the implicit function theorem."""

import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from .attention import check_count, check_positive, is_transformed, once_in

Step = Callable[..., Tensor]

_REFUSAL = "FixedPoint: has no second derivative"
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
    ``torch.export``, the transforms of ``torch.func`` and compilation to a full graph are refused.

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
        Under ``torch.export`` or ``torch.func``, or if a second derivative is asked for.

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
        if is_transformed():
            raise RuntimeError(f"FixedPoint: torch.func cannot transform it, as {_WHY_EAGER}")
        return self._eager(start, *inputs)

    @torch.compiler.disable(reason=_WHY_EAGER)  # type: ignore[untyped-decorator]
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
        ctx.save_for_backward(applied)
        return applied.detach().clone()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        with torch.no_grad():
            solved = ctx.solve(grad)
        return once_in(solved, _REFUSAL, grad, *ctx.saved_tensors), None


def _momentum(z: Tensor, image: Tensor, last: Tensor, t: Tensor) -> tuple[Tensor, Tensor]:
    """The next point to apply the map to, and its Nesterov sequence t, restarted row by row.

    `image` is the map of z, and `last` the image before.
    """
    move = image - last
    uphill = ((z - image) * move).sum(dim=-1, keepdim=True) > 0
    grown = (1 + (1 + 4 * t * t).sqrt()) / 2
    weight = torch.where(uphill, 0, (t - 1) / grown)
    return image + weight * move, torch.where(uphill, 1, grown)
