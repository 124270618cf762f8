"""Energies of tokens under attention weights, and whether attention descends them."""

import torch
from torch import Tensor

from ..attention import fused_attention
from .tokens import unit_rows


def smoothness(u: Tensor, k: Tensor) -> Tensor:
    """Nonlocal smoothness ``J(u) = 1/2 sum_ij k_ij |u_i - u_j|^2``.

    Parameters
    ----------
    u : Tensor of shape (..., n_tokens, dim)
    k : Tensor of shape (..., n_tokens, n_tokens)
        Nonnegative weights, such as an attention matrix. They need not be symmetric: this is the
        solver's `smoothness` for ``K = k + k.T``.

    Returns
    -------
    Tensor of shape (...)

    References
    ----------
    EQUATIONS NT-5.

    Examples
    --------
    >>> import torch
    >>> from twinsolve.unrolled.diagnostics import smoothness
    >>> smoothness(torch.tensor([[0.0], [2.0]]), torch.tensor([[1.0, 3.0], [0.0, 1.0]]))
    tensor(6.)
    """
    u = u.to(torch.promote_types(u.dtype, torch.float32))
    squares = torch.cdist(u, u, compute_mode="donot_use_mm_for_euclid_dist").square()
    return (k * squares).sum(dim=(-2, -1)) / 2


def regularized_energy(u: Tensor, f: Tensor, k: Tensor, *, lam: float) -> Tensor:
    """Smoothness plus distance to observed tokens: ``E(u) = J(u) + lam/2 |u - f|_F^2``.

    Parameters
    ----------
    u, f : Tensor of shape (..., n_tokens, dim)
    k : Tensor of shape (..., n_tokens, n_tokens)
        As for `smoothness`.
    lam : float
        Weight of the fidelity.

    Returns
    -------
    Tensor of shape (...)

    References
    ----------
    EQUATIONS NT-5.

    Examples
    --------
    >>> import torch
    >>> from twinsolve.unrolled.diagnostics import regularized_energy
    >>> u = torch.tensor([[0.0], [2.0]])
    >>> regularized_energy(u, u + 1, torch.eye(2), lam=0.5)
    tensor(0.5000)
    """
    return smoothness(u, k) + lam / 2 * (u - f).square().sum(dim=(-2, -1))


def gradient_cosine(
    q: Tensor, k: Tensor, v: Tensor, *, mask: Tensor | None = None, is_causal: bool = False
) -> Tensor:
    """How close the step of softmax attention is to that of its symmetric kernel.

    Mean over the tokens of the cosine of ``sum_j exp(k_i.k_j / sqrt d) (v_i - v_j)``, the gradient
    of the smoothness under symmetric weights, and ``sum_j exp(q_i.k_j / sqrt d) (v_i - v_j)``, what
    attention does. Exactly 1 where q = k. A token whose step is zero counts as 0.

    Parameters
    ----------
    q, k : Tensor of shape (..., n_tokens, d)
    v : Tensor of shape (..., n_tokens, e)
    mask, is_causal
        As in ``scaled_dot_product_attention``.

    Returns
    -------
    Tensor of shape (...)

    Raises
    ------
    ValueError
        If queries and keys differ in number.

    References
    ----------
    EQUATIONS NT-T4; erratum E2-f.

    Examples
    --------
    >>> import torch
    >>> from twinsolve.unrolled.diagnostics import gradient_cosine
    >>> k, v = torch.randn(6, 4, dtype=torch.float64), torch.randn(6, 3, dtype=torch.float64)
    >>> gradient_cosine(k, k, v).round(decimals=6)
    tensor(1., dtype=torch.float64)
    """
    if q.shape[-2] != k.shape[-2]:
        raise ValueError(f"q: needs as many queries as keys, got {q.shape[-2]} and {k.shape[-2]}")
    # Dividing a token's gradient by its degree changes no angle and turns it into v - A v.
    symmetric, actual = (
        v - fused_attention(x, k, v, mask=mask, is_causal=is_causal) for x in (k, q)
    )
    return (unit_rows(symmetric) * unit_rows(actual)).sum(dim=-1).mean(dim=-1)
