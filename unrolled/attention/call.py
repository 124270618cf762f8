"""The arguments of one call of an operator."""

from __future__ import annotations

from typing import Any, NamedTuple

from torch import Tensor

from .context import Context
from .masks import boolean_mask, causal_mask, combine_masks, mask_rows


class Call(NamedTuple):
    """Queries, keys, values, masks and context of one call of an operator; it never changes.

    `Operator.forward` makes it from checked inputs. ``call._replace(v=...)`` is the same call with
    other values.

    Attributes
    ----------
    q : Tensor of shape (..., n_queries, d)
    k : Tensor of shape (..., n_keys, d)
    v : Tensor of shape (..., n_keys, e)
        All with the same leading axes. In a call of `Operator.matrix` v has no features: e is 0.
    mask : Tensor broadcastable to (..., n_queries, n_keys), optional
        Boolean, or additive with -inf where it hides.
    is_causal : bool
        Query i sees the keys 0 to ``n_keys - n_queries + i`` alone; with a mask, both apply.
    context : Context, optional

    Examples
    --------
    >>> import torch
    >>> from twinsolve.unrolled import Call, Softmax
    >>> class Doubled(Softmax):
    ...     linear_in_values = False
    ...     def attend(self, call: Call) -> torch.Tensor:
    ...         return 2 * super().attend(call)
    >>> Doubled()(*torch.ones(3, 1, 4))
    tensor([[2., 2., 2., 2.]])
    """

    q: Tensor
    k: Tensor
    v: Tensor
    mask: Tensor | None = None
    is_causal: bool = False
    context: Context | None = None

    def pairs(self) -> Tensor | None:
        """Return the mask combined with the causal one, or None if all queries see all keys."""
        if not self.is_causal:
            return self.mask
        return combine_masks(self.mask, causal_mask(self.q, self.k))

    def pairs_of(self, rows: Tensor, start: int) -> Tensor | None:
        """Return the part of `pairs` for `rows`, a block of queries that begins at `start`."""
        mask = mask_rows(self.mask, rows, start)
        if not self.is_causal:
            return mask
        return combine_masks(mask, causal_mask(self.q, self.k, start, rows.shape[-2]))

    def hiding(self, name: str) -> Call:
        """Return the call with a boolean mask, for an operator in which a bias has no meaning.

        Raises
        ------
        ValueError
            If the mask holds a finite bias; see `boolean_mask`. The error names the operator
            `name`.
        """
        if self.mask is None:
            return self
        return self._replace(mask=boolean_mask(self.mask, self.k.shape[-2], name))

    def output_of(self, operator: Any, kept: list[Tensor] | None = None) -> Tensor:
        """Return what an operator, such as the base of a correction, gives for this call.

        `kept` is as in `Operator.forward`.
        """
        q, k, v, mask, is_causal, context = self
        by_turns = {} if kept is None else {"kept": kept}
        output: Tensor = operator(
            q, k, v, mask=mask, is_causal=is_causal, context=context, **by_turns
        )
        return output

    def matrix_of(self, operator: Any) -> Tensor:
        """Return the explicit matrix of an operator for this call."""
        q, k, _, mask, is_causal, context = self
        matrix: Tensor = operator.matrix(q, k, mask=mask, is_causal=is_causal, context=context)
        return matrix
