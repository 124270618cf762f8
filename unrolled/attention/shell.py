"""The multi-head shell around an operator."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ...validation import check_integer
from .context import Context
from .inputs import check_context, check_input, check_is_context, check_shell, of_common_batch
from .masks import read_mask
from .names import operator_factory
from .operator import Operator
from .parameters import Positive


class Attention(nn.Module):
    """Multi-head attention with any operator between the projections.

    ``out_proj(concat_h operator(x_q W_q^h, x_k W_k^h, x_v W_v^h))``

    For an operator with gates (`Operator.gates`), such as `DeltaRule`, ``gate_proj`` projects the
    keys' tokens to them, and ``query_gate_proj`` the queries' tokens to `Operator.query_gates`,
    such as those of `LocalLinear`. Both start at zero, where the operator is its origin.

    For an operator that does not read its queries or keys (`Operator.reads`), such as `Symmetric`,
    there is no projection of these: ``in_proj_weight`` holds the others alone, in the order q, k,
    v. From a checkpoint with all three projections the layer loads those that it has; it refuses a
    checkpoint that lacks one of them.

    Follows ``nn.MultiheadAttention(batch_first=True)`` in its signature, mask polarity, returned
    pair, initial values and state-dict keys, but is no subclass of it: in evaluation mode PyTorch's
    encoder layer would replace a subclass by its own kernel. It can stand as ``self_attn`` there.

    Parameters
    ----------
    dim : int
        Width of the tokens; a multiple of `num_heads`.
    num_heads : int
    operator : Operator or str
        What is computed from each head's q, k and v, or its name as in `make_operator`.
    bias : bool, default=True
        Biases in the four projections.

    Raises
    ------
    ValueError
        If `dim` is not a positive multiple of `num_heads`, or `operator` is neither an `Operator`
        nor the name of one.

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
        operator: Operator | str,
        bias: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        check_integer(num_heads, "num_heads", 1)
        if check_integer(dim, "dim", 1) % num_heads:
            raise ValueError(f"dim: must be a multiple of num_heads={num_heads}, got {dim}")
        if isinstance(operator, str):
            operator = operator_factory(operator)(num_heads, dim // num_heads)
            operator.to(device=device, dtype=dtype)
            for part in operator.modules():
                if isinstance(part, Positive):  # whose logarithm was rounded to float32
                    part.reset_parameters()
        if not isinstance(operator, Operator):
            raise ValueError(
                "operator: must be an Operator, such as Gaussian(), or the name of one, got "
                f"{operator!r}"
            )
        self.embed_dim, self.num_heads, self.head_dim = dim, num_heads, dim // num_heads
        self.kdim = self.vdim = dim
        self.operator = operator
        self.projected = operator.reads
        width = len(self.projected) * dim
        self.in_proj_weight = nn.Parameter(torch.empty(width, dim, device=device, dtype=dtype))
        if bias:
            self.in_proj_bias = nn.Parameter(torch.empty(width, device=device, dtype=dtype))
        else:
            self.register_parameter("in_proj_bias", None)
        self.out_proj = nn.Linear(dim, dim, bias=bias, device=device, dtype=dtype)
        widths = operator.gate_widths(self.head_dim), operator.query_gate_widths(self.head_dim)
        n_gates, n_query_gates = (num_heads * sum(x.values()) for x in widths)
        self.gate_proj, self.query_gate_proj = (
            nn.Linear(dim, n, bias=bias, device=device, dtype=dtype) if n else None
            for n in (n_gates, n_query_gates)
        )
        self.register_load_state_dict_pre_hook(keep_projected)
        self._reset_projections()

    def reset_parameters(self) -> None:
        """Draw new projections and return the operator's parameters to their initial values."""
        self._reset_projections()
        self.operator.reset_parameters()

    def _reset_projections(self) -> None:
        self._draw_inputs()
        self.out_proj.reset_parameters()
        if self.in_proj_bias is not None:
            nn.init.zeros_(self.in_proj_bias)
            nn.init.zeros_(self.out_proj.bias)
        for gate_proj in (self.gate_proj, self.query_gate_proj):
            for parameter in () if gate_proj is None else gate_proj.parameters():
                nn.init.zeros_(parameter)

    def _draw_inputs(self) -> None:
        # The bound of all three projections, however many there are.
        bound = (6 / (4 * self.embed_dim)) ** 0.5
        nn.init.uniform_(self.in_proj_weight, -bound, bound)

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
    ) -> tuple[Tensor, Tensor | None] | tuple[Tensor, Tensor | None, Context]:
        """Attend with every head.

        Parameters
        ----------
        query : Tensor of shape (batch, n_queries, dim) or (n_queries, dim)
        key, value : Tensor of shape (batch, n_keys, dim) or (n_keys, dim)
            A batch of one sequence stands for as many as the others have.
        key_padding_mask : Tensor of shape (batch, n_keys), optional
            True (or -inf) hides a key, the polarity of ``nn.MultiheadAttention``.
        need_weights : bool, default=True
            Return the explicit matrix too; False keeps memory linear in the number of tokens where
            the operator is fused.
        attn_mask : Tensor of shape (n_queries, n_keys) or (batch * num_heads, n_queries, n_keys)
            True (or -inf) hides a pair. Also one that broadcasts to (batch, num_heads, n_queries,
            n_keys), such as (batch, 1, n_queries, n_keys) for one mask a sequence.
        average_attn_weights : bool, default=True
            Average the matrix over heads.
        is_causal : bool, default=False
            Query i sees the keys 0 to ``n_keys - n_queries + i``. With an `attn_mask` it is only a
            hint that the mask is causal, and the mask is what counts.
        context : Context, optional
            What the layer before returned, or a new one in the first layer.

        Returns
        -------
        output : Tensor of shape (batch, n_queries, dim) or (n_queries, dim)
        weights : Tensor of shape (batch, n_queries, n_keys), with heads after the batch if not
            averaged, or None
        context : Context
            For the next layer; returned only where a context was given.

        Raises
        ------
        ValueError
            If shapes, dtypes or devices do not fit, or the context lacks what the operator needs.
        """
        tensors = {"query": query, "key": key, "value": value}
        widths = self.embed_dim, self.kdim, self.vdim
        check_shell(
            tensors, widths, self.num_heads, key_padding_mask, attn_mask, next(self.parameters())
        )
        check_is_context(context)
        inputs, padding, single_sequence = (query, key, value), key_padding_mask, query.ndim == 2
        if single_sequence:
            inputs = same(lambda x: x[None], *inputs)
            padding = None if padding is None else padding[None]
        output, weights, next_context = self._attend(
            inputs, padding, attn_mask, is_causal, need_weights, context
        )
        if weights is not None and average_attn_weights:
            weights = weights.mean(dim=1)
        if single_sequence:
            output, weights = output[0], None if weights is None else weights[0]
        return (output, weights) if context is None else (output, weights, next_context)

    def _attend(
        self,
        inputs: tuple[Tensor, Tensor, Tensor],
        padding: Tensor | None,
        attn_mask: Tensor | None,
        is_causal: bool,
        need_weights: bool,
        context: Context | None,
    ) -> tuple[Tensor, Tensor | None, Context]:
        """Return the output and each head's weights for a batch, and the next layer's context."""
        tokens, *_ = of_common_batch(None, *inputs)
        q, k, v = of_common_batch(None, *self.project(*inputs))
        mask = self._merge_masks(padding, attn_mask, q)
        is_causal = is_causal and attn_mask is None
        context = self._with_gates(context, inputs[0], inputs[1])
        if need_weights and context is not None and context.states is not None:
            raise ValueError("need_weights: decoding from a state gives no matrix, pass False")
        output, seen = self._operate(q, k, v, mask, is_causal, tokens, context)
        weights = None
        if need_weights:
            weights = self.operator.matrix(q, k, mask=mask, is_causal=is_causal, context=seen)
        # (batch, tokens, dim)
        return self.out_proj(output.transpose(1, 2).flatten(2)), weights, seen.leave()

    def _operate(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        mask: Tensor | None,
        is_causal: bool,
        tokens: Tensor,
        context: Context | None,
    ) -> tuple[Tensor, Context]:
        """Return the operator's output, and the context that the operator saw."""
        seen = self.fill(context, tokens, v)
        if seen.states is not None:
            if mask is not None:
                raise ValueError("key_padding_mask, attn_mask: decoding from a state takes no mask")
            if not seen.states:
                raise ValueError("context.states: must have an entry for each layer, got none")
            out, state = self.operator.decode(q, k, v, seen.states[0], context=seen)
            return out, seen._replace(states=(*seen.states[1:], state))
        return self.operator(q, k, v, mask=mask, is_causal=is_causal, context=seen), seen

    def project(self, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Project to queries, keys and values of all heads, (batch, heads, tokens, head_dim)."""
        if missing := [name for name in self.operator.reads if name not in self.projected]:
            raise ValueError(
                f"operator: {type(self.operator).__name__} reads {' and '.join(missing)}, which "
                "this layer does not project"
            )
        tokens = {"q": query, "k": key, "v": value}
        inputs = [tokens[name] for name in self.projected]
        if all(x is inputs[0] for x in inputs):
            projected = F.linear(inputs[0], self.in_proj_weight, self.in_proj_bias)
            parts = projected.chunk(len(inputs), dim=-1)
        else:
            bias: Tensor | None = self.in_proj_bias
            biases = (None,) * len(inputs) if bias is None else bias.chunk(len(inputs))
            weights = self.in_proj_weight.chunk(len(inputs))
            parts = tuple(
                F.linear(x, w, b) for x, w, b in zip(inputs, weights, biases, strict=True)
            )
        by_name = dict(zip(self.projected, parts, strict=True))
        # Of what is not read only the shape counts: for queries of the same tokens, that of keys.
        if "q" not in by_name and "k" in by_name and query is key:
            by_name["q"] = by_name["k"]
        q, k, v = (self._split_heads(by_name.get(name, tokens[name])) for name in "qkv")
        return q, k, v

    def _split_heads(self, x: Tensor) -> Tensor:
        # (batch, heads, tokens, head_dim)
        return x.unflatten(-1, (self.num_heads, -1)).transpose(-3, -2)

    def _merge_masks(
        self, key_padding_mask: Tensor | None, attn_mask: Tensor | None, q: Tensor
    ) -> Tensor | None:
        """Merge the two masks into one of the polarity of scaled_dot_product_attention."""
        masks = []
        if key_padding_mask is not None:
            masks.append(key_padding_mask[:, None, None, :])
        if attn_mask is not None:
            if attn_mask.ndim == 3:
                attn_mask = attn_mask.unflatten(
                    0, (q.shape[0], self.num_heads)
                )  # (batch, heads, n, n)
            masks.append(attn_mask)
        if not masks:
            return None
        if all(mask.dtype == torch.bool for mask in masks):
            return ~masks[0] if len(masks) == 1 else ~(masks[0] | masks[1])
        bias = [read_mask(mask, q) for mask in masks if mask.dtype != torch.bool]
        hidden = [mask for mask in masks if mask.dtype == torch.bool]
        total_bias = bias[0] if len(bias) == 1 else bias[0] + bias[1]
        return total_bias.masked_fill(hidden[0], -torch.inf) if hidden else total_bias

    def fill(self, context: Context | None, query: Tensor, v: Tensor) -> Context:
        """Return the context as this layer's operator sees it, with the layer's own values.

        Gates that the context lacks come from the tokens of the queries.

        Raises
        ------
        ValueError
            If the context lacks what the operator needs and only the model can give, or if the
            number of positions is not that of the keys.
        """
        needs = ["positions" if n == "projected_positions" else n for n in self.operator.needs]
        missing = "positions" in needs and (context is None or context.positions is None)
        if needs and (context is None or missing):
            raise ValueError(
                f"context: {type(self.operator).__name__} needs {', '.join(needs)}; pass one "
                f"context=Context({'positions=...' if missing else ''}) through all layers of a "
                "model"
            )
        seen = (context or Context()).enter(query, v)
        if seen.gates is None and seen.query_gates is None:
            seen = self._with_gates(seen, query, query) or seen
        if "projected_positions" not in self.operator.needs or seen.positions is None:
            return seen
        projected = self.project_positions(seen.positions)
        check_context(seen, ("positions",), v, type(self.operator).__name__)
        return seen._replace(projected_positions=projected)

    def _with_gates(self, context: Context | None, query: Tensor, key: Tensor) -> Context | None:
        """Return the context with what the tokens give for the operator's gates, if it has any."""
        if self.gate_proj is not None:
            context = (context or Context())._replace(gates=self._split_heads(self.gate_proj(key)))
        if self.query_gate_proj is not None:
            gates = self._split_heads(self.query_gate_proj(query))
            context = (context or Context())._replace(query_gates=gates)
        return context

    def project_positions(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Return the positions after the query and after the key projection, both without bias.

        Raises
        ------
        ValueError
            If positions do not fit the weights, or the operator does not read queries and keys.
        """
        check_input(
            positions, "context.positions", ("...", "tokens", self.embed_dim), self.in_proj_weight
        )
        rows = self.in_proj_weight.chunk(len(self.projected))
        weights = dict(zip(self.projected, rows, strict=True))
        if missing := {"q", "k"} - weights.keys():
            raise ValueError(
                f"context: {type(self.operator).__name__} needs positions through projections of "
                f"queries and keys, but does not read {', '.join(sorted(missing))}"
            )
        q, k = (self._split_heads(F.linear(positions, weights[name])) for name in "qk")
        return q, k

    def extra_repr(self) -> str:
        return f"dim={self.embed_dim}, num_heads={self.num_heads}"


def keep_projected(module: nn.Module, state_dict: dict[str, Any], prefix: str, *_: Any) -> None:
    """Keep, of a checkpoint's projections q, k and v, those that the layer has."""
    assert isinstance(module, Attention)
    for name in ("in_proj_weight", "in_proj_bias"):
        parts = state_dict.get(prefix + name)
        if parts is not None and len(parts) == 3 * module.embed_dim:
            rows = dict(zip("qkv", parts.chunk(3), strict=True))
            state_dict[prefix + name] = torch.cat([rows[key] for key in module.projected])


def same(
    change: Callable[[Tensor], Tensor], q: Tensor, k: Tensor, v: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Apply `change` to q, k and v, but only once to a tensor that is given twice."""
    changed = {id(x): change(x) for x in (q, k, v)}
    return changed[id(q)], changed[id(k)], changed[id(v)]
