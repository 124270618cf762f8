"""The bilateral filter as an image layer: attention by place and grey level at once."""

import torch
from torch import Tensor, nn

from ..attention import Positive, check_count, check_positive, without_autocast
from .tiles import centred, tiled_average


class BilateralFilter(nn.Module):
    """The bilateral filter of images, with both of its bandwidths learnable.

    ::

        u_i = sum_j w_ij v_j / sum_j w_ij
        w_ij = exp(-|p_i - p_j|^2 / (2 sigma_spatial^2) - |y_i - y_j|^2 / (2 sigma_color^2))

    with p the positions in pixels, y the guide, and j in a square window around i, clipped to the
    image: `twinsolve.solvers.bilateral_filter`. Computed in float32 at least, also under autocast.
    Nothing here is the twin of the solver's `mask`. In attention between tokens, the mask that
    hides keys is: at valid pixels both leave out the same j.

    Parameters
    ----------
    sigma_color : float, default=0.1
        Standard deviation of grey levels, > 0, at first.
    sigma_spatial : float, default=1.0
        Standard deviation of positions, in pixels, > 0, at first.
    win_size : int, default=7
        Side of the window, odd.

    Attributes
    ----------
    sigma_color, sigma_spatial : Positive

    Raises
    ------
    ValueError
        If a width is not positive or the window even; when called, on guides and values that are
        not of four dimensions and one size.

    References
    ----------
    Tomasi and Manduchi (1998); EQUATIONS IF-13.

    Examples
    --------
    >>> import torch
    >>> from twinsolve.unrolled.image_filters import BilateralFilter
    >>> BilateralFilter(0.2)(torch.rand(2, 1, 16, 20)).shape
    torch.Size([2, 1, 16, 20])
    """

    def __init__(
        self,
        sigma_color: float = 0.1,
        sigma_spatial: float = 1.0,
        *,
        win_size: int = 7,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.win_size = check_count(win_size, "win_size", 1)
        if win_size % 2 == 0:
            raise ValueError(f"win_size: must be odd, got {win_size}")
        self.sigma_color, self.sigma_spatial = (
            Positive(
                check_positive(width, name), name=name, learnable=True, device=device, dtype=dtype
            )
            for name, width in (("sigma_color", sigma_color), ("sigma_spatial", sigma_spatial))
        )

    def reset_parameters(self) -> None:
        """Return both bandwidths to their values at construction."""
        for width in (self.sigma_color, self.sigma_spatial):
            width.reset_parameters()

    def forward(self, guide: Tensor, values: Tensor | None = None) -> Tensor:
        """Average the values with the weights of the guide; by default the guide itself.

        Both are of shape (batch, channels, height, width).
        """
        values = guide if values is None else values
        for name, x in (("guide", guide), ("values", values)):
            fits = x.ndim == 4 and (len(x), *x.shape[-2:]) == (len(guide), *guide.shape[-2:])
            if not fits or not x.is_floating_point():
                raise ValueError(
                    f"{name}: must be floating point (batch, channels, height, width), of the size "
                    f"of the guide, got {x.dtype} {tuple(x.shape)}"
                )
        wide = torch.promote_types(guide.dtype, torch.float32)
        colour, space = (s().to(wide) for s in (self.sigma_color, self.sigma_spatial))
        with without_autocast(guide):
            averaged = tiled_average(
                centred(guide) / (2**0.5 * colour),
                values.to(wide),
                patch_distance=self.win_size // 2,
                spatial_scale=space**-2 / 2,
            )
        return averaged.to(values.dtype)

    def extra_repr(self) -> str:
        return f"win_size={self.win_size}"
