"""Token graying: a power law on the spectrum of raw tokens, as a layer."""

import math
from typing import Any, Literal

import torch
from torch import Tensor, nn

from .attention import check_positive, once_in

_TRANSFORMS = ("dct", "svd")


class TokenGraying(nn.Module):
    """Lower the contrast of the spectrum of raw tokens by a power law.

    With the orthonormal discrete cosine transform ``F = Dn X Dd^T`` of both sides of a matrix X of
    n tokens of d features and ``m = max|F|``, or its thin SVD ``X = U diag(sigma) R^T``::

        dct:  X~ = Dn^T (sign(F) m (|F| / m)^eps) Dd
        svd:  X~ = U diag(sigma_1 (sigma / sigma_1)^eps) R^T

    It stands before the patch embedding, in training and in use; every matrix of a batch is grayed
    by itself. The SVD gives ``kappa(X~) = kappa(X)^eps``, keeps sigma_1 and does not depend on the
    order of tokens or features. The DCT keeps m and all signs; it lowers the condition number of
    most images, without a guarantee, and depends on both orders.

    The SVD is computed in float64 whatever the input, since the power law raises what is small,
    rounding included. The DCT is two fast Fourier transforms there and back, in the dtype of the
    input, at least float32. Singular values up to ``max(n, d)``, and coefficients up to
    ``log2(2 n d)`` times machine precision, relative to the largest, are rounding and become 0, as
    ``0^eps = 0``; there the slope, which is infinite, counts as 0. Else gradients are exact, also
    where singular values are equal. The SVD form has no second derivative.

    Parameters
    ----------
    transform : {"dct", "svd"}, default="dct"
    eps : float, default=0.95
        Power in (0, 1]; 1 changes nothing. 0.95 is the default of the paper.

    Raises
    ------
    ValueError
        If `transform` is unknown, eps is not in (0, 1], or tokens have fewer than two dimensions.

    References
    ----------
    Ji et al., "Always skip attention" (2025); EQUATIONS SK-A1, SK-8, SK-9, SK-A2. The listing of
    the SVD form does not multiply sigma_1 back (erratum E4-i), the DCT matrix is printed transposed
    (E4-j), and nothing is guaranteed for the DCT form (E4-k to E4-m).

    Examples
    --------
    >>> import torch
    >>> from twinsolve.unrolled import TokenGraying
    >>> TokenGraying("svd", eps=0.5)(torch.diag(torch.tensor([4.0, 1.0])))
    tensor([[4., 0.],
            [0., 2.]])
    """

    def __init__(self, transform: Literal["dct", "svd"] = "dct", *, eps: float = 0.95) -> None:
        super().__init__()
        if transform not in _TRANSFORMS:
            raise ValueError(f'transform: must be "dct" or "svd", got {transform!r}')
        if check_positive(eps, "eps") > 1:
            raise ValueError(f"eps: must be in (0, 1], got {eps!r}")
        self.transform, self.eps = transform, float(eps)

    def forward(self, X: Tensor) -> Tensor:
        """Gray token matrices of shape (..., n_tokens, n_features); the output has that shape."""
        if X.ndim < 2:
            raise ValueError(f"X: must be (..., n_tokens, n_features), got {tuple(X.shape)}")
        if X.numel() == 0:
            return X
        if self.transform == "svd":
            return _gray_svd(X.double(), self.eps).to(X.dtype)
        wide = torch.promote_types(X.dtype, torch.float32)
        return _gray_dct(X.to(wide), self.eps).to(X.dtype)

    def extra_repr(self) -> str:
        return f'transform="{self.transform}", eps={self.eps:.4g}'


def _gray_dct(X: Tensor, eps: float) -> Tensor:
    """Apply the power law to the coefficients of the cosine transform of both sides."""
    # Of unit size, so that no sum overflows; the law has no scale of its own.
    unit = X.detach().abs().amax(dim=(-2, -1), keepdim=True)
    unit = torch.where(unit > 0, unit, 1)
    F = cosine_transform(cosine_transform(X / unit).mT).mT
    size = F.abs()
    largest = size.amax(dim=(-2, -1), keepdim=True)
    kept = size > math.log2(2 * X.shape[-1] * X.shape[-2]) * torch.finfo(X.dtype).eps * largest
    # Where a coefficient is not kept, 1 stands in for its size, so that no slope is infinite.
    ratio = torch.where(kept, size, 1) / torch.where(kept, largest, 1)
    grayed = torch.where(kept, F.sign() * largest * ratio**eps, 0)
    return unit * inverse_cosine_transform(inverse_cosine_transform(grayed.mT).mT)


def _gray_svd(X: Tensor, eps: float) -> Tensor:
    """Apply the power law to the singular values."""
    grayed: Tensor = _GraySpectrum.apply(X, eps)[0]
    return grayed


