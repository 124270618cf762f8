"""Filter banks on images: gradients of energies that sum over all windows of an image."""

import math
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from ..attention import once_in
from ..block_size import block_size

_N_WINDOWS = 6000  # at once on a CPU, whose cache then holds all responses to them
_N_WINDOWS_ON_DEVICE = 2**20
_N_FREQUENCIES = 512
_REFUSAL = "learned filters: their step has no second derivative, as phi is piecewise linear"


def dct_basis(size: int) -> Tensor:
    """Filters of the orthonormal discrete cosine transform of windows, without the constant one.

    Parameters
    ----------
    size : int
        Side of the square windows.

    Returns
    -------
    Tensor of shape (size**2 - 1, size**2)
        float64. Row by row of frequencies, the horizontal one fastest.

    References
    ----------
    EQUATIONS FE-2.

    Examples
    --------
    >>> from twinsolve.unrolled.nonlocal_energy.filter_banks import dct_basis
    >>> basis = dct_basis(3)
    >>> bool((basis @ basis.mT).allclose(basis.new_ones(8).diag()))
    True
    """
    places = torch.arange(size, dtype=torch.float64)
    cosines = torch.cos(math.pi / size * places[:, None] * (places + 0.5))
    cosines = cosines / cosines.norm(dim=1, keepdim=True)
    return torch.kron(cosines, cosines)[1:]


def window_counts(image: Tensor, size: int) -> Tensor:
    """How many windows inside an image cover each of its pixels, of shape (height, width)."""

    def along(n: int) -> Tensor:
        places = torch.arange(n, device=image.device)
        first = (places - size + 1).clamp(min=0)
        return torch.minimum(places, places.new_tensor(n - size)) - first + 1

    height, width = image.shape[-2:]
    return (along(height)[:, None] * along(width)).to(image.dtype)


def norm_bound(filters: Tensor, weights: Tensor) -> Tensor:
    """A proved upper bound of ``|sum_i weights_i K_i^T K_i|_2``, for images of every size.

    It is the largest value of the weighted sum of squares of the filters' Fourier transforms, a
    polynomial of cosines of degree ``size - 1`` along each axis, on a grid of n x n frequencies,
    over ``cos(pi (size - 1) / n)`` for each axis (Ehlich and Zeller, 1964).
    The filters have shape (n_filters, size, size), and the weights are not negative.

    References
    ----------
    EQUATIONS FE-3.
    """
    border = filters.shape[-1] - 1
    n = max(_N_FREQUENCIES, 4 * filters.shape[-1])
    weighted = weights[:, None, None] * filters
    correlations = F.conv2d(filters[None], weighted[None], padding=border)[0, 0]
    squares = torch.fft.rfft2(correlations, (n, n)).abs()
    return squares.amax() / math.cos(math.pi * border / n) ** 2


def check_images(images: Tensor, name: str, size: int) -> None:
    """Raise a ValueError unless these are images that each contain a window."""
    small = images.ndim != 4 or min(images.shape[-2:]) < size
    if small or not images.is_floating_point():
        raise ValueError(
            f"{name}: must be floating point (batch, channels, height, width) with sides of at "
            f"least {size} pixels, got {images.dtype} {(*images.shape,)}"
        )


def filter_gradient(u: Tensor, filters: Tensor, weights: Tensor, knots: Sequence[float]) -> Tensor:
    """Gradient of a sum of potentials of filter responses: ``sum_i K_i^T phi_i(K_i u)``.

    ``K_i u`` holds the inner products of filter i with every window inside the image, and ::

        phi_i(z) = sum_k weights_ik clip(z, -knots_k, knots_k)

    is odd, piecewise linear and constant beyond the last knot: the derivative of the potential
    ``sum_k weights_ik huber_k``. On a CPU both passes work on a few thousand windows at a time, so
    that memory is that of the image. There is no second derivative, and no ``torch.func``.

    Parameters
    ----------
    u : Tensor of shape (n_images, height, width)
    filters : Tensor of shape (n_filters, size**2)
        Rows of a window one after another.
    weights : Tensor of shape (n_filters, n_knots)
    knots : sequence of float
        Positive.

    Returns
    -------
    Tensor of the shape of `u`

    References
    ----------
    EQUATIONS FE-1.

    Examples
    --------
    >>> import torch
    >>> from twinsolve.unrolled.nonlocal_energy import filter_gradient
    >>> from twinsolve.unrolled.nonlocal_energy.filter_banks import dct_basis
    >>> u = torch.eye(3, dtype=torch.float64)[None]
    >>> u - filter_gradient(u, dct_basis(3), torch.ones(8, 1, dtype=torch.float64), [10.0])
    tensor([[[0.3333, 0.3333, 0.3333],
             [0.3333, 0.3333, 0.3333],
             [0.3333, 0.3333, 0.3333]]], dtype=torch.float64)
    """
    return _FilterGradient.apply(u, filters, weights, tuple(knots))


