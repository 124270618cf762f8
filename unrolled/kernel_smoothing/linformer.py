"""Linformer: softmax attention to projections of keys and values along the sequence."""

import torch
from torch import Tensor, nn

from ..attention import Call, Operator, check_count, fused_attention, padding_mask


class Linformer(Operator):
    """Linformer: scaled dot-product attention to `n_projected` sums of keys, and of values.

    ::

        sm(q (E k)^T / sqrt(d)) F v

    E and F are learned and shared by the heads of a layer; column j belongs to token j. At the
    start both average consecutive segments of `max_length` tokens. With as many projections as
    tokens these are the tokens themselves, and the output is that of softmax attention.

    Shorter sequences use the first columns. A hidden key adds nothing to any sum. Each sum mixes
    tokens, so that masks may only hide whole keys. Rows of the matrix need not sum to one, and
    entries may be negative. Time and memory are linear in the number of tokens.

    Parameters
    ----------
    max_length : int
        Largest number of keys, >= 1.
    n_projected : int
        From 1 to `max_length`.

    Attributes
    ----------
    project_keys, project_values : nn.Parameter of shape (n_projected, max_length)
        E and F.

    Raises
    ------
    ValueError
        If a number is out of range or there are more keys than `max_length`; if a mask is causal,
        differs between queries or is a bias.

    References
    ----------
    Wang et al., "Linformer" (2020); EQUATIONS QK-Linformer.

    Examples
    --------
    >>> import torch
    >>> from twinsolve.unrolled import Linformer, Softmax
    >>> q, k, v = torch.randn(3, 1, 2, 8, 4)
    >>> torch.allclose(Linformer(8, 8)(q, k, v), Softmax()(q, k, v), atol=1e-5)
    True
    """

    causal = False
    pair_masks = False
    positional = "absolute"

    def __init__(
        self,
        max_length: int,
        n_projected: int,
        *,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.max_length: int = check_count(max_length, "max_length", 1)
        self.n_projected = check_count(n_projected, "n_projected", 1, max_length)
        shape = n_projected, max_length
        self.project_keys = nn.Parameter(torch.empty(shape, device=device, dtype=dtype))
        self.project_values = nn.Parameter(torch.empty(shape, device=device, dtype=dtype))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Return both projections to the means of segments."""
        segments = torch.arange(self.max_length) * self.n_projected // self.max_length
        member = (segments == torch.arange(self.n_projected)[:, None]).double()
        means = member / member.sum(dim=1, keepdim=True)
        with torch.no_grad():
            self.project_keys.copy_(means)
            self.project_values.copy_(means)

    def attend(self, call: Call) -> Tensor:
        q, k, v = self._widened(call)
        E, F = self._projections(call, q.dtype)
        return fused_attention(q, E @ k, F @ v).to(call.v.dtype)

    def coefficients(self, call: Call) -> Tensor:
        q, k, _ = self._widened(call)
        E, F = self._projections(call, q.dtype)
        return ((q.shape[-1] ** -0.5 * q) @ (E @ k).mT).softmax(dim=-1) @ F

    def _widened(self, call: Call) -> tuple[Tensor, Tensor, Tensor]:
        wide = torch.promote_types(call.q.dtype, torch.float32)
        return call.q.to(wide), call.k.to(wide), call.v.to(wide)

    def _projections(self, call: Call, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """E and F for these keys, with zeros in the columns of hidden ones."""
        n = call.k.shape[-2]
        if n > self.max_length:
            raise ValueError(f"max_length: Linformer has {self.max_length}, but there are {n} keys")
        E, F = (x[:, :n].to(dtype) for x in (self.project_keys, self.project_values))
        if call.mask is None:
            return E, F
        visible = padding_mask(call.mask, n, "Linformer")
        return torch.where(visible, E, 0), torch.where(visible, F, 0)

    def extra_repr(self) -> str:
        return f"max_length={self.max_length}, n_projected={self.n_projected}"
