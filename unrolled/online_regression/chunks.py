"""Linear maps that are written and read token by token, computed a chunk of tokens at a time.

::

    S_t = Diag(a_t) S_{t-1} + w_t^T u_t,   o_t = q_t S_t

The corrections u of a chunk come from one triangular system, so that products of matrices replace
the loop over tokens. With chunks of one token this is the recurrence; with one chunk of all tokens
it is the parallel form. Decays are products over the tokens between two others, exact and finite
for every a from 0 to 1. With a number for each feature they are quotients in blocks of tokens that
forget little. A program for any number of tokens takes differences of logarithms, in float64 and
with an a of at least exp(-60).
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor
from torch.nn import functional as F

from ..attention import has_no_values, has_static_value, is_transformed
from ..attention.precision import unlowered

CHUNK = 64
_LOWEST = -60.0  # its exponential is far below a rounding of the state
_LITTLE = -30.0  # its exponential may divide numbers that are far from the largest


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
    v, step = chunks.v, chunks.step
    readers = [chunks.q, _times(chunks.k, step)] if corrects else [chunks.q]
    pairs, since, until = _products(readers, chunks.write, chunks.log_forget)
    write, whole = _times(chunks.write, until), None if since is None else since[..., -1:, :].mT
    q = _times(chunks.q, since)
    if corrects:
        A, B = correct(pairs[1], _times(v, step), _times(readers[1], since))
        out, state = write_corrections(A, B, write, state, whole, (q, pairs[0]))
    else:
        states, state = add_up(state, write.mT @ v, whole)
        out = (q @ states + pairs[0] @ v).flatten(-3, -2)
    return out[..., : tokens.v.shape[-2], :], state


def correct(products: Tensor, v: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
    """Return the A and B of a chunk that writes ``U = A - B S_0``, for ``U = v - k S_0 - P U``.

    P is the part of the products below the diagonal.
    """
    solved = solve_rows(products, torch.cat([v, k], dim=-1).mT, unitriangular=True).mT
    A, B = solved.split([v.shape[-1], k.shape[-1]], dim=-1)
    return A, B


def solve_rows(L: Tensor, rows: Tensor, unitriangular: bool = False) -> Tensor:
    """Return the x with ``x L^T = rows``: BLAS finds this transposed system in memory as it is."""
    return torch.linalg.solve_triangular(
        L.mT, rows, upper=True, left=False, unitriangular=unitriangular
    )


class PrefixSums:
    """The sums ``S_t = a_t S_{t-1} + k_t^T v_t`` after every token, to be read many times.

    Parameters
    ----------
    k, v : Tensor of shape (..., n_chunks, chunk, width)
    first : Tensor of shape (..., width of k, width of v)
        The sum before the first token.
    log_forget : Tensor of shape (..., n_chunks, chunk, 1) or None
        Logarithm of a.

    Attributes
    ----------
    last : Tensor of the shape of `first`
        The sum after the last token.
    """

    def __init__(self, k: Tensor, v: Tensor, first: Tensor, log_forget: Tensor | None) -> None:
        one = k.new_ones(k.shape[-2], 1)
        self._k, self._v = k, v
        (self._between,), self._since, until = _products([one], one, log_forget)
        whole = None if self._since is None else self._since[..., -1:, :]
        self._before, self.last = add_up(first, _times(k, until).mT @ v, whole)

    def read(self, q: Tensor) -> Tensor:
        """Return ``q_t S_t``, (..., n_chunks, chunk, width of v)."""
        pairs = (q @ self._k.mT) * self._between
        return _times(q, self._since) @ self._before + pairs @ self._v

    def all(self) -> Tensor:
        """Return every sum, (..., n_chunks, chunk, width of k, width of v)."""
        outer = (self._k[..., :, None] * self._v[..., None, :]).flatten(-2)
        before = _times(self._before.flatten(-2)[..., None, :], self._since)
        return (before + self._between @ outer).unflatten(-1, (self._k.shape[-1], -1))


def _times(x: Tensor, decay: Tensor | None) -> Tensor:
    return x if decay is None else x * decay


def write_corrections(
    A: Tensor,
    B: Tensor,
    write: Tensor,
    state: Tensor,
    decay: Tensor | None = None,
    read: tuple[Tensor, Tensor] | None = None,
    carry: Callable[[Tensor, Tensor | None], Tensor] = _times,
) -> tuple[Tensor, Tensor]:
    """Write the ``U = A - B S_0`` of each chunk along its keys; return rows and the last state.

    The rows are those of U or, with queries q and pairs P to `read`, those of ``q S_0 + P U``. All
    but the state have an axis of chunks, -3. A state decays before a chunk is written to it, by
    `carry`.
    """
    q, pairs = (None, None) if read is None else read
    S, found = state[None].flatten(0, -3), []
    for a, b, keys, factor, x, p in zip(
        *(_each_chunk(x, A) for x in (A, B, write, decay, q, pairs)), strict=True
    ):
        u = torch.baddbmm(a, b, S, alpha=-1)
        found.append(u if x is None or p is None else torch.baddbmm(x @ S, p, u))
        S = torch.baddbmm(carry(S, factor), keys.mT, u)
    rows = torch.stack(found, dim=1).flatten(1, 2)
    return rows.reshape(*A.shape[:-3], *rows.shape[-2:]), S.reshape(state.shape)


def add_up(first: Tensor, parts: Tensor, decay: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Return the sums before each of the parts, (..., n_parts, rows, columns), and of all.

    A sum decays before a part is added to it.
    """
    S, sums = first[None].flatten(0, -3), []
    for part, factor in zip(*(_each_chunk(x, parts) for x in (parts, decay)), strict=True):
        sums.append(S)
        S = _times(S, factor) + part
    return torch.stack(sums, dim=1).reshape(parts.shape), S.reshape(first.shape)


