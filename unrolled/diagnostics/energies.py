"""Energies of tokens under attention weights, and whether attention descends them."""

import torch
from torch import Tensor

from ..attention import causal_mask, combine_masks, fused_attention, masked_softmax
from ..kernel_smoothing import squared_distances
from .measures import unit_rows


def attention_smoothness(u: Tensor, k: Tensor) -> Tensor:
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
    >>> from twinsolve.unrolled.diagnostics import attention_smoothness
    >>> attention_smoothness(torch.tensor([[0.0], [2.0]]), torch.tensor([[1.0, 3.0], [0.0, 1.0]]))
    tensor(6.)
    """
    u = u.to(torch.promote_types(u.dtype, torch.float32))
    return (k * squared_distances(u, u)).sum(dim=(-2, -1)) / 2


def attention_energy(u: Tensor, f: Tensor, k: Tensor, *, lam: float) -> Tensor:
    """Smoothness plus distance to observed tokens: ``E(u) = J(u) + lam/2 |u - f|_F^2``.

    Parameters
    ----------
    u, f : Tensor of shape (..., n_tokens, dim)
    k : Tensor of shape (..., n_tokens, n_tokens)
        As for `attention_smoothness`.
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
    >>> from twinsolve.unrolled.diagnostics import attention_energy
    >>> u = torch.tensor([[0.0], [2.0]])
    >>> attention_energy(u, u + 1, torch.eye(2), lam=0.5)
    tensor(0.5000)
    """
    return attention_smoothness(u, k) + lam / 2 * (u - f).square().sum(dim=(-2, -1))


def kernel_energy(
    u: Tensor,
    k: Tensor,
    *,
    f: Tensor | None = None,
    lam: Tensor | float = 0.0,
    mask: Tensor | None = None,
    is_causal: bool = False,
) -> Tensor:
    """Energy of tokens under the kernel of the keys, relative to the sum of its weights.

    ::

        1 / sum_i d_i ( 1/4 sum_ij K_ij |u_i - u_j|^2 + lam/2 sum_i d_i |u_i - f_i|^2 )

    with ``K_ij = exp(k_i . k_j / sqrt d)`` and ``d_i = sum_j K_ij``: the functionals J and E that
    symmetric and NeuTRENO attention descend, whatever A the layer applies. Attention divides by the
    degrees d_i, so a common factor of all weights has no meaning. Relative to the sum of the
    weights, energies neither overflow nor depend on the number of tokens.

    Parameters
    ----------
    u : Tensor of shape (..., n_tokens, e)
    k : Tensor of shape (..., n_tokens, d)
    f : Tensor of the shape of u, optional
        Observed tokens; needed where lam is not zero.
    lam : Tensor broadcastable to (..., 1, 1) or float, default=0.0
        Weight of the fidelity; 0 gives J alone.
    mask, is_causal
        As in ``scaled_dot_product_attention``: K is zero where key j is hidden from query i, so
        that it is symmetric only if the mask is.

    Returns
    -------
    Tensor of shape (...)
        In float32 at least; zero where every pair is hidden.

    References
    ----------
    EQUATIONS NT-5, NT-10 to NT-14, NT-22 to NT-26, NT-FP.

    Examples
    --------
    >>> import torch
    >>> from twinsolve.unrolled.diagnostics import kernel_energy
    >>> u = torch.tensor([[0.0], [2.0]])
    >>> kernel_energy(u, torch.zeros(2, 4)), kernel_energy(u, torch.zeros(2, 4), f=u + 1, lam=0.6)
    (tensor(0.5000), tensor(0.8000))
    """
    wide = torch.promote_types(k.dtype, torch.float32)
    k, u = k.to(wide), u.to(wide)
    logits = k @ k.mT * k.shape[-1] ** -0.5
    if is_causal:
        mask = combine_masks(mask, causal_mask(k, k))
    if mask is not None:
        mask = mask.expand(logits.shape).flatten(-2)
    weights = masked_softmax(logits.flatten(-2), mask).view(logits.shape)
    energy = attention_smoothness(u, weights / 2)
    if f is None:
        return energy
    fidelity = lam / 2 * weights.sum(dim=-1, keepdim=True) * (u - f.to(wide)).square()
    return energy + fidelity.sum(dim=(-2, -1))


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
