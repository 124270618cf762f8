"""A small causal language model, with any operator that can be causal."""

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..attention import Context, check_count, hidden_by_layer
from ..named_operators import OperatorLike
from .blocks import reset_children, xavier_
from .stacks import make_blocks, operators, position_places, prepare_positions, run_blocks
from .tokens import SINUSOIDAL_SCALE, Positions, check_ids


class DecodingState(NamedTuple):
    """What `LanguageModel.decode` keeps of the tokens before: their number, and each layer's."""

    n_tokens: int
    layers: tuple[Any, ...]


class LanguageModel(nn.Module):
    """Causal language model: token t sees tokens 0 to t, and its scores are for token t + 1.

    Tokens are embedded times ``sqrt(dim)``, learned positions are added or kept apart, and pre-norm
    `Block` s, a final norm and the head follow.

    Parameters
    ----------
    vocab_size, dim, depth, num_heads : int
    max_length : int
        Largest length of the sequences.
    operator : str, Operator, callable, or list of these, default="softmax"
        As in `Block`; a list has one entry a layer. Every one must support causal masks.
    tie_weights : bool, default=True
        Score with the weight of the embedding; False adds a separate head, without bias.
    add_positions : bool, optional
        As in `VisionTransformer`: by default positions are added to the tokens, unless some
        operator, such as "alibi", takes them as separate features.
    position_scale : float, default=2**-0.5
        Standard deviation at which positions start.
    norm_eps : float, default=1e-6
    **block
        Further options of `Block`, such as `mlp_ratio`, `feed_forward`, `scale`, `residual` or
        `dropout`; a list or tuple has one entry a layer. These modules may only combine tokens of
        the same place, else they would look ahead.

    Raises
    ------
    ValueError
        If sizes do not fit, an operator does not support causal masks, or a `scale` such as
        FeatScale mixes tokens of past and future.

    References
    ----------
    Vaswani et al., *Attention Is All You Need* (2017), section 3.4; Press and Wolf (2017) for tied
    weights.

    Examples
    --------
    >>> import torch
    >>> from twinsolve.unrolled import LanguageModel
    >>> model = LanguageModel(50, 32, 2, 4, 16, operator="twicing")
    >>> ids = torch.randint(50, (3, 12))
    >>> model(ids).shape, model.loss(ids).shape
    (torch.Size([3, 12, 50]), torch.Size([]))
    """

    def __init__(
        self,
        vocab_size: int,
        dim: int,
        depth: int,
        num_heads: int,
        max_length: int,
        *,
        operator: OperatorLike | list[OperatorLike] = "softmax",
        tie_weights: bool = True,
        add_positions: bool | None = None,
        position_scale: float = SINUSOIDAL_SCALE,
        norm_eps: float = 1e-6,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        **block: Any,
    ) -> None:
        super().__init__()
        factory: dict[str, Any] = {"device": device, "dtype": dtype}
        self.max_length = check_count(max_length, "max_length", 1)
        self.embedding = nn.Embedding(
            check_count(vocab_size, "vocab_size", 1), check_count(dim, "dim", 1), **factory
        )
        self.positions = Positions(max_length, dim, scale=position_scale, **factory)
        self.blocks = make_blocks(
            depth, dim, num_heads, operator=operator, norm_eps=norm_eps, **factory, **block
        )
        layers: list[Any] = list(self.blocks)
        if any(layer.scales_mix_tokens for layer in layers):
            raise ValueError(
                "scale: must act on each token alone, as one that takes a key_padding_mask mixes "
                "tokens of past and future"
            )
        for layer_operator in operators(self.blocks):
            if not layer_operator.causal:
                raise ValueError(
                    f"operator: {type(layer_operator).__name__} does not support causal masks, "
                    "which a language model needs"
                )
        readers = operators(self.blocks)
        self.add_positions = prepare_positions([(self.positions, readers)], add_positions)
        self.norm = nn.LayerNorm(dim, norm_eps, **factory)
        self.head = None if tie_weights else nn.Linear(dim, vocab_size, bias=False, **factory)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw all weights anew; embeddings have variance ``1 / dim``."""
        reset_children(self)
        if self.head is not None:
            xavier_(self.head)
        nn.init.normal_(self.embedding.weight, std=self.embedding.embedding_dim**-0.5)

    def forward(self, ids: Tensor, key_padding_mask: Tensor | None = None) -> Tensor:
        """Scores of the next token at every place.

        Parameters
        ----------
        ids : int Tensor of shape (batch, length)
            Positions count from the left, so shorter sequences are padded on the right.
        key_padding_mask : Tensor of shape (batch, length), optional
            True (or -inf) hides a token.

        Returns
        -------
        Tensor of shape (batch, length, vocab_size)
        """
        return self._score(ids, 0, Context(), key_padding_mask)[0]

    def decode(
        self, ids: Tensor, state: DecodingState | None = None
    ) -> tuple[Tensor, DecodingState]:
        """Scores of the next token at every place of the tokens that follow those of a state.

        However a sequence is split over calls, the scores are those of `forward`. A layer that
        learns at test time keeps a state of fixed size, so that a token costs the same at every
        place; other layers keep the keys and values of all tokens.

        Parameters
        ----------
        ids : int Tensor of shape (batch, length)
            Without padding.
        state : named tuple, optional
            What the call before returned; None for the first tokens.

        Returns
        -------
        scores : Tensor of shape (batch, length, vocab_size)
        state : named tuple
            For the next call: the number of tokens, and what each of the layers keeps.

        Raises
        ------
        ValueError
            If there are more than `max_length` tokens, or an operator cannot go on from a state;
            see `Operator.decode`.

        Examples
        --------
        >>> import torch
        >>> from twinsolve.unrolled import LanguageModel
        >>> model = LanguageModel(50, 32, 2, 4, 16, operator="delta_rule").eval()
        >>> ids, state = torch.randint(50, (1, 4)), None
        >>> for _ in range(3):
        ...     scores, state = model.decode(ids, state)
        ...     ids = scores[:, -1:].argmax(dim=-1)
        >>> state.n_tokens
        6
        """
        depth = len(self.blocks)
        state = DecodingState(0, (None,) * depth) if state is None else state
        if not isinstance(state, DecodingState) or len(state.layers) != depth:
            raise ValueError(f"state: must be what a call of a model of {depth} layers returned")
        n_before, layers = state
        scores, context = self._score(ids, n_before, Context(states=layers), None)
        assert context.states is not None
        return scores, DecodingState(n_before + ids.shape[1], context.states)

    def _score(
        self, ids: Tensor, n_before: int, context: Context, key_padding_mask: Tensor | None
    ) -> tuple[Tensor, Context]:
        """Return scores of tokens behind `n_before` others, and the context after all layers."""
        check_ids(ids, "ids", self.max_length - n_before, self.embedding.weight)
        positions = self.positions()
        assert positions is not None
        positions = positions[n_before : n_before + ids.shape[1]]
        in_tokens, in_layers = position_places(operators(self.blocks), self.add_positions)
        x = self.embedding(ids) * self.embedding.embedding_dim**0.5
        x, context = run_blocks(
            self.blocks, x + positions if in_tokens else x, context._replace(positions=positions),
            add_positions=in_layers, key_padding_mask=key_padding_mask, is_causal=True,
        )  # fmt: skip
        x = self.norm(x)
        scores = F.linear(x, self.embedding.weight) if self.head is None else self.head(x)
        return scores, context

    def loss(self, ids: Tensor, key_padding_mask: Tensor | None = None) -> Tensor:
        """Mean cross entropy of each token given those before it, without padding.

        Zero if there is no token to predict. Arguments as in `forward`.
        """
        scores, targets = self(ids, key_padding_mask)[:, :-1].flatten(0, 1), ids[:, 1:].flatten()
        losses = F.cross_entropy(scores, targets.long(), reduction="none")
        if key_padding_mask is None:
            return losses.sum() / max(1, losses.numel())
        predicted = ~hidden_by_layer(key_padding_mask)[:, 1:].flatten()
        return losses.where(predicted, 0).sum() / predicted.sum().clamp(min=1)

    def extra_repr(self) -> str:
        return f"add_positions={self.add_positions}"
