"""Models and operators that the tests of plugging in share."""

import random

import torch
from torch import nn
from torch.nn import functional as F

from twinsolve.unrolled import Softmax


class FromFirst(Softmax):
    """Softmax attention, and part of the way back to the first and previous layer's values."""

    needs = ("first_values", "previous_values")
    linear_in_values = False
    square_only = True

    def attend(self, call):
        out, v, context = super().attend(call), call.v, call.context
        out = out + 0.6 * (context.first_values * v.sigmoid() - v)
        if context.previous_values is not None:
            out = out + 0.2 * context.previous_values * v.cos()
        return out


class WithPositions(Softmax):
    """Logits of tokens and of their projected positions, added."""

    needs = ("projected_positions",)

    def attend(self, call):
        q, k, (position_q, position_k) = call.q, call.k, call.context.projected_positions
        q = torch.cat([q, position_q.expand_as(q)], dim=-1) * 2**0.5
        k = torch.cat([k, position_k.expand_as(k)], dim=-1)
        return super().attend(call._replace(q=q, k=k))


class VisionAttention(nn.Module):
    """Attention in the layout of vision transformers: qkv, proj."""

    def __init__(self, dim=12, num_heads=3, qk_norm=False, scale=None, dropout=0.0):
        super().__init__()
        width = dim // num_heads
        self.num_heads, self.scale = num_heads, width**-0.5 if scale is None else scale
        self.qkv = nn.Linear(dim, 3 * dim)
        self.q_norm = nn.LayerNorm(width) if qk_norm else nn.Identity()
        self.k_norm = nn.LayerNorm(width) if qk_norm else nn.Identity()
        self.attn_drop = nn.Dropout(dropout)
        self.proj = nn.Linear(dim, dim)
        self.proj_drop = nn.Dropout(0.1)

    def forward(self, x, attn_mask=None):
        batch, tokens, dim = x.shape
        parts = self.qkv(x).reshape(batch, tokens, 3, self.num_heads, -1).permute(2, 0, 3, 1, 4)
        q, k, v = parts.unbind(0)
        q, k = self.q_norm(q), self.k_norm(k)
        out = F.scaled_dot_product_attention(q, k, v, attn_mask, scale=self.scale)
        return self.proj_drop(self.proj(out.transpose(1, 2).reshape(batch, tokens, dim)))


class Block(nn.Module):
    def __init__(self, **arguments):
        super().__init__()
        self.norm = nn.LayerNorm(12)
        self.attn = VisionAttention(**arguments)
        self.mlp = nn.Sequential(nn.Linear(12, 24), nn.GELU(), nn.Linear(24, 12))

    def forward(self, x):
        x = x + self.attn(self.norm(x))
        return x + self.mlp(x)


class VisionModel(nn.Module):
    """A small vision transformer on tokens; `run` calls a block, perhaps checkpointed."""

    def __init__(self, depth=3, n_tokens=7, **arguments):
        super().__init__()
        self.pos_embed = nn.Parameter(torch.randn(1, n_tokens, 12))
        self.blocks = nn.ModuleList(Block(**arguments) for _ in range(depth))
        self.head = nn.Linear(12, 2)
        self.run = [lambda block, x: block(x)] * depth

    def forward(self, x):
        x = x + self.pos_embed
        for run, block in zip(self.run, self.blocks, strict=True):
            x = run(block, x)
        return self.head(x.mean(dim=1))


def vision_model(seed=0, **arguments):
    torch.manual_seed(seed)
    return VisionModel(**arguments).double().eval()


def tokens(seed=1, n=7):
    return torch.randn(2, n, 12, generator=torch.Generator().manual_seed(seed)).double()


def traces(model):
    """All that a refusal must leave as it was."""
    modules = [(name, id(module), module.training) for name, module in model.named_modules()]
    hooks = [
        (name, key, *value)
        for name, module in model.named_modules()
        for key, value in vars(module).items()
        if key.endswith("_hooks")
    ]
    attributes = [(name, *vars(module)) for name, module in model.named_modules()]
    tensors = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    kept = {name: (id(x), x.dtype, x.device, x._version) for name, x in tensors.items()}
    gradients = {name: None if x.grad is None else id(x.grad) for name, x in tensors.items()}
    generators = torch.get_rng_state().tolist(), random.getstate()
    modes = torch.is_grad_enabled(), torch.get_default_dtype(), torch.is_autocast_enabled("cpu")
    return modules, hooks, attributes, kept, gradients, generators, modes
