"""Helpers of hand-written gradients and recomputed blocks, and the largest eigenvalue."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from .tracing import is_transformed


def recomputed(function: Callable[..., Any], *arguments: Any) -> Any:
    """Call a function; the backward pass calls it again, so that its graph need not be kept.

    Under the transforms of ``torch.func``, which cannot do that, the graph is kept. The function
    must close over tensors, not modules: the parameters of a ``functional_call`` are gone by then.
    """
    if torch.is_grad_enabled() and not is_transformed():
        return checkpoint(function, *arguments, use_reentrant=False)
    return function(*arguments)


def is_one_of_many(gradient: Tensor) -> bool:
    """Whether a backward pass is itself differentiated, or computes many gradients at once.

    In-place computations allow neither; `vjp` of an explicit form allows both.
    """
    batched = is_transformed() or torch._C._functorch.is_legacy_batchedtensor(gradient)
    return torch.is_grad_enabled() or batched


def vjp(function: Callable[..., Any], inputs: tuple[Tensor, ...], gradients: Any) -> Any:
    """Return the vector-Jacobian product of a function, which can be differentiated again."""
    return torch.func.vjp(function, *inputs)[1](gradients)


def once_in(gradient: Tensor, refusal: str, *inputs: Tensor) -> Tensor:
    """Return the gradient as it is, but let its derivative with respect to `inputs` raise an error.

    The derivative with respect to the incoming gradient stays allowed.

    Parameters
    ----------
    gradient : Tensor
        As a backward pass computes it.
    refusal : str
        Message of the error.
    *inputs : Tensor
        Saved by the forward pass. The graph of `gradient` lacks its dependence on them.
    """
    if not torch.is_grad_enabled():
        return gradient
    return gradient + _NoDerivative.apply(refusal, gradient.dtype, *inputs)


class _NoDerivative(torch.autograd.Function):
    """Zero, as a function of tensors; its derivative raises a RuntimeError."""

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
    """Largest eigenvalue, of shape (..., 1), of symmetric matrices of shape (..., d, d).

    Where it is simple, its first and second derivatives are exact, even if other eigenvalues are
    equal. Where it is multiple, the gradient is a subgradient, and the second derivative takes the
    eigenvector as constant.
    """
    if not (torch.is_grad_enabled() and (G.requires_grad or is_transformed())):
        return torch.linalg.eigvalsh(G)[..., -1:]
    largest: Tensor = _LargestEigenvalue.apply(G)[0]
    return largest


class _LargestEigenvalue(torch.autograd.Function):
    """The largest eigenvalue w, its eigenvector u, and whether w is simple.

    PyTorch's own second derivative is not finite where any two eigenvalues are equal. This one is
    exact where w is simple; elsewhere it takes u as constant.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(G: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        w, vectors = torch.linalg.eigh(G)
        second_largest = w[..., :-1].sum(-1, keepdim=True) if w.shape[-1] < 2 else w[..., -2:-1]
        rounding = w.shape[-1] * torch.finfo(w.dtype).eps
        return w[..., -1:], vectors[..., -1], w[..., -1:] - second_largest > rounding * w[..., -1:]

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
    """The eigenvector u of G for a simple eigenvalue w, differentiable in G."""

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
        """Return the gradient with respect to G: ``y u^T`` with ``y = (w I - G)^+ gradient``.

        On the complement of u, ``w I - G + u u^T`` has the same inverse, and it is not singular.
        """
        G, w, u, simple = ctx.saved_tensors
        identity = torch.eye(G.shape[-1], dtype=G.dtype, device=G.device)
        system = w[..., None] * identity - G + u[..., :, None] * u[..., None, :]
        orthogonal_part = gradient - (gradient * u).sum(-1, keepdim=True) * u
        orthogonal_part = torch.where(simple, orthogonal_part, 0)
        y = torch.linalg.solve(torch.where(simple[..., None], system, identity), orthogonal_part)
        return y[..., :, None] * u[..., None, :], None, None, None
