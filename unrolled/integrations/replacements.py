"""Replacements of a model's own attention modules, with the parameters of the original."""

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..attention import Attention, Context, Operator, check_input
from ..attention.shell import same
from .attached import keep_operator, operator_of
from .forward_passes import ForwardPasses

_SEPARATE = ("q_proj_weight", "k_proj_weight", "v_proj_weight")


def rescale(q: Tensor, k: Tensor, scale: float | None) -> tuple[Tensor, Tensor]:
    """Scale queries and keys so that attention at ``head_dim ** -0.5`` is that at `scale`.

    Each is multiplied by the root of the factor, so that equal queries and keys stay equal.
    """
    usual = q.shape[-1] ** -0.5
    if scale is None or math.isclose(scale, usual, rel_tol=1e-6):
        return q, k
    if not scale > 0:
        raise ValueError(f"scale: must be positive, got {scale}")
    factor = math.sqrt(scale / usual)
    return q * factor, k * factor


class FusedProjectionAttention(nn.Module):
    """Replaces attention with one ``qkv`` projection and ``proj``, as in vision transformers.

    Takes ``forward(x, attn_mask=None, is_causal=False)``, x of shape (batch, tokens, dim) and masks
    as in ``scaled_dot_product_attention``.
    """

    q_norm: nn.Module
    k_norm: nn.Module
    norm: nn.Module
    proj: nn.Module
    proj_drop: nn.Module

    def __init__(self, original: Any, operator: Operator, passes: ForwardPasses) -> None:
        super().__init__()
        self.num_heads, self.head_dim = heads_of(original)
        self.scale = getattr(original, "scale", None)
        self.qkv = original.qkv
        for name in ("q_norm", "k_norm"):
            setattr(self, name, getattr(original, name, None) or nn.Identity())
        self.operator = operator
        for name in ("norm", "proj", "proj_drop"):
            setattr(self, name, getattr(original, name, None) or nn.Identity())
        self.passes = passes
        self.register_load_state_dict_pre_hook(keep_operator)

    def forward(
        self, x: Tensor, attn_mask: Tensor | None = None, is_causal: bool = False
    ) -> Tensor:
        q, k, v = self.project(x)
        output, _ = self.passes.attend(
            operator_of(self), q, k, v,
            mask=attn_mask, is_causal=is_causal, tokens=x, project=self._project,
        )  # fmt: skip
        output = self.norm(output.transpose(-3, -2).flatten(-2))
        return self.proj_drop(self.proj(output))

    def project(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return queries, keys and values of each head: the inputs of the operator."""
        check_input(x, "x", ("batch", "tokens", self.qkv.in_features), self.qkv.weight)
        q, k, v = (self._split_heads(part) for part in self.qkv(x).chunk(3, dim=-1))
        return *rescale(self.q_norm(q), self.k_norm(k), self.scale), v

    def _split_heads(self, x: Tensor) -> Tensor:
        # (batch, heads, tokens, head_dim)
        return x.unflatten(-1, (self.num_heads, self.head_dim)).transpose(-3, -2)

    def _project(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Project positions by the query and the key weights, without bias."""
        width = self.qkv.in_features
        check_input(positions, "context.positions", ("...", "tokens", width), self.qkv.weight)
        w_q, w_k, _ = self.qkv.weight.chunk(3)
        return self._split_heads(F.linear(positions, w_q)), self._split_heads(
            F.linear(positions, w_k)
        )


class MultiheadReplacement(Attention):
    """Replaces ``nn.MultiheadAttention``: an `Attention` in its other layouts and widths too."""

    def __init__(
        self, original: nn.MultiheadAttention | Attention, operator: Operator, passes: ForwardPasses
    ) -> None:
        super().__init__(original.embed_dim, original.num_heads, operator=operator, device="meta")
        self.batch_first = original.batch_first
        self.kdim = getattr(original, "kdim", self.embed_dim)
        self.vdim = getattr(original, "vdim", self.embed_dim)
        del self.in_proj_weight, self.in_proj_bias
        for name in (*_SEPARATE, "in_proj_weight", "in_proj_bias"):
            self.register_parameter(name, getattr(original, name, None))
        self.projected = getattr(original, "projected", ("q", "k", "v"))
        self.out_proj = original.out_proj
        self.passes = passes
        self.register_load_state_dict_pre_hook(keep_operator)

    def _draw_inputs(self) -> None:
        if self.in_proj_weight is not None:
            return super()._draw_inputs()
        for name in _SEPARATE:
            nn.init.xavier_uniform_(getattr(self, name))

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = True,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
        context: Context | None = None,
    ) -> tuple[Tensor, Tensor | None] | tuple[Tensor, Tensor | None, Context]:
        operator_of(self)  # or raises
        is_transposed = not self.batch_first and query.ndim == 3
        if is_transposed:
            query, key, value = same(lambda x: x.transpose(0, 1), query, key, value)
        output, *rest = super().forward(
            query, key, value, key_padding_mask, need_weights, attn_mask,
            average_attn_weights, is_causal, context,
        )  # fmt: skip
        return output.transpose(0, 1) if is_transposed else output, *rest

    def _operate(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        mask: Tensor | None,
        is_causal: bool,
        tokens: Tensor,
        context: Context | None,
    ) -> tuple[Tensor, Context]:
        return self.passes.attend(
            self.operator, q, k, v, mask=mask, is_causal=is_causal,
            tokens=tokens, project=self.project_positions, context=context,
        )  # fmt: skip

    def project(self, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        if self.in_proj_weight is not None:
            return super().project(query, key, value)
        biases = (None,) * 3 if self.in_proj_bias is None else self.in_proj_bias.chunk(3)
        q, k, v = (
            self._split_heads(F.linear(x, getattr(self, name), bias))
            for x, name, bias in zip((query, key, value), _SEPARATE, biases, strict=True)
        )
        return q, k, v

    def project_positions(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        if self.in_proj_weight is not None:
            return super().project_positions(positions)
        weights = self.q_proj_weight, self.k_proj_weight
        for weight in weights:
            check_input(positions, "context.positions", ("...", "tokens", weight.shape[1]), weight)
        q, k = (self._split_heads(F.linear(positions, weight)) for weight in weights)
        return q, k


def heads_of(module: Any) -> tuple[int, int]:
    """Return the number and the width of the heads of an attention module of either kind."""
    if hasattr(module, "qkv"):
        return module.num_heads, module.qkv.out_features // (3 * module.num_heads)
    return module.num_heads, module.embed_dim // module.num_heads


def parameter_of(module: nn.Module) -> Tensor:
    """Return a tensor that has the device and the dtype of the module."""
    return next(p for p in module.parameters() if torch.is_floating_point(p))
