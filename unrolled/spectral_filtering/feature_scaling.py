"""Scales on the output of a branch: FeatScale on its frequencies, LayerScale on its features."""

import math
import numbers

import torch
from torch import Tensor, nn

from ..attention import check_count, combine_masks
from .means import visible_mean


class FeatScale(nn.Module):
    """FeatScale: weight the mean and the high frequencies of each feature apart.

    ::

        y + s * DC[y] + t * HC[y] = (1 + s) * DC[y] + (1 + t) * HC[y]
        DC[y] = mean of y over the tokens,     HC[y] = y - DC[y]

    It follows attention: with ``s = 0``, ``t = omega`` it is ``(I + omega H) A v``, where
    `AttnScale` is ``A (I + omega H) v``. The two agree if A is doubly stochastic, and not in
    general. The published code adds the correction twice, which gives ``1 + 2 s``.

    Parameters
    ----------
    dim : int
        Number of features.

    Attributes
    ----------
    s, t : nn.Parameter of shape (dim,)
        Learned weights of the mean and of the high frequencies; 0 at the start, where y is left
        as it is.

    Raises
    ------
    ValueError
        If `dim` is not a whole number >= 1, or not the width of y; or if the mask does not fit.

    References
    ----------
    Wang et al., "Anti-oversmoothing in deep vision transformers via the Fourier domain analysis"
    (2022); EQUATIONS AO-10 to AO-12, FF-8.

    Examples
    --------
    >>> import torch
    >>> from twinsolve.unrolled import FeatScale
    >>> layer = FeatScale(1)
    >>> _ = torch.nn.init.constant_(layer.t, 0.5)
    >>> layer(torch.tensor([[1.0], [5.0]])).mT
    tensor([[0., 6.]], grad_fn=<TransposeBackward0>)
    """

    def __init__(
        self,
        dim: int,
        *,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.dim = check_count(dim, "dim", 1)
        self.s = nn.Parameter(torch.zeros(dim, device=device, dtype=dtype))
        self.t = nn.Parameter(torch.zeros(dim, device=device, dtype=dtype))

    def reset_parameters(self) -> None:
        """Return the weights to 0."""
        nn.init.zeros_(self.s)
        nn.init.zeros_(self.t)

    def forward(
        self,
        y: Tensor,
        key_padding_mask: Tensor | None = None,
        attn_mask: Tensor | None = None,
        is_causal: bool = False,
    ) -> Tensor:
        """Weight the frequencies of tokens.

        Parameters
        ----------
        y : Tensor of shape (..., n_tokens, dim)
        key_padding_mask : Tensor of shape (..., n_tokens), optional
            True (or -inf) hides a token, the polarity of ``nn.MultiheadAttention``: the mean is
            that of the others.
        attn_mask : bool Tensor of shape (..., n_tokens, n_tokens), optional
            True hides a token from another: each has the mean of those that it sees.
        is_causal : bool, default=False
            Token i has the mean of tokens 0 to i; with masks, all apply.

        Returns
        -------
        Tensor of shape (..., n_tokens, dim)
        """
        _check_width(y, self.dim)
        mask = None
        if key_padding_mask is not None:
            if key_padding_mask.shape[-1:] != y.shape[-2:-1]:
                raise ValueError(
                    f"key_padding_mask: must have shape (..., {y.shape[-2]}), "
                    f"got {tuple(key_padding_mask.shape)}"
                )
            mask = key_padding_mask[..., None, :]
            mask = ~mask if mask.dtype == torch.bool else mask
        if attn_mask is not None:
            n = y.shape[-2]
            if attn_mask.dtype != torch.bool or attn_mask.shape[-2:] != (n, n):
                raise ValueError(
                    f"attn_mask: must be bool of shape (..., {n}, {n}), "
                    f"got {attn_mask.dtype} of {tuple(attn_mask.shape)}"
                )
            mask = combine_masks(mask, ~attn_mask)
        dc = visible_mean(y, mask=mask, is_causal=is_causal)
        s, t = self.s.to(y.dtype), self.t.to(y.dtype)
        return torch.addcmul(y, t, y - dc) + s * dc

    def extra_repr(self) -> str:
        return str(self.dim)


class LayerScale(nn.Module):
    """LayerScale: one learned factor a feature on the output of a branch, ``gamma * y``.

    It is `FeatScale` with ``s = t = gamma - 1``, a scale that is blind to frequencies, and small at
    the start.

    Parameters
    ----------
    dim : int
        Number of features.
    initial : float, default=1e-5
        All factors at the start. The paper takes 0.1 for models of up to 18 layers, 1e-5 for 24 and
        1e-6 for deeper ones.

    Attributes
    ----------
    gamma : nn.Parameter of shape (dim,)

    Raises
    ------
    ValueError
        If `dim` is not a whole number >= 1, or not the width of y; or if `initial` is not finite.

    References
    ----------
    Touvron et al., "Going deeper with image transformers" (2021).

    Examples
    --------
    >>> import torch
    >>> from twinsolve.unrolled.spectral_filtering import LayerScale
    >>> LayerScale(2, initial=0.1)(torch.ones(1, 2)).detach()
    tensor([[0.1000, 0.1000]])
    """

    def __init__(
        self,
        dim: int,
        *,
        initial: float = 1e-5,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.dim = check_count(dim, "dim", 1)
        real = isinstance(initial, numbers.Real) and math.isfinite(initial)
        if not real:
            raise ValueError(f"initial: must be a finite number, got {initial!r}")
        self.initial = float(initial)
        self.gamma = nn.Parameter(torch.empty(dim, device=device, dtype=dtype))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Return the factors to `initial`."""
        nn.init.constant_(self.gamma, self.initial)

    def forward(self, y: Tensor) -> Tensor:
        """Scale the features of y, of shape (..., dim)."""
        _check_width(y, self.dim)
        return self.gamma.to(y.dtype) * y

    def extra_repr(self) -> str:
        return f"{self.dim}, initial={self.initial:.4g}"


def _check_width(y: Tensor, dim: int) -> None:
    if y.ndim < 2 or y.shape[-1] != dim:
        raise ValueError(f"y: must be (..., n_tokens, {dim}), got {tuple(y.shape)}")
