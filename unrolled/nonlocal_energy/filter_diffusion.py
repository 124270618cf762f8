"""Diffusion by learned filters, of each window alone or with similar windows."""

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..attention import check_count, check_positive
from ..sparse_coding.patches import Similar, patch_rows
from .filter_banks import check_images, dct_basis, filter_gradient, influence, window_counts

KNOTS = (1.0, 2.0, 4.0, 8.0, 16.0)


class FilterDiffusion(nn.Module):
    """One step of trained nonlinear reaction diffusion, at first thresholding in a DCT.

    ::

        u - (sum_i K_i^T phi_i(K_i u)) / n - lam (u - f)

    with the inner products ``K_i u`` of filter i and every window inside the image, and n the
    number of windows that cover a pixel. This is one gradient step, in the metric of n, on ::

        sum over windows w of  sum_i rho_i(<k_i, u_w>) + lam/2 |u_w - f_w|^2,    phi_i = rho_i'

    The influence functions are odd and piecewise linear, constant beyond their last knot ::

        phi_i(z) = sum_k weights_ik clip(z, -t_ik, t_ik),  t_ik = 2^k threshold_i,  k = 0 ... 4

    At the start the filters are those of the discrete cosine transform without the constant one,
    and ``phi_i(z) = clip(z, -threshold, threshold)``: from u = f, whatever lam, the step is soft
    thresholding of all windows in the transform, and a pixel the average of the windows that
    contain it. Filters are learned as coefficients in the transform, so that their mean stays 0.

    Parameters
    ----------
    threshold : float
        In units of the responses of filters of norm 1, > 0; a multiple of the noise level.
    lam : float, default=0.0
        Weight of the fidelity, >= 0 at the start.
    filter_size : int, default=7
        Side of the windows, >= 2; there are ``filter_size**2 - 1`` filters.

    Raises
    ------
    ValueError
        If a number is out of range, images have not four dimensions or are smaller than a window,
        or the two differ in shape.

    References
    ----------
    Chen and Pock, "Trainable nonlinear reaction diffusion" (2017); EQUATIONS FE-1, FE-2.

    Examples
    --------
    >>> import torch
    >>> from twinsolve.unrolled import FilterDiffusion
    >>> noisy = torch.rand(2, 1, 16, 16)
    >>> FilterDiffusion(0.2, lam=0.1)(noisy, noisy).shape
    torch.Size([2, 1, 16, 16])
    """

    def __init__(
        self,
        threshold: float,
        *,
        lam: float = 0.0,
        filter_size: int = 7,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.filter_size = check_count(filter_size, "filter_size", 2)
        self.initial_threshold = check_positive(threshold, "threshold")
        self.initial_lam = check_positive(lam, "lam", allow_zero=True)
        n_filters = self.filter_size**2 - 1
        options: dict[str, Any] = {"device": device, "dtype": dtype}
        self.coefficients = nn.Parameter(torch.empty(n_filters, n_filters, **options))
        self.log_threshold = nn.Parameter(torch.empty(n_filters, **options))
        self.weights = nn.Parameter(torch.empty(n_filters, len(KNOTS), **options))
        self.lam = nn.Parameter(torch.empty((), **options))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Return to thresholding in the discrete cosine transform."""
        with torch.no_grad():
            nn.init.eye_(self.coefficients)
            self.log_threshold.fill_(math.log(self.initial_threshold))
            self.weights.zero_()[:, 0] = 1.0
            self.lam.fill_(self.initial_lam)

    def filters(self) -> Tensor:
        """The filters, of shape (n_filters, filter_size, filter_size)."""
        return self._filters(self.coefficients).unflatten(-1, 2 * (self.filter_size,))

    def forward(self, u: Tensor, f: Tensor) -> Tensor:
        """Take one step from u with noisy images f, both (batch, channels, height, width)."""
        return self._step_by(u, f, partial(filter_gradient, knots=KNOTS))

    def _filters(self, coefficients: Tensor) -> Tensor:
        """Return filters as rows, from their coefficients in the transform."""
        return coefficients @ dct_basis(self.filter_size).to(coefficients)

    def _step_by(
        self, u: Tensor, f: Tensor, gradient_of: Callable[[Tensor, Tensor, Tensor], Tensor]
    ) -> Tensor:
        """Take a step by the energy's gradient ``gradient_of(images, filters, weights)``."""
        self._check(u, f)
        threshold = self.log_threshold.exp()[:, None]
        # clip(z, -r t, r t) = t clip(z / t, -r, r)
        filters = self._filters(self.coefficients) / threshold
        weights = self.weights * threshold.square()
        gradient = gradient_of(u.flatten(0, 1), filters.to(u.dtype), weights.to(u.dtype)).view_as(u)
        return self._descend(u, f, gradient, self.lam)

    def _check(self, u: Tensor, f: Tensor) -> None:
        check_images(u, "u", self.filter_size)
        if f.shape != u.shape:
            raise ValueError(f"f: must be of the shape of u, {(*u.shape,)}, got {(*f.shape,)}")

    def _descend(self, u: Tensor, f: Tensor, gradient: Tensor, lam: Tensor) -> Tensor:
        return u - gradient / window_counts(u, self.filter_size) - lam.to(u.dtype) * (u - f)

    def extra_repr(self) -> str:
        return (
            f"threshold={self.initial_threshold:.4g}, lam={self.initial_lam:.4g}, "
            f"filter_size={self.filter_size}"
        )


class NonlocalFilterDiffusion(FilterDiffusion):
    """One step of `FilterDiffusion` with ``W_i K_i`` in the place of the filters' responses K_i u.

    ::

        u - (sum_i K_i^T W_i^T phi_i(W_i K_i u)) / n - lam (u - f),    W_i = (1 - b_i) I + b_i M

    where M replaces the response to each window by the mean over the windows similar to it. It is a
    gradient step on the energy ``sum_i rho_i(W_i K_i u)``, with M held fixed. At first ``b = 0``,
    which is `FilterDiffusion`; the gradient in b says what similar windows add.

    Parameters
    ----------
    threshold, lam, filter_size
        Those of `FilterDiffusion`.

    Attributes
    ----------
    sharing : Parameter of shape (n_filters,)
        b.

    Raises
    ------
    ValueError
        As `FilterDiffusion`.

    References
    ----------
    Qiao et al., "TNLRD: trainable nonlinear reaction diffusion with nonlocal self-similarity"
    (2017), where b = 1 and M has learned weights; EQUATIONS FE-1.

    Examples
    --------
    >>> import torch
    >>> from twinsolve.unrolled.nonlocal_energy import NonlocalFilterDiffusion
    >>> from twinsolve.unrolled.sparse_coding.patches import Similar
    >>> noisy = torch.rand(2, 1, 16, 16)
    >>> similar = Similar.around(noisy, 7, window=3, n_similar=4)
    >>> NonlocalFilterDiffusion(0.2, lam=0.1)(noisy, noisy, similar).shape
    torch.Size([2, 1, 16, 16])
    """

    def __init__(
        self,
        threshold: float,
        *,
        lam: float = 0.0,
        filter_size: int = 7,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(threshold, lam=lam, filter_size=filter_size, device=device, dtype=dtype)
        self.sharing = nn.Parameter(torch.zeros_like(self.log_threshold))

    def reset_parameters(self) -> None:
        """Return to thresholding of each window by itself."""
        super().reset_parameters()
        if hasattr(self, "sharing"):  # not yet when it is called by the base's constructor
            nn.init.zeros_(self.sharing)

    def forward(self, u: Tensor, f: Tensor, similar: Similar) -> Tensor:  # type: ignore[override]
        """Take one step from u with noisy images f, both (batch, channels, height, width).

        `similar` has a row for each window of each channel of each image, in that order.
        """
        return self._step_by(u, f, partial(self._gradient_with_similar, similar))

    def _gradient_with_similar(
        self, similar: Similar, u: Tensor, filters: Tensor, weights: Tensor
    ) -> Tensor:
        """Return the energy's gradient; each filter shares its responses among similar windows."""
        share, n_similar = self.sharing.to(u.dtype), similar.n_similar
        z = patch_rows(u[:, None], self.filter_size) @ filters.mT
        z = z + share * (similar.sums(z) / n_similar - z)
        phi = influence(z, weights, KNOTS)
        phi = phi + similar.transposed_sums(share * phi) / n_similar - share * phi
        windows = (phi @ filters).unflatten(0, (len(u), -1))
        return F.fold(windows.mT, u.shape[1:], self.filter_size)[:, 0]
