"""Faults that packages had, each rebuilt in small in words and code of our own.

Five sound layers are the bases: gated linear attention behind a short convolution, with gates for
heads or for features, softmax attention with rotary positions, a window and a cache, and two of
sparse weights. A fault is a subclass.
"""

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from twinsolve import audit
from twinsolve.twins import Report

WIDTH, HEADS, KERNEL, CHUNK, WINDOW = 8, 2, 4, 8, 6
STEP_LIMIT = 0.8  # of the time step: bites at half of the tokens
INPUTS = torch.randn(2, 21, WIDTH, generator=torch.Generator().manual_seed(0))
HISTORY: list[tuple[str, str, type[nn.Module]]] = []


def history(package: str, source: str) -> Callable[[type[nn.Module]], type[nn.Module]]:
    """Add a class to `HISTORY`: the package that had the fault, and where it is told."""

    def add(cls: type[nn.Module]) -> type[nn.Module]:
        HISTORY.append((package, source, cls))
        return cls

    return add


def audit_layer(layer: type[nn.Module], laws: tuple[str, ...] = ()) -> Report:
    """Audit a layer on random features."""
    torch.manual_seed(0)
    return audit(layer(), INPUTS.clone(), laws=laws)


class GatedLinear(nn.Module):
    """Gated linear attention: by steps for one token, in chunks for more."""

    def __init__(self) -> None:
        super().__init__()
        self.in_proj, self.dt_proj = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, HEADS)
        self.conv = nn.Conv1d(3 * WIDTH, 3 * WIDTH, KERNEL, groups=3 * WIDTH)
        self.A_log = nn.Parameter(torch.tensor([0.0, 4.0]))
        self.out_proj = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor, mask: Tensor | None = None, state: Any = None) -> Any:
        context, memory = (None, None) if state is None else state
        seen = torch.ones(x.shape[:2]) if mask is None else mask[:, -x.shape[1] :]
        seen = seen[..., None].to(x.dtype)
        mixed, context = self.convolve(self.hide(self.in_proj(x), seen), context)
        mixed = self.hide_again(F.silu(mixed), seen)
        q, k, v = (y.unflatten(-1, (HEADS, -1)).transpose(1, 2) for y in mixed.chunk(3, -1))
        if memory is None:
            memory = x.new_zeros(len(x), HEADS, q.shape[-1], v.shape[-1])
        form = self.by_step if x.shape[1] == 1 else self.in_chunks
        gate = self.hide_gate(self.gate(x), seen)
        outputs, memory = form(q, k, v, gate.transpose(1, 2), memory)
        return self.out_proj(outputs.transpose(1, 2).flatten(2)), (context, memory)

    def hide(self, x: Tensor, seen: Tensor) -> Tensor:
        return x * seen

    hide_again = hide_gate = hide

    def gate(self, x: Tensor) -> Tensor:
        """Logs of decays."""
        return -self.A_log.exp() * F.softplus(self.dt_proj(x)).clamp(max=STEP_LIMIT)

    def convolve(self, x: Tensor, context: Tensor | None) -> tuple[Tensor, Tensor]:
        if context is None:
            context = x.new_zeros(len(x), KERNEL - 1, x.shape[2])
        x = torch.cat([context, x], 1)
        return self.conv(x.mT).mT, x[:, 1 - KERNEL :]

    def by_step(self, q: Tensor, k: Tensor, v: Tensor, g: Tensor, memory: Tensor) -> Any:
        memory = g.exp()[..., None] * memory + k.mT @ v
        return q @ memory, memory

    def in_chunks(self, q: Tensor, k: Tensor, v: Tensor, g: Tensor, memory: Tensor) -> Any:
        outputs = []
        for q_, k_, v_, g_ in zip(*(y.split(CHUNK, 2) for y in (q, k, v, g)), strict=True):
            total = g_.cumsum(2)
            later = total[..., :, None] - total[..., None, :]
            weights = (q_ @ k_.mT) * later.tril().exp().tril()
            outputs.append(q_ * total.exp()[..., None] @ memory + weights @ v_)
            end = self.end(total)
            left = (end - total).exp()[..., None]
            memory = end[..., None].exp() * memory + (k_ * left).mT @ v_
        return torch.cat(outputs, 2), memory

    def end(self, total: Tensor) -> Tensor:
        """The logs of the decays through a whole chunk."""
        return total[..., -1:]


