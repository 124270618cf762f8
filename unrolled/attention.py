"""What every attention layer shares: the operator protocol, its context, masks and the shell.

Tokens are rows. Operators take ``(..., heads, tokens, head_dim)`` and masks as in
``scaled_dot_product_attention``: True (or 0) may attend, False (or -inf) may not.
"""

import math
import numbers
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

_QUERY_BLOCK = 256


@dataclass
class Context:
    """What a layer may know beyond its own queries, keys and values.

    A model makes one for each forward pass and hands it to every `Attention` shell in turn. The
    model sets `positions`; the shells fill in the rest, and operators read what they declare in
    `Operator.needs`.

    Attributes
    ----------
    positions : Tensor of shape (..., tokens, dim), optional
        Position features in the model's width.
    projected_positions : pair of Tensor of shape (..., heads, tokens, head_dim), optional
        The positions through the present layer's query and key projections.
    first_values : Tensor of shape (..., heads, tokens, head_dim), optional
        Values of the first layer.
    previous_values : Tensor of shape (..., heads, tokens, head_dim), optional
        Values of the layer before; None in the first layer.
    first_tokens : Tensor of shape (..., tokens, dim), optional
        Tokens that entered the first layer.
    """

    positions: Tensor | None = None
    projected_positions: tuple[Tensor, Tensor] | None = None
    first_values: Tensor | None = None
    previous_values: Tensor | None = None
    first_tokens: Tensor | None = None


class Operator(nn.Module):
    """Base of the operators on (q, k, v): what a layer does between its projections.

    A subclass implements `forward` and `matrix`, and declares its laws, which tests and corrections
    read.

    Attributes
    ----------
    row_stochastic : bool
        Rows of the matrix sum to one (where at least one key is visible).
    nonnegative : bool
        Entries of the matrix are nonnegative.
    linear_in_values : bool
        The output is ``matrix(q, k) @ v``.
    square_only : bool
        Needs as many queries as keys.
    causal : bool
        ``is_causal=True`` is supported; otherwise it is refused.
    needs : tuple of str
        Fields of `Context` that `forward` reads.
    """

    row_stochastic: bool = False
    nonnegative: bool = False
    linear_in_values: bool = True
    square_only: bool = False
    causal: bool = True
    needs: tuple[str, ...] = ()

    def forward(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        *,
        mask: Tensor | None = None,
        is_causal: bool = False,
        context: Context | None = None,
    ) -> Tensor:
        """Attend with q (..., n_queries, d), k (..., n_keys, d) and v (..., n_keys, e)."""
        raise NotImplementedError

    def matrix(
        self,
        q: Tensor,
        k: Tensor,
        *,
        mask: Tensor | None = None,
        is_causal: bool = False,
        context: Context | None = None,
    ) -> Tensor:
        """Return the explicit matrix of shape (..., n_queries, n_keys), for checks and pictures."""
        raise NotImplementedError

    def reset_parameters(self) -> None:
        """Return all parameters to their values at construction."""
        for child in self.children():
            if isinstance(child, Operator | Positive):
                child.reset_parameters()

    def check_inputs(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor | None = None,
        *,
        mask: Tensor | None,
        is_causal: bool,
    ) -> None:
        """Refuse inputs whose shapes do not fit, or that the declared laws exclude.

        Raises
        ------
        ValueError
        """
        name = type(self).__name__
        if min(q.ndim, k.ndim) < 2 or q.shape[-1] != k.shape[-1]:
            raise ValueError(f"{name}: q {tuple(q.shape)} and k {tuple(k.shape)} differ in width")
        if v is not None and v.shape[-2] != k.shape[-2]:
            raise ValueError(f"{name}: {k.shape[-2]} keys but {v.shape[-2]} values")
        if self.square_only and q.shape[-2] != k.shape[-2]:
            raise ValueError(
                f"{name}: needs as many queries as keys, got {q.shape[-2]} and {k.shape[-2]}"
            )
        if mask is not None:
            last, counts = mask.shape[-2:], (q.shape[-2], k.shape[-2])
            if len(last) < 2 or any(m not in (1, n) for m, n in zip(last, counts, strict=True)):
                raise ValueError(
                    f"mask: must broadcast to (..., {counts[0]}, {counts[1]}), "
                    f"got {tuple(mask.shape)}"
                )
        if is_causal and not self.causal:
            raise ValueError(f"{name}: does not support is_causal=True")
        heads = q.shape[-3] if q.ndim > 2 else 1
        for parameter in self.children():
            if isinstance(parameter, Positive) and parameter.num_heads not in (None, heads):
                raise ValueError(f"num_heads: {name} has {parameter.num_heads}, but q has {heads}")


