"""Linear maps that are written and read token by token, computed a chunk of tokens at a time.

::

    S_t = Diag(a_t) S_{t-1} + w_t^T u_t,   o_t = q_t S_t

The corrections u of a chunk come from one triangular system, so that products of matrices replace
the loop over tokens. With chunks of one token this is the recurrence; with one chunk of all tokens
it is the parallel form. Decays are sums of logarithms over the tokens between two others, never a
difference or a quotient: they are exact, and finite, for every a from 0 to 1.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple, Self

import torch
from torch import Tensor
from torch.nn import functional as F

from ..attention import has_static_value

CHUNK = 64
_LOWEST = -60.0  # its exponential is far below a rounding of the state


class Tokens(NamedTuple):
    """The rows of a sequence or of its chunks, each (..., tokens, width).

    `write` are the keys along which the state changes. `step` is None where every step is 1, and
    `log_forget` where nothing is forgotten; both may have width 1.
    """

    q: Tensor
    k: Tensor
    write: Tensor
    v: Tensor
    step: Tensor | None = None
    log_forget: Tensor | None = None

    def each(self, change: Callable[[Tensor], Tensor]) -> Self:
        """Return the rows with every tensor changed."""
        step, log_forget = (x if x is None else change(x) for x in (self.step, self.log_forget))
        q, k, write, v = (change(x) for x in (self.q, self.k, self.write, self.v))
        return type(self)(q, k, write, v, step, log_forget)


def run_chunks(
    tokens: Tokens, state: Tensor, chunk: int, *, corrects: bool
) -> tuple[Tensor, Tensor]:
    """Return the outputs, and the state after the last token.

    Each token writes its value or, if it `corrects`, its value less what the state before predicts
    from its key. `chunk` is rounded up to a power of two.
    """
    chunks = tokens.each(lambda x: split(x, chunk))
    since, until, whole = _decays(chunks)
    values, predicted, pairs = _solve(chunks, since, corrects)
    states, written = [], []
    parts = (values, predicted, _times(chunks.write, until), whole)
    for u, B, write, decay in zip(*(each_chunk(x, values) for x in parts), strict=True):
        states.append(state)
        written.append(u if B is None else u - B @ state)
        state = (state if decay is None else decay.mT * state) + write.mT @ written[-1]
    read = _times(chunks.q, since)
    out = read @ torch.stack(states, dim=-3) + pairs @ torch.stack(written, dim=-3)
    return out.flatten(-3, -2)[..., : tokens.v.shape[-2], :], state


def each_chunk(x: Tensor | None, like: Tensor) -> Sequence[Tensor | None]:
    """Return x chunk by chunk; selecting chunks one by one would make gradients quadratic."""
    return [None] * like.shape[-3] if x is None else x.unbind(dim=-3)


def split(x: Tensor, chunk: int) -> Tensor:
    """Return chunks (..., n_chunks, chunk, width); rows of zeros, which do nothing, fill the last.

    A program for any number of tokens holds one chunk of all.
    """
    n_tokens = x.shape[-2]
    if not has_static_value(n_tokens):
        return x[..., None, :, :]
    size = 1 << (min(chunk, n_tokens) - 1).bit_length()
    return F.pad(x, (0, 0, 0, -n_tokens % size)).unflatten(-2, (-1, size))


def _decays(chunks: Tokens) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """Return the decays from a chunk's start to each token, from each to its end, and of all."""
    if chunks.log_forget is None:
        return None, None, None
    since = chunks.log_forget.cumsum(dim=-2).exp()
    return since, _sum_after(chunks.log_forget).exp(), since[..., -1:, :]


def _sum_after(x: Tensor) -> Tensor:
    """Return the sums over the later tokens of a chunk."""
    return F.pad(x[..., 1:, :], (0, 0, 0, 1)).flip(-2).cumsum(dim=-2).flip(-2)


def _times(x: Tensor, decay: Tensor | None) -> Tensor:
    return x if decay is None else x * decay


def _solve(
    chunks: Tokens, since: Tensor | None, corrects: bool
) -> tuple[Tensor, Tensor | None, Tensor]:
    """Return A, B and P: the chunk writes ``U = A - B S_0`` and reads ``q S_0 + P U``."""
    A = _times(chunks.v, chunks.step)
    if not corrects:
        return A, None, _products(chunks.q, chunks.write, chunks.log_forget)
    B = _times(_times(chunks.k, since), chunks.step)
    both = torch.stack([chunks.q, chunks.k])
    P, M = _products(both, chunks.write, chunks.log_forget).unbind()
    solved = torch.linalg.solve_triangular(
        _times(M, chunks.step), torch.cat([A, B], dim=-1), upper=False, unitriangular=True
    )
    A, B = solved.split([A.shape[-1], B.shape[-1]], dim=-1)
    return A, B, P


def _products(x: Tensor, y: Tensor, log_forget: Tensor | None) -> Tensor:
    """Return ``sum_d x_td y_sd exp(sum over s < i <= t of log_forget_id)`` for s <= t, else 0."""
    if log_forget is None:
        return (x @ y.mT).tril()
    if log_forget.shape[-1] > 1:
        return _decayed_products(x, y, log_forget)
    return (x @ y.mT) * decays_between(log_forget)


def decays_between(log_forget: Tensor) -> Tensor:
    """Return ``exp(sum over s < i <= t of log_forget_i)`` for s <= t, else 0: one a token."""
    one = torch.ones_like(log_forget)
    return _decayed_products(one, one, log_forget)


def _decayed_products(x: Tensor, y: Tensor, log_forget: Tensor) -> Tensor:
    decay = _decayed if has_static_value(y.shape[-2]) else _decayed_at_once
    return decay(x, y, log_forget)


def _decayed(x: Tensor, y: Tensor, log_forget: Tensor) -> Tensor:
    """Compute `_products` for a power of two of tokens, from those of pairs, of fours and so on."""
    P = (x * y).sum(dim=-1)[..., None, None]
    while P.shape[-3] > 1:
        (early, _), (_, late), (first, second) = (
            z.unflatten(-2, (-1, 2, P.shape[-1])).unbind(-3) for z in (y, x, log_forget)
        )
        across = (late * second.cumsum(dim=-2).exp()) @ (early * _sum_after(first).exp()).mT
        above, below = P.unflatten(-3, (-1, 2)).unbind(-3)
        above = torch.cat([above, torch.zeros_like(above)], dim=-1)
        P = torch.cat([above, torch.cat([across, below], dim=-1)], dim=-2)
    return P[..., 0, :, :]


def _decayed_at_once(x: Tensor, y: Tensor, log_forget: Tensor) -> Tensor:
    """Compute `_products` for any number of tokens, with every pair and feature in memory."""
    total = log_forget.clamp(min=_LOWEST).double().cumsum(dim=-2)
    gaps = total[..., :, None, :] - total[..., None, :, :]
    n_tokens = y.shape[-2]
    later = torch.ones(n_tokens, n_tokens, dtype=torch.bool, device=y.device).triu(1)[..., None]
    decays = gaps.masked_fill(later, -torch.inf).exp().to(y.dtype)
    return (x[..., :, None, :] * decays * y[..., None, :, :]).sum(dim=-1)
