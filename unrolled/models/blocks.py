"""The transformer block with a slot for each part that the papers exchange."""

import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from ..attention import (
    Attention,
    Context,
    check_count,
    check_input,
    check_positive,
    hidden_by_layer,
)
from ..attention.inputs import check_is_context
from ..boosting import Residual
from ..named_operators import OperatorLike, made_operator
from ..spectral_filtering import LayerScale


class FeedForward(nn.Module):
    """The two-layer perceptron ``fc2(gelu(fc1(x)))``, with Xavier weights and zero biases."""

    def __init__(
        self,
        dim: int,
        hidden_dim: int,
        *,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.fc1 = nn.Linear(dim, hidden_dim, device=device, dtype=dtype)
        self.activation = nn.GELU()
        self.fc2 = nn.Linear(hidden_dim, dim, device=device, dtype=dtype)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw new weights."""
        xavier_(self.fc1)
        xavier_(self.fc2)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc2(self.activation(self.fc1(x)))


class NoSkip(Residual):
    """No residual connection: it returns y, the output of the branch."""

    def forward(self, x: Tensor, y: Tensor, context: Context | None = None) -> Tensor:
        return y


class Block(nn.Module):
    """Pre-norm transformer block.

    ::

        x <- residual(x, scale(attention(norm(x))))
        x <- x + feed_forward(norm(x))                      or scale(feed_forward(norm(x)))

    Parameters
    ----------
    dim, num_heads : int
    operator : str, Operator or callable, default="softmax"
        A name of `operator_names`, an operator (copied), or ``operator(num_heads, head_dim)``.
    mlp_ratio : float, default=4.0
        Hidden width of the feed-forward part over `dim`.
    attention_skip, feed_forward_skip : bool, default=True
        False leaves the branch without residual connection.
    feed_forward : bool or callable, default=True
        False leaves the part out; ``feed_forward(dim)`` makes another module, which maps tokens to
        tokens.
    scale : callable, optional
        ``scale(dim)`` makes a module y -> y on the branch outputs, such as ``LayerScale``. If its
        `forward` takes a `key_padding_mask`, an `attn_mask` (bool, True hides a pair of tokens) or
        `is_causal`, it mixes tokens, as ``FeatScale``, and is called with the block's.
    scale_feed_forward : bool, optional
        Scale the feed-forward branch too. By default scales that act on each token alone do so;
        scales that mix tokens follow attention only, as FeatScale is defined.
    layer_scale : float, optional
        Both branches end in a `LayerScale` of this initial value, behind `scale`. None leaves it
        out.
    residual : callable, optional
        ``residual()`` makes a module that is called as ``residual(x, y, context)``, with x the
        tokens before attention and y its output. The attribute `needs_history`, if it is there and
        true, makes models fill `Context.history`. None is ``x + y``.
    feed_forward_residual : callable, optional
        The same for the feed-forward branch, ``x + y`` by default: equation 26 boosts attention.
    dropout : float, default=0.0
        Dropout rate of the branch outputs, in training.
    norm_eps : float, default=1e-6
        Epsilon of the layer norms.

    Raises
    ------
    ValueError
        If a size is out of range or there is no such operator.

    References
    ----------
    Vaswani et al. (2017), Dosovitskiy et al. (2021); EQUATIONS IF-GRC, IF-26, AO-10 to AO-12.
    Weights are Xavier uniform, for query, key and value each, and biases zero. Operators and other
    parts start where their `reset_parameters` puts them, so set other values in the block.

    Examples
    --------
    >>> import torch
    >>> from twinsolve.unrolled.models import Block
    >>> block = Block(16, 4, operator="twicing", attention_skip=False)
    >>> block(torch.randn(2, 10, 16)).shape
    torch.Size([2, 10, 16])
    """

    def __init__(
        self,
        dim: int,
        num_heads: int,
        *,
        operator: OperatorLike = "softmax",
        mlp_ratio: float = 4.0,
        attention_skip: bool = True,
        feed_forward_skip: bool = True,
        feed_forward: bool | Callable[[int], nn.Module] = True,
        scale: Callable[[int], nn.Module] | None = None,
        scale_feed_forward: bool | None = None,
        layer_scale: float | None = None,
        residual: Callable[[], nn.Module] | None = None,
        feed_forward_residual: Callable[[], nn.Module] | None = None,
        dropout: float = 0.0,
        norm_eps: float = 1e-6,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        check_count(num_heads, "num_heads", 1)
        check_count(dim, "dim", 1)
        check_positive(mlp_ratio, "mlp_ratio")
        branch_scale = None if scale is None else scale(dim)
        operator = made_operator(operator, num_heads, dim // num_heads)
        check_positive(norm_eps, "norm_eps", allow_zero=True)
        self.attention_norm = nn.LayerNorm(dim, norm_eps)
        self.attention = Attention(dim, num_heads, operator=operator, device=device, dtype=dtype)
        self.attention_scale = _end_in_layer_scale(branch_scale, dim, layer_scale)
        self.attention_residual = _make_residual(residual, attention_skip)
        self.dropout = nn.Dropout(check_positive(dropout, "dropout", allow_zero=True))
        self.feed_forward: nn.Module | None = None
        if feed_forward:
            self.feed_forward_norm = nn.LayerNorm(dim, norm_eps)
            self.feed_forward = (
                feed_forward(dim)
                if callable(feed_forward)
                else FeedForward(dim, round(mlp_ratio * dim), device=device, dtype=dtype)
            )
            if scale_feed_forward is None:
                scale_feed_forward = not _masks_of(self.attention_scale)
            branch_scale = scale(dim) if scale is not None and scale_feed_forward else None
            self.feed_forward_scale = _end_in_layer_scale(branch_scale, dim, layer_scale)
            self.feed_forward_residual = _make_residual(feed_forward_residual, feed_forward_skip)
        scales = {n: m for n, m in self.named_children() if n.endswith("_scale")}
        self._scale_masks = {name: _masks_of(module) for name, module in scales.items()}
        self.to(device=device, dtype=dtype)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw new projections and return everything else to its initial value."""
        reset_children(self)
        with torch.no_grad():
            for weight in self.attention.in_proj_weight.split(self.attention.embed_dim):
                nn.init.xavier_uniform_(weight)
        xavier_(self.attention.out_proj)

    @property
    def scales_mix_tokens(self) -> bool:
        """Whether a scale mixes tokens: one that takes masks does."""
        return any(self._scale_masks.values())

    @property
    def scales_take_pairs(self) -> bool:
        """Whether all scales that mix tokens take a mask of pairs of tokens."""
        return all("attn_mask" in masks for masks in self._scale_masks.values() if masks)

    @property
    def needs_history(self) -> bool:
        """Whether a residual connection reads `Context.history`."""
        return any(getattr(module, "needs_history", False) for module in self.children())

    def forward(
        self,
        x: Tensor,
        context: Context | None = None,
        *,
        memory: Tensor | None = None,
        key_padding_mask: Tensor | None = None,
        attn_mask: Tensor | None = None,
        is_causal: bool = False,
        add_positions: bool = False,
    ) -> Tensor | tuple[Tensor, Context]:
        """Pass tokens through the block.

        Parameters
        ----------
        x : Tensor of shape (batch, tokens, dim) or (tokens, dim)
        context : Context, optional
            What the block before returned, or a new one in the first block.
        memory : Tensor of shape (batch, further, dim) or (further, dim), optional
            Further tokens, in front of x, that x attends to and that stay unchanged.
        key_padding_mask, attn_mask, is_causal
            As in `Attention`; masks count `memory` too.
        add_positions : bool, default=False
            Add the context's positions, which count `memory` too, to the inputs of queries and
            keys. Values and the output of the block carry no positions, so that later layers may
            take them as separate features.

        Returns
        -------
        x : Tensor of the shape of `x`
        context : Context
            For the next block; returned only where a context was given.
        """
        weight, dim = next(self.attention.parameters()), self.attention.embed_dim
        check_input(x, "x", ("tokens", dim) if x.ndim == 2 else ("batch", "tokens", dim), weight)
        if memory is not None:
            check_input(memory, "memory", (*x.shape[:-2], "tokens", dim), weight)
        check_is_context(context)
        without_context = context is None
        context = context or Context()
        if context.first_tokens is None:
            context = context._replace(first_tokens=x)
        tokens = x if memory is None else torch.cat([memory, x], dim=-2)
        n_memory = tokens.shape[-2] - x.shape[-2]
        keys = values = self.attention_norm(tokens)
        if add_positions and context.positions is not None:
            shape = ("...", tokens.shape[-2], dim)
            check_input(context.positions, "context.positions", shape, weight)
            keys = self.attention_norm(tokens + context.positions)
        queries = keys if memory is None else keys[..., n_memory:, :]
        y, _, context = self.attention(
            queries, keys, values, key_padding_mask,
            need_weights=False, attn_mask=attn_mask, is_causal=is_causal, context=context,
        )  # fmt: skip
        padding = None if key_padding_mask is None else key_padding_mask[..., n_memory:]
        masks = {
            "key_padding_mask": padding,
            "attn_mask": self._find_hidden_pairs(attn_mask, x, n_memory),
            "is_causal": (is_causal and attn_mask is None) or None,
        }
        x = self.attention_residual(x, self._scale_branch("attention_scale", y, masks), context)
        if self.feed_forward is not None:
            y = self.feed_forward(self.feed_forward_norm(x))
            y = self._scale_branch("feed_forward_scale", y, masks)
            x = self.feed_forward_residual(x, y, context)
        return x if without_context else (x, context)

    def _scale_branch(self, name: str, y: Tensor, masks: dict[str, Any]) -> Tensor:
        """Apply dropout and the named scale, with the masks that this scale takes."""
        scale_masks = {n: masks[n] for n in self._scale_masks[name] if masks[n] is not None}
        return getattr(self, name)(self.dropout(y), **scale_masks)

    def _find_hidden_pairs(self, mask: Tensor | None, x: Tensor, n_memory: int) -> Tensor | None:
        """Return a mask of the pairs of x that any head hides, for scales that mix tokens."""
        if mask is None or not self.scales_mix_tokens:
            return None
        hidden, n_tokens = hidden_by_layer(mask), x.shape[-2]
        if hidden.ndim == 3:
            hidden = hidden.unflatten(0, (-1, self.attention.num_heads))  # (batch, heads, n, n)
        if hidden.ndim == 4:
            hidden = hidden.any(dim=1)
        pairs = (*x.shape[:-2], n_tokens, n_memory + n_tokens)
        hidden = hidden.squeeze(0) if x.ndim == 2 and hidden.ndim == 3 else hidden
        return hidden.expand(pairs)[..., n_memory:]


def reset_children(module: nn.Module) -> None:
    """Call `reset_parameters` of the outermost modules inside `module` that have this method."""
    for child in module.children():
        reset = getattr(child, "reset_parameters", None)
        if callable(reset):
            reset()
        else:
            reset_children(child)


def xavier_(linear: nn.Linear) -> None:
    """Draw Xavier weights, and set the biases to zero."""
    nn.init.xavier_uniform_(linear.weight)
    if linear.bias is not None:
        nn.init.zeros_(linear.bias)


def _make_residual(make: Callable[[], nn.Module] | None, skip: bool) -> nn.Module:
    """Return the connection around a branch: none, plain, or one that `make` makes."""
    if not skip:
        return NoSkip()
    return Residual() if make is None else make()


class _ScaleThenLayerScale(LayerScale):
    """A scale, which may take masks, and behind it a LayerScale, whose weight keeps its name."""

    def __init__(self, scale: nn.Module, dim: int, *, initial: float) -> None:
        super().__init__(dim, initial=initial)
        self.scale = scale

    def reset_parameters(self) -> None:
        super().reset_parameters()
        reset_children(self)

    def forward(self, y: Tensor, **masks: Any) -> Tensor:
        return super().forward(self.scale(y, **masks))


def _end_in_layer_scale(scale: nn.Module | None, dim: int, initial: float | None) -> nn.Module:
    """Return the scale, followed by a LayerScale if its initial value is given."""
    if initial is None:
        return nn.Identity() if scale is None else scale
    if scale is None:
        return LayerScale(dim, initial=initial)
    return _ScaleThenLayerScale(scale, dim, initial=initial)


def _masks_of(scale: nn.Module) -> list[str]:
    """Return the names of the masks that a scale takes."""
    scale = scale.scale if isinstance(scale, _ScaleThenLayerScale) else scale
    parameters = inspect.signature(scale.forward).parameters
    return [name for name in ("key_padding_mask", "attn_mask", "is_causal") if name in parameters]
