"""A constant bias on the logits of any softmax-type operator."""

from torch import Tensor

from ..attention import Call, Correction, Operator
from .features import add_bias


class Biased(Correction):
    """The base operator with a constant bias added to its logits: ``softmax(logits + b)``.

    For a term that is the same in each call and so is worth storing, such as the position term of
    a trained `Bilateral`, or relative positions b_ij. The bias of n_queries x n_keys numbers a head
    is stored and fixes the number of tokens; the base keeps its fused form.

    Parameters
    ----------
    base : Operator
        That takes additive masks.
    bias : Tensor broadcastable to (..., heads, n_queries, n_keys)
        Of full size in its last two dimensions. A constant: it gets no gradient, as a bias that
        needs one leaves the fused kernel.

    Raises
    ------
    ValueError
        If `base` takes no additive masks, or the bias does not fit the tokens.

    References
    ----------
    EQUATIONS FF-7, IF-21, IF-30.

    Examples
    --------
    >>> import torch
    >>> from twinsolve.unrolled import Biased, Softmax
    >>> q = torch.randn(1, 2, 5, 8)
    >>> nearby = -torch.tensor([[abs(i - j) for j in range(5)] for i in range(5)]) * 100.0
    >>> torch.allclose(Biased(Softmax(), nearby)(q, q, q), q, atol=1e-5)
    True
    """

    bias: Tensor

    def __init__(self, base: Operator, bias: Tensor) -> None:
        super().__init__(base)
        if not base.additive_masks:
            raise ValueError(f"base: {type(base).__name__} has no logits that a bias could add to")
        if not bias.is_floating_point() or bias.ndim < 2:
            raise ValueError(
                "bias: must be floating point (..., n_queries, n_keys), got "
                f"{bias.dtype} {tuple(bias.shape)}"
            )
        self.register_buffer("bias", bias.detach())

    def attend(self, call: Call) -> Tensor:
        return self._biased(call).output_of(self.base)

    def coefficients(self, call: Call) -> Tensor:
        return self._biased(call).matrix_of(self.base)

    def _biased(self, call: Call) -> Call:
        q, k = call.q, call.k
        if self.bias.shape[-2:] != (q.shape[-2], k.shape[-2]):
            raise ValueError(
                f"bias: is for {self.bias.shape[-2]} queries and {self.bias.shape[-1]} keys, got "
                f"{q.shape[-2]} and {k.shape[-2]}"
            )
        return call._replace(mask=add_bias(call.mask, self.bias.to(q.dtype)))

    def extra_repr(self) -> str:
        return f"bias of shape {tuple(self.bias.shape)}"
