"""Measures of tokens, of attention matrices and of Jacobians."""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor
from torch.autograd.functional import jvp, vjp
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from ..attention import check_count


def unit_rows(x: Tensor) -> Tensor:
    """Divide rows by their norms, in float32 at least, without underflow; zero rows stay zero."""
    x = x.to(torch.promote_types(x.dtype, torch.float32))
    largest = x.abs().amax(dim=-1, keepdim=True)
    return F.normalize(x / torch.where(largest > 0, largest, 1), dim=-1)


def token_similarity(x: Tensor, *, absolute: bool = False) -> Tensor:
    """Mean cosine of all pairs of tokens: 1 where all of them point the same way.

    ``1 / (N (N - 1)) sum_{i != j} cos(x_i, x_j)``, or that of ``|cos(x_i, x_j)|`` if `absolute`.
    The cosine with a zero token is 0.

    Parameters
    ----------
    x : Tensor of shape (..., n_tokens, dim)
        At least two tokens.
    absolute : bool, default=False
        False as for NeuTRENO, True as in the Fourier analysis of vision transformers.

    Returns
    -------
    Tensor of shape (...)

    Raises
    ------
    ValueError
        If there are fewer than two tokens.

    References
    ----------
    EQUATIONS NT-E3 (signed), AO-76 (absolute).

    Examples
    --------
    >>> import torch
    >>> from twinsolve.unrolled.diagnostics import token_similarity
    >>> x = torch.tensor([[1.0, 0.0], [-2.0, 0.0]])
    >>> token_similarity(x), token_similarity(x, absolute=True)
    (tensor(-1.), tensor(1.))
    """
    n = x.shape[-2]
    if n < 2:
        raise ValueError(f"x: needs at least two tokens, got {n}")
    unit = unit_rows(x)
    of_same_token = unit.square().sum(dim=(-2, -1))
    if absolute:
        return ((unit @ unit.mT).abs().sum(dim=(-2, -1)) - of_same_token) / (n * (n - 1))
    return (unit.sum(dim=-2).square().sum(dim=-1) - of_same_token) / (n * (n - 1))


def high_frequency_share(x: Tensor) -> Tensor:
    """Share of the high frequencies in the norm of the tokens: ``|HC x|_F / |x|_F``.

    ``HC x = x - mean(x)``, the mean over the tokens; 0 where all tokens are the same.

    Parameters
    ----------
    x : Tensor of shape (..., n_tokens, dim)

    Returns
    -------
    Tensor of shape (...)

    References
    ----------
    EQUATIONS AO-HF, AO-14 to AO-18.

    Examples
    --------
    >>> import torch
    >>> from twinsolve.unrolled.diagnostics import high_frequency_share
    >>> high_frequency_share(torch.tensor([[1.0], [-1.0]]))
    tensor(1.)
    """
    high = torch.linalg.norm(x - x.mean(dim=-2, keepdim=True), dim=(-2, -1))
    size = torch.linalg.norm(x, dim=(-2, -1))
    return high / torch.where(size > 0, size, 1)


def condition_number(x: Tensor) -> Tensor:
    """Condition number ``s_max / s_min`` over the min(n_tokens, dim) singular values.

    Infinite if ``s_min <= max(n_tokens, dim) eps s_max``, with eps of float64, in which it is
    computed: entries are taken as exact.

    Parameters
    ----------
    x : Tensor of shape (..., n_tokens, dim)

    Returns
    -------
    Tensor of shape (...), in float64

    References
    ----------
    EQUATIONS SK-4.

    Examples
    --------
    >>> import torch
    >>> from twinsolve.unrolled.diagnostics import condition_number
    >>> condition_number(torch.diag(torch.tensor([4.0, 2.0])))
    tensor(2., dtype=torch.float64)
    """
    s = torch.linalg.svdvals(x.double())
    largest, least = s[..., 0], s[..., -1]
    full = least > max(x.shape[-2:]) * torch.finfo(torch.float64).eps * largest
    return torch.where(full, largest / torch.where(full, least, 1), torch.inf)


