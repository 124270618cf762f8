"""From images to tokens: patches, their embedding, and positions."""

from typing import Any

import torch
from torch import Tensor, nn

from ..attention import check_count, check_input, check_positive
from .blocks import xavier_

# Root mean square of sinusoidal positions: |p|^2 = dim / 2.
SINUSOIDAL_SCALE = 2**-0.5


def sinusoidal_positions(n_tokens: int, dim: int) -> Tensor:
    """Positions ``p[i, 2t] = sin(i / 10000^(2t/dim))``, ``p[i, 2t+1] = cos(i / 10000^(2t/dim))``.

    Parameters
    ----------
    n_tokens : int
    dim : int
        Even.

    Returns
    -------
    Tensor of shape (n_tokens, dim), float64
        Rows have ``|p|^2 = dim / 2``.

    Raises
    ------
    ValueError
        If `dim` is odd.

    References
    ----------
    Vaswani et al. (2017); EQUATIONS IF-5.

    Examples
    --------
    >>> from twinsolve.unrolled.models import sinusoidal_positions
    >>> sinusoidal_positions(2, 4)[0]
    tensor([0., 1., 0., 1.], dtype=torch.float64)
    """
    if check_count(dim, "dim", 2) % 2:
        raise ValueError(f"dim: must be even for sinusoidal positions, got {dim}")
    rates = 10000.0 ** (-torch.arange(0, dim, 2, dtype=torch.float64) / dim)
    angles = torch.arange(n_tokens, dtype=torch.float64)[:, None] * rates
    return torch.stack([angles.sin(), angles.cos()], dim=-1).flatten(1)


