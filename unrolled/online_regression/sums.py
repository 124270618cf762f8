"""Linear attention with forgetting."""

from typing import Any

from torch import Tensor

from ..attention import check_positive
from ..attention.precision import unlowered
from .chunks import CHUNK, Tokens, run_chunks
from .inputs import read_sequences
from .rules import Forget, OnlineRule, Rows


@unlowered
def chunked_linear_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    log_forget: Tensor | None = None,
    state: Tensor | None = None,
    chunk: int = CHUNK,
) -> tuple[Tensor, Tensor]:
    """Sum outer products of keys and values with forgetting, and read the sum with each query.

    ::

        S_t = Diag(a_t) S_{t-1} + k_t^T v_t,   o_t = q_t S_t,   a = exp(log_forget)

    S_t is one gradient step of length 1 from S = 0 on ``1/2 sum_i w_ti |v_i - k_i S|^2``, with
    ``w_ti`` the product of a over the tokens after i up to t. Nothing is scaled or normalised. The
    layer's form of `twinsolve.solvers.online_regression.recurrent_linear_attention`; cost, dtypes
    and further arguments are those of `chunked_delta_rule`.

    Parameters
    ----------
    q, k : Tensor of shape (..., n_tokens, d)
    v : Tensor of shape (..., n_tokens, e)
    log_forget : Tensor of shape (..., n_tokens, d) or (..., n_tokens, 1), optional
        Logarithm of a, at most 0; None forgets nothing. -inf forgets all: where each of several
        packed sequences starts with it, they stay apart.
    state : Tensor of shape (..., d, e), optional
        S before the first token; zeros by default.
    chunk : int, default=64
        Tokens that are computed together, rounded up to a power of two. 1 is the recurrence.

    Returns
    -------
    out : Tensor of shape (..., n_tokens, e)
    state : Tensor of shape (..., d, e)
        S after the last token.

    Raises
    ------
    ValueError
        If shapes, dtypes or devices do not fit, or `chunk` is below 1.

    References
    ----------
    Katharopoulos et al. (2020); Yang et al. (2024), *Gated Linear Attention Transformers with
    Hardware-Efficient Training*; EQUATIONS TR-1.

    Examples
    --------
    >>> import torch
    >>> from twinsolve.unrolled.online_regression import chunked_linear_attention
    >>> k, v = torch.tensor([[1.0], [2.0]]), torch.tensor([[3.0], [5.0]])
    >>> half = torch.full((2, 1), 0.5).log()
    >>> chunked_linear_attention(torch.ones(2, 1), k, v, log_forget=half)[0].flatten()
    tensor([ 3.0000, 11.5000])
    """
    out_type = v.dtype
    q, k, v, state, log_forget = read_sequences(q, k, v, state, chunk, log_forget=log_forget)
    out, state = run_chunks(Tokens(q, k, k, v, log_forget=log_forget), state, chunk, corrects=False)
    return out.to(out_type), state


class GatedLinear(OnlineRule):
    """Linear attention with forgetting: sums of ``k^T v`` that decay, read by each query.

    ::

        S_t = Diag(a_t) S_{t-1} + scale k_t^T v_t,   o_t = q_t S_t

    The tokens give the forgetting a in (0, 1] through a projection of the shell, ``log a = min(x w,
    0)`` with w = 0 at first: the layer starts as `Linear`. Without a causal mask every query reads
    the state after the last key.

    Parameters
    ----------
    scale : float, default=1/16
        > 0; that of `Linear`.
    forget : {"token", "feature"}, default="token"
        One a for each token (as in RetNet and Mamba-2), or one for each feature of its key (GLA).

    Raises
    ------
    ValueError
        If `scale` is not positive or `forget` is none of these, or a mask differs between queries
        or holds a finite bias.

    References
    ----------
    See `chunked_linear_attention`; EQUATIONS TR-1.

    Examples
    --------
    >>> import torch
    >>> from twinsolve.unrolled import Attention
    >>> from twinsolve.unrolled.online_regression import GatedLinear
    >>> layer, x = Attention(16, 4, operator=GatedLinear()), torch.randn(2, 10, 16)
    >>> layer(x, x, x, is_causal=True, need_weights=False)[0].shape
    torch.Size([2, 10, 16])
    """

    def __init__(self, scale: float = 1 / 16, forget: Forget = "token") -> None:
        super().__init__(forget)
        if forget is None:
            raise ValueError("forget: must be 'token' or 'feature', got None, which is Linear")
        self.scale = check_positive(scale, "scale")

    def prepare(self, x: Tensor) -> Tensor:
        return x

    def run(self, x: Rows, state: Any = None) -> tuple[Tensor, Tensor]:
        return chunked_linear_attention(
            x.q, self.scale * x.k, x.v, log_forget=x.gates["log_forget"], state=state
        )

    def extra_repr(self) -> str:
        return f"scale={self.scale:.4g}, {super().extra_repr()}"
