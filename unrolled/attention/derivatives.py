"""Helpers of hand-written gradients and recomputed blocks, and the largest eigenvalue."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from .tracing import is_transformed


def recomputed(function: Callable[..., Any], *arguments: Any) -> Any:
    """The function's value, which the backward pass computes again instead of keeping its graph.

    The transforms of ``torch.func`` cannot do that and keep the graph. The function must close over
    tensors, not modules: the parameters of a ``functional_call`` are gone when it runs again.
    """
    if torch.is_grad_enabled() and not is_transformed():
        return checkpoint(function, *arguments, use_reentrant=False)
    return function(*arguments)


def is_one_of_many(gradient: Tensor) -> bool:
    """Whether a backward pass is to be differentiated, or run for a batch of gradients at once.

    Computations in place allow neither; `vjp` of an explicit form allows both.
    """
    batched = is_transformed() or torch._C._functorch.is_legacy_batchedtensor(gradient)
    return torch.is_grad_enabled() or batched


def vjp(function: Callable[..., Any], inputs: tuple[Tensor, ...], gradients: Any) -> Any:
    """Gradients in the inputs of a function, differentiable as often as the function is."""
    return torch.func.vjp(function, *inputs)[1](gradients)


def once_in(gradient: Tensor, refusal: str, *inputs: Tensor) -> Tensor:
    """The gradient, with an error wherever its own derivative in the inputs is asked for.

    It can still be differentiated in the gradient that came in.

    Parameters
    ----------
    gradient : Tensor
        As a backward pass computes it.
    refusal : str
        Message of the error.
    *inputs : Tensor
        Saved by the forward pass. The graph of `gradient` lacks its dependence on them.

    Returns
    -------
    Tensor
        Equal to `gradient`.
    """
    if not torch.is_grad_enabled():
        return gradient
    return gradient + _NoDerivative.apply(refusal, gradient.dtype, *inputs)


class _NoDerivative(torch.autograd.Function):
    """Zero, as a function of tensors in which it cannot be differentiated."""

    generate_vmap_rule = True

    @staticmethod
    def forward(refusal: str, dtype: torch.dtype, *inputs: Tensor) -> Tensor:
        return inputs[0].new_zeros((), dtype=dtype)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.refusal = inputs[0]

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        raise RuntimeError(ctx.refusal)


def largest_eigenvalue(G: Tensor) -> Tensor:
    """The largest eigenvalue of symmetric matrices.

    Parameters
    ----------
    G : Tensor of shape (..., d, d)

    Returns
    -------
    Tensor of shape (..., 1)
        Its derivatives are those of a simple eigenvalue, whichever others are equal. Where it is a
        multiple one itself, its gradient is a subgradient, and the second derivative takes the
        eigenvector as constant.
    """
    if not (torch.is_grad_enabled() and (G.requires_grad or is_transformed())):
        return torch.linalg.eigvalsh(G)[..., -1:]
    largest: Tensor = _LargestEigenvalue.apply(G)[0]
    return largest


class _LargestEigenvalue(torch.autograd.Function):
    """The largest eigenvalue w, its vector u and whether it is simple.

    PyTorch's own second derivative is not finite where any two eigenvalues are equal. Here it is
    right where the largest is simple; else u counts as constant, as any vector of its space may.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(G: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        w, R = torch.linalg.eigh(G)
        others = w[..., :-1].sum(-1, keepdim=True) if w.shape[-1] < 2 else w[..., -2:-1]
        rounding = w.shape[-1] * torch.finfo(w.dtype).eps
        return w[..., -1:], R[..., -1], w[..., -1:] - others > rounding * w[..., -1:]

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor], output: tuple[Tensor, ...]) -> None:
        ctx.mark_non_differentiable(*output[1:])
        ctx.save_for_backward(*inputs, *output)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor, *_: Tensor) -> Tensor:
        G, w, u, simple = ctx.saved_tensors
        u = _Eigenvector.apply(G, w, u, simple)
        return gradient[..., None] * u[..., :, None] * u[..., None, :]


class _Eigenvector(torch.autograd.Function):
    """The eigenvector u of a simple eigenvalue w of G, given all of them."""

    generate_vmap_rule = True

    @staticmethod
    def forward(G: Tensor, w: Tensor, u: Tensor, simple: Tensor) -> Tensor:
        return u.clone()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        G, w, _, simple = inputs
        ctx.save_for_backward(G, w, output, simple)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        """``(w I - G)^+ gradient``, by a system that u itself makes regular."""
        G, w, u, simple = ctx.saved_tensors
        unit = torch.eye(G.shape[-1], dtype=G.dtype, device=G.device)
        system = w[..., None] * unit - G + u[..., :, None] * u[..., None, :]
        across = gradient - (gradient * u).sum(-1, keepdim=True) * u
        across = torch.where(simple, across, 0)
        solved = torch.linalg.solve(torch.where(simple[..., None], system, unit), across)
        return solved[..., :, None] * u[..., None, :], None, None, None
