"""A learned regulariser whose energy is convex, minimised with a certificate."""

import torch
from torch import Tensor, nn

from ...attention import check_count, check_positive
from ...nonlocal_energy import ConvexRidge


class ConvexRidgeDenoiser(nn.Module):
    """Denoise by the minimiser of a learned energy, which is convex at all parameters.

    See `ConvexRidge` for the energy. At the start it is smoothed l1 analysis with the discrete
    cosine transform of windows ::

        1/2 |u - f|^2 + lam sigma / filter_size^2 sum over windows w of  sum_i huber(<d_i, u_w>)

    with a Huber function of slope 1 beyond ``threshold * sigma``. In the place of ``filter_size``
    stands the proved bound of the filters' norm, which is within 0.2 % of it.

    Parameters
    ----------
    sigma : float, default=25/255
        Noise level in grey levels that the network is for, > 0.
    filter_size : int, default=7
        Side of the windows, >= 2; there are ``filter_size**2 - 1`` filters.
    lam : float, default=1.25
        Weight of the responses at the start, in noise levels, > 0.
    threshold : float, default=0.1
        Where the Huber functions become linear, in noise levels, > 0.
    rho : float, default=0.9
        Bound in (0, 1) of the concavity that may be learned.
    tol : float, default=1e-8
        Largest certified root mean square distance from the minimiser, in grey levels. A plain
        attribute of `ridge`, which may be changed later.
    max_iter : int, default=1000
        Largest number of gradients.

    Raises
    ------
    ValueError
        If a number is out of range, or images have not four dimensions or are smaller than a
        window.

    Warns
    -----
    sklearn.exceptions.ConvergenceWarning
        As `ConvexRidge`.

    References
    ----------
    Goujon, Neumayer and Unser, "Learning weakly convex regularizers for convergent image
    reconstruction algorithms" (2024); EQUATIONS FE-3, FE-5.

    Examples
    --------
    >>> import torch
    >>> from twinsolve.unrolled.models.denoisers import ConvexRidgeDenoiser
    >>> network, noisy = ConvexRidgeDenoiser(), torch.rand(1, 1, 24, 24)
    >>> bool(network.certificate(noisy, network(noisy)) <= 1e-6)
    True
    """

    def __init__(
        self,
        *,
        sigma: float = 25 / 255,
        filter_size: int = 7,
        lam: float = 1.25,
        threshold: float = 0.1,
        rho: float = 0.9,
        tol: float = 1e-8,
        max_iter: int = 1000,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.sigma = check_positive(sigma, "sigma")
        self.filter_size = check_count(filter_size, "filter_size", 2)
        self.lam = check_positive(lam, "lam")
        self.threshold = check_positive(threshold, "threshold")
        self.ridge = ConvexRidge(
            self.lam * self.sigma / filter_size,
            self.threshold * self.sigma / filter_size,
            rho=rho,
            filter_size=filter_size,
            tol=tol,
            max_iter=max_iter,
            device=device,
            dtype=dtype,
        )

    @property
    def rho(self) -> float:
        """Bound of the concavity of the potentials."""
        return self.ridge.rho

    @property
    def tol(self) -> float:
        """Largest certified distance from the minimiser; set ``ridge.tol`` to change it."""
        return self.ridge.tol

    @property
    def max_iter(self) -> int:
        """Largest number of gradients in the minimisation."""
        return self.ridge.max_iter

    def reset_parameters(self) -> None:
        """Return to smoothed l1 analysis."""
        self.ridge.reset_parameters()

    def forward(self, noisy: Tensor) -> Tensor:
        """Denoise images of shape (batch, channels, height, width)."""
        denoised: Tensor = self.ridge(noisy)
        return denoised

    def certificate(self, noisy: Tensor, denoised: Tensor) -> Tensor:
        """Return proved bounds of distances from the minimiser; see `ConvexRidge.certificate`."""
        return self.ridge.certificate(noisy, denoised)

    def extra_repr(self) -> str:
        return (
            f"sigma={self.sigma:.4g}, filter_size={self.filter_size}, lam={self.lam:.4g}, "
            f"threshold={self.threshold:.4g}"
        )