def cosine_transform(x: Tensor) -> Tensor:
    """Orthonormal discrete cosine transform (DCT-II) of the last dimension, by one FFT.

    ::

        X_k = a_k sum_i x_i cos(pi (2 i + 1) k / (2 n)),    a_0 = sqrt(1 / n), else sqrt(2 / n)

    The even entries, followed by the odd ones in reverse, have a Fourier transform V with
    ``X_k = Re Z_k`` and ``X_{n-k} = -Im Z_k`` for ``Z_k = exp(-i pi k / (2 n)) V_k`` (Makhoul,
    1980): O(n log n), where the product with the matrix of the transform takes n^2.

    Parameters
    ----------
    x : Tensor of shape (..., n), float32 or float64

    Returns
    -------
    Tensor of shape (..., n)

    References
    ----------
    EQUATIONS SK-8, SK-9; the paper prints the transpose of the matrix, which is that of the
    inverse (erratum E4-j).
    """
    n = x.shape[-1]
    V = torch.fft.rfft(torch.cat([x[..., ::2], x[..., 1::2].flip(-1)], dim=-1), norm="ortho")
    Z = V * _make_quarter_turns(n, x)
    return torch.cat([Z.real, -Z.imag[..., 1 : (n + 1) // 2].flip(-1)], dim=-1)


def inverse_cosine_transform(X: Tensor) -> Tensor:
    """Return the x whose `cosine_transform` is X; both have shape (..., n)."""
    n = X.shape[-1]
    imag = nn.functional.pad(-X[..., (n + 1) // 2 :].flip(-1), (1, 0))
    Z = torch.complex(X[..., : n // 2 + 1], imag)
    v = torch.fft.irfft(Z / _make_quarter_turns(n, X), n, norm="ortho")
    even, odd = v[..., : (n + 1) // 2], v[..., (n + 1) // 2 :].flip(-1)
    pairs = torch.stack([even, nn.functional.pad(odd, (0, n % 2))], dim=-1)
    return pairs.flatten(-2)[..., :n]


def _make_quarter_turns(n: int, like: Tensor) -> Tensor:
    """Return ``a_k exp(-i pi k / (2 n)) sqrt(n)`` for the n // 2 + 1 frequencies k."""
    k = torch.arange(n // 2 + 1, device=like.device, dtype=like.dtype)
    scale = torch.full_like(k, math.sqrt(2))
    scale[:1] = 1
    return torch.polar(scale, -math.pi / (2 * n) * k)


def _find_cutoff(X: Tensor) -> float:
    """Return the rounding error of singular values, relative to the largest."""
    return max(X.shape[-2:]) * torch.finfo(X.dtype).eps


class _GraySpectrum(torch.autograd.Function):
    """Power law h on the singular values, with derivatives by divided differences.

    The derivative of the SVD itself is infinite where singular values are equal; that of the power
    law is not. In the bases of U and R it multiplies the symmetric part of a perturbation by
    ``(h_i - h_j) / (s_i - s_j)``, the antisymmetric part by ``(h_i + h_j) / (s_i + s_j)``, and the
    part outside of these bases by ``h_i / s_i``. A last term is that of s_1, the scale of the law.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(X: Tensor, eps: float) -> tuple[Tensor, ...]:
        U, s, Rt = torch.linalg.svd(X, full_matrices=False)
        s = torch.where(s > _find_cutoff(X) * s[..., :1], s, 0)
        largest = torch.where(s[..., :1] > 0, s[..., :1], 1)
        ratio = s / largest
        h = largest * torch.where(ratio > 0, ratio**eps, 0)
        return (U * h[..., None, :]) @ Rt, U, ratio, h / largest, Rt

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, float], output: tuple[Tensor, ...]) -> None:
        X, ctx.eps = inputs
        ctx.mark_non_differentiable(*output[1:])
        ctx.save_for_backward(X, *output[1:])

    @staticmethod
    def backward(ctx: Any, G: Tensor, *_: Tensor) -> tuple[Tensor, None]:
        X, U, s, h, Rt = ctx.saved_tensors
        inside = U.mT @ G @ Rt.mT
        h_over_s = torch.where(s > 0, h / torch.where(s > 0, s, 1), 0)
        symmetric, antisymmetric = (inside + inside.mT) / 2, (inside - inside.mT) / 2
        s_sums = s[..., :, None] + s[..., None, :]
        h_over_sums = (h[..., :, None] + h[..., None, :]) / torch.where(s_sums > 0, s_sums, 1)
        inner = symmetric * _divide_differences(s, ctx.eps) + antisymmetric * h_over_sums
        scale = (h * inside.diagonal(dim1=-2, dim2=-1)).sum(dim=-1) * (1 - ctx.eps)
        inner[..., 0, 0] += scale
        left = U.mT @ G - inside @ Rt
        right = G @ Rt.mT - U @ inside
        grad = (
            U @ (inner @ Rt + h_over_s[..., :, None] * left) + (right * h_over_s[..., None, :]) @ Rt
        )
        return once_in(grad, 'TokenGraying("svd"): has no second derivative', X), None


def _divide_differences(s: Tensor, eps: float) -> Tensor:
    """``(s_i^eps - s_j^eps) / (s_i - s_j)``, exact for close values; 0 where both are 0."""
    a, b = s[..., :, None], s[..., None, :]
    high, low = torch.maximum(a, b), torch.minimum(a, b)
    high = torch.where(high > 0, high, 1)
    log_ratio = torch.log1p((low - high) / high)
    close = log_ratio == 0
    quotient = torch.expm1(eps * log_ratio) / torch.expm1(torch.where(close, -1, log_ratio))
    slope = torch.where(close, eps, quotient) * high ** (eps - 1)
    return torch.where(torch.maximum(a, b) > 0, slope, 0)