def _each_chunk(x: Tensor | None, like: Tensor) -> Sequence[Tensor | None]:
    """Return x chunk by chunk, with the leading axes of `like` as one.

    Selecting chunks one by one would make gradients quadratic.
    """
    if x is None:
        return [None] * like.shape[-3]
    return x.expand(*like.shape[:-3], *x.shape[-3:])[None].flatten(0, -4).unbind(dim=1)


def split(x: Tensor, chunk: int) -> Tensor:
    """Return chunks (..., n_chunks, chunk, width); rows of zeros, which do nothing, fill the last.

    A program for any number of tokens holds one chunk of all.
    """
    n_tokens = x.shape[-2]
    if not has_static_value(n_tokens):
        return x[..., None, :, :]
    size = 1 << (max(1, min(chunk, n_tokens)) - 1).bit_length()
    n_chunks = max(1, -(-n_tokens // size))
    missing = n_chunks * size - n_tokens
    return (F.pad(x, (0, 0, 0, missing)) if missing else x).unflatten(-2, (n_chunks, size))


def _products(
    readers: Sequence[Tensor], y: Tensor, log_forget: Tensor | None
) -> tuple[Sequence[Tensor], Tensor | None, Tensor | None]:
    """Return decayed products of rows, and the decays since a chunk's start and until its end.

    The products are ``sum_d x_td y_sd prod over s < i <= t of a_id`` for s <= t, else 0, of each of
    the readers x.
    """
    if log_forget is None:
        return [(x @ y.mT).tril() for x in readers], None, None
    if log_forget.shape[-1] > 1:
        products, since, until = _decayed_products(torch.stack([*readers]), y, log_forget)
        return products.unbind(), since, until
    decays, since, until = decays_between(log_forget)
    return [(x @ y.mT) * decays for x in readers], since, until


def decays_between(log_forget: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return ``prod over s < i <= t of a_i`` for s <= t, else 0, of numbers a, one a token.

    Beside it the decays since the start, each token's own included, and until the end.
    """
    if has_static_value(log_forget.shape[-2]) and not is_transformed():
        decays: tuple[Tensor, Tensor, Tensor] = _Decays.apply(_exp(log_forget), log_forget.dtype)
        return decays
    one = torch.ones_like(log_forget)
    return _decayed_products(one, one, log_forget)


class _Decays(torch.autograd.Function):
    """`decays_between` of the numbers a, with a gradient that never divides by them.

    From ``d prod over s < i <= t = sum_i (prod over s < j < i) (prod over i < j <= t) da_i``.
    """

    @staticmethod
    def forward(forget: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
        decays = torch.diag_embed(torch.ones_like(forget[..., 0]))
        for t in range(1, forget.shape[-2]):
            decays[..., t, :t] = decays[..., t - 1, :t] * forget[..., t, :]
        since = (decays[..., :1] * forget[..., :1, :]).to(dtype)
        decays = decays.to(dtype)
        return decays, since, decays[..., -1:, :].mT.clone()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        ctx.save_for_backward(*output)

    @staticmethod
    @unlowered
    def backward(
        ctx: Any, gradient: Tensor, of_since: Tensor, of_until: Tensor
    ) -> tuple[Tensor, None]:
        decays, since, until = ctx.saved_tensors
        pairs = gradient[..., 1:, :-1] @ decays[..., :-1, :-1].mT
        inside = (decays[..., 1:, 1:] * pairs).sum(dim=-2)[..., None]
        before = F.pad(since[..., :-1, :], (0, 0, 1, 0), value=1.0)
        after = F.pad((decays @ of_until)[..., :-1, :], (0, 0, 1, 0))
        inside = F.pad(inside, (0, 0, 1, 0))
        return (inside + before * (decays.mT @ of_since) + until * after).double(), None


def _exp(log_forget: Tensor) -> Tensor:
    """Return the numbers a in float64: float32 has none between 1 and 1 - 6e-8."""
    return log_forget.double().exp()


def _decayed_products(x: Tensor, y: Tensor, log_forget: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    log_forget = log_forget.to(y.dtype)
    if has_static_value(y.shape[-2]):
        return _decayed(x, y, log_forget)
    return _decayed_at_once(x, y, log_forget)


def _decayed(x: Tensor, y: Tensor, log_forget: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Compute `_products` for a power of two of tokens, from those of blocks, of two and so on."""
    size = _block_size(log_forget)
    x, y, log_forget = (z.unflatten(-2, (-1, size)) for z in (x, y, log_forget))
    if size == 1:
        P, since = (x * y).sum(dim=-1, keepdim=True), _exp(log_forget)
        until = torch.ones_like(since)
    else:
        total = log_forget.double().cumsum(dim=-2)
        exponents = total, -total, total[..., -1:, :] - total
        since, before, until = (z.exp() for z in exponents)
        P = ((x * since.to(x.dtype)) @ (y * before.to(y.dtype)).mT).tril()
    while P.shape[-3] > 1:
        (_, late), (early, _) = _halves(x), _halves(y)
        (since_1, since_2), (until_1, until_2) = _halves(since), _halves(until)
        across = (late * since_2.to(x.dtype)) @ (early * until_1.to(y.dtype)).mT
        above, below = _halves(P)
        above = torch.cat([above, torch.zeros_like(above)], dim=-1)
        P = torch.cat([above, torch.cat([across, below], dim=-1)], dim=-2)
        since = torch.cat([since_1, since_1[..., -1:, :] * since_2], dim=-2)
        until = torch.cat([until_1 * since_2[..., -1:, :], until_2], dim=-2)
        x, y = (z.unflatten(-3, (-1, 2)).flatten(-3, -2) for z in (x, y))
    P, since, until = (z[..., 0, :, :].to(y.dtype) for z in (P, since, until))
    return P, since, until


def _block_size(log_forget: Tensor) -> int:
    """Return the largest power of two of tokens none of whose blocks forgets too much to divide."""
    lows, fit = log_forget.detach(), []
    if has_no_values(lows) or is_transformed():
        return 1
    while lows.shape[-2] > 1:
        lows = lows.unflatten(-2, (-1, 2)).sum(dim=-2)
        fit.append((lows >= _LITTLE).all())
    return 1 << int(torch.stack(fit).cumprod(dim=0).sum()) if fit else 1


def _halves(x: Tensor) -> tuple[Tensor, Tensor]:
    """Return every other block of (..., n_blocks, tokens, width), and the blocks between."""
    first, second = x.unflatten(-3, (-1, 2)).unbind(dim=-3)
    return first, second


def _decayed_at_once(x: Tensor, y: Tensor, log_forget: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Compute `_products` for any number of tokens, with every pair and feature in memory."""
    total = log_forget.clamp(min=_LOWEST).double().cumsum(dim=-2)
    gaps = total[..., :, None, :] - total[..., None, :, :]
    n_tokens = y.shape[-2]
    later = torch.ones(n_tokens, n_tokens, dtype=torch.bool, device=y.device).triu(1)[..., None]
    decays = gaps.masked_fill(later, -torch.inf).exp().to(y.dtype)
    P = (x[..., :, None, :] * decays * y[..., None, :, :]).sum(dim=-1)
    return P, total.exp().to(y.dtype), decays[..., -1, :, :]
