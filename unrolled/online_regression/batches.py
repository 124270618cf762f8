"""Gradient steps on batches of tokens: TTT with a linear model."""

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from ...validation import check_integer
from ..attention import has_static_value
from ..attention.inputs import pair_of_states, read_state
from ..attention.precision import unlowered
from .chunks import CHUNK, correct, write_corrections
from .delta import check_step
from .inputs import by_token, read_sequences, read_visible
from .rules import OnlineRule, Rows
from .sums import chunked_linear_attention

State = tuple[Tensor, Tensor]


@unlowered
def chunked_mini_batch(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    eta: Tensor,
    batch_size: int,
    visible: Tensor | None = None,
    state: State | None = None,
    place: int = 0,
    chunk: int = CHUNK,
) -> tuple[Tensor, State]:
    """Correct a linear map by gradient steps at the state before each batch, and read it.

    ::

        S_t = S_{t-1} + eta_t k_t^T (v_t - k_t S_b),   o_t = q_t S_t

    S_b is the state before the batch that holds token t. The layer's form of
    `twinsolve.solvers.online_regression.mini_batch_rule`. Batches of one token are
    `chunked_delta_rule`; one batch of all tokens from S = 0 with eta = 1 is
    `chunked_linear_attention`. The size of a batch changes the numbers, `chunk` does not. A batch
    with keys K does not enlarge its errors for ``|K^T diag(eta) K|_2 <= 2``. Costs are those of
    `chunked_delta_rule`.

    Parameters
    ----------
    q, k : Tensor of shape (..., n_tokens, d)
    v : Tensor of shape (..., n_tokens, e)
    eta : Tensor of shape (..., n_tokens)
        Steps.
    batch_size : int
        Tokens of a batch; the last one may be shorter.
    visible : Tensor of bool broadcastable to (..., n_tokens), optional
        Tokens that are not skipped; all by default. A token that is skipped takes no place in a
        batch, and must have a key, a value and a step of 0.
    state : pair of Tensor of shape (..., d, e), optional
        S before the first token, and S before the batch of the first token; zeros by default.
    place : int, default=0
        How many tokens of the first token's batch came before: the same number for all sequences.
        If it is 0, a batch begins, and the second state is not read.
    chunk : int, default=64
        Tokens that are computed together, in whole batches. The numbers are the same up to
        rounding.

    Returns
    -------
    out : Tensor of shape (..., n_tokens, e)
        In the dtype of v. Row t contains token t.
    state : pair of Tensor of shape (..., d, e)
        S after the last token, and S before the batch of the token that would come next, in float32
        at least. That token's `place` is the number of visible tokens, added to `place`, modulo
        `batch_size`.

    Raises
    ------
    ValueError
        If shapes, dtypes or devices do not fit, `batch_size` or `chunk` is below 1, or `place` is
        not below `batch_size`.

    References
    ----------
    Sun et al. (2024), *Learning to (learn at test time)*; EQUATIONS TR-7.

    Examples
    --------
    >>> import torch
    >>> from twinsolve.unrolled.online_regression import chunked_mini_batch
    >>> k, v, half = torch.ones(2, 1), torch.tensor([[4.0], [8.0]]), torch.full((2,), 0.5)
    >>> chunked_mini_batch(k, k, v, eta=half, batch_size=2)[0].flatten()
    tensor([2., 6.])
    """
    out_type, (S, S_b) = v.dtype, pair_of_states(state)
    q, k, v, S, step = read_sequences(q, k, v, S, chunk, eta=by_token(eta, "eta"))
    S_b = read_state(S_b, S.shape, k)
    check_integer(batch_size, "batch_size", 1)
    check_integer(place, "place", 0, batch_size - 1)
    n_seen: int | Tensor = k.shape[-2]
    order: Tensor | None = None
    seen = read_visible(visible, k)
    if seen is not None:  # tokens that are skipped go to the end, where they do nothing
        n_seen, order = seen.sum(dim=-2, keepdim=True), (~seen).int().argsort(dim=-2, stable=True)
    step = step.expand(*k.shape[:-1], 1)
    keys, values, step = (_take(x, order) for x in (k, v, step))
    u = _correct(keys, values, step, S, S_b, batch_size, place, chunk)
    ended = (place + n_seen) // batch_size * batch_size
    is_before = place + torch.arange(k.shape[-2], device=k.device)[:, None] < ended
    before = S + keys.mT @ torch.where(is_before, u, 0)
    if place:
        before = torch.where(torch.as_tensor(ended, device=k.device) > 0, before, S_b)
    u = _take(u, None if order is None else order.argsort(dim=-2))
    out, last = chunked_linear_attention(q, k, u, state=S, chunk=chunk)
    return out.to(out_type), (last, before)


def _take(x: Tensor, order: Tensor | None) -> Tensor:
    return x if order is None else x.take_along_dim(order, dim=-2)


