import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.testing import assert_close

from twinsolve.unrolled import Context, FeatScale, Operator, Softmax, WindowedTransformer
from twinsolve.unrolled.models.stacks import operators, position_places, run_blocks

from .test_places import pairs

IMAGES = torch.randn(2, 1, 12, 16, generator=torch.Generator().manual_seed(0))


class CrossLayer(Operator):
    """Reads everything that layers may share, token by token."""

    needs = ("projected_positions", "first_values", "previous_values", "first_tokens")

    def attend(self, call):
        q, k, v, mask, _, context = call
        (pq, pk), first = context.projected_positions, context.first_tokens
        before = v if context.previous_values is None else context.previous_values
        out = F.scaled_dot_product_attention(q + pq, k + pk, v, attn_mask=mask)
        first = first[..., : v.shape[-1]].unsqueeze(-3)
        return out + 0.5 * (context.first_values - v) + 0.3 * before + 0.1 * first


class NoPairs(Softmax):
    pair_masks = False


class FromHistory(nn.Module):
    needs_history = True

    def forward(self, x, y, context):
        weights = torch.arange(1, 1 + len(context.history))
        entered = sum(w * tokens for w, tokens in zip(weights, context.history, strict=True))
        return x + y + 0.2 * context.first_tokens - 0.1 * entered


def model(**options):
    torch.manual_seed(0)
    settings = {"image_size": (12, 16), "patch_size": 1, "in_channels": 1, "num_classes": 5}
    settings |= {"dim": 8, "depths": (4,), "num_heads": (2,), "window_size": 4}
    return WindowedTransformer(**settings | options).eval()


def hidden_pairs(windows):
    """Of tokens in other windows of the rolled grid, or parted by the roll."""

    def place(cell):
        sizes = zip(cell, windows.shift, windows.grid, windows.window, strict=True)
        return [((x - s) % n // w, x < s) for x, s, n, w in sizes]

    return ~pairs(lambda a, b: place(a) == place(b), windows.grid)


def run(stage, x):
    return stage(x, position_places(operators(stage.blocks), None))


def as_one_sequence(stage, x):
    """The stage's blocks on all tokens of the grid at once, with masks of all pairs."""
    positions = stage.positions()
    x = x.flatten(1, 2)
    if not stage.blocks[0].attention.operator.positions_apart:
        x = x + positions
    context = Context(positions=positions, first_tokens=x)
    heads = stage.blocks[0].attention.num_heads
    for index, block in enumerate(stage.blocks):
        mask = hidden_pairs(stage.windows[index % 2]).expand(x.shape[0] * heads, -1, -1)
        context = context._replace(history=(*context.history, x))
        x, context = block(x, context, attn_mask=mask)
    return x


@pytest.mark.parametrize(
    ("operator", "residual"),
    [("twicing", None), ("sparse_coding", None), (CrossLayer(), FromHistory)], ids=str,
)  # fmt: skip
def test_windows_equal_attention_with_masks_of_pairs(operator, residual):
    stage = model(operator=operator, residual=residual, dtype=torch.float64).stages[0]
    assert stage.windows[1].shift == (2, 2)
    x = torch.randn(2, 12, 16, 8, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    assert_close(run(stage, x).flatten(1, 2), as_one_sequence(stage, x), atol=1e-11, rtol=0)


@pytest.mark.parametrize("size", [(10, 13), (11, 16), (5, 4)])
@pytest.mark.parametrize(("operator", "residual"), [("twicing", None), (CrossLayer(), FromHistory)])
def test_padded_windows_equal_attention_that_sees_no_padding(size, operator, residual):
    stage = model(image_size=size, operator=operator, residual=residual, dtype=torch.float64)
    stage = stage.stages[0]
    assert any(stage.windows[0].padding)
    x = torch.randn(2, *size, 8, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    out = run(stage, x)
    assert_close(out.flatten(1, 2), as_one_sequence(stage, x), atol=1e-11, rtol=0)
    hidden = stage.windows[0].hidden_tokens(2, x.device)
    assert hidden.sum() == 2 * (hidden.numel() // 2 - size[0] * size[1])


def test_operators_that_hide_whole_keys_alone_take_padded_windows_in_place():
    stage = model(image_size=(10, 13), shift=False, operator=NoPairs(), dtype=torch.float64)
    x = torch.randn(2, 10, 13, 8, dtype=torch.float64)
    expected = as_one_sequence(stage.stages[0], x)
    assert_close(run(stage.stages[0], x).flatten(1, 2), expected, atol=1e-11, rtol=0)


def test_feat_scale_takes_the_mean_of_a_tokens_own_window_where_windows_shift():
    """AO-10 to AO-12 a window: in shifted ones of the tokens that see each other."""
    stage = model(scale=FeatScale, dtype=torch.float64).stages[0]
    with torch.no_grad():
        for block in stage.blocks:
            block.attention_scale.s.copy_(torch.randn(8))
            block.attention_scale.t.copy_(torch.randn(8))
    x = torch.randn(2, 12, 16, 8, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    assert_close(run(stage, x).flatten(1, 2), as_one_sequence(stage, x), atol=1e-11, rtol=0)
    scale, windows, seen = stage.blocks[1].attention_scale, stage.windows[1], []
    scale.register_forward_hook(lambda module, args, out: seen.append((args[0], out)))
    run(stage, x)
    y, out = (windows.join(part).flatten(1, 2) for part in seen[0])
    shown = ~hidden_pairs(windows)
    mean = shown.double() @ y / shown.sum(dim=1, keepdim=True)
    assert_close(out, y + scale.s * mean + scale.t * (y - mean), atol=1e-12, rtol=0)


def test_a_window_that_covers_one_side_shifts_along_the_other():
    stage = model(image_size=(4, 16), dtype=torch.float64).stages[0]
    assert stage.windows[1].shift == (0, 2)
    x = torch.randn(1, 4, 16, 8, dtype=torch.float64)
    assert_close(run(stage, x).flatten(1, 2), as_one_sequence(stage, x), atol=1e-11, rtol=0)


def test_one_window_over_the_whole_grid_is_plain_attention():
    stage = model(window_size=99, dtype=torch.float64, operator=NoPairs()).stages[0]
    x = torch.randn(2, 12, 16, 8, dtype=torch.float64)
    tokens = x.flatten(1, 2) + stage.positions()
    expected, _ = run_blocks(stage.blocks, tokens, Context())
    assert_close(run(stage, x).flatten(1, 2), expected, atol=1e-12, rtol=0)


def test_operators_without_masks_of_pairs_are_refused_where_windows_shift():
    with pytest.raises(ValueError, match=r"operator: NoPairs couples all .* pass shift=False"):
        model(operator=NoPairs())
    mixed = [NoPairs(), "softmax", NoPairs(), "softmax"]
    assert model(operator=mixed)(IMAGES).isfinite().all()
