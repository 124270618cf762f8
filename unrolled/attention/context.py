"""What the layers of a model share beyond queries, keys and values."""

from typing import Any, NamedTuple

from torch import Tensor


class Context(NamedTuple):
    """What a layer may know beyond its own queries, keys and values; it never changes.

    A model makes one for each forward pass. Every layer takes the context that the layer before
    returned, and returns another one; operators read what they declare in `Operator.needs`. One
    context may be given to any number of layers or passes: if it holds no values, each of them is a
    first layer.

    Attributes
    ----------
    positions : Tensor of shape (..., tokens, dim), optional
        Position features in the model's width.
    grid : pair of int, optional
        Rows and columns of the grid on which tokens lie row by row; None is a sequence.
    n_class_tokens : int
        Number of tokens in front of those on the grid, which have no place on it.
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
    history : tuple of Tensor of shape (..., tokens, dim)
        Tokens that entered each block so far, kept where a residual connection reads them.
    gates : Tensor of shape (..., heads, tokens, n_gates), optional
        What the present layer's keys give for `Operator.gates`, side by side, before the operator
        opens the gates.
    query_gates : Tensor of shape (..., heads, n_queries, n_gates), optional
        The same of its queries, for `Operator.query_gates`.
    states : tuple, optional
        What each layer of a decoding model keeps of the tokens before, in turn: the present layer
        takes the first and adds its own at the end. Layers are causal then, whatever `is_causal`
        is; see `Operator.decode`.

    Examples
    --------
    >>> import torch
    >>> from twinsolve.unrolled import Attention, Context, Neutreno, Softmax
    >>> x, context = torch.randn(2, 10, 16), Context()
    >>> for layer in [Attention(16, 4, operator=Neutreno(Softmax())) for _ in range(3)]:
    ...     x, _, context = layer(x, x, x, need_weights=False, context=context)
    >>> context.first_values.shape
    torch.Size([2, 4, 10, 4])
    """

    positions: Tensor | None = None
    grid: tuple[int, int] | None = None
    n_class_tokens: int = 0
    projected_positions: tuple[Tensor, Tensor] | None = None
    values: Tensor | None = None
    first_values: Tensor | None = None
    previous_values: Tensor | None = None
    first_tokens: Tensor | None = None
    history: tuple[Tensor, ...] = ()
    gates: Tensor | None = None
    query_gates: Tensor | None = None
    states: tuple[Any, ...] | None = None

    def enter(self, tokens: Tensor | None, values: Tensor) -> "Context":
        """Return the context that a layer with these tokens and values sees."""
        return self._replace(
            values=values,
            first_values=values if self.first_values is None else self.first_values,
            first_tokens=tokens if self.first_tokens is None else self.first_tokens,
        )

    def leave(self) -> "Context":
        """Return the context that this layer hands to the next one."""
        return self._replace(
            values=None, projected_positions=None, query_gates=None,
            gates=None, previous_values=self.values,
        )  # fmt: skip