def _correct(
    k: Tensor,
    v: Tensor,
    step: Tensor,
    S: Tensor,
    S_b: Tensor,
    batch_size: int,
    place: int,
    chunk: int,
) -> Tensor:
    """Return what each token writes along its key, ``eta (v - k S_b)``."""
    n_first = min(batch_size - place, k.shape[-2]) if place else 0
    if n_first == 0:
        return _correct_batches(k, v, step, S, batch_size, chunk)
    (k, later_k), (v, later_v), (step, later_step) = (
        (x[..., :n_first, :], x[..., n_first:, :]) for x in (k, v, step)
    )
    u = step * (v - k @ S_b)
    if later_k.shape[-2] == 0:
        return u
    later = _correct_batches(later_k, later_v, later_step, S + k.mT @ u, batch_size, chunk)
    return torch.cat([u, later], dim=-2)


def _correct_batches(
    k: Tensor, v: Tensor, step: Tensor, S: Tensor, batch_size: int, chunk: int
) -> Tensor:
    """Do so from the beginning of a batch, for several batches at once.

    With the state S before them these write ``U = A - B S``, where a triangular system holds the
    tokens to those of earlier batches.
    """
    n_tokens, size = k.shape[-2], batch_size * max(1, chunk // batch_size)
    k, v, step = (_in_groups(x, size) for x in (k, v, step))
    A, B = step * v, step * k
    if not has_static_value(n_tokens) or k.shape[-2] > batch_size:
        of_batch = torch.arange(k.shape[-2], device=k.device) // batch_size
        A, B = correct((B @ k.mT).masked_fill(of_batch[:, None] <= of_batch, 0), A, B)
    return write_corrections(A, B, k, S)[0][..., :n_tokens, :]


def _in_groups(x: Tensor, size: int) -> Tensor:
    """Return groups of tokens (..., n_groups, size, width); rows of zeros fill the last.

    A program for any number of tokens holds one group of all.
    """
    n_tokens = x.shape[-2]
    if not has_static_value(n_tokens) or n_tokens <= size:
        return x[..., None, :, :]
    return F.pad(x, (0, 0, 0, -n_tokens % size)).unflatten(-2, (-1, size))


class MiniBatch(OnlineRule):
    """Gradient steps on batches of tokens, all at the state before their batch: linear TTT.

    ::

        S_t = S_{t-1} + eta_t k_t^T (v_t - k_t S_b),   o_t = q_t S_t

    S_b is the state before the batch of token t. Queries and keys are divided by ``sqrt(|.|^2 +
    1e-6)``. The tokens give the steps ``eta = largest_step sigmoid(x w) / batch_size`` through a
    projection of the shell, with w = 0 at first. A batch whose steps sum to 2 or less enlarges no
    error, whatever its keys, as ``|K^T diag(eta) K|_2`` is at most that sum; equal keys reach it.
    Hence the division by the size of a batch. The layer starts with half the largest steps; with
    batches of one token it is `DeltaRule`. Hidden tokens take no places in batches. Without a
    causal mask every query reads the state after the last key.

    Parameters
    ----------
    batch_size : int, default=16
        Tokens of a batch.
    largest_step : float, default=1.0
        Of the sum of a batch's steps, in (0, 2].

    Raises
    ------
    ValueError
        If a parameter is out of range, or a mask differs between queries or holds a finite bias.

    References
    ----------
    See `chunked_mini_batch`; EQUATIONS TR-7.

    Examples
    --------
    >>> import torch
    >>> from twinsolve.unrolled import Attention
    >>> from twinsolve.unrolled.online_regression import MiniBatch
    >>> layer, x = Attention(16, 4, operator=MiniBatch(4)), torch.randn(2, 10, 16)
    >>> layer(x, x, x, is_causal=True, need_weights=False)[0].shape
    torch.Size([2, 10, 16])
    """

    own_gate = "eta"
    takes_packed = False

    def __init__(self, batch_size: int = 16, largest_step: float = 1.0) -> None:
        super().__init__(None)
        self.batch_size = check_integer(batch_size, "batch_size", 1)
        self.largest_step = check_step(largest_step, "largest_step", 2)

    def open_gate(self, name: str, raw: Tensor) -> Tensor:
        return self.largest_step / self.batch_size * raw.sigmoid()

    def run(self, x: Rows, state: Any = None) -> tuple[Tensor, tuple[State, int]]:
        pair, place = pair_of_states(state)
        place = 0 if place is None else check_integer(place, "state[1]", 0, self.batch_size - 1)
        out, last = chunked_mini_batch(
            *x[:3], eta=x.gates["eta"][..., 0], batch_size=self.batch_size,
            visible=None if x.visible is None else x.visible[..., 0],
            state=pair, place=place,
        )  # fmt: skip
        return out, (last, (place + x.k.shape[-2]) % self.batch_size)

    def read(self, q: Tensor, state: Any) -> Tensor:
        (S, _), _ = state
        out: Tensor = q @ S
        return out

    def extra_repr(self) -> str:
        return f"batch_size={self.batch_size}, largest_step={self.largest_step:.4g}"
