"""Twicing: attend, and attend to what was left over."""

import warnings

from torch import Tensor

from ..attention import Context, Correction, Operator


class Twicing(Correction):
    """Twicing attention: attend, attend to what was left over, and add the two.

    ::

        A v + A (v - A v) = (2 A - A^2) v

    Two passes of the base operator with the same queries and keys; no N x N matrix is built where
    the base builds none. If the base is row stochastic, rows of ``2 A - A^2`` sum to one as well;
    entries may be negative.

    Parameters
    ----------
    base : Operator
        The smoother. If it is not row stochastic the identity above still holds, but constants are
        no longer preserved; if it is not linear in its values, the residual is still smoothed and
        added, but there is no matrix. A warning says so.

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

    def attend(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        mask: Tensor | None,
        is_causal: bool,
        context: Context | None,
    ) -> Tensor:
        once = self.base(q, k, v, mask=mask, is_causal=is_causal, context=context)
        return once + self.base(q, k, v - once, mask=mask, is_causal=is_causal, context=context)

    def coefficients(
        self,
        q: Tensor,
        k: Tensor,
        mask: Tensor | None,
        is_causal: bool,
        context: Context | None,
    ) -> Tensor:
        A = self.base.matrix(q, k, mask=mask, is_causal=is_causal, context=context)
        return 2 * A - A @ A
