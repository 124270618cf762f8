"""Measures of tokens: how alike they are, how smooth, how well conditioned."""

import torch
from torch import Tensor
from torch.nn import functional as F


def unit_rows(x: Tensor) -> Tensor:
    """Rows at length one in float32 at least, however short they are; zero rows stay zero."""
    x = x.to(torch.promote_types(x.dtype, torch.float32))
    largest = x.abs().amax(dim=-1, keepdim=True)
    return F.normalize(x / torch.where(largest > 0, largest, 1), dim=-1)


def token_similarity(x: Tensor, *, absolute: bool = False) -> Tensor:
    """Mean cosine of all pairs of tokens: 1 where all of them point the same way.

    ``1 / (N (N - 1)) sum_{i != j} cos(x_i, x_j)``, or of ``|cos(x_i, x_j)|``. The cosine with a
    zero token is 0.

    Parameters
    ----------
    x : Tensor of shape (..., n_tokens, dim)
        At least two tokens.
    absolute : bool, default=False
        Signed as for NeuTRENO, or absolute as in the Fourier analysis of vision transformers.

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
    own = unit.square().sum(dim=(-2, -1))
    if absolute:
        return ((unit @ unit.mT).abs().sum(dim=(-2, -1)) - own) / (n * (n - 1))
    return (unit.sum(dim=-2).square().sum(dim=-1) - own) / (n * (n - 1))


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
        Values, and what the operator made of them.

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