class Positions(nn.Module):
    """Position features of a fixed number of tokens, learned or sinusoidal, or none.

    Parameters
    ----------
    n_tokens, dim : int
    kind : {"learned", "sinusoidal"} or None, default="learned"
    scale : float, default=2**-0.5
        Standard deviation at which learned positions start. The default is the scale of sinusoidal
        ones; small networks train far better from there than from the customary 0.02.

    Raises
    ------
    ValueError
        If there is no such kind, or `dim` is odd for sinusoidal ones.
    """

    weight: Tensor | None

    def __init__(
        self,
        n_tokens: int,
        dim: int,
        kind: str | None = "learned",
        *,
        scale: float = SINUSOIDAL_SCALE,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.kind, self.scale = kind, check_positive(scale, "position_scale")
        if kind not in ("learned", "sinusoidal", None):
            raise ValueError(f"positions: must be 'learned', 'sinusoidal' or None, got {kind!r}")
        empty = torch.empty(n_tokens, dim, device=device, dtype=dtype)
        if kind == "learned":
            self.weight = nn.Parameter(empty)
        else:
            self.register_buffer("weight", None if kind is None else empty, persistent=False)
        self.reset_parameters()

    def _load_from_state_dict(self, *args: Any) -> None:
        """Load; sinusoids, which no state holds, are computed, as memory may hold anything.

        If they have no memory, the state was assigned, and they take the default device.
        """
        super()._load_from_state_dict(*args)
        if self.kind != "sinusoidal":
            return
        assert self.weight is not None
        if self.weight.is_meta:
            self.weight = torch.empty_like(self.weight, device=torch.get_default_device())
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw learned positions anew, or compute the sinusoids."""
        if self.weight is None:
            return
        if self.kind == "learned":
            nn.init.normal_(self.weight, std=self.scale)
        else:
            with torch.no_grad():
                self.weight.copy_(sinusoidal_positions(*self.weight.shape))

    def forward(self) -> Tensor | None:
        """Positions of shape (n_tokens, dim), or None."""
        return self.weight

    def extra_repr(self) -> str:
        if self.weight is None:
            return "None"
        return f"{', '.join(map(str, self.weight.shape))}, {self.kind!r}, scale={self.scale:.4g}"


class PatchEmbedding(nn.Module):
    """Cut images into patches and project each to a token.

    Parameters
    ----------
    image_size, patch_size : int or pair of int
        Height and width in pixels; patches tile the image.
    in_channels, dim : int
    token_graying : nn.Module, optional
        Applied to the raw patches of each image, (batch, n_patches, channels * pixels), with pixels
        in row order inside each channel.

    Attributes
    ----------
    grid : pair of int
        Patches along the height and the width.

    Raises
    ------
    ValueError
        If patches do not tile the image.
    """

    def __init__(
        self,
        image_size: int | tuple[int, int],
        patch_size: int | tuple[int, int],
        in_channels: int,
        dim: int,
        *,
        token_graying: nn.Module | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        height, width = size_pair(image_size, "image_size")
        self.patch_size = size_pair(patch_size, "patch_size")
        if height % self.patch_size[0] or width % self.patch_size[1]:
            raise ValueError(
                f"image_size: must be a multiple of patch_size {self.patch_size}, "
                f"got {(height, width)}"
            )
        self.image_shape = (check_count(in_channels, "in_channels", 1), height, width)
        self.grid = (height // self.patch_size[0], width // self.patch_size[1])
        self.token_graying = token_graying
        n_pixels = in_channels * self.patch_size[0] * self.patch_size[1]
        self.projection = nn.Linear(
            n_pixels, check_count(dim, "dim", 1), device=device, dtype=dtype
        )
        xavier_(self.projection)

    def reset_parameters(self) -> None:
        """Draw a new projection."""
        xavier_(self.projection)

    def patches(self, images: Tensor) -> Tensor:
        """Cut images (batch, channels, h, w) to patches (batch, n_patches, channels * pixels)."""
        check_input(images, "images", ("batch", *self.image_shape), self.projection.weight)
        # (batch, channels, rows, height, columns, width)
        x = images.unflatten(3, (self.grid[1], -1)).unflatten(2, (self.grid[0], -1))
        return x.permute(0, 2, 4, 1, 3, 5).flatten(3).flatten(1, 2)

    def forward(self, images: Tensor, hidden: Tensor | None = None) -> Tensor:
        """Return tokens (batch, n_patches, dim); `hidden` patches count as zeros."""
        patches = self.patches(images)
        if hidden is not None:
            _check_hidden(hidden, patches)
            patches = patches.masked_fill(hidden[..., None], 0)
        if self.token_graying is not None:
            patches = self.token_graying(patches)
        return self.projection(patches)


def _check_hidden(hidden: Any, patches: Tensor) -> None:
    """Raise a ValueError unless a mask of patches is bool, of their shape and device."""
    if not isinstance(hidden, Tensor):
        raise ValueError(f"patch_padding_mask: must be a Tensor, got {type(hidden).__name__}")
    form = hidden.dtype, hidden.shape, hidden.device
    if form != (torch.bool, patches.shape[:2], patches.device):
        raise ValueError(
            f"patch_padding_mask: must be bool of shape {tuple(patches.shape[:2])} on "
            f"{patches.device}, got {form[0]} of {tuple(form[1])} on {form[2]}"
        )


def class_head(
    dim: int, num_classes: int, device: torch.device | str | None, dtype: torch.dtype | None
) -> nn.Module:
    """Return a linear layer to class scores, or the identity for zero classes."""
    if check_count(num_classes, "num_classes", 0) == 0:
        return nn.Identity()
    return nn.Linear(dim, num_classes, device=device, dtype=dtype)


def mean_token(x: Tensor, hidden: Tensor | None) -> Tensor:
    """Mean over the tokens (batch, tokens, dim) that a mask (batch, tokens) does not hide."""
    if hidden is None:
        return x.mean(dim=1)
    visible = ~hidden[..., None]
    return x.masked_fill(~visible, 0).sum(dim=1) / visible.sum(dim=1).clamp(min=1)


def check_ids(ids: Tensor, name: str, max_length: int, weight: Tensor) -> None:
    """Raise a ValueError unless ids are integers (batch, length) that index rows of `weight`."""
    if not isinstance(ids, Tensor):
        raise ValueError(f"{name}: must be a Tensor, got {type(ids).__name__}")
    if ids.ndim != 2 or ids.dtype not in (torch.int64, torch.int32):
        raise ValueError(
            f"{name}: must be integers of shape (batch, length), got {ids.dtype} of "
            f"{tuple(ids.shape)}"
        )
    if ids.shape[1] > max_length:
        raise ValueError(f"{name}: must have at most {max_length} tokens, got {ids.shape[1]}")
    if ids.device != weight.device:
        raise ValueError(f"{name}: must be on {weight.device} as the weights, got {ids.device}")
    checkable = ids.device.type == "cpu" and not torch.compiler.is_compiling()
    if checkable and ids.numel() and not 0 <= int(ids.min()) <= int(ids.max()) < len(weight):
        raise ValueError(
            f"{name}: must be among 0 to {len(weight) - 1}, got {int(ids.min())} to "
            f"{int(ids.max())}"
        )


def size_pair(size: Any, name: str) -> tuple[int, int]:
    """Return height and width, from one whole number >= 1 or two; errors call them `name`."""
    pair = tuple(size) if isinstance(size, list | tuple) else (size, size)
    if len(pair) != 2:
        raise ValueError(f"{name}: must be one number or (height, width), got {size!r}")
    return check_count(pair[0], name, 1), check_count(pair[1], name, 1)
