"""What the layers of a model share beyond queries, keys and values."""

from dataclasses import dataclass, field

from torch import Tensor


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
    values : Tensor of shape (..., heads, tokens, head_dim), optional
        Values of the present layer, for operators whose matrix depends on them.
    first_values : Tensor of shape (..., heads, tokens, head_dim), optional
        Values of the first layer.
    previous_values : Tensor of shape (..., heads, tokens, head_dim), optional
        Values of the layer before; None in the first layer.
    first_tokens : Tensor of shape (..., tokens, dim), optional
        Tokens that entered the first layer.
    history : list of Tensor of shape (..., tokens, dim)
        Tokens that entered each block so far, kept where a residual connection reads them.
    """

    positions: Tensor | None = None
    projected_positions: tuple[Tensor, Tensor] | None = None
    values: Tensor | None = None
    first_values: Tensor | None = None
    previous_values: Tensor | None = None
    first_tokens: Tensor | None = None
    history: list[Tensor] = field(default_factory=list)