@history("fla-core", "issue 494")
class PiecesForgetConvolution(GatedLinear):
    """A piece of several tokens starts its convolution at zero."""

    def convolve(self, x, context):
        return super().convolve(x, context if x.shape[1] == 1 else None)


@history("fla-core", "issue 285")
class PiecesForgetState(GatedLinear):
    """A piece of several tokens starts its memory at zero."""

    def in_chunks(self, q, k, v, g, memory):
        return super().in_chunks(q, k, v, g, torch.zeros_like(memory))


@history("fla-core", "issue 20")
class ClosedGatesOverflow(GatedLinear):
    """The chunk form divides by products of decays, which vanish where gates close."""

    def in_chunks(self, q, k, v, g, memory):
        total = g.cumsum(2)[..., None]
        weights = (q * total.exp()) @ (k * (-total).exp()).mT
        return weights.tril() @ v + q * total.exp() @ memory, super().in_chunks(q, k, v, g, memory)[
            1
        ]


@history("fla-core", "issue 623")
class KeysAndValuesTradePlaces(GatedLinear):
    """The recurrent form writes the key where the value goes."""

    def by_step(self, q, k, v, g, memory):
        return super().by_step(q, v, k, g, memory)


@history("fla-core", "issue 1272")
class PaddingDecays(GatedLinear):
    """Values are masked, the gate is not: the memory decays by what stands under the mask."""

    def hide_gate(self, gate, seen):
        return gate


@history("fla-core", "issue 1140")
class ShortPiecesLoseGradient(GatedLinear):
    """The gradient through the context of the convolution is wrong in pieces below its width."""

    def convolve(self, x, context):
        short = context is not None and x.shape[1] < KERNEL - 1
        return super().convolve(x, context.detach() if short else context)


@history("fla-core", "chunk_ttt_linear_ref of 0.6.0")
class ScalesInPlace(GatedLinear):
    """The caller's tensor is scaled in place."""

    def forward(self, x, mask=None, state=None):
        return super().forward(x.mul_(WIDTH**-0.5), mask, state)


@history("transformers", "pull request 32677")
class PaddingPassesConvolution(GatedLinear):
    """The bias of the convolution makes padding non-zero, and nothing masks it again."""

    def hide_again(self, x, seen):
        return x


@history("transformers", "issue 46032")
class PiecesUseFirstStep(GatedLinear):
    """With a cache, a piece takes the time step of its first token for all, and starts at zero."""

    def in_chunks(self, q, k, v, g, memory):
        first = g[:, :, :1].expand_as(g) if memory.any() else g
        return super().in_chunks(q, k, v, first, torch.zeros_like(memory))


@history("transformers", "pull request 46773")
class SingleRowsUnmasked(GatedLinear):
    """Padding is masked in batches, not in a single row."""

    def forward(self, x, mask=None, state=None):
        return super().forward(x, mask if len(x) > 1 else None, state)


@history("transformers", "pull request 35154")
class StepsUnlimited(GatedLinear):
    """Time steps are limited in chunks, and not by steps."""

    def gate(self, x):
        if x.shape[1] > 1:
            return super().gate(x)
        return -self.A_log.exp() * F.softplus(self.dt_proj(x))


@history("fla-core", "issue 1142")
class ShortChunksLoseDecay(GatedLinear):
    """The gradient of a chunk's decay goes to its last row, which a short chunk does not have."""

    def end(self, total):
        end = super().end(total)
        return end if total.shape[2] == CHUNK else end.detach()


class GatedFeatures(GatedLinear):
    """Gated linear attention with a gate for each feature of a key."""

    def __init__(self) -> None:
        super().__init__()
        self.dt_proj = nn.Linear(WIDTH, WIDTH)
        self.A_log = nn.Parameter(torch.zeros(HEADS))

    def hide_gate(self, gate: Tensor, seen: Tensor) -> Tensor:
        return gate * seen[..., None]

    def gate(self, x: Tensor) -> Tensor:
        steps = F.softplus(self.dt_proj(x)).clamp(max=STEP_LIMIT)
        return -self.A_log.exp()[:, None] * steps.unflatten(-1, (HEADS, -1))

    def by_step(self, q: Tensor, k: Tensor, v: Tensor, g: Tensor, memory: Tensor) -> Any:
        memory = g.exp().mT * memory + k.mT @ v
        return q @ memory, memory

    def in_chunks(self, q: Tensor, k: Tensor, v: Tensor, g: Tensor, memory: Tensor) -> Any:
        outputs = []
        for q_, k_, v_, g_ in zip(*(y.split(CHUNK, 2) for y in (q, k, v, g)), strict=True):
            total = g_.cumsum(2)
            decay = self.decay(total[..., :, None, :] - total[..., None, :, :])
            weights = (q_[..., :, None, :] * k_[..., None, :, :] * decay).sum(-1)
            outputs.append(q_ * total.exp() @ memory + weights @ v_)
            end = total[..., -1:, :]
            memory = end.exp().mT * memory + (k_ * (end - total).exp()).mT @ v_
        return torch.cat(outputs, 2), memory

    def decay(self, later: Tensor) -> Tensor:
        """The decays between two tokens of a chunk, 0 to earlier ones."""
        hidden = torch.ones(later.shape[-3:-1]).triu(1)[..., None] > 0
        return later.masked_fill(hidden, -torch.inf).exp()


