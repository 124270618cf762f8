"""The largest eigenvalue, with two derivatives that are finite."""

from typing import Any

import torch
from torch import Tensor

from .derivatives import is_transformed


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
