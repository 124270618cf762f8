"""Twicing: attend, and attend to what was left over."""

import warnings

import torch
from torch import Tensor
from torch.fx.experimental.symbolic_shapes import has_static_value

from ..attention import Call, Correction, Operator, drop_hidden


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

    def attend(self, call: Call) -> Tensor:
        if self.is_explicit(call.q):
            A, v = call.matrix_of(self.base), drop_hidden(call.v, call.mask)
            once = A @ v
            return once + A @ drop_hidden(v - once, call.mask)
        once = call.output_of(self.base)
        return once + call._replace(v=call.v - once).output_of(self.base)

    def is_explicit(self, q: Tensor) -> bool:
        """Whether queries like these are attended with by the explicit matrix."""
        wide = q.dtype in (torch.float32, torch.float64)
        few = has_static_value(q.shape[-2]) and q.shape[-2] <= self.max_explicit
        return self.base.cheap_matrix and wide and few

    def coefficients(self, call: Call) -> Tensor:
        A = call.matrix_of(self.base)
        return 2 * A - A @ drop_hidden(A, call.mask)
