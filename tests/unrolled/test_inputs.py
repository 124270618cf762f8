"""Inputs that do not fit are refused by name, as ValueError; what PyTorch takes is taken."""

from itertools import product

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from twinsolve.unrolled import (
    LISTA,
    Attention,
    Bilateral,
    ClassAttentionTransformer,
    Context,
    ConvMixer,
    Elliptical,
    Softmax,
    VisionTransformer,
    WindowedTransformer,
    make_operator,
    replace_attention,
)

from .integrations.examples import VisionAttention
from .operator_calls import context_of, qkv, tokens
from .operator_cases import OPERATORS

Q, K, V = qkv()
MASK = torch.ones(9, 9, dtype=torch.bool)

BAD_TOKENS = {
    "1-d queries": ({"q": Q[0, 0, 0]}, r"q: must be \(\.\.\., tokens, width\), got \(5,\)"),
    "a scalar": ({"q": 3.0}, "q: must be a Tensor, got float"),
    "whole numbers": ({"q": Q.long()}, "q: must be floating point, got torch.int64"),
    "float32 keys": ({"k": K.float()}, r"k: must be torch\.float64 as q, got torch\.float32"),
    "keys elsewhere": ({"k": K.to("meta")}, "k: must be on cpu as q, got meta"),
    "fewer heads": ({"k": K[:, :2]}, r"k: batch and heads .*, \(2, 3\), or 1; got \(2, 2\)"),
    "another width": ({"k": K[..., :3]}, "k: must have the width of q.* got 3 and 5"),
    "no width": ({"q": Q[..., :0], "k": K[..., :0]}, "at least 1; got 0 and 0"),
}
BAD_VALUES = {
    "1-d values": ({"v": V[0, 0, 0]}, r"v: must be \(\.\.\., tokens, width\), got \(4,\)"),
    "other tokens": ({"v": V[..., :8, :]}, "v: must have as many tokens as k, 9, got 8"),
    "float32 values": ({"v": V.float()}, r"v: must be torch\.float64 as q, got torch\.float32"),
    "values of another batch": (
        {"q": Q[:1], "k": K, "v": tokens(3, 3, 9, 4)},
        r"v: batch and heads must be those of the others, \(2, 3\), or 1; got \(3, 3\) in shape",
    ),
}
BAD_MASKS = {
    "of integers": (
        MASK.long(),
        "mask: must be one of bool, float16, bfloat16, float32, float64, got torch.int64",
    ),
    "of eight bits": (MASK.to(torch.float8_e4m3fn), "mask: must be one of bool, .* got .*float8"),
    "elsewhere": (MASK.to("meta"), "mask: must be on cpu as the tokens, got meta"),
    "a list": ([[True] * 9] * 9, "mask: must be a Tensor, got list"),
    "of keys alone": (MASK[0], r"mask: must broadcast to \(\.\.\., 9, 9\) .*, got \(9,\)"),
    "of other pairs": (MASK[:4], r"mask: must broadcast to \(\.\.\., 9, 9\) .*, got \(4, 9\)"),
}


# Of the three ways in which operators come to their inputs.
KINDS = ("softmax", "bilateral", "twicing")


@pytest.fixture(params=KINDS)
def operator(request):
    return OPERATORS[request.param]().double()


def test_operators_name_what_does_not_fit(operator):
    context = context_of(Q, K, V)
    for changes, message in (BAD_TOKENS | BAD_VALUES).values():
        given = {"q": Q, "k": K, "v": V} | changes
        with pytest.raises(ValueError, match=message):
            operator(**given, context=context)
    for changes, message in BAD_TOKENS.values():
        with pytest.raises(ValueError, match=message):
            operator.matrix(**({"q": Q, "k": K} | changes), context=context)
    for mask, message in BAD_MASKS.values():
        with pytest.raises(ValueError, match=message):
            operator(Q, K, V, mask=mask, context=context)
        with pytest.raises(ValueError, match=message):
            operator.matrix(Q, K, mask=mask, context=context)


