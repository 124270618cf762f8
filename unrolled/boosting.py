"""Boosting of attention: corrections that wrap an operator, and residual connections."""

import warnings

import torch
from torch import Tensor, nn

from .attention import (
    Call,
    Context,
    Correction,
    Operator,
    Positive,
    check_count,
    check_positive,
    drop_hidden,
    has_static_value,
)

__all__ = ["BoostedFilter", "GeneralizedResidual", "Residual", "Twicing"]


class BoostedFilter(nn.Module):
    """Boost a layer that averages pixels, with the weights A of the noisy image y throughout.

    ::

        u_0 = 0,     u_{k+1} = tau A (y + rho u_k) - (tau rho + tau - 1) u_k

    ``rho = -1`` is L2 boosting, ``u_{k+1} = u_k + tau A (y - u_k)``, of which two iterations with
    ``tau = 1`` are twicing, ``(2 A - A^2) y``; ``rho >= 0`` is SOS boosting, which strengthens the
    signal, operates the filter and subtracts the estimate.

    Parameters
    ----------
    base : nn.Module
        ``base(guide, values)`` averages values with weights of the guide: `BilateralFilter`,
        `EmbeddedMeans`, `NonLocalMeansAttention`.
    n_iter : int, default=2
        Applications of the base.
    rho : float, default=-1.0
        -1, or at least 0.
    tau : float, default=1.0
        Step, > 0, at first.

    Attributes
    ----------
    tau : Positive

    Raises
    ------
    ValueError
        If a number is out of range.

    References
    ----------
    Bühlmann and Yu (2003); Romano and Elad (2015); EQUATIONS IF-TW.

    Examples
    --------
    >>> import torch
    >>> from twinsolve.unrolled.boosting import BoostedFilter
    >>> from twinsolve.unrolled.image_filters import BilateralFilter
    >>> base, noisy = BilateralFilter(), torch.rand(1, 1, 8, 8)
    >>> once = base(noisy)
    >>> torch.allclose(BoostedFilter(base)(noisy), once + base(noisy, noisy - once))
    True
    """

    def __init__(
        self,
        base: nn.Module,
        n_iter: int = 2,
        *,
        rho: float = -1.0,
        tau: float = 1.0,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.base = base
        self.n_iter = check_count(n_iter, "n_iter", 1)
        if rho != -1 and not 0 <= rho < float("inf"):
            raise ValueError(f"rho: must be -1 or at least 0, got {rho!r}")
        self.rho = float(rho)
        start = check_positive(tau, "tau")
        self.tau = Positive(start, name="tau", learnable=True, device=device, dtype=dtype)

    def reset_parameters(self) -> None:
        """Return tau to its value at construction; the base stays as it is."""
        self.tau.reset_parameters()

    def forward(self, noisy: Tensor) -> Tensor:
        """Denoise images of shape (batch, channels, height, width)."""
        rho, tau = self.rho, self.tau().to(noisy.dtype)
        u = tau * self.base(noisy, noisy)
        for _ in range(self.n_iter - 1):
            u = tau * self.base(noisy, noisy + rho * u) - (tau * rho + tau - 1) * u
        return u

    def extra_repr(self) -> str:
        return f"n_iter={self.n_iter}, rho={self.rho:.4g}"


class Twicing(Correction):
    """Twicing attention: attend, attend to what was left over, and add the two.

    ::

        A v + A (v - A v) = (2 A - A^2) v

    Two passes of the base operator with the same queries and keys: no N x N matrix is built where
    the base builds none. Up to `max_explicit` tokens A is built once and applied twice instead, if
    the base declares a `cheap_matrix`; bfloat16 and float16 always take two passes, which
    accumulate in float32. If the base is row stochastic, rows of ``2 A - A^2`` sum to one as well;
    entries may be negative.

    Parameters
    ----------
    base : Operator
        The smoother. If it is not row stochastic the identity above still holds, but constants are
        no longer preserved; if it is not linear in its values, the residual is still smoothed and
        added, but there is no matrix. A warning says so.

    Attributes
    ----------
    max_explicit : int
        256, where forward and backward take 0.8 of the time of two passes; the gain is gone at 512,
        and memory is linear in the number of tokens only beyond. 0 always takes two passes.

    Raises
    ------
    ValueError
        If `base` is no `Operator`, or queries and keys differ in number.

    References
    ----------
    Abdullaev and Nguyen, "Transformer Meets Twicing" (2025); EQUATIONS IF-TW, FF-2; erratum E0-n is
    about the sign of the residual.

    Examples
    --------
    >>> import torch
    >>> from twinsolve.unrolled import Gaussian, Twicing
    >>> q = torch.randn(1, 2, 5, 8)
    >>> twicing = Twicing(Gaussian())
    >>> A = Gaussian().matrix(q, q)
    >>> torch.allclose(twicing(q, q, q), (2 * A - A @ A) @ q, atol=1e-5)
    True
    """

    max_explicit: int = 256

    def __init__(self, base: Operator) -> None:
        super().__init__(base)
        self.nonnegative = False
        self.square_only = True
        lacking = []
        if not base.row_stochastic:
            lacking.append("not row stochastic: 2A - A^2 holds, but constants are not preserved")
        if not base.linear_in_values:
            lacking.append("not linear in its values: the residual is smoothed, without a matrix")
        for lack in lacking:
            warnings.warn(f"Twicing: {type(base).__name__} is {lack}", stacklevel=2)

    @property
    def outputs_kept(self) -> int | None:
        return None if self.base.square_only else 1

    def attend(self, call: Call) -> Tensor:
        return self.attend_last(call, ())[0]

    def attend_last(
        self, call: Call, kept: tuple[Tensor, ...]
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        v = call.v
        if self.is_explicit(call.q):
            A, v = call.matrix_of(self.base), drop_hidden(v, call.mask)
            once = A @ v
            left = v - torch.cat([*kept, once], dim=-2) if kept else v - once
            return once + A @ drop_hidden(left, call.mask), (once,)
        once = call.output_of(self.base)
        left = v - torch.cat([*kept, once], dim=-2) if kept else v - once
        return once + call._replace(v=left).output_of(self.base), (once,)

    def is_explicit(self, q: Tensor) -> bool:
        """Whether `attend` uses the explicit matrix for queries like these."""
        wide = q.dtype in (torch.float32, torch.float64)
        few = has_static_value(q.shape[-2]) and q.shape[-2] <= self.max_explicit
        return self.base.cheap_matrix and wide and few

    def coefficients(self, call: Call) -> Tensor:
        A = call.matrix_of(self.base)
        return 2 * A - A @ drop_hidden(A, call.mask)


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
    where it starts, and where it stays in the first layer: there ``Y_0 = x``, so that t has no
    effect. The other form is the plain residual for ``i = l`` at ``t = 1``, where it starts. The
    definition takes t in (0, 1]; here it is learned without a constraint. If every f has the
    Lipschitz constant L, then for t in [0, 1] n boosted layers have ``(L a^n - t) / (L - t)``, ``a
    = L + 1 - t``, or ``1 + n t`` if ``L = t``; plain ones ``(L + 1)^n``. These are upper bounds,
    and dot-product attention has no L on unbounded inputs.

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
        earlier = self._find_earlier_tokens(context)
        if earlier.shape != x.shape:
            raise ValueError(
                f"context: the earlier tokens have shape {tuple(earlier.shape)}, but the present "
                f"ones {tuple(x.shape)}"
            )
        t = self.t.to(y.dtype)
        if self.source is None:
            return torch.addcmul(x + y, t, earlier - x)
        return torch.addcmul(y, t, earlier)

    def _find_earlier_tokens(self, context: Context | None) -> Tensor:
        """Return the first tokens, or the output of the block `source`."""
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
