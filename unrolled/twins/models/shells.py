"""Twins: the multi-head shell with its projections, masks and weights."""

import copy
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ...attention import Attention, Operator
from ...kernel_smoothing import Gaussian, Softmax, Symmetric
from ..heads import Array
from .fitted import PATCH_HEADS, cleaning_patches, read_patches
from .shell_pass import attend, visible_keys
from .small_models import (
    DIM,
    HEADS,
    add,
    drawn,
    hidden_pairs,
    hidden_tokens,
    joined,
    over_batch,
    sequences,
)


def _inputs(images: Tensor) -> tuple[Tensor, Tensor]:
    x = sequences(images)
    return x, hidden_tokens(images, x.shape[1])


def _apply(shell: Attention, images: Tensor) -> Tensor:
    """Plain, of other keys and values, and with every kind of mask; with and without weights."""
    x, hidden = _inputs(images)
    keys, values = x.flip(1), x.sin()
    n = x.shape[1]
    beyond = torch.ones(n, n).triu(3).bool()
    of_heads = torch.from_numpy(hidden_pairs(n)).repeat(len(x), 1, 1)
    added = torch.from_numpy(_added(n)).to(x.dtype)
    return joined(
        *shell(x, x, x),
        *shell(x, keys, values, average_attn_weights=False),
        shell(x, x, x, need_weights=False, is_causal=True)[0],
        shell(x[:, -2:], x, x, need_weights=False, is_causal=True)[0],
        shell(x, x, x, need_weights=False, key_padding_mask=hidden)[0],
        *shell(x, x, x, key_padding_mask=hidden, attn_mask=beyond),
        shell(x, x, x, need_weights=False, key_padding_mask=hidden, is_causal=True)[0],
        *shell(x, x, x, attn_mask=of_heads),
        *shell(x, x, x, key_padding_mask=hidden, attn_mask=added),
    )


def _solve(shell: Attention, x: Array, hidden: Array) -> tuple[Array, ...]:
    n, padding = len(x), hidden.astype(bool)
    keys, values = x[::-1], np.sin(x)
    beyond = np.arange(n) > np.arange(n)[:, None] + 2

    def run(
        q: Array, k: Array, v: Array, bias: Array | None = None, **masks: Any
    ) -> tuple[Array, Array]:
        visible = visible_keys(len(q), len(k), **masks)
        out, weights, _ = attend(
            shell, q, k, v, num_heads=HEADS, visible=visible, bias=bias, weights=len(q) == n
        )
        return out, np.zeros(0) if weights is None else weights

    out, weights = run(x, x, x)
    masked, masked_weights = run(x, x, x, padding=padding, pairs=beyond)
    apart, apart_weights = run(x, x, x, pairs=hidden_pairs(n))
    biased, biased_weights = run(x, x, x, _added(n), padding=padding)
    return (
        out,
        weights.mean(axis=0),
        *run(x, keys, values),
        run(x, x, x, is_causal=True)[0],
        run(x[-2:], x, x, is_causal=True)[0],
        run(x, x, x, padding=padding)[0],
        masked,
        masked_weights.mean(axis=0),
        run(x, x, x, padding=padding, is_causal=True)[0],
        apart,
        apart_weights.mean(axis=0),
        biased,
        biased_weights.mean(axis=0),
    )


def _added(n: int) -> Array:
    """A bias on logits."""
    rows, columns = np.indices((n, n))
    return np.sin(rows - 2.0 * columns)


def _cleaning(build: Callable[[int], Attention]) -> dict[str, Any]:
    def prepared(dim: int) -> Attention:
        shell = build(dim).double()
        read_patches(shell)
        return shell

    return cleaning_patches(
        prepared,
        lambda shell: [shell.out_proj],
        lambda shell, x: shell(x, x, x, need_weights=False)[0],
        lambda shell, X: attend(shell, X, X, X, num_heads=PATCH_HEADS)[0],
    )


def _add(name: str, operator: Operator, *, bias: bool) -> None:
    add(
        name,
        Attention,
        source="Vaswani et al. (2017)",
        equation="SE-3",
        build=lambda images: drawn(Attention(DIM, HEADS, operator=operator, bias=bias)),
        apply=_apply,
        solve=over_batch(_solve, _inputs),
        task=_cleaning(
            lambda dim: Attention(dim, PATCH_HEADS, operator=type(operator)(), bias=bias)
        ),
    )


@cache
def _checkpoint() -> Attention:
    """Projections of queries, keys and values, of which symmetric attention needs the last two."""
    return drawn(Attention(DIM, HEADS, operator=Softmax()))  # type: ignore[return-value]


def _load(images: Array) -> Attention:
    shell = Attention(DIM, HEADS, operator=Symmetric(), dtype=torch.float64)
    shell.load_state_dict(_checkpoint().state_dict())
    return shell


def _apply_loaded(shell: Attention, images: Tensor) -> Tensor:
    x, hidden = _inputs(images)
    return joined(*shell(x, x, x), *shell(x, x, x, key_padding_mask=hidden, is_causal=True))


def _solve_loaded(loaded: Attention, x: Array, hidden: Array) -> tuple[Array, ...]:
    """By the checkpoint's weights; queries are not read."""
    shell, n, found = copy.deepcopy(loaded), len(x), []
    checkpoint = _checkpoint()
    shell.out_proj = checkpoint.out_proj
    for name in ("in_proj_weight", "in_proj_bias"):
        setattr(shell, name, nn.Parameter(getattr(checkpoint, name)[DIM:]))
    padding = hidden.astype(bool)
    for visible in (None, visible_keys(n, n, is_causal=True, padding=padding)):
        out, weights, _ = attend(shell, x, x, x, num_heads=HEADS, visible=visible, weights=True)
        assert weights is not None
        found += [out, weights.mean(axis=0)]
    return tuple(found)


def _load_for_patches(dim: int) -> Attention:
    shell = Attention(dim, PATCH_HEADS, operator=Symmetric(), dtype=torch.float64)
    shell.load_state_dict(Attention(dim, PATCH_HEADS, operator=Softmax()).state_dict())
    return shell


_add("attention-shell", Softmax(), bias=True)
_add("attention-shell-no-bias", Gaussian(1.5, num_heads=HEADS, learnable=True), bias=False)
add(
    "attention-shell-loaded",
    Attention,
    source="Vaswani et al. (2017)",
    equation="NT-10",
    build=_load,
    apply=_apply_loaded,
    solve=over_batch(_solve_loaded, _inputs),
    task=_cleaning(_load_for_patches),
)
