"""The minimiser of a learned energy that is convex, whatever its parameters."""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from ..attention import check_count, check_positive, is_transformed, untraced, without_autocast
from ..fixed_point import transposed_product, warn_of_convergence, with_gradient
from .filter_banks import check_images, dct_basis, filter_gradient, norm_bound

KNOTS = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0)
_REFUSAL = "ConvexRidge: has no second derivative"


class ConvexRidge(nn.Module):
    """The minimiser of a weakly convex ridge regulariser's energy, with the implicit gradient.

    ::

        u* = argmin_u F(u),    F(u) = 1/2 |u - f|^2 + sum_i psi_i(W_i u)

    with the inner products ``W_i u`` of filter i and every window inside the image, and even
    potentials of piecewise constant curvature ::

        psi_i''(z) = rho (exp(log_curvature_ik) - 1)   for t_i,k-1 < |z| <= t_ik = 2^k threshold_i,

    k = 0 ... 5, and 0 beyond. The filters are scaled so that ``|W|_2 <= 1`` is proved for images of
    every size. So ``F'' >= 1 - rho > 0`` at all parameters: training cannot break it. Every image
    has one minimiser, and for any u ``|u - u*| <= |grad F(u)| / (1 - rho)``.

    At the start W is the discrete cosine transform of the windows without its constant part, and
    psi the Huber function of slope `lam`: l1 analysis, smoothed below `threshold`. There many
    frequencies attain the norm of W, and its gradient is one of several subgradients.

    Forward runs accelerated gradient steps on all images until `certificate` proves each within
    `tol`, without a graph. Backward solves the linear system ``F'' y = g`` of the implicit function
    theorem by conjugate gradients until ``|F'' y - g| <= tol (1 - rho) |y|``, which proves y to a
    relative error of `tol`. So memory is that of one gradient. F'' is taken at the computed image,
    and differs from that at u* for responses which lie on another side of a knot: gradients of a
    network with 7 x 7 filters were wrong by 0.2 to 1 % at a `tol` of 1e-4, by 2e-7 at 1e-8 in
    float64, and by up to 1e-4 in float32 at any `tol`. There is no second derivative, and as the
    work depends on the data, no ``torch.func``, ``torch.export`` or compilation to a full graph.

    Parameters
    ----------
    lam : float
        Slope of the potentials at the start, in grey levels, > 0.
    threshold : float
        First knot, in units of the responses ``W_i u``, > 0.
    rho : float, default=0.9
        Bound in (0, 1) of the concavity of the potentials.
    filter_size : int, default=7
        Side of the windows, >= 2; there are ``filter_size**2 - 1`` filters.
    tol : float, default=1e-8
        Largest certified root mean square distance from the minimiser, in grey levels, > 0. Where
        ``4 eps max |f| / (1 - rho)`` is larger, it counts instead. A plain attribute: it may be
        changed later.
    max_iter : int, default=1000
        Largest number of gradients.

    Raises
    ------
    ValueError
        If a number is out of range, or images have not four dimensions or are smaller than a
        window.
    RuntimeError
        Under ``torch.export`` or ``torch.func``, or if a second derivative is asked for.

    Warns
    -----
    sklearn.exceptions.ConvergenceWarning
        If an image is not proved to be within `tol` after `max_iter` gradients, or the bound of the
        relative error of y is above both `tol` and the root of eps.

    References
    ----------
    Goujon, Neumayer and Unser, "Learning weakly convex regularizers for convergent image
    reconstruction algorithms" (2024); EQUATIONS FE-3, with ``psi = lam psi`` there.

    Examples
    --------
    >>> import torch
    >>> from twinsolve.unrolled import ConvexRidge
    >>> layer, noisy = ConvexRidge(0.02, 0.02), torch.rand(1, 1, 16, 16)
    >>> denoised = layer(noisy)
    >>> bool(layer.certificate(noisy, denoised) <= 1e-6)
    True
    """

    def __init__(
        self,
        lam: float,
        threshold: float,
        *,
        rho: float = 0.9,
        filter_size: int = 7,
        tol: float = 1e-8,
        max_iter: int = 1000,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.initial_lam = check_positive(lam, "lam")
        self.initial_threshold = check_positive(threshold, "threshold")
        self.rho = check_positive(rho, "rho")
        if self.rho >= 1:
            raise ValueError(f"rho: must be in (0, 1), got {rho!r}")
        self.filter_size = check_count(filter_size, "filter_size", 2)
        self.tol = check_positive(tol, "tol")
        self.max_iter = check_count(max_iter, "max_iter", 1)
        n_filters = self.filter_size**2 - 1
        options: dict[str, Any] = {"device": device, "dtype": dtype}
        self.coefficients = nn.Parameter(torch.empty(n_filters, n_filters, **options))
        self.log_threshold = nn.Parameter(torch.empty(n_filters, **options))
        self.log_curvature = nn.Parameter(torch.empty(n_filters, len(KNOTS), **options))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Return to smoothed l1 analysis with the discrete cosine transform."""
        curvature = self.initial_lam / self.initial_threshold
        with torch.no_grad():
            nn.init.eye_(self.coefficients)
            self.log_threshold.fill_(math.log(self.initial_threshold))
            self.log_curvature.zero_()[:, 0] = math.log1p(curvature / self.rho)

    def filters(self) -> Tensor:
        """The filters W, of shape (n_filters, filter_size, filter_size), in float64."""
        basis = dct_basis(self.filter_size).to(self.coefficients.device)
        filters = (self.coefficients.double() @ basis).unflatten(-1, 2 * (self.filter_size,))
        return filters / norm_bound(filters, torch.ones_like(filters[:, 0, 0])).sqrt()

    def curvatures(self) -> Tensor:
        """``psi_i''`` between the knots, of shape (n_filters, n_knots), in float64."""
        return self.rho * self.log_curvature.double().expm1()

    def forward(self, noisy: Tensor) -> Tensor:
        """Denoise images of shape (batch, channels, height, width), each channel by itself.

        Computed in float32 at least, also under autocast. The output is NaN for an image that is
        not finite, and for all images if a parameter is not finite.
        """
        check_images(noisy, "noisy", self.filter_size)
        if torch.compiler.is_exporting() or is_transformed():
            raise RuntimeError(
                "ConvexRidge: cannot be exported, nor transformed by torch.func, as the number of "
                "its iterations depends on the data"
            )
        with without_autocast(noisy):
            return self._refuse_tracing(noisy)

    @untraced
    def _refuse_tracing(self, noisy: Tensor) -> Tensor:
        """Minimise each channel; compiled programs call this uncompiled."""
        computed = torch.promote_types(noisy.dtype, torch.float32)
        images = noisy.flatten(0, 1).to(computed)
        energy = self._make_energy(computed)
        with torch.no_grad():
            u = self._minimise(images, energy)
        if not torch.is_grad_enabled():
            return u.view_as(noisy).to(noisy.dtype)
        leaf = u.clone().requires_grad_()
        slope = energy.detached().gradient(leaf, images.detach())

        def solve(b: Tensor) -> Tensor:
            return self._solve_hessian(
                lambda y: transposed_product(slope, leaf, y), b, energy.convexity
            )

        denoised = with_gradient(u, u - energy.gradient(u, images), solve, _REFUSAL)
        return denoised.view_as(noisy).to(noisy.dtype)

    def certificate(self, noisy: Tensor, denoised: Tensor) -> Tensor:
        """Return a proved bound of the root mean square distance of each image from the minimiser.

        ``|u - u*| / sqrt(n) <= |grad F(u)| / ((1 - rho') sqrt(n))``, with ``rho' <= rho`` from the
        potentials as they are. Computed in float64, for any `denoised`.

        Parameters
        ----------
        noisy, denoised : Tensor of shape (batch, channels, height, width)

        Returns
        -------
        Tensor of shape (batch, channels)
            In grey levels, float64.
        """
        check_images(noisy, "noisy", self.filter_size)
        if denoised.shape != noisy.shape:
            raise ValueError(
                f"denoised: must be of the shape of noisy, {(*noisy.shape,)}, got "
                f"{(*denoised.shape,)}"
            )
        with torch.no_grad():
            f, u = (x.double().flatten(0, 1) for x in (noisy, denoised))
            energy = self._make_energy(torch.float64)
            return energy.distance(energy.gradient(u, f)).view(noisy.shape[:2])

    def _make_energy(self, dtype: torch.dtype) -> "_Energy":
        """Return the energy at the layer's present parameters, with bounds of its curvature."""
        threshold = self.log_threshold.double().exp()[:, None]
        filters, curvatures = self.filters(), self.curvatures()
        weights = curvatures - nn.functional.pad(curvatures[:, 1:], (0, 1))
        with torch.no_grad():
            convexity = 1 - norm_bound(filters, -curvatures.amin(dim=1).clamp(max=0))
            smoothness = 1 + norm_bound(filters, curvatures.amax(dim=1).clamp(min=0))
        return _Energy(
            (filters.flatten(1) / threshold).to(dtype),
            (weights * threshold.square()).to(dtype),
            float(convexity),
            float(smoothness),
        )

    def _minimise(self, f: Tensor, energy: "_Energy") -> Tensor:
        """Minimise by Nesterov's iteration, restarted image by image where the energy rises.

        An image that is certified keeps its value and leaves the iteration.
        """
        result = f.clone()
        indices = torch.arange(len(f), device=f.device)
        u = last = f
        t = f.new_ones(len(f), 1, 1)
        rounding = 4 * torch.finfo(f.dtype).eps * f.abs().amax(dim=(1, 2)) / energy.convexity
        tol, worst = rounding.clamp(min=self.tol), 0.0
        for _ in range(self.max_iter):
            gradient = energy.gradient(u, f)
            distance = energy.distance(gradient)
            result[indices] = torch.where(distance.isfinite()[:, None, None], u, torch.nan)
            is_open = (distance > tol) & distance.isfinite()
            if not bool(is_open.any()):
                return result
            worst = float(distance[is_open].max())
            if not bool(is_open.all()):
                indices, f, u, last, t, gradient, tol = (
                    x[is_open] for x in (indices, f, u, last, t, gradient, tol)
                )
            stepped = u - gradient / energy.smoothness
            move = stepped - last
            uphill = (gradient * move).sum(dim=(1, 2), keepdim=True) > 0
            t = torch.where(uphill, 1.0, t)
            next_t = (1 + (1 + 4 * t * t).sqrt()) / 2
            u, last, t = stepped + (t - 1) / next_t * move, stepped, next_t
        warn_of_convergence(
            f"ConvexRidge: {len(indices)} of {len(result)} images are not proved to be within "
            f"tol={self.tol:.3g} of the minimiser after {self.max_iter} gradients (worst "
            f"{worst:.3g}); increase max_iter or tol"
        )
        return result

    def _solve_hessian(
        self, hessian: Callable[[Tensor], Tensor], b: Tensor, convexity: float
    ) -> Tensor:
        """Return ``y = F''^-1 b``; warn where its residual does not prove the accuracy."""
        y = _solve_by_conjugate_gradients(hessian, b, self.tol * convexity)
        error = (_norm(b - hessian(y)) / (convexity * _norm(y))).max()
        if error > max(self.tol, torch.finfo(b.dtype).eps ** 0.5):
            warn_of_convergence(
                f"ConvexRidge: a gradient is not proved to be within tol={self.tol:.3g} (bound of "
                f"the relative error {float(error):.3g}); take float64, or a smaller rho"
            )
        return y

    def extra_repr(self) -> str:
        return (
            f"lam={self.initial_lam:.4g}, threshold={self.initial_threshold:.4g}, "
            f"rho={self.rho:.4g}, filter_size={self.filter_size}, tol={self.tol:.3g}, "
            f"max_iter={self.max_iter}"
        )


class _Energy:
    """F at the layer's present parameters, with bounds of its curvature."""

    def __init__(
        self, filters: Tensor, weights: Tensor, convexity: float, smoothness: float
    ) -> None:
        self.filters, self.weights = filters, weights
        self.convexity, self.smoothness = convexity, smoothness

    def detached(self) -> "_Energy":
        filters, weights = self.filters.detach(), self.weights.detach()
        return _Energy(filters, weights, self.convexity, self.smoothness)

    def gradient(self, u: Tensor, f: Tensor) -> Tensor:
        return u - f + filter_gradient(u, self.filters, self.weights, KNOTS)

    def distance(self, gradient: Tensor) -> Tensor:
        """Return the bound of the root mean square distance from the minimiser."""
        return gradient.square().mean(dim=(1, 2)).sqrt() / self.convexity


def _solve_by_conjugate_gradients(
    product: Callable[[Tensor], Tensor], b: Tensor, tol: float
) -> Tensor:
    """Solve ``A x = b`` for each image until ``|b - A x| <= tol |x|``; A is positive definite."""
    x, residual = torch.zeros_like(b), b
    direction, square = b, _norm(b).square()
    tol = max(tol, 4 * torch.finfo(b.dtype).eps)
    for _ in range(b[0].numel()):
        is_open = square > (tol * _norm(x)).square()
        if not bool(is_open.any()):  # nor where it is NaN
            break
        curved = product(direction)
        length = torch.where(is_open, square / (direction * curved).sum((1, 2), keepdim=True), 0.0)
        x = x + length * direction
        residual = residual - length * curved
        next_square = _norm(residual).square()
        direction = residual + torch.where(is_open, next_square / square, 0.0) * direction
        square = next_square
    return x


def _norm(images: Tensor) -> Tensor:
    return torch.linalg.vector_norm(images, dim=(1, 2), keepdim=True)