class Positive(nn.Module):
    """A positive constant, or a learnable one stored as its logarithm; calling returns its value.

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
    >>> from twinsolve.unrolled import Positive
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
        self.num_heads = None if num_heads is None else check_count(num_heads, "num_heads", 1)
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
        return self.log.exp()

    def extra_repr(self) -> str:
        if self.log is None or self.log.is_meta:
            return f"{self.initial:.4g}"
        return ", ".join(f"{x:.4g}" for x in self().flatten()) + ", learnable"


def check_positive(value: float, name: str, *, allow_zero: bool = False) -> float:
    """Return `value` as a float if it is finite and positive (or zero, where allowed).

    Raises
    ------
    ValueError
        Otherwise; the message starts with `name`.
    """
    real = isinstance(value, numbers.Real) and math.isfinite(value)
    if not real or value < 0 or (value == 0 and not allow_zero):
        bound = ">= 0" if allow_zero else "> 0"
        raise ValueError(f"{name}: must be finite and {bound}, got {value!r}")
    return float(value)


def check_count(value: int, name: str, minimum: int) -> int:
    """Return `value` as an int if it is a whole number of at least `minimum`.

    Raises
    ------
    ValueError
        Otherwise; the message starts with `name`.
    """
    if not isinstance(value, numbers.Integral) or isinstance(value, bool) or value < minimum:
        raise ValueError(f"{name}: must be a whole number >= {minimum}, got {value!r}")
    return int(value)


def fused_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    mask: Tensor | None = None,
    is_causal: bool = False,
    scale: float | None = None,
) -> Tensor:
    """``scaled_dot_product_attention`` in a form that reaches its fused kernel.

    Unequal widths of queries and values, and inputs or masks of three dimensions, silently send it
    to an implementation that builds the N x N matrix; widths are padded with zeros here, and
    dimensions added. Zeros change no dot product.

    Parameters
    ----------
    q, k : Tensor of shape (..., n_queries, d), (..., n_keys, d)
    v : Tensor of shape (..., n_keys, e)
    mask : Tensor broadcastable to (..., n_queries, n_keys), optional
    is_causal : bool, default=False
        With a mask, both apply.
    scale : float, optional
        None is ``d ** -0.5``.

    Returns
    -------
    Tensor of shape (..., n_queries, e)
    """
    if is_causal and mask is not None:
        mask, is_causal = combine_masks(mask, causal_mask(q, k)), False
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    width, n_values = max(q.shape[-1], v.shape[-1]), v.shape[-1]
    missing = max(0, 4 - max(q.ndim, v.ndim))
    if mask is not None and mask.ndim > 2:
        mask = mask[(None,) * (4 - mask.ndim)]
    q, k, v = (F.pad(x, (0, width - x.shape[-1])) if x.shape[-1] < width else x for x in (q, k, v))
    q, k, v = (x[(None,) * missing] for x in (q, k, v))
    out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=is_causal, scale=scale)
    return out[(0,) * missing][..., :n_values]


def causal_mask(q: Tensor, k: Tensor) -> Tensor:
    """Boolean mask of shape (n_queries, n_keys): query i sees the keys 0 to i."""
    return torch.ones(q.shape[-2], k.shape[-2], dtype=torch.bool, device=q.device).tril()


def combine_masks(mask: Tensor | None, allowed: Tensor) -> Tensor:
    """The mask with all but the `allowed` pairs hidden as well; boolean or additive as it was."""
    if mask is None:
        return allowed
    if mask.dtype == torch.bool:
        return mask & allowed
    return mask.masked_fill(~allowed, float("-inf"))


def hidden_by(mask: Tensor) -> Tensor:
    """Where a mask hides: False, -inf, or (as some libraries write -inf) the lowest number."""
    return ~mask if mask.dtype == torch.bool else mask <= torch.finfo(mask.dtype).min / 2


def boolean_mask(mask: Tensor, n_keys: int, name: str) -> Tensor:
    """The mask as booleans over all keys, for operators in which a bias has no meaning.

    Raises
    ------
    ValueError
        If an additive mask holds anything but 0 and -inf (or the lowest finite number). Compiled
        code cannot look at the values: there a finite bias is ignored.
    """
    hidden = hidden_by(mask)
    checkable = mask.dtype != torch.bool and not torch.compiler.is_compiling()
    if checkable and not bool((hidden | (mask == 0)).all()):
        raise ValueError(
            f"{name}: masks may only hide keys; an additive bias (finite and not 0) has no meaning "
            "in it"
        )
    return ~hidden.expand(*mask.shape[:-1], n_keys)


def map_query_blocks(function: Callable[[Tensor, int], Tensor], q: Tensor) -> Tensor:
    """Apply ``function(q_block, start)`` to blocks of queries and concatenate the results.

    Where gradients are needed and there is more than one block, each is recomputed in the backward
    pass, so that memory stays O(block * n_keys).
    """
    starts = range(0, q.shape[-2], _QUERY_BLOCK)
    if len(starts) <= 1:
        return function(q, 0)
    outputs: list[Any] = []
    for start in starts:
        rows = q[..., start : start + _QUERY_BLOCK, :]
        if torch.is_grad_enabled():
            outputs.append(checkpoint(function, rows, start, use_reentrant=False))
        else:
            outputs.append(function(rows, start))
    return torch.cat(outputs, dim=-2)


class Attention(nn.Module):
    """Multi-head attention with any operator between the projections.

    ``out_proj(concat_h operator(x_q W_q^h, x_k W_k^h, x_v W_v^h))``

    Follows ``nn.MultiheadAttention(batch_first=True)`` in its signature, mask polarity, returned
    pair, initial values and state-dict keys, but is no subclass of it: in evaluation mode PyTorch's
    encoder layer would replace a subclass by its own kernel. It can stand as ``self_attn`` there.

    Parameters
    ----------
    dim : int
        Width of the tokens; a multiple of `num_heads`.
    num_heads : int
    operator : Operator
        What is computed from each head's q, k and v.
    bias : bool, default=True
        Biases in the four projections.

    Raises
    ------
    ValueError
        If `dim` is not a positive multiple of `num_heads`, or `operator` is no `Operator`.

    References
    ----------
    Vaswani et al. (2017); EQUATIONS SE-1 to SE-4.

    Examples
    --------
    >>> import torch
    >>> from twinsolve.unrolled import Attention, Gaussian
    >>> layer = Attention(16, 4, operator=Gaussian())
    >>> x = torch.randn(2, 10, 16)
    >>> layer(x, x, x, need_weights=False)[0].shape
    torch.Size([2, 10, 16])
    """

    batch_first = True
    # Read by nn.TransformerEncoderLayer: False keeps it from bypassing this module in eval mode.
    _qkv_same_embed_dim = False

    def __init__(
        self,
        dim: int,
        num_heads: int,
        *,
        operator: Operator,
        bias: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        check_count(num_heads, "num_heads", 1)
        if check_count(dim, "dim", 1) % num_heads:
            raise ValueError(f"dim: must be a multiple of num_heads={num_heads}, got {dim}")
        if not isinstance(operator, Operator):
            raise ValueError(f"operator: must be an Operator, such as Gaussian(), got {operator!r}")
        self.embed_dim, self.num_heads, self.head_dim = dim, num_heads, dim // num_heads
        self.operator = operator
        self.in_proj_weight = nn.Parameter(torch.empty(3 * dim, dim, device=device, dtype=dtype))
        if bias:
            self.in_proj_bias = nn.Parameter(torch.empty(3 * dim, device=device, dtype=dtype))
        else:
            self.register_parameter("in_proj_bias", None)
        self.out_proj = nn.Linear(dim, dim, bias=bias, device=device, dtype=dtype)
        self._reset_projections()

    def reset_parameters(self) -> None:
        """Draw new projections and return the operator's parameters to their initial values."""
        self._reset_projections()
        self.operator.reset_parameters()

    def _reset_projections(self) -> None:
        nn.init.xavier_uniform_(self.in_proj_weight)
        self.out_proj.reset_parameters()
        if self.in_proj_bias is not None:
            nn.init.zeros_(self.in_proj_bias)
            nn.init.zeros_(self.out_proj.bias)

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = True,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
        context: Context | None = None,
    ) -> tuple[Tensor, Tensor | None]:
        """Attend with every head.

        Parameters
        ----------
        query : Tensor of shape (batch, n_queries, dim) or (n_queries, dim)
        key, value : Tensor of shape (batch, n_keys, dim) or (n_keys, dim)
        key_padding_mask : Tensor of shape (batch, n_keys), optional
            True (or -inf) hides a key, the polarity of ``nn.MultiheadAttention``.
        need_weights : bool, default=True
            Return the explicit matrix too; False keeps memory linear in the number of tokens where
            the operator is fused.
        attn_mask : Tensor of shape (n_queries, n_keys) or (batch * num_heads, n_queries, n_keys)
            True (or -inf) hides a pair.
        average_attn_weights : bool, default=True
            Average the matrix over heads.
        is_causal : bool, default=False
            Query i sees keys 0 to i. With an `attn_mask` it is only a hint that the mask is causal,
            and the mask is what counts.
        context : Context, optional
            Shared by the layers of a model; see `Context`.

        Returns
        -------
        output : Tensor of the shape of `query`
        weights : Tensor of shape (batch, n_queries, n_keys), with heads after the batch if not
            averaged, or None

        Raises
        ------
        ValueError
            If shapes do not fit or the context lacks what the operator needs.
        """
        if query.ndim == 2:
            padding = None if key_padding_mask is None else key_padding_mask[None]
            output, weights = self.forward(
                query[None], key[None], value[None], padding, need_weights, attn_mask,
                average_attn_weights, is_causal, context,
            )  # fmt: skip
            return output[0], None if weights is None else weights[0]
        for name, x in (("query", query), ("key", key), ("value", value)):
            if x.ndim != 3 or x.shape[-1] != self.embed_dim:
                raise ValueError(
                    f"{name}: must be (batch, tokens, {self.embed_dim}), got {tuple(x.shape)}"
                )
        if key_padding_mask is not None and key_padding_mask.shape != key.shape[:2]:
            raise ValueError(
                f"key_padding_mask: must have shape {tuple(key.shape[:2])}, "
                f"got {tuple(key_padding_mask.shape)}"
            )
        q, k, v = self.project(query, key, value)
        mask = self._mask(key_padding_mask, attn_mask, query.shape[0])
        is_causal = is_causal and attn_mask is None
        context = Context() if context is None else context
        layer_context = self._fill(context, query, v)
        output = self.operator(q, k, v, mask=mask, is_causal=is_causal, context=layer_context)
        weights = None
        if need_weights:
            weights = self.operator.matrix(
                q, k, mask=mask, is_causal=is_causal, context=layer_context
            )
            weights = weights.mean(dim=1) if average_attn_weights else weights
        context.previous_values = v
        return self.out_proj(output.transpose(1, 2).flatten(2)), weights

    def project(self, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values of every head, each (batch, heads, tokens, head_dim)."""
        if query is key and key is value:
            parts = F.linear(query, self.in_proj_weight, self.in_proj_bias).chunk(3, dim=-1)
        else:
            weights = self.in_proj_weight.chunk(3)
            biases = (None,) * 3 if self.in_proj_bias is None else self.in_proj_bias.chunk(3)
            inputs = (query, key, value)
            parts = tuple(
                F.linear(x, w, b) for x, w, b in zip(inputs, weights, biases, strict=True)
            )
        q, k, v = (self._split(part) for part in parts)
        return q, k, v

    def _split(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (self.num_heads, self.head_dim)).transpose(-3, -2)

    def _mask(
        self, key_padding_mask: Tensor | None, attn_mask: Tensor | None, batch: int
    ) -> Tensor | None:
        """Merge the two masks into one of the polarity of scaled_dot_product_attention."""
        masks = []
        if key_padding_mask is not None:
            masks.append(key_padding_mask[:, None, None, :])
        if attn_mask is not None:
            if attn_mask.ndim == 3:
                attn_mask = attn_mask.unflatten(0, (batch, self.num_heads))
            masks.append(attn_mask)
        if not masks:
            return None
        if all(mask.dtype == torch.bool for mask in masks):
            return ~masks[0] if len(masks) == 1 else ~(masks[0] | masks[1])
        dtype = next(mask.dtype for mask in masks if mask.dtype != torch.bool)
        additive = [
            torch.zeros(mask.shape, dtype=dtype, device=mask.device).masked_fill(mask, -torch.inf)
            if mask.dtype == torch.bool
            else mask
            for mask in masks
        ]
        return additive[0] if len(additive) == 1 else additive[0] + additive[1]

    def _fill(self, context: Context, query: Tensor, v: Tensor) -> Context:
        """Complete the model's context with this layer's share, and check what is needed."""
        if context.first_tokens is None:
            context.first_tokens = query
        if context.first_values is None:
            context.first_values = v
        filled = context
        if "projected_positions" in self.operator.needs and context.positions is not None:
            w_q, w_k, _ = self.in_proj_weight.chunk(3)
            projected = tuple(self._split(F.linear(context.positions, w)) for w in (w_q, w_k))
            filled = replace(context, projected_positions=(projected[0], projected[1]))
        for name in self.operator.needs:
            if name != "previous_values" and getattr(filled, name) is None:
                source = "positions" if name == "projected_positions" else name
                raise ValueError(
                    f"context: {type(self.operator).__name__} needs {name}; "
                    f"pass context=Context({source}=...)"
                )
        return filled

    def extra_repr(self) -> str:
        return f"dim={self.embed_dim}, num_heads={self.num_heads}"
