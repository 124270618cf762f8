"""Attention of each pixel to a window, tile by tile: dense products in place of shifts."""

import torch
from torch import Tensor
from torch.nn import functional as F

from ..attention import recomputed
from ..block_size import block_size

_TILE = 8
_ENTRIES_AT_ONCE = 2**22  # most weights at once, so that they stay near the processor


def tiled_average(
    features: Tensor,
    values: Tensor,
    *,
    patch_distance: int,
    offset: Tensor | float = 0.0,
    spatial_scale: Tensor | float = 0.0,
) -> Tensor:
    """Average values over windows, with weights from the distance of features and of positions.

    ::

        u_i = sum_j w_ij v_j / sum_j w_ij
        w_ij = exp(-max(|e_i - e_j|^2 - offset, 0) - spatial_scale |p_i - p_j|^2)

    with p the positions in pixels and j in the window of i, clipped to the image. The queries of a
    tile of 8 x 8 pixels share one matrix product with all keys that any of them sees. The mean of
    the tile is subtracted from features, which keeps the digits of distances in float32. Memory is
    linear in the number of pixels: only the weights of some tiles are held at once, and the
    backward pass computes them again.

    Parameters
    ----------
    features : Tensor of shape (batch, n_features, height, width)
        e, in units of the bandwidth.
    values : Tensor of shape (batch, n_values, height, width)
        v.
    patch_distance : int
        Half width of the window.
    offset : float or Tensor of shape (), default=0.0
        What noise alone adds to a squared distance.
    spatial_scale : float or Tensor of shape (), default=0.0
        Weight of squared distances of positions.

    Returns
    -------
    Tensor of the shape of `values`

    References
    ----------
    EQUATIONS SE-6, IF-13, IF-14w.

    Examples
    --------
    >>> import torch
    >>> from twinsolve.unrolled.image_filters import tiled_average
    >>> image = torch.eye(3)[None, None]
    >>> tiled_average(0 * image, image, patch_distance=0).equal(image)
    True
    """
    batch, _, height, width = values.shape
    side, n = block_size(_TILE), patch_distance
    down, right = -height % side, -width % side
    frame = (n, n + right, n, n + down)
    inside = F.pad(torch.ones_like(values[:1, :1]), frame)
    e, v = F.pad(features, frame), F.pad(values, frame)
    shifts = _list_shifts(side, n, values.device)
    seen, squares = (shifts.abs() <= n).all(dim=0), shifts.square().sum(dim=0)
    columns = (width + right) // side
    rows = block_size(max(1, _ENTRIES_AT_ONCE // (batch * columns * seen.numel())))

    def band(
        e: Tensor, v: Tensor, inside: Tensor, offset: Tensor | float, spatial_scale: Tensor | float
    ) -> Tensor:
        # (batch, tiles, keys, numbers)
        keys, key_values = _cut_tiles(e, side, n), _cut_tiles(v, side, n)
        visible = seen & (_cut_tiles(inside, side, n)[..., 0] > 0)[..., None, :]
        # Queries beyond the border, which are cut off, may see nothing: any finite number will do.
        barrier = torch.where(visible | ~visible.any(dim=-1, keepdim=True), 0.0, -torch.inf)
        queries = _take_inner(keys, side, n)
        middle = queries.detach().mean(dim=-2, keepdim=True)
        queries, keys = queries - middle, keys - middle
        query_terms = offset - queries.square().sum(dim=-1)[..., :, None]
        logits = query_terms - keys.square().sum(dim=-1)[..., None, :] + 2 * queries @ keys.mT
        fixed = barrier.to(e.dtype) - spatial_scale * squares.to(e.dtype)
        return torch.softmax(logits.clamp(max=0) + fixed, dim=-1) @ key_values

    parts = []
    for top in range(0, height + down, rows * side):
        bottom = min(top + rows * side, height + down) + 2 * n
        part = (x[..., top:bottom, :] for x in (e, v, inside))
        parts.append(_join_tiles(recomputed(band, *part, offset, spatial_scale), side, columns))
    return torch.cat(parts, dim=-2)[..., :height, :width]


def centred(guide: Tensor) -> Tensor:
    """Return a guide in float32 at least, minus the mean of each plane.

    Differences of pixels stay as they are, and keep their digits when divided by a bandwidth.
    """
    guide = guide.to(torch.promote_types(guide.dtype, torch.float32))
    return guide - guide.detach().mean(dim=(-2, -1), keepdim=True)


def _list_shifts(side: int, patch_distance: int, device: torch.device) -> Tensor:
    """Return the shifts down and right from a tile's queries to its keys: (2, queries, keys)."""
    i = torch.arange(side, device=device)
    j = torch.arange(side + 2 * patch_distance, device=device) - patch_distance
    shift = j - i[:, None]
    down, right = torch.broadcast_tensors(shift[:, None, :, None], shift[None, :, None, :])
    return torch.stack([down, right]).flatten(3).flatten(1, 2)


def _cut_tiles(wide: Tensor, side: int, patch_distance: int) -> Tensor:
    """Cut into tiles with the pixels around them: (batch, tiles, pixels, channels)."""
    size = side + 2 * patch_distance
    tiles = wide.unfold(-2, size, side).unfold(-2, size, side)
    return tiles.permute(0, 2, 3, 4, 5, 1).flatten(3, 4).flatten(1, 2)


def _take_inner(keys: Tensor, side: int, n: int) -> Tensor:
    """Return the keys that are the tile's own pixels, without the n around it on each side."""
    size = side + 2 * n
    inner = keys.unflatten(-2, (size, size))[..., n : n + side, n : n + side, :]
    return inner.flatten(-3, -2)


def _join_tiles(tiles: Tensor, side: int, columns: int) -> Tensor:
    """Join tiles (batch, tiles, side^2, channels) to images (batch, channels, height, width)."""
    grid = tiles.unflatten(1, (-1, columns)).unflatten(3, (side, side))
    return grid.permute(0, 5, 1, 3, 2, 4).flatten(4, 5).flatten(2, 3)
