"""Positive parameters that may be learned."""

import math

import torch
from torch import Tensor, nn

from ...validation import check_integer, check_positive


class Positive(nn.Module):
    """A positive constant, or a learnable one stored as its logarithm; calling returns its value.

    The value is in float32 if the logarithm has 16 bits.

    Parameters
    ----------
    initial : float
        Value > 0; if learnable, at construction and after `reset_parameters`.
    name : str, default="value"
        Used in error messages.
    num_heads : int, optional
        Learn one value a head, of shape (num_heads, 1, 1). None learns a single one of shape ().
    learnable : bool, default=False
        If False the value is exact in every dtype and no part of the state dict; if True its
        logarithm is a parameter, in which rounding changes the value by about the dtype's eps.

    Raises
    ------
    ValueError
        If `initial` is not positive and finite, or `num_heads` is not a whole number >= 1.

    Examples
    --------
    >>> from twinsolve.unrolled.attention import Positive
    >>> Positive(2.0)()
    tensor(2., dtype=torch.float64)
    """

    def __init__(
        self,
        initial: float,
        *,
        name: str = "value",
        num_heads: int | None = None,
        learnable: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.initial = check_positive(initial, name)
        self.num_heads = None if num_heads is None else check_integer(num_heads, "num_heads", 1)
        shape = () if num_heads is None else (num_heads, 1, 1)
        self.log = (
            nn.Parameter(torch.empty(shape, device=device, dtype=dtype)) if learnable else None
        )
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Return to the initial value."""
        if self.log is not None:
            with torch.no_grad():
                self.log.fill_(math.log(self.initial))

    def forward(self) -> Tensor:
        if self.log is None:
            return torch.tensor(self.initial, dtype=torch.float64)
        return self.log.to(torch.promote_types(self.log.dtype, torch.float32)).exp()

    def extra_repr(self) -> str:
        if self.log is None or self.log.is_meta:
            return f"{self.initial:.4g}"
        return ", ".join(f"{x:.4g}" for x in self().flatten()) + ", learnable"
