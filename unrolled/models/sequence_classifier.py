"""A classifier of sequences of symbols or of numbers, with any operator."""

from typing import Any

import torch
from torch import Tensor, nn

from ..attention import Context, check_count, check_input
from ..named_operators import OperatorLike
from .blocks import reset_children, xavier_
from .stacks import make_blocks, operators, position_places, prepare_positions, run_blocks
from .tokens import SINUSOIDAL_SCALE, Positions, check_ids, class_head, mean_token


class SequenceClassifier(nn.Module):
    """Classes of whole sequences, from the mean of their tokens.

    Symbols are embedded times ``sqrt(dim)``, or numbers projected; learned positions are added or
    kept apart, and pre-norm `Block` s, a final norm, the mean over tokens and a linear head follow.

    Parameters
    ----------
    num_classes, dim, depth, num_heads : int
        Zero classes leave the head out.
    max_length : int
        Largest length of the sequences.
    vocab_size : int, optional
        Tokens are symbols, 0 to ``vocab_size - 1``. None is for tokens that are numbers.
    operator : str, Operator, callable, or list of these, default="softmax"
        As in `Block`; a list has one entry a layer.
    add_positions : bool, optional
        As in `LanguageModel`.
    position_scale : float, default=2**-0.5
        Standard deviation at which positions start.
    norm_eps : float, default=1e-6
    **block
        Further options of `Block`, such as `mlp_ratio`, `scale`, `residual` or `dropout`; a list or
        tuple has one entry a layer.

    Raises
    ------
    ValueError
        If sizes do not fit.

    References
    ----------
    Tay et al., "Long Range Arena" (2021), for the tasks; Vaswani et al. (2017) for the parts.

    Examples
    --------
    >>> import torch
    >>> from twinsolve.unrolled.models import SequenceClassifier
    >>> model = SequenceClassifier(10, 32, 2, 4, 20, vocab_size=16, operator="alibi")
    >>> model(torch.randint(16, (3, 12))).shape
    torch.Size([3, 10])
    >>> SequenceClassifier(2, 32, 2, 4, 20)(torch.rand(3, 12)).shape
    torch.Size([3, 2])
    """

    def __init__(
        self,
        num_classes: int,
        dim: int,
        depth: int,
        num_heads: int,
        max_length: int,
        *,
        vocab_size: int | None = None,
        operator: OperatorLike | list[OperatorLike] = "softmax",
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
        check_count(dim, "dim", 1)
        self.embedding: nn.Embedding | nn.Linear = (
            nn.Linear(1, dim, **factory)
            if vocab_size is None
            else nn.Embedding(check_count(vocab_size, "vocab_size", 1), dim, **factory)
        )
        self.positions = Positions(max_length, dim, scale=position_scale, **factory)
        self.blocks = make_blocks(
            depth, dim, num_heads, operator=operator, norm_eps=norm_eps, **factory, **block
        )
        readers = operators(self.blocks)
        self.add_positions = prepare_positions([(self.positions, readers)], add_positions)
        self.norm = nn.LayerNorm(dim, norm_eps, **factory)
        self.head = class_head(dim, num_classes, **factory)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw all weights anew; embeddings have variance ``1 / dim``."""
        reset_children(self)
        if isinstance(self.embedding, nn.Linear):
            xavier_(self.embedding)
        else:
            nn.init.normal_(self.embedding.weight, std=self.embedding.embedding_dim**-0.5)
        if isinstance(self.head, nn.Linear):
            xavier_(self.head)

    def forward(self, tokens: Tensor, key_padding_mask: Tensor | None = None) -> Tensor:
        """Class scores.

        Parameters
        ----------
        tokens : Tensor of shape (batch, length)
            Integers, or floating point without `vocab_size`. Positions count from the left, so
            shorter sequences are padded on the right.
        key_padding_mask : bool Tensor of shape (batch, length), optional
            True hides a token, from all others and from the mean.

        Returns
        -------
        Tensor of shape (batch, num_classes), or (batch, dim) without a head
        """
        x = self.norm(self.intermediates(tokens, key_padding_mask)[-1])
        return self.head(mean_token(x, key_padding_mask))

    def intermediates(self, tokens: Tensor, key_padding_mask: Tensor | None = None) -> list[Tensor]:
        """Embedded tokens, and the output of each block: depth + 1 tensors (batch, length, dim)."""
        x = self._embed(tokens)
        positions = self.positions()
        assert positions is not None
        positions = positions[: tokens.shape[1]]
        in_tokens, in_layers = position_places(operators(self.blocks), self.add_positions)
        states = [x + positions if in_tokens else x]
        run_blocks(
            self.blocks, states[0], Context(positions=positions),
            states=states, add_positions=in_layers, key_padding_mask=key_padding_mask,
        )  # fmt: skip
        return states

    def _embed(self, tokens: Tensor) -> Tensor:
        """Return the embedded tokens, without positions."""
        weight = self.embedding.weight
        if isinstance(self.embedding, nn.Embedding):
            check_ids(tokens, "tokens", self.max_length, weight)
            return self.embedding(tokens) * self.embedding.embedding_dim**0.5
        check_input(tokens, "tokens", ("batch", "length"), weight)
        if tokens.shape[1] > self.max_length:
            raise ValueError(
                f"tokens: must be at most {self.max_length} a sequence, got {tokens.shape[1]}"
            )
        return self.embedding(tokens[..., None])

    def extra_repr(self) -> str:
        return f"add_positions={self.add_positions}"
