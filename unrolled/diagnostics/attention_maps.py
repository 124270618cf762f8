"""Measures of attention matrices: spectrum, similarity inside and between layers, logits."""

from typing import NamedTuple

import torch
from torch import Tensor

from .tokens import unit_rows


def attention_spectrum(A: Tensor) -> tuple[Tensor, Tensor]:
    """Fourier spectrum of attention matrices, and the intensity of each band.

    ``Lam = F A F^-1`` with the unitary Fourier matrix F; ``intensity_i = |Lam_i|_2``, the norm of
    row i. Where rows of A sum to 1, column 0 of Lam is (1, 0, ..., 0).

    Parameters
    ----------
    A : Tensor of shape (..., n_tokens, n_tokens)

    Returns
    -------
    spectrum : complex Tensor of shape (..., n_tokens, n_tokens)
        Band 0 first, in the order of `torch.fft.fftfreq`.
    intensity : Tensor of shape (..., n_tokens)

    References
    ----------
    EQUATIONS AO-SPEC; errata E1-a, E1-b.

    Examples
    --------
    >>> import torch
    >>> from twinsolve.unrolled.diagnostics import attention_spectrum
    >>> attention_spectrum(torch.tensor([[0.75, 0.25], [0.25, 0.75]]))[1]
    tensor([1.0000, 0.5000])
    """
    A = A.to(torch.promote_types(A.dtype, torch.float32))
    bands = torch.fft.fft(A, dim=-2, norm="ortho")
    spectrum = torch.fft.ifft(bands, dim=-1, norm="ortho")
    return spectrum, torch.linalg.norm(spectrum, dim=-1)


def map_similarity(A: Tensor, B: Tensor | None = None) -> Tensor:
    """How alike the columns of attention matrices are: what the tokens receive.

    Mean of ``|cos|`` over all pairs of different columns of A, or, of two matrices, over the pairs
    of one column of A and the same of B. A cosine with a zero column is 0.

    Parameters
    ----------
    A : Tensor of shape (..., n_queries, n_keys)
        One layer's maps; with at least two keys if B is None.
    B : Tensor of the same shape, optional
        Those of another layer.

    Returns
    -------
    Tensor of shape (...)
        For each map; papers take the mean over heads.

    Raises
    ------
    ValueError
        If the shapes differ or there are too few keys.

    References
    ----------
    EQUATIONS AO-75.

    Examples
    --------
    >>> import torch
    >>> from twinsolve.unrolled.diagnostics import map_similarity
    >>> map_similarity(torch.eye(3)), map_similarity(torch.ones(3, 3)).round(decimals=5)
    (tensor(0.), tensor(1.))
    """
    columns = unit_rows(A.mT)
    if B is not None:
        if A.shape != B.shape:
            raise ValueError(f"B: must have the shape {tuple(A.shape)} of A, got {tuple(B.shape)}")
        return (columns * unit_rows(B.mT)).sum(dim=-1).abs().mean(dim=-1)
    n = A.shape[-1]
    if n < 2:
        raise ValueError(f"A: needs at least two keys, got {n}")
    cosines = (columns @ columns.mT).abs()
    total = cosines.sum(dim=(-2, -1)) - cosines.diagonal(dim1=-2, dim2=-1).sum(dim=-1)
    return total / (n * (n - 1))


def nonzero_share(A: Tensor, visible: Tensor | None = None) -> Tensor:
    """Share of the entries of attention matrices that are not exactly zero.

    1 for softmax attention; what a penalty leaves of sparse attention.

    Parameters
    ----------
    A : Tensor of shape (..., n_queries, n_keys)
    visible : bool Tensor broadcastable to that shape, optional
        Only these entries count.

    Returns
    -------
    Tensor of shape (...), in float32
        0 where no entry counts.

    References
    ----------
    EQUATIONS SE-12.

    Examples
    --------
    >>> import torch
    >>> from twinsolve.unrolled.diagnostics import nonzero_share
    >>> nonzero_share(torch.eye(4)), nonzero_share(torch.eye(4), torch.ones(4, 4).tril().bool())
    (tensor(0.2500), tensor(0.4000))
    """
    counted = torch.ones_like(A) if visible is None else visible.expand(A.shape)
    found = ((A != 0) & counted.bool()).sum(dim=(-2, -1))
    return found / counted.sum(dim=(-2, -1)).clamp(min=1).float()


class LogitParts(NamedTuple):
    """The four terms of the logits of tokens with positions, first the query's, then the key's."""

    token_token: Tensor
    token_position: Tensor
    position_token: Tensor
    position_position: Tensor


def logit_parts(
    tokens: Tensor,
    positions: Tensor,
    w_q: Tensor,
    w_k: Tensor,
    *,
    scale: float | None = None,
) -> LogitParts:
    """Split the logits of ``x = tokens + positions`` into what comes from which.

    ``scale (x W_q) (x W_k)^T`` is the sum of the four products in which queries and keys are each
    made of tokens or of positions. Bilateral attention keeps the first and the last.

    Parameters
    ----------
    tokens : Tensor of shape (..., n_tokens, dim)
    positions : Tensor of shape (..., n_tokens, dim)
    w_q, w_k : Tensor of shape (dim, head_dim)
        Projections, applied from the right.
    scale : float, optional
        None is ``head_dim ** -0.5``.

    Returns
    -------
    LogitParts
        Tensors of shape (..., n_tokens, n_tokens).

    Raises
    ------
    ValueError
        If tokens and positions differ in number or width.

    References
    ----------
    EQUATIONS IF-17, IF-19, IF-21.

    Examples
    --------
    >>> import torch
    >>> from twinsolve.unrolled.diagnostics import logit_parts
    >>> x, p, w = torch.randn(5, 4), torch.randn(5, 4), torch.eye(4)
    >>> torch.allclose(sum(logit_parts(x, p, w, w)), (x + p) @ (x + p).T / 2, atol=1e-5)
    True
    """
    if tokens.shape[-2:] != positions.shape[-2:]:
        raise ValueError(
            f"positions: must have {tuple(tokens.shape[-2:])} tokens and columns, "
            f"got {tuple(positions.shape[-2:])}"
        )
    scale = w_q.shape[-1] ** -0.5 if scale is None else scale
    queries = [scale * x @ w_q for x in (tokens, positions)]
    keys = [(x @ w_k).mT for x in (tokens, positions)]
    return LogitParts(*(q @ k for q in queries for k in keys))