class _FilterGradient(torch.autograd.Function):
    """`filter_gradient` with its gradient, block by block."""

    @staticmethod
    def forward(
        ctx: Any, u: Tensor, filters: Tensor, weights: Tensor, knots: tuple[float, ...]
    ) -> Tensor:
        ctx.save_for_backward(u, filters, weights)
        ctx.knots = knots
        size, gradient = math.isqrt(filters.shape[-1]), torch.zeros_like(u)
        for images, rows in _split_blocks(u, size):
            part = u[images, rows]
            z = filters @ _cut_windows(part, size)
            phi = torch.zeros_like(z)
            for k, knot in enumerate(knots):
                phi.addcmul_(z.clamp(-knot, knot), weights[:, k, None])
            gradient[images, rows] += _add_windows(filters.mT @ phi, part.shape, size)
        return gradient

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        with torch.no_grad():
            u, filters, weights = ctx.saved_tensors
            of_parameters = any(ctx.needs_input_grad[1:3])
            gradients = _differentiate(grad, u, filters, weights, ctx.knots, of_parameters)
        refusing = (grad, u, filters, weights)
        return *(once_in(x, _REFUSAL, *refusing) for x in gradients), None


def _differentiate(
    grad: Tensor,
    u: Tensor,
    filters: Tensor,
    weights: Tensor,
    knots: tuple[float, ...],
    of_parameters: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return gradients by u, filters and weights; of the last two only if `of_parameters`."""
    size = math.isqrt(filters.shape[-1])
    to_u, to_filters, to_weights = (torch.zeros_like(x) for x in (u, filters, weights))
    for images, rows in _split_blocks(u, size):
        windows, grad_windows = (_cut_windows(x[images, rows], size) for x in (u, grad))
        z, filtered = filters @ windows, filters @ grad_windows
        phi, slope = torch.zeros_like(z), torch.zeros_like(z)
        for k, knot in enumerate(knots):
            weight = weights[:, k, None]
            if of_parameters:
                clipped = z.clamp(-knot, knot)
                phi.addcmul_(clipped, weight)
                to_weights[:, k] += clipped.mul_(filtered).sum(dim=1)
            passed = torch.ops.aten.hardtanh_backward(filtered, z, -knot, knot)
            slope.addcmul_(passed, weight)
        if of_parameters:
            to_filters.addmm_(slope, windows.mT).addmm_(phi, grad_windows.mT)
        to_u[images, rows] += _add_windows(filters.mT @ slope, u[images, rows].shape, size)
    return to_u, to_filters, to_weights


def influence(z: Tensor, weights: Tensor, knots: Sequence[float]) -> Tensor:
    """Apply the influence functions phi_i of `filter_gradient` to responses (n_windows, n_filters).

    Examples
    --------
    >>> import torch
    >>> from twinsolve.unrolled.nonlocal_energy.filter_banks import influence
    >>> influence(torch.tensor([[-3.0], [1.5]]), torch.tensor([[1.0, 2.0]]), (1.0, 2.0))
    tensor([[-5.],
            [ 4.]])
    """
    phi: Tensor = _Influence.apply(z, weights, tuple(knots))
    return phi


class _Influence(torch.autograd.Function):
    """`influence` with its gradient."""

    @staticmethod
    def forward(ctx: Any, z: Tensor, weights: Tensor, knots: tuple[float, ...]) -> Tensor:
        ctx.save_for_backward(z, weights)
        ctx.knots = knots
        phi = torch.zeros_like(z)
        for knot, weight in zip(knots, weights.mT, strict=True):
            phi.addcmul_(z.clamp(-knot, knot), weight)
        return phi

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        z, weights = ctx.saved_tensors
        with torch.no_grad():
            to_z, to_weights = torch.zeros_like(z), torch.zeros_like(weights)
            for k, knot in enumerate(ctx.knots):
                passed = torch.ops.aten.hardtanh_backward(grad, z, -knot, knot)
                to_z.addcmul_(passed, weights[:, k])
                to_weights[:, k] = z.clamp(-knot, knot).mul_(grad).sum(dim=0)
        refusing = (grad, z, weights)
        return *(once_in(x, _REFUSAL, *refusing) for x in (to_z, to_weights)), None


def _split_blocks(u: Tensor, size: int) -> Iterator[tuple[slice, slice]]:
    """Yield slices of images and rows: whole images, or strips of one, of some thousand windows."""
    n_images, height, width = u.shape
    rows, columns = height - size + 1, width - size + 1
    max_windows = _N_WINDOWS if u.device.type == "cpu" else _N_WINDOWS_ON_DEVICE
    n_together = block_size(max(1, max_windows // (rows * columns)))
    strip = block_size(max(1, min(rows, max_windows // columns)))
    for first in range(0, n_images, n_together):
        for top in range(0, rows, strip):
            bottom = min(top + strip, rows) + size - 1
            yield slice(first, first + n_together), slice(top, bottom)


def _cut_windows(u: Tensor, size: int) -> Tensor:
    """Return all windows inside the images as columns, (size^2, windows)."""
    n_images, height, width = u.shape
    image, down, right = u.stride()
    shape = (size, size, n_images, height - size + 1, width - size + 1)
    return u.as_strided(shape, (down, right, image, down, right)).reshape(size * size, -1)


def _add_windows(windows: Tensor, shape: torch.Size, size: int) -> Tensor:
    """Sum overlapping windows to images: the adjoint of `_cut_windows`."""
    n_images, height, width = shape
    rows, columns = height - size + 1, width - size + 1
    windows = windows.reshape(size, size, n_images, rows, columns)
    wide = windows.new_zeros(size, n_images, rows, width)
    for right in range(size):
        wide[..., right : right + columns] += windows[:, right]
    images = windows.new_zeros(shape)
    for down in range(size):
        images[:, down : down + rows] += wide[down]
    return images