def test_operators_name_fields_of_the_context_that_do_not_fit(operator):
    context = context_of(Q, K, V)
    with pytest.raises(ValueError, match="context: must be a Context, got dict"):
        operator(Q, K, V, context=context._asdict())
    changes = {
        "must be a Tensor, got float": lambda x: 1.0,
        r"must be \(\.\.\., tokens, width\), got \(9,\)": lambda x: torch.ones(9).double(),
        "must be floating point on cpu, got torch.int64": lambda x: x.long(),
        "must be floating point on cpu, got .* on meta": lambda x: x.to("meta"),
        "must have as many tokens as the keys, 9": lambda x: x[..., :8, :],
    }
    for field in operator.needs:
        for message, change in changes.items():
            held = getattr(context, field)
            if field == "projected_positions":
                bad = (held[0], change(held[1]))
                with pytest.raises(ValueError, match="must be a pair of Tensors, got Tensor"):
                    operator(Q, K, V, context=context._replace(projected_positions=held[0]))
            else:
                bad = change(held)
            with pytest.raises(ValueError, match=rf"context\.{field}: {message}"):
                operator(Q, K, V, context=context._replace(**{field: bad}))


# The shell

X, Y = tokens(2, 7, 12), tokens(2, 5, 12)
PADDING = torch.zeros(2, 7, dtype=torch.bool)
PAIRS = torch.zeros(7, 7, dtype=torch.bool)
BAD_CALLS = {
    "a mask for each sequence": (
        {"attn_mask": PAIRS.expand(2, 7, 7)},
        r"attn_mask: must be \(7, 7\), \(batch \* num_heads, 7, 7\) with batch \* num_heads = "
        r"2 \* 3, or one that broadcasts to \(batch, num_heads, 7, 7\); got \(2, 7, 7\)",
    ),
    "a mask of keys": ({"attn_mask": PAIRS[0]}, r"attn_mask: must be .* got \(7,\)"),
    "a mask of integers": ({"attn_mask": PAIRS.long()}, "attn_mask: must be one of bool,"),
    "padding of fewer keys": (
        {"key_padding_mask": PADDING[:, :5]},
        r"key_padding_mask: must have shape \(2, 7\), got \(2, 5\)",
    ),
    "padding elsewhere": (
        {"key_padding_mask": PADDING.to("meta")}, "key_padding_mask: must be on cpu"
    ),
    "padding as a list": ({"key_padding_mask": [0] * 7}, "key_padding_mask: must be a Tensor"),
    "another width": ({"query": X[..., :4]}, r"query: must be \(batch, tokens, 12\), got"),
    "keys of one sequence": ({"key": X[0]}, r"key: must be \(batch, tokens, 12\), got \(7, 12\)"),
    "one query among batches": (
        {"query": X[0]}, r"key: must be \(tokens, 12\), got \(2, 7, 12\)"
    ),
    "another batch": ({"key": tokens(3, 7, 12)}, r"key: must be a batch of 2 or 1, got \(3"),
    "fewer values": ({"value": Y}, "value: must have as many tokens as key, 7, got 5"),
    "another dtype": ({"query": X.float()}, r"query: must be torch\.float64 as the weights, got"),
    "keys elsewhere": ({"key": X.to("meta")}, "key: must be on cpu as the weights, got meta"),
    "a context as a dictionary": ({"context": {"values": X}}, "context: must be a Context, got"),
}  # fmt: skip


def shells():
    shell = Attention(12, 3, operator=Softmax(), dtype=torch.float64)
    theirs = nn.MultiheadAttention(12, 3, batch_first=True, dtype=torch.float64)
    return [shell, replace_attention(theirs, "softmax")]


def test_the_shell_names_what_does_not_fit():
    for shell, (changes, message) in product(shells(), BAD_CALLS.values()):
        with pytest.raises(ValueError, match=message):
            shell(**({"query": X, "key": X, "value": X} | changes))


