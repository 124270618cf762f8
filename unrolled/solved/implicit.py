"""Problems that a solver solves, as differentiable functions of tensors."""

from collections.abc import Callable, Sequence
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from ..attention import is_transformed, once_in, untraced
from ..fixed_point import warn_of_convergence

Array = np.ndarray
Pull = Callable[[Array], Sequence[Array]]
Problem = Callable[..., tuple[Array, Pull]]
Inexact = Literal["warn", "raise", "ignore"]


def solve_implicitly(name: str, problem: Problem, *inputs: Tensor) -> Tensor:
    """The solution of a problem, with the gradient that the implicit function theorem gives.

    Parameters
    ----------
    name : str
        Of the function that is called, for messages.
    problem : callable
        ``problem(*arrays)`` takes the inputs as NumPy arrays of float64 and returns the solution
        and `pull`, which maps the gradient of a loss in the solution to its gradients in the
        inputs. Solvers run on the CPU, whatever the device of the inputs.
    *inputs : Tensor

    Returns
    -------
    Tensor
        Of the dtype and device of the first input. It has no second derivative.

    Raises
    ------
    RuntimeError
        Under ``torch.export`` or ``torch.func``, on the meta device, or where a second derivative
        is asked for.

    Examples
    --------
    >>> import torch
    >>> from twinsolve.unrolled.solved import solve_implicitly
    >>> def cube_root(a):  # the z with z^3 = a
    ...     z = a ** (1 / 3)
    ...     return z, lambda gradient: (gradient / (3 * z**2),)
    >>> a = torch.tensor([8.0], requires_grad=True)
    >>> solve_implicitly("cube_root", cube_root, a).backward()
    >>> a.grad
    tensor([0.0833])
    """
    refuse_tracing(name, *inputs)
    return _solve(problem, f"{name}: has no second derivative", *inputs)


def refuse_tracing(name: str, *inputs: Tensor) -> None:
    """Raise a RuntimeError where a solver cannot run: exported, transformed or without values."""
    why = "the work of a solver depends on the data"
    if torch.compiler.is_exporting():
        raise RuntimeError(f"{name}: cannot be exported, as {why}")
    if is_transformed():
        raise RuntimeError(f"{name}: torch.func cannot transform it, as {why}")
    if any(getattr(x, "is_meta", False) for x in inputs):
        raise RuntimeError(f"{name}: cannot run on the meta device, as {why}")


def tell(how: Inexact, message: str) -> None:
    """Raise a RuntimeError, warn, or do nothing about an inexact result, as `how` says."""
    if how == "raise":
        raise RuntimeError(message)
    if how == "warn":
        warn_of_convergence(message)


@untraced
def _solve(problem: Problem, refusal: str, *inputs: Tensor) -> Tensor:
    """Return the solution of a problem, with its gradients, as an autograd function."""
    solution: Tensor = _Solved.apply(problem, refusal, *inputs)
    return solution


def _to_array(x: Tensor) -> Array:
    return x.detach().to("cpu", torch.float64).numpy()


class _Solved(torch.autograd.Function):
    """The solution of a problem as an autograd function; see `solve_implicitly`."""

    @staticmethod
    def forward(ctx: Any, problem: Problem, refusal: str, *inputs: Tensor) -> Tensor:
        solution, ctx.pull = problem(*map(_to_array, inputs))
        ctx.refusal = refusal
        ctx.save_for_backward(*inputs)
        return torch.from_numpy(solution).to(inputs[0])

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        inputs = ctx.saved_tensors
        pulled = ctx.pull(_to_array(gradient))
        return (
            None,
            None,
            *(
                once_in(torch.from_numpy(g).to(x), ctx.refusal, gradient, *inputs)
                for g, x in zip(pulled, inputs, strict=True)
            ),
        )
