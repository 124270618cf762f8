"""The multi-head shell around an operator."""

from dataclasses import replace

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from .context import Context
from .operator import Operator
from .parameters import check_count


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
        context = self._context(context)
        layer_context = self.fill(context, query, v)
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

    def _context(self, context: Context | None) -> Context:
        """The model's context, or an empty one if nothing in it is needed."""
        needs = ["positions" if n == "projected_positions" else n for n in self.operator.needs]
        missing = [n for n in needs if n == "positions" and getattr(context, n, None) is None]
        if needs and (context is None or missing):
            raise ValueError(
                f"context: {type(self.operator).__name__} needs {', '.join(needs)}; pass one "
                f"context=Context({'positions=...' if missing else ''}) through all layers of a "
                "model"
            )
        return Context() if context is None else context

    def fill(self, context: Context, query: Tensor, v: Tensor) -> Context:
        """Complete the model's context, and return it as this layer's operator sees it."""
        if context.first_tokens is None:
            context.first_tokens = query
        if context.first_values is None:
            context.first_values = v
        filled = replace(context, values=v) if "values" in self.operator.needs else context
        if "projected_positions" in self.operator.needs and context.positions is not None:
            w_q, w_k, _ = self.in_proj_weight.chunk(3)
            projected = tuple(self._split(F.linear(context.positions, w)) for w in (w_q, w_k))
            filled = replace(filled, projected_positions=(projected[0], projected[1]))
        return filled

    def extra_repr(self) -> str:
        return f"dim={self.embed_dim}, num_heads={self.num_heads}"