@history("transformers", "pull request 48455")
class MasksAfterExponentials(GatedFeatures):
    """Decays to earlier tokens are hidden after their exponential, which overflows."""

    def decay(self, later):
        hidden = torch.ones(later.shape[-3:-1]).triu(1)[..., None] > 0
        return later.exp().masked_fill(hidden, 0)


class Cache:
    """Keys and values of each layer; a layer with a window keeps no more than it needs."""

    def __init__(self, n_layers: int) -> None:
        self.kept: list[Any] = [None] * n_layers
        self.seen = [0] * n_layers

    def update(self, layer: int, new: Tensor, window: int | None) -> Tensor:
        """All keys and values that the new tokens may see, of shape (2, batch, heads, ...)."""
        old = self.kept[layer]
        both = new if old is None else torch.cat([old, new], 3)
        self.kept[layer] = both if window is None else both[:, :, :, 1 - window :]
        self.seen[layer] += new.shape[3]
        return both

    def reorder_cache(self, rows: Tensor) -> None:
        self.kept = [x[:, rows] for x in self.kept]

    def crop(self, n: int) -> None:
        raise NotImplementedError("crop: the window forgot older tokens")


class Attention(nn.Module):
    """Softmax attention in two layers, the first with a window, with rotary positions."""

    windows: tuple[int | None, ...] = (WINDOW, None)

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.ModuleList(nn.Linear(WIDTH, 3 * WIDTH) for _ in self.windows)
        self.out = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in self.windows)
        self.frequencies = nn.Buffer(torch.tensor([1.0, 0.1]))

    def make_cache(self) -> Cache:
        return Cache(len(self.windows))

    def forward(
        self,
        x: Tensor,
        mask: Tensor | None = None,
        positions: Tensor | None = None,
        state: Any = None,
    ) -> Any:
        cache, n = self.make_cache() if state is None else state, x.shape[1]
        for layer, window in enumerate(self.windows):
            mixed = self.qkv[layer](x).unflatten(-1, (3, HEADS, -1)).permute(2, 0, 3, 1, 4)
            angles = self.find_angles(cache, layer, n) if positions is None else positions
            q, k = self.rotate(mixed[:2], angles)
            k, v = cache.update(layer, torch.stack([k, mixed[2]]), window)
            seen = self.see(n, cache.seen[layer], k.shape[2], window, mask)
            logits = (q @ k.mT / math.sqrt(q.shape[-1])).masked_fill(~seen, -1e9)
            x = x + self.out[layer]((logits.softmax(-1) @ v).transpose(1, 2).flatten(2))
        return x, cache

    def find_angles(self, cache: Cache, layer: int, n: int) -> Tensor:
        return torch.arange(n)[None] + self.start(cache, layer)

    def start(self, cache: Cache, layer: int) -> int:
        """Tokens before these."""
        return cache.seen[layer]

    def rotate(self, x: Tensor, positions: Tensor) -> Tensor:
        angles = positions[:, None, :, None] * self.frequencies
        (a, b), cos, sin = x.chunk(2, -1), angles.cos(), angles.sin()
        return torch.cat([a * cos - b * sin, a * sin + b * cos], -1)

    def see(self, n: int, total: int, n_keys: int, window: int | None, mask: Any) -> Tensor:
        """Which keys each query sees, of shape (batch, 1, n, n_keys)."""
        query = torch.arange(total - n, total)[:, None]
        key = torch.arange(total - n_keys, total)
        seen = key <= query
        if window is not None:
            seen = seen & (key > query - window)
        return seen[None, None] if mask is None else seen & mask[:, None, None, -n_keys:].bool()


