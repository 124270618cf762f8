"""Attention modules with qkv, proj and num_heads that others have, some unlike plain attention."""

import torch
from torch import nn
from torch.nn import functional as F

from .examples import VisionAttention


class Plain(VisionAttention):
    """Plain attention in parts; the others differ from it in one."""

    def forward(self, x):
        return self.attend(x)

    def attend(self, x):
        q, k, v = self.split(self.qkv(x))
        return self.merge(self.weights(q, k) @ v)

    def split(self, x):
        return x.unflatten(-1, (3, self.num_heads, -1)).permute(2, 0, 3, 1, 4).unbind(0)

    def weights(self, q, k):
        return (q @ k.mT * self.scale).softmax(dim=-1)

    def merge(self, out):
        return self.proj_drop(self.proj(out.transpose(1, 2).flatten(2)))


class HeadsFirst(Plain):
    """Features of qkv in the order (head, part, width), as in GPT-NeoX."""

    def split(self, x):
        return x.unflatten(-1, (self.num_heads, 3, -1)).permute(3, 0, 2, 1, 4).unbind(0)


class LocalWindows(Plain):
    """Sequences cut into windows, of a length that the module tells of by any name."""

    def __init__(self, name, window, **arguments):
        super().__init__(**arguments)
        self.window = lambda: window  # no number
        setattr(self, name, window)

    def weights(self, q, k):
        window = torch.arange(q.shape[-2], device=q.device) // self.window()
        logits = (q @ k.mT * self.scale).masked_fill(window[:, None] != window, -torch.inf)
        return logits.softmax(dim=-1)


class Banded(LocalWindows):
    """Tokens see those up to a radius away."""

    def weights(self, q, k):
        places = torch.arange(q.shape[-2], device=q.device)
        far = (places[:, None] - places).abs() > self.window()
        return (q @ k.mT * self.scale).masked_fill(far, -torch.inf).softmax(dim=-1)


class WholeWindows(LocalWindows):
    """Takes whole windows alone."""

    def attend(self, x):
        assert x.shape[1] % self.window() == 0, "no whole windows"
        return super().attend(x)


class ClassAttention(Plain):
    """The first token alone asks."""

    def attend(self, x):
        q, k, v = self.split(self.qkv(x))
        return self.merge(self.weights(q[..., :1, :], k) @ v)


class AcrossBatch(Plain):
    def attend(self, x):
        return super().attend(x - x.mean(dim=0))


class SharedNorm(Plain):
    """Keys through the norm of the queries: alike until trained."""

    def weights(self, q, k):
        return super().weights(self.q_norm(q), self.q_norm(k))


class NormOfEachHead(Plain):
    def __init__(self, **arguments):
        super().__init__(**arguments)
        self.norm = nn.LayerNorm(4)

    def merge(self, out):
        return super().merge(self.norm(out))


class NormAfter(Plain):
    """Served: between the heads and proj."""

    def __init__(self, norm=None, **arguments):
        super().__init__(**arguments)
        self.norm = nn.LayerNorm(12) if norm is None else norm

    def merge(self, out):
        return self.proj_drop(self.proj(self.norm(out.transpose(1, 2).flatten(2))))


class OtherDropout(Plain):
    def __init__(self, **arguments):
        super().__init__(**arguments)
        self.resid_drop = nn.Dropout(0.2)

    def attend(self, x):
        return self.resid_drop(super().attend(x))


class WithParameter(Plain):
    """A parameter that is 1 or 0 at first; where it goes does not matter here."""

    def __init__(self, name, value, **arguments):
        super().__init__(**arguments)
        setattr(self, name, nn.Parameter(value))


class WithRope(Plain):
    def forward(self, x, rope=None):
        return self.attend(x if rope is None else x * rope)


class OtherOrder(Plain):
    def forward(self, x, is_causal=False, attn_mask=None):
        return self.attend(x)


class OtherPolarity(Plain):
    """True hides, as in nn.MultiheadAttention; masks of floats are added."""

    def forward(self, x, attn_mask=None):
        q, k, v = self.split(self.qkv(x))
        logits = q @ k.mT * self.scale
        if attn_mask is not None and attn_mask.dtype == torch.bool:
            logits = logits.masked_fill(attn_mask, -torch.inf)
        elif attn_mask is not None:
            logits = logits + attn_mask
        return self.merge(logits.softmax(dim=-1) @ v)


class OnlyBooleans(Plain):
    """Served: True sees, and other masks are an error."""

    def forward(self, x, attn_mask=None):
        q, k, v = self.split(self.qkv(x))
        logits = q @ k.mT * self.scale
        if attn_mask is not None:
            logits = logits.masked_fill(~attn_mask, -torch.inf)
        return self.merge(logits.softmax(dim=-1) @ v)


class FlatMask(Plain):
    """A mask of the keys of each sequence."""

    def forward(self, x, attn_mask=None):
        q, k, v = self.split(self.qkv(x))
        logits = q @ k.mT * self.scale
        if attn_mask is not None:
            batch, n = attn_mask.shape
            assert batch == len(x)
            logits = logits + attn_mask.reshape(batch, 1, 1, n)
        return self.merge(logits.softmax(dim=-1) @ v)


class IgnoresCausal(Plain):
    def forward(self, x, attn_mask=None, is_causal=False):
        q, k, v = self.split(self.qkv(x))
        return self.merge(F.scaled_dot_product_attention(q, k, v, attn_mask, scale=self.scale))


class FixedCount(Plain):
    """Takes as many tokens as it was made for."""

    def __init__(self, **arguments):
        super().__init__(**arguments)
        self.input_size = (4, 4)

    def attend(self, x):
        assert x.shape[1] == 4 * 4 + 1, "wrong number of tokens"
        return super().attend(x)


class SecretCount(Plain):
    def attend(self, x):
        assert x.shape[1] == 23, "wrong number of tokens"
        return super().attend(x)


class Remembering(Plain):
    """Served: keeps its last weights, with their graph."""

    def weights(self, q, k):
        self.last = super().weights(q, k)
        return self.last


SERVED = {
    "plain": Plain,
    "norm after heads": NormAfter,
    "batch norm after heads": lambda: NormAfter(_PerFeature(nn.BatchNorm1d(12))),
    "norms of queries and keys": lambda: VisionAttention(qk_norm=True),
    "without scale": lambda: Plain(scale=1.0),
    "one head": lambda: Plain(num_heads=1),
    "boolean masks": OnlyBooleans,
    "fixed number of tokens": FixedCount,
    "dropout of weights": lambda: VisionAttention(dropout=0.3),
    "keeps its weights": Remembering,
}
DIFFERENT = "relative error of"
REFUSED = {
    HeadsFirst: DIFFERENT,
    ClassAttention: r"returns torch.float64 \(2, 1, 12\)",
    AcrossBatch: DIFFERENT,
    SharedNorm: DIFFERENT,
    NormOfEachHead: "its replacement does not",
    OtherDropout: "in training mode its replacement has a relative error",
    WithRope: "takes the argument rope in its forward",
    OtherOrder: "takes the argument is_causal in its forward",
    OtherPolarity: "with a boolean attn_mask .* relative error",
    FlatMask: "takes an attn_mask, but in none of the forms",
    IgnoresCausal: "with is_causal=True its replacement has a relative error",
    SecretCount: "could not be run on random tokens .* wrong number of tokens",
}


class _PerFeature(nn.Module):
    def __init__(self, norm):
        super().__init__()
        self.norm = norm

    def forward(self, x):
        return self.norm(x.mT).mT
