"""A step of diffusion by learned filters that respond to similar windows as well."""

from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..sparse_coding.patch_rows import patch_rows
from ..sparse_coding.similar_patches import Similar
from .filter_banks import influence
from .filter_diffusion import KNOTS, FilterDiffusion


class NonlocalFilterDiffusion(FilterDiffusion):
    """One step of `FilterDiffusion` with ``W_i K_i`` in the place of the filters' responses K_i u.

    ::

        u - (sum_i K_i^T W_i^T phi_i(W_i K_i u)) / n - lam (u - f),    W_i = (1 - b_i) I + b_i M

    where M replaces the response to each window by the mean over those similar to it: a gradient
    step on the energy ``sum_i rho_i(W_i K_i u)``, with M held. At first ``b = 0``, which is
    `FilterDiffusion`; its gradient says what similar windows add.

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
    >>> from twinsolve.unrolled.sparse_coding.similar_patches import Similar
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
        """Step from u, for noisy images f, both of shape (batch, channels, height, width).

        `similar` has a row for each window of each channel of each image, in that order.
        """
        return self._stepped(u, f, partial(self._gradient, similar))

    def _gradient(self, similar: Similar, u: Tensor, filters: Tensor, weights: Tensor) -> Tensor:
        share, n_similar = self.sharing.to(u.dtype), similar.n_similar
        z = patch_rows(u[:, None], self.filter_size) @ filters.mT
        z = z + share * (similar.sums(z) / n_similar - z)
        phi = influence(z, weights, KNOTS)
        phi = phi + similar.transposed_sums(share * phi) / n_similar - share * phi
        windows = (phi @ filters).unflatten(0, (len(u), -1))
        return F.fold(windows.mT, u.shape[1:], self.filter_size)[:, 0]