@history("fla-core", "issue 747")
class OneCounterForAllLayers(Attention):
    """The first layer moves the only counter on, so that the next starts too late."""

    def start(self, cache, layer):
        return cache.seen[0]


@history("transformers", "pull request 38156")
class LengthOfTheWindow(Attention):
    """The length of the cache is read from a layer with a window, which forgets tokens."""

    def start(self, cache, layer):
        return 0 if cache.kept[0] is None else cache.kept[0].shape[3] - (layer and 1)


@history("transformers", "issue 48748")
class FutureSeenWithoutMask(Attention):
    """A bias of its own takes the place of the causal mask where no mask is given."""

    def see(self, n, total, n_keys, window, mask):
        seen = super().see(n, total, n_keys, window, mask)
        return torch.ones_like(seen) if mask is None else seen


@history("transformers", "issue 34232")
class ValuesFromKeys(Attention):
    """Where the rows of a cache are selected, values are taken from the keys."""

    def make_cache(self):
        cache = super().make_cache()
        cache.reorder_cache = lambda rows: setattr(
            cache, "kept", [x[:1, rows].expand(2, *[-1] * 4) for x in cache.kept]
        )
        return cache


@history("x-transformers", "issue 187, 1")
class CausalFromTopLeft(Attention):
    """The causal mask starts at the first key, not at the token's own, when there is a cache."""

    def see(self, n, total, n_keys, window, mask):
        return super().see(n, total, n_keys, window, mask) & torch.ones(n, n_keys).tril().bool()


@history("x-transformers", "issue 187, 3")
class LeftPaddingIgnored(Attention):
    """The mask of padding on the left is handed on as one of a context that is not there."""

    def see(self, n, total, n_keys, window, mask):
        return super().see(n, total, n_keys, window, None)


@history("rotary-embedding-torch", "issue 11")
class AnglesKeptByLength(Attention):
    """Angles are kept for each number of tokens, whatever the position of the first."""

    def rotate(self, x, positions):
        known = self.__dict__.setdefault("known", {})
        return super().rotate(x, known.setdefault(x.shape[3], positions[:1]))


class Project(torch.autograd.Function):
    """Rows projected onto the entries in [0, most] that sum to a budget."""

    @staticmethod
    def forward(ctx, z, most, budget, mean):
        lower, upper = z.amin(-1, keepdim=True) - most, z.amax(-1, keepdim=True)
        for _ in range(60):
            middle = (lower + upper) / 2
            more = (z - middle).clamp(0, most).sum(-1, keepdim=True) > budget
            lower, upper = torch.where(more, middle, lower), torch.where(more, upper, middle)
        weights = (z - lower).clamp(0, most)
        ctx.inside, ctx.mean = (weights > 1e-6) & (weights < most - 1e-6), mean
        return weights

    @staticmethod
    def backward(ctx, slope):
        slope = torch.where(ctx.inside, slope, 0.0)
        size = ctx.inside.sum(-1, keepdim=True)
        return ctx.inside * (slope - ctx.mean(slope, size)), None, None, None


class Sparse(nn.Module):
    """Attention of one head whose weights are projections of the logits."""

    most, budget = 10.0, 1.0

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        logits = (self.q(x) @ self.k(x).mT / math.sqrt(WIDTH))[:, None]
        return (Project.apply(logits, self.most, self.budget, self.mean) @ x[:, None])[:, 0]

    @staticmethod
    def mean(slope: Tensor, size: Tensor) -> Tensor:
        return slope.sum(-1, keepdim=True) / size.clamp(min=1)


class Budget(Sparse):
    """Weights of pairs, at most 1 each, that sum to 1."""

    most = 1.0

    def forward(self, x: Tensor) -> Tensor:
        pairs = self.q(x).unflatten(-1, (-1, 2))
        weights = Project.apply(pairs, self.most, self.budget, self.mean)
        return (weights * self.k(x).unflatten(-1, (-1, 2))).flatten(-2)


@history("entmax", "issue 13")
class MeanLosesAxis(Sparse):
    """The mean over the support drops every axis of length 1, and is broadcast along others."""

    @staticmethod
    def mean(slope, size):
        return (slope.sum(-1) / size.squeeze()).unsqueeze(-1)


@history("entmax", "issue 35")
class MeanOfNothing(Budget):
    """Where no weight lies strictly between its bounds, the mean is 0 / 0."""

    @staticmethod
    def mean(slope, size):
        return slope.sum(-1, keepdim=True) / size


BASES = (GatedFeatures, GatedLinear, Attention, Sparse, Budget)
