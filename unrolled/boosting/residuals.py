"""Residual connections: plain, to the first tokens (boosting), and to those of any block."""

import torch
from torch import Tensor, nn

from ..attention import Context


class Residual(nn.Module):
    """The plain residual connection ``x + y``.

    Attributes
    ----------
    needs_history : bool
        False: `Context.history` is not read.

    Examples
    --------
    >>> import torch
    >>> from twinsolve.unrolled import Residual
    >>> Residual()(torch.ones(1, 2), torch.ones(1, 2))
    tensor([[2., 2.]])
    """

    needs_history = False

    def forward(self, x: Tensor, y: Tensor, context: Context | None = None) -> Tensor:
        """Connect x, the tokens that entered a branch, with y, its output, of the same shape."""
        return x + y


class GeneralizedResidual(nn.Module):
    """Residual connection to earlier tokens: boosting of a filter, or to any block.

    With y = f(x) the output of a branch on ``x = Y_l``::

        boosting (source=None):   Y_{l+1} = y + t Y_0 + (1 - t) x
        to block i:               Y_{l+1} = y + t Y_i

    Boosting injects the first tokens Y_0 into every layer; it is the plain residual at ``t = 0``,
    where it starts. The other form is the plain residual for ``i = l`` at ``t = 1``, where it
    starts. The definition takes t in (0, 1]; here it is learned without a constraint. If every f
    has the Lipschitz constant L, then for t in [0, 1] n boosted layers have ``(L a^n - t) / (L -
    t)``, ``a = L + 1 - t``, or ``1 + n t`` if ``L = t``; plain ones ``(L + 1)^n``. These are upper
    bounds, and dot-product attention has no L on unbounded inputs.

    Parameters
    ----------
    source : int, optional
        None is boosting, with Y_0 the `Context.first_tokens`. A number is an index into
        `Context.history`, the tokens that entered each block so far: 0 the first block, -1 the
        present one.

    Attributes
    ----------
    t : nn.Parameter of shape ()
        Learned.
    needs_history : bool
        Whether `Context.history` is read.

    Raises
    ------
    ValueError
        If `source` is not a whole number, or what is to be read is not in the context or does not
        have the shape of x.

    References
    ----------
    "Revisiting transformers with insights from image filtering", Definition IV.1; EQUATIONS IF-GRC,
    IF-26, IF-27, IF-29. Equation 27 is an identity for linear f only (erratum E0-j), the general
    recurrence of the bound is printed with reversed signs (E0-k) and its closed form without the
    condition ``L > t`` (E0-l); Proposition IV.1 leaves out what accumulates (E0-m).

    Examples
    --------
    >>> import torch
    >>> from twinsolve.unrolled import Context, GeneralizedResidual
    >>> residual = GeneralizedResidual()
    >>> _ = torch.nn.init.constant_(residual.t, 0.25)
    >>> first, x, y = (torch.full((1, 1), value) for value in (8.0, 4.0, 1.0))
    >>> residual(x, y, Context(first_tokens=first)).item()
    6.0
    """

    def __init__(
        self,
        source: int | None = None,
        *,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        if source is not None and (not isinstance(source, int) or isinstance(source, bool)):
            raise ValueError(f"source: must be a whole number or None, got {source!r}")
        self.source = source
        self.needs_history = source is not None
        self.t = nn.Parameter(torch.empty((), device=device, dtype=dtype))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Return t to its value at construction."""
        nn.init.constant_(self.t, 0.0 if self.source is None else 1.0)

    def forward(self, x: Tensor, y: Tensor, context: Context | None = None) -> Tensor:
        """Connect a branch with earlier tokens.

        Parameters
        ----------
        x : Tensor of shape (..., n_tokens, dim)
            Tokens that entered the branch.
        y : Tensor of shape (..., n_tokens, dim)
            Output of the branch.
        context : Context
            Holds `first_tokens`, or `history` where a block is named.

        Returns
        -------
        Tensor of shape (..., n_tokens, dim)
        """
        earlier = self._earlier(context)
        if earlier.shape != x.shape:
            raise ValueError(
                f"context: the earlier tokens have shape {tuple(earlier.shape)}, but the present "
                f"ones {tuple(x.shape)}"
            )
        t = self.t.to(y.dtype)
        if self.source is None:
            return torch.addcmul(x + y, t, earlier - x)
        return torch.addcmul(y, t, earlier)

    def _earlier(self, context: Context | None) -> Tensor:
        if self.source is None:
            if context is None or context.first_tokens is None:
                raise ValueError(
                    "context: GeneralizedResidual needs first_tokens; pass "
                    "context=Context(first_tokens=...)"
                )
            return context.first_tokens
        history = () if context is None else context.history
        if not -len(history) <= self.source < len(history):
            raise ValueError(
                f"context: GeneralizedResidual(source={self.source}) reads history, which has "
                f"{len(history)} blocks"
            )
        return history[self.source]

    def extra_repr(self) -> str:
        t = "" if self.t.is_meta else f", t={self.t.item():.4g}"
        return f"source={self.source}{t}"