def method_noise_share(v: Tensor, output: Tensor) -> Tensor:
    """Size of what a smoother takes away, ``|v - A v|_F / |v|_F``.

    Parameters
    ----------
    v, output : Tensor of shape (..., n_tokens, dim)
        Values, and the output of the operator for them.

    Returns
    -------
    Tensor of shape (...)
        0 where the values are zero.

    References
    ----------
    EQUATIONS IF-TW; Buades, Coll and Morel (2005).

    Examples
    --------
    >>> import torch
    >>> from twinsolve.unrolled.diagnostics import method_noise_share
    >>> v = torch.tensor([[2.0], [0.0]])
    >>> method_noise_share(v, torch.ones(2, 1))
    tensor(0.7071)
    """
    size = torch.linalg.norm(v, dim=(-2, -1))
    return torch.linalg.norm(v - output, dim=(-2, -1)) / torch.where(size > 0, size, 1)


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
    """Mean absolute cosine between columns of attention matrices, the weights that a key receives.

    The mean is over all pairs of different columns of A or, with B, over the pairs of column j of A
    and column j of B. A cosine with a zero column is 0.

    Parameters
    ----------
    A : Tensor of shape (..., n_queries, n_keys)
        Matrices of one layer; with at least two keys if B is None.
    B : Tensor of the same shape, optional
        Matrices of another layer.

    Returns
    -------
    Tensor of shape (...)
        One number for each matrix; papers take the mean over heads.

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

    It is 1 for softmax attention, and the share that the penalty leaves for sparse attention.

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
    n_nonzero = ((A != 0) & counted.bool()).sum(dim=(-2, -1))
    return n_nonzero / counted.sum(dim=(-2, -1)).clamp(min=1).float()


class LogitParts(NamedTuple):
    """The four terms of logits; names give the part of the query, then the part of the key."""

    token_token: Tensor
    token_position: Tensor
    position_token: Tensor
    position_position: Tensor


def logit_parts(
    tokens: Tensor, positions: Tensor, w_q: Tensor, w_k: Tensor, *, scale: float | None = None
) -> LogitParts:
    """Split the logits of ``x = tokens + positions`` into the terms of tokens and of positions.

    ``scale (x W_q) (x W_k)^T`` is the sum of four products, in which queries and keys each come
    from tokens or from positions. Bilateral attention keeps the first and the last.

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


def jacobian_spectrum(function: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """Singular values of the Jacobian ``d vec(f(x)) / d vec(x)``, largest first.

    The whole Jacobian is built: use it for a few hundred entries of x. With a frozen attention
    matrix A and projection W the Jacobian is the Kronecker product of A and ``W^T``, and its
    condition number is the product of theirs.

    Parameters
    ----------
    function : callable
        A layer: Tensor to Tensor, of any shapes.
    x : Tensor

    Returns
    -------
    Tensor of shape (min(n_outputs, n_inputs),)
        The first is the local Lipschitz constant, the first over the last the condition number.

    References
    ----------
    EQUATIONS SK-JAC.

    Examples
    --------
    >>> import torch
    >>> from twinsolve.unrolled.diagnostics import jacobian_spectrum
    >>> jacobian_spectrum(lambda x: 3 * x, torch.zeros(2, 2))
    tensor([3., 3., 3., 3.])
    """
    jacobian = torch.autograd.functional.jacobian(function, x.detach())
    n_inputs = x.numel()
    return torch.linalg.svdvals(jacobian.reshape(-1, n_inputs))


def lipschitz_constant(
    function: Callable[[Tensor], Tensor], x: Tensor, *, n_iter: int = 50, seed: int = 0
) -> Tensor:
    """Local Lipschitz constant at x: the largest singular value of the Jacobian there.

    By power iteration with Jacobian products, so that x may be large; it approaches the constant
    from below.

    Parameters
    ----------
    function : callable
        A layer: Tensor to Tensor.
    x : Tensor
    n_iter : int, default=50
        Number of iterations, >= 1.
    seed : int, default=0
        Seed of the first direction.

    Returns
    -------
    Tensor of shape ()

    Raises
    ------
    ValueError
        If ``n_iter < 1``.

    References
    ----------
    EQUATIONS IF-29, SK-JAC.

    Examples
    --------
    >>> import torch
    >>> from twinsolve.unrolled.diagnostics import lipschitz_constant
    >>> lipschitz_constant(lambda x: 3 * x, torch.zeros(4, 4))
    tensor(3.)
    """
    check_count(n_iter, "n_iter", 1)
    generator = torch.Generator().manual_seed(seed)
    direction = torch.randn(x.shape, generator=generator).to(x)
    growth = x.new_zeros(())
    # Forward products differentiate the backward pass, which the fused kernel does not offer.
    with sdpa_kernel(SDPBackend.MATH):
        for _ in range(n_iter):
            direction = direction / torch.linalg.vector_norm(direction)
            _, image = jvp(function, x.detach(), direction)
            growth = torch.linalg.vector_norm(image)
            if growth == 0:
                break
            _, direction = vjp(function, x.detach(), image)
    return growth
