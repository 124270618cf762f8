from functools import partial

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from twinsolve.unrolled import (
    Context,
    FeatScale,
    Gaussian,
    GeneralizedResidual,
    Softmax,
    SparseCoding,
)
from twinsolve.unrolled.models import Block
from twinsolve.unrolled.models.stacks import make_blocks, run_blocks

X = torch.randn(2, 7, 12, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def block(**options):
    torch.manual_seed(0)
    return Block(12, 3, dtype=torch.float64, **options).eval()


def attention(layer, x):
    u = layer.attention_norm(x)
    return layer.attention(u, u, u)[0]


def feed_forward(layer, x):
    return layer.feed_forward(layer.feed_forward_norm(x))


class FromFirst(nn.Module):
    needs_history = True

    def forward(self, x, y, context):
        self.seen = len(context.history), context.history[-1], context.first_tokens
        return x + y + 0.5 * context.first_tokens


def test_scales_that_mix_tokens_follow_attention_alone_unless_asked_to():
    """FeatScale is defined on the output of attention (AO-10 to AO-12)."""
    assert isinstance(block(scale=FeatScale).attention_scale, FeatScale)
    assert isinstance(block(scale=FeatScale).feed_forward_scale, nn.Identity)
    assert isinstance(block(scale=FeatScale, scale_feed_forward=True).feed_forward_scale, FeatScale)


def pair_masks():
    """Masks of every shape that `Attention` takes, which some heads do not share."""
    whole = torch.rand(2, 3, 7, 7, generator=torch.Generator().manual_seed(1)) < 0.3
    shapes = [(7, 7), (7, 1), (1, 7), (1, 1), (6, 7, 7), (6, 1, 7), (6, 7, 1)]
    shapes += [(b, h, n, m) for b in (1, 2) for h in (1, 3) for n in (1, 7) for m in (1, 7)]
    of = {2: whole[0, 0], 3: whole.flatten(0, 1), 4: whole}
    return [of[len(shape)][tuple(slice(n) for n in shape)] for shape in shapes]


@pytest.mark.parametrize("n_further", [0, 2])
def test_masks_of_every_shape_hide_from_scales_what_some_head_hides(n_further):
    layer, given, n = block(scale=FeatScale), [], 7 - n_further
    layer.attention_scale.forward = lambda y, attn_mask=None, **_: given.append(attn_mask) or y
    for mask in pair_masks():
        mask = mask if mask.shape[-2] == 1 else mask[..., :n, :]
        heads = mask.unflatten(0, (2, 3)) if mask.ndim == 3 else mask
        expected = heads.expand(2, 3, n, 7).any(dim=1)[..., n_further:]
        for form in (mask, torch.zeros(mask.shape).double().masked_fill(mask, -torch.inf)):
            layer(X[:, n_further:], memory=X[:, :n_further] if n_further else None, attn_mask=form)
            assert torch.equal(given.pop(), expected), mask.shape


@pytest.mark.parametrize(
    ("scale", "residual"), [(None, None), (FeatScale, partial(GeneralizedResidual, 0))]
)
def test_a_sequence_alone_is_a_batch_of_one(scale, residual):
    layer = block(scale=scale, residual=residual, scale_feed_forward=True)
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    x, hidden = X[0], torch.arange(7) >= 5
    pairs = torch.ones(7, 7).triu(1).bool()
    cases = [{}, {"is_causal": True}, {"key_padding_mask": hidden}]
    cases += [{"attn_mask": mask} for mask in (pairs, pairs.expand(3, 7, 7), pairs[None, None])]
    for masks in cases:
        batch = {n: m[None] if n == "key_padding_mask" else m for n, m in masks.items()}
        context = Context(history=(x,), positions=x)
        found, _ = layer(x, context, add_positions=True, **masks)
        context = Context(history=(x[None],), positions=x)
        expected, _ = layer(x[None], context, add_positions=True, **batch)
        assert_close(found, expected[0], atol=1e-12, rtol=0)
        if "is_causal" not in masks:
            masks = {n: m[..., 3:, :] if n == "attn_mask" else m for n, m in masks.items()}
            batch = {n: m[None] if n == "key_padding_mask" else m for n, m in masks.items()}
        found, _ = layer(x[3:], Context(history=(x[3:],)), memory=x[:3], **masks)
        context = Context(history=(x[None, 3:],))
        expected, _ = layer(x[None, 3:], context, memory=x[None, :3], **batch)
        assert_close(found, expected[0], atol=1e-12, rtol=0)


def test_a_mask_of_pairs_counts_whatever_is_causal_says():
    """In attention, where it is a hint, and in the scale behind it."""
    layer = block(scale=FeatScale, scale_feed_forward=True)
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    pairs = torch.zeros(7, 7, dtype=torch.bool)
    pairs[:, 5] = pairs[2:4, :2] = True
    additive = torch.zeros(7, 7, dtype=X.dtype).masked_fill(pairs, -torch.inf)
    hidden = torch.zeros(X.shape[:2], dtype=torch.bool)
    hidden[:, 6] = True
    for mask in (pairs, additive, pairs.expand(3 * len(X), 7, 7)):
        for more in ({}, {"key_padding_mask": hidden}):
            expected = layer(X, attn_mask=mask, **more)
            found = layer(X, attn_mask=mask, is_causal=True, **more)
            assert_close(found, expected, atol=0, rtol=0)


def test_residual_objects_are_given_the_tokens_and_the_context():
    torch.manual_seed(0)
    blocks = make_blocks(
        4, 12, 3, residual=FromFirst, feed_forward_residual=FromFirst, dtype=torch.float64
    )
    states = [X]
    run_blocks(blocks, X, Context(), states=states)
    for index, layer in enumerate(blocks):
        entered = states[index]
        x = entered + attention(layer, entered) + 0.5 * X
        assert_close(states[index + 1], x + feed_forward(layer, x) + 0.5 * X, atol=1e-12, rtol=0)
        count, last, first = layer.attention_residual.seen
        assert count == index + 1
        assert last is entered
        assert first is X


def test_if_26_boosts_attention_and_leaves_the_feed_forward_branch_plain():
    layer, first = block(residual=GeneralizedResidual), torch.randn_like(X)
    for part in layer.modules():
        if isinstance(part, GeneralizedResidual):
            torch.nn.init.constant_(part.t, 0.4)
    x = attention(layer, X) + 0.4 * first + 0.6 * X
    found, _ = layer(X, Context(first_tokens=first))
    assert_close(found, x + feed_forward(layer, x), atol=1e-12, rtol=0)


def test_no_history_is_kept_unless_a_residual_reads_it():
    blocks, seen = make_blocks(2, 12, 3, dtype=torch.float64), []
    for layer in blocks:
        layer.register_forward_pre_hook(lambda module, inputs: seen.append(inputs[1]))
    run_blocks(blocks, X, Context())
    assert [context.history for context in seen] == [(), ()]
    assert seen[1].first_tokens is X


def test_positions_are_added_to_queries_and_keys_alone():
    layer, positions = block(feed_forward=False), torch.randn(7, 12, dtype=torch.float64)
    found, _ = layer(X, Context(positions=positions), add_positions=True)
    with_p, without = (layer.attention_norm(x) for x in (X + positions, X))
    y, _ = layer.attention(with_p, with_p, without)
    assert_close(found, X + y, atol=1e-13, rtol=0)
    last, _ = layer(X[:, 4:], Context(positions=positions), memory=X[:, :4], add_positions=True)
    assert_close(last, found[:, 4:], atol=1e-13, rtol=0)


def test_each_block_has_its_own_operator():
    operator = SparseCoding(0.3, num_heads=3, learnable=True)
    first, second = make_blocks(2, 12, 3, operator=operator)
    assert first.attention.operator is not second.attention.operator
    assert first.attention.operator.lam.initial == 0.3
    mixed = make_blocks(2, 12, 3, operator=["softmax", Gaussian()], mlp_ratio=(1, 2))
    assert isinstance(mixed[0].attention.operator, Softmax)
    assert isinstance(mixed[1].attention.operator, Gaussian)
    assert [b.feed_forward.fc1.out_features for b in mixed] == [12, 24]


def test_initial_weights_are_xavier_for_each_projection():
    torch.manual_seed(0)
    layer = Block(96, 3, mlp_ratio=2)
    for weight in (*layer.attention.in_proj_weight.chunk(3), layer.attention.out_proj.weight):
        assert_close(weight.abs().max().item(), (6 / 192) ** 0.5, atol=0, rtol=0.01)
    for linear in (layer.feed_forward.fc1, layer.feed_forward.fc2):
        assert_close(linear.weight.abs().max().item(), (6 / 288) ** 0.5, atol=0, rtol=0.01)
        assert not linear.bias.any()
    assert not layer.attention.in_proj_bias.any()
