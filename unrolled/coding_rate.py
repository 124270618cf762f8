"""Attention of tokens to themselves that lowers a coding rate, or was derived to do so."""

from typing import Any

import torch
from torch import Tensor

from .attention import (
    Call,
    Operator,
    Positive,
    check_positive,
    fused_attention,
    masked_softmax,
    padding_mask,
    query_offset,
)
from .attention.inputs import pair_of_states, read_state
from .self_expression import Ridge

__all__ = ["CodingRate", "SubspaceSelfAttention", "TokenStatistics"]


class _OfValues(Operator):
    """Base of the operators that read values alone: a shell projects tokens once.

    They are not linear in the values. `matrix` is the output for identity values, and says no more.
    """

    linear_in_values = False
    positional = "relative"  # a row is that of its own token
    reads = ("v",)

    def coefficients(self, call: Call) -> Tensor:
        n = call.k.shape[-2]
        identity = torch.eye(n, dtype=call.k.dtype, device=call.k.device)
        identity = identity.expand(*call.k.shape[:-2], n, n)
        return self.attend(call._replace(v=self.present(identity, call.mask)))


class CodingRate(_OfValues):
    """Ridge self-expression of the tokens of a head: the exact step on their coding rate.

    ::

        output = v (v^T v + lam I)^-1 v^T v,     v - output = lam grad R(v)
        R(v) = 1/2 log det(I + v^T v / lam)

    So ``v + share (output - v)`` is a gradient step, which lowers R for every share in (0, 2). It
    is `Ridge` on equal queries, keys and values. `SubspaceSelfAttention` has a softmax in the place
    of the coefficients ``v (v^T v + lam I)^-1 v^T``. An `Attention` shell around it projects tokens
    to values alone. In a block that adds the output to the tokens the step is lost (erratum E10-g),
    unless the learned projection of the output finds it.

    The operator takes queries and keys as others do but ignores all but their number. It is not
    linear in the values. `matrix` is the output for identity values, and says no more. Hidden
    tokens are as if absent, and their own rows are zero.

    Parameters
    ----------
    lam : float
        > 0: the squared precision of the code, times the tokens, over the features of a head.
    relative : bool, default=False
        The penalty is ``lam s_1^2``, s_1 the largest singular value of the visible tokens.
    num_heads : int, optional
        One `lam` a head instead of one for all.
    learnable : bool, default=False
        Train `lam` (its logarithm).

    Raises
    ------
    ValueError
        If a number is out of range, there are more queries than keys, or a mask is causal, differs
        between queries or is a bias.

    References
    ----------
    Yu et al., "White-box transformers via sparse rate reduction" (2023); EQUATIONS CR-2.

    Examples
    --------
    >>> import torch
    >>> from twinsolve.unrolled.coding_rate import CodingRate
    >>> v = torch.tensor([[1.0], [2.0]])
    >>> CodingRate(5.0)(v, v, v)
    tensor([[0.5000],
            [1.0000]])
    """

    causal = False
    pair_masks = False

    def __init__(
        self,
        lam: float,
        *,
        relative: bool = False,
        num_heads: int | None = None,
        learnable: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.ridge = Ridge(
            lam,
            relative=relative,
            num_heads=num_heads,
            learnable=learnable,
            device=device,
            dtype=dtype,
        )

    def attend(self, call: Call) -> Tensor:
        mask = call.mask
        if mask is not None:
            mask = padding_mask(mask, call.v.shape[-2], type(self).__name__)
        own = call.v[..., query_offset(call.q, call.k) :, :]
        return self.ridge.attend(call._replace(q=own, k=call.v, mask=mask))


class SubspaceSelfAttention(_OfValues):
    """Subspace self-attention (CRATE): tokens of a head attend to each other by their products.

    ::

        output = softmax(scale v v^T) v

    An `Attention` shell around it projects tokens to values alone, which are at once queries and
    keys, and is CRATE's MSSA. It was derived as a step on the coding rate of the heads, where the
    softmax stands for the coefficients of ridge self-expression: `CodingRate` is the exact step.
    With the softmax no decrease is proved, and the sum of tokens and output, as in CRATE's blocks,
    mostly raises the rate. What is proved: moving tokens towards the output raises the rate by no
    more than `solvers.coding_rate.mixing_rate_bound` says.

    The operator takes queries and keys as others do but ignores all but their number. It is not
    linear in the values. `matrix` is the output for identity values, and says no more. A token that
    no query sees asks with zeros: its row is the mean of the visible values.

    Parameters
    ----------
    scale : float, optional
        > 0. None is ``p ** -0.5`` for values of width p.

    Raises
    ------
    ValueError
        If `scale` is not positive, or there are more queries than keys.

    References
    ----------
    Yu et al., "White-box transformers via sparse rate reduction" (2023); EQUATIONS CR-3, CR-3m
    (erratum E10-g: the sum with the tokens lacks a factor).

    Examples
    --------
    >>> import torch
    >>> from twinsolve.unrolled import Softmax
    >>> from twinsolve.unrolled.coding_rate import SubspaceSelfAttention
    >>> v = torch.randn(2, 5, 3)
    >>> torch.equal(SubspaceSelfAttention()(v, v, v), Softmax()(v, v, v))
    True
    """

    additive_masks = True

    def __init__(self, scale: float | None = None) -> None:
        super().__init__()
        self.scale = None if scale is None else check_positive(scale, "scale")

    def attend(self, call: Call) -> Tensor:
        q, k, v, mask, is_causal, _ = call
        own = v[..., query_offset(q, k) :, :]
        return fused_attention(own, v, v, mask=mask, is_causal=is_causal, scale=self.scale)

    def extra_repr(self) -> str:
        return "scale=head_dim ** -0.5" if self.scale is None else f"scale={self.scale:.4g}"


class TokenStatistics(_OfValues):
    """Token-statistics attention (ToST): each token moves by what its heads hold of all tokens.

    ::

        out_ih = -pi_ih c v_ih / (1 + c s_h),     s_h = sum_j pi_jh v_jh^2 / sum_j pi_jh
        pi_j = softmax over heads of (sharpness_h |v_jh|^2)

    Squares are of each feature, and sums over the tokens that a query sees: under a causal mask
    those up to its own. The output is the direction of descent, ``-n_tokens`` times the gradient at
    fixed memberships pi, of the variational rate ::

        sum_h n_h / (2 n_tokens) sum_i log(1 + c s_hi),     n_h = sum_j pi_jh

    A step ``v + kappa out`` lowers this rate by at least ``kappa (1 - kappa c / 2) |out|^2 /
    n_tokens`` for ``0 < kappa c < 2``. No pair of tokens is compared: time and memory are linear.

    The operator takes queries and keys as others do but ignores all but their number: a shell
    projects values alone. It is not linear in the values. `matrix` is the output for identity
    values, and says no more. A hidden token is a member of no head, and its own row is zero. Masks
    may only hide whole keys.

    Parameters
    ----------
    sharpness : float
        > 0: how much memberships favour the heads that hold much of a token.
    c : float, default=1.0
        > 0: the number of features of the tokens over the squared precision of their code.
    num_heads : int, optional
        One sharpness a head instead of one for all.
    learnable : bool, default=False
        Train the sharpness (its logarithm).

    Raises
    ------
    ValueError
        If a number is out of range, there are more queries than keys, or a mask differs between
        queries or is a bias.

    References
    ----------
    Wu et al., "Token statistics transformer" (2025), whose pseudocode takes the softmax over
    tokens; EQUATIONS CR-5, CR-5m.

    Examples
    --------
    >>> import torch
    >>> from twinsolve.unrolled import TokenStatistics
    >>> v = torch.tensor([[[1.0], [1.0]]])
    >>> TokenStatistics(1.0)(v, v, v)
    tensor([[[-0.5000],
             [-0.5000]]])
    """

    pair_masks = False

    def __init__(
        self,
        sharpness: float,
        *,
        c: float = 1.0,
        num_heads: int | None = None,
        learnable: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.sharpness = Positive(
            sharpness,
            name="sharpness",
            num_heads=num_heads,
            learnable=learnable,
            device=device,
            dtype=dtype,
        )
        self.c = check_positive(c, "c")

    def attend(self, call: Call) -> Tensor:
        first = query_offset(call.q, call.k)
        v = call.v.to(torch.promote_types(call.v.dtype, torch.float32))
        visible = None
        if call.mask is not None:
            visible = padding_mask(call.mask, v.shape[-2], "TokenStatistics").mT
            v = torch.where(visible, v, 0)
        members, moments = self._statistics(v, visible)
        counts = members
        if call.is_causal:
            moments, counts = (x.cumsum(dim=-2)[..., first:, :] for x in (moments, counts))
        else:
            moments, counts = (x.sum(dim=-2, keepdim=True) for x in (moments, counts))
        out = self._descend(v[..., first:, :], members[..., first:, :], moments, counts)
        return out.to(call.v.dtype)

    def resume(self, call: Call, state: Any) -> tuple[Tensor, Any]:
        v = call.v.to(torch.promote_types(call.v.dtype, torch.float32))
        members, moments = self._statistics(v, None)
        before = pair_of_states(state)
        parts = moments, members
        starts = [
            read_state(start, (*x.shape[:-2], 1, x.shape[-1]), v)
            for start, x in zip(before, parts, strict=True)
        ]
        sums = [start + x.cumsum(dim=-2) for start, x in zip(starts, parts, strict=True)]
        out = self._descend(v, members, *sums)
        last = [start + x.sum(dim=-2, keepdim=True) for start, x in zip(starts, parts, strict=True)]
        return out.to(call.v.dtype), tuple(last)

    def _statistics(self, v: Tensor, visible: Tensor | None) -> tuple[Tensor, Tensor]:
        """Return the memberships of each token, and its part of the second moments."""
        squares = v.square()
        members = self._memberships(squares, visible)
        return members, members * squares

    def _descend(self, v: Tensor, members: Tensor, moments: Tensor, counts: Tensor) -> Tensor:
        # Far fewer members change no output by more than rounding of those of other heads.
        s = moments / counts.clamp(min=torch.finfo(v.dtype).tiny ** 0.5)
        return -self.c * members * v / (1 + self.c * s)

    def _memberships(self, squares: Tensor, visible: Tensor | None) -> Tensor:
        """Return memberships (..., heads, n_keys, 1); without an axis of heads there is one."""
        if squares.ndim < 3:
            return torch.ones_like(squares[..., :1]) if visible is None else visible.to(squares)
        logits = self.sharpness().to(squares) * squares.sum(dim=-1, keepdim=True)
        if visible is not None:
            visible = visible.expand(logits.shape).transpose(-3, -1)
        return masked_softmax(logits.transpose(-3, -1), visible).transpose(-3, -1)

    def extra_repr(self) -> str:
        return f"c={self.c:.4g}"