@pytest.mark.parametrize("name", ["softmax", "bilateral", "elliptical", "neutreno"])
def test_one_sequence_stands_for_a_batch_of_the_others(name):
    """Queries, keys or values of one sequence: what they are expanded, mask and context too."""
    torch.manual_seed(0)
    ours = Attention(12, 3, operator=make_operator(name, num_heads=3, head_dim=4)).double()
    theirs = nn.MultiheadAttention(12, 3, batch_first=True, dtype=torch.float64)
    mask = torch.zeros(6, 7, 7, dtype=torch.bool)
    mask[:2, :, 5:] = True  # the same keys for every query, others in each head and sequence
    replaced = replace_attention(nn.ModuleList([theirs]), name, positions=X[0].clone())[0]
    arguments = {"attn_mask": mask, "context": Context(positions=X[0])}
    for layer, alone in product((ours, replaced), (("query",), ("key", "value"))):
        few = {n: X[:1] if n in alone else X for n in ("query", "key", "value")}
        many = {n: x.expand(2, 7, 12) for n, x in few.items()}
        found, expected = layer(**few, **arguments), layer(**many, **arguments)
        assert_close(found[:2], expected[:2], atol=1e-12, rtol=1e-12)


def test_the_shell_names_positions_that_do_not_fit():
    shell = Attention(12, 3, operator=Bilateral(), dtype=torch.float64)
    replaced = replace_attention(nn.ModuleList([shell]), Bilateral())[0]
    for positions, message in (
        (X[0, :, :8], r"context\.positions: must be \(\.\.\., tokens, 12\), got \(7, 8\)"),
        (X[0].float(), r"context\.positions: must be torch\.float64 as the weights, got"),
        (X[0, :5], r"context\.positions: must have as many tokens as the keys, 7"),
        (3.0, r"context\.positions: must be a Tensor, got float"),
    ):
        for layer in (shell, replaced):
            with pytest.raises(ValueError, match=message):
                layer(X, X, X, context=Context(positions=positions))


def test_the_fused_replacement_names_what_does_not_fit():
    layer = replace_attention(nn.ModuleList([VisionAttention().double()]), "softmax")[0]
    for arguments, message in (
        ({"x": X[0]}, r"x: must be \(batch, tokens, 12\), got \(7, 12\)"),
        ({"x": X.float()}, r"x: must be torch\.float64 as the weights, got torch\.float32"),
        ({"x": X, "attn_mask": PAIRS.expand(2, 7, 7)}, r"mask: must broadcast .* got \(2, 7, 7\)"),
    ):
        with pytest.raises(ValueError, match=message):
            layer(**arguments)


# Backbones

IMAGES = torch.randn(2, 1, 8, 8, generator=torch.Generator().manual_seed(0))
BACKBONES = {
    "vision transformer": lambda: VisionTransformer(8, 2, 1, 3, 12, 1, 3),
    "windowed transformer": lambda: WindowedTransformer(
        8, 1, 1, 3, 12, (1, 1), (3, 3), window_size=2
    ),
    "class attention": lambda: ClassAttentionTransformer(8, 2, 1, 3, 12, 1, 3),
    "conv mixer": lambda: ConvMixer(12, 1, 3, 2, 3, in_channels=1),
}


@pytest.mark.parametrize("name", BACKBONES)
def test_backbones_name_images_that_do_not_fit(name):
    model = BACKBONES[name]()
    assert model(IMAGES).shape == (2, 3)
    for images, message in (
        (IMAGES[0], r"images: must be \(batch, 1, .*, got \(1, 8, 8\)"),
        (IMAGES.expand(2, 3, 8, 8), r"images: must be \(batch, 1, .*, got \(2, 3, 8, 8\)"),
        (IMAGES.double(), r"images: must be torch\.float32 as the weights, got torch\.float64"),
        (IMAGES.to("meta"), "images: must be on cpu as the weights, got meta"),
        (IMAGES.tolist(), "images: must be a Tensor, got list"),
    ):
        with pytest.raises(ValueError, match=message):
            model(images)


@pytest.mark.parametrize("dtype", [">f4", ">f8", "<f8"])
def test_arrays_of_a_layer_may_be_in_any_order_of_bytes(dtype):
    atoms = torch.randn(8, 5, generator=torch.Generator().manual_seed(0)).numpy()
    given = atoms.astype(dtype)
    assert_close(LISTA(given, 2, 0.5).dictionary.float(), LISTA(atoms, 2, 0.5).dictionary)
    assert_close(Elliptical(given[0] ** 2).metric.float(), Elliptical(atoms[0] ** 2).metric.float())
