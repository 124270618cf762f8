import pytest
import torch
from torch import nn
from torch.testing import assert_close

from twinsolve.unrolled import (
    ClassAttentionTransformer,
    Context,
    Operator,
    Softmax,
    SparseCoding,
    make_operator,
    operator_names,
)
from twinsolve.unrolled.models.stacks import run_blocks

IMAGES = torch.randn(3, 1, 16, 16, generator=torch.Generator().manual_seed(0))


def model(**options):
    torch.manual_seed(0)
    return ClassAttentionTransformer(16, 4, 1, 5, 12, 2, 3, **options).eval()


class Scale(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.gamma = nn.Parameter(torch.full((dim,), 0.3))

    def forward(self, y):
        return self.gamma * y


def test_only_the_class_token_asks_and_changes_in_class_attention():
    vit = model(scale=Scale, class_depth=2)
    x = vit.patch_embedding(IMAGES) + vit.positions.weight
    x = run_blocks(vit.blocks, x, Context())
    token = vit.class_token.expand(3, 1, 12)
    for block in vit.class_blocks:
        tokens = block.attention_norm(torch.cat([token, x], dim=1))
        everything, _ = block.attention(tokens, tokens, tokens)
        token = token + 0.3 * everything[:, :1]
        token = token + 0.3 * block.feed_forward(block.feed_forward_norm(token))
    assert_close(vit.forward_features(IMAGES)[:, 1:], vit.norm(x))
    assert_close(vit(IMAGES), vit.head(vit.norm(token[:, 0])), atol=1e-5, rtol=0)


@pytest.mark.parametrize("name", operator_names())
def test_every_operator_runs_among_patches_and_in_class_attention_or_is_refused(name):
    assert model(operator=name)(IMAGES).isfinite().all()
    operator = make_operator(name, num_heads=3, head_dim=4)
    if operator.square_only or operator.needs or operator.positional:
        with pytest.raises(ValueError, match=r"class_operator: .* needs .* one query"):
            model(class_operator=name)
        return
    vit = model(class_operator=name, scale=Scale).train()
    vit(IMAGES).square().sum().backward()
    grads = {n: p.grad for n, p in vit.named_parameters() if ".operator." not in n}
    assert all(g is not None and g.isfinite().all() for g in grads.values())
    assert grads["patch_embedding.projection.weight"].any()


class NeedsFirst(Softmax):
    needs = ("first_values",)


@pytest.mark.parametrize(
    ("operator", "message"),
    [
        (SparseCoding(0.1, zero_diagonal=True), "SparseCoding needs as many queries as keys"),
        ("twicing", "Twicing needs as many queries as keys"),
        ("alibi", "ALiBi needs places of tokens"),
        (NeedsFirst(), "NeedsFirst needs first_values"),
    ],
)
def test_operators_that_cannot_serve_one_query_are_refused(operator, message):
    with pytest.raises(ValueError, match=f"class_operator: {message}"):
        model(class_operator=operator)
    assert model(operator=operator)(IMAGES).isfinite().all()


def test_residuals_see_the_class_token_as_first_in_its_layers():
    class FromFirst(nn.Module):
        needs_history = True

        def forward(self, x, y, context):
            assert len(context.history) in (1, 2)
            return x + y + 0.5 * context.first_tokens

    assert model(residual=FromFirst)(IMAGES).isfinite().all()


def test_operators_that_read_positions_need_some():
    class NeedsPositions(Operator):
        needs = ("positions",)

    with pytest.raises(ValueError, match="positions: NeedsPositions reads positions"):
        model(operator=NeedsPositions(), positions=None)
    assert model(positions=None)(IMAGES).isfinite().all()
    assert model(positions="sinusoidal")(IMAGES).isfinite().all()


def test_constructs_on_the_meta_device_and_exports():
    empty = model(device="meta")
    assert all(p.is_meta for p in empty.parameters())
    empty, vit = empty.to_empty(device="cpu"), model()
    for m in (empty, vit):
        torch.manual_seed(1)
        m.reset_parameters()
    assert_close(empty(IMAGES), vit(IMAGES), atol=0, rtol=0)
    exported = torch.export.export(vit, (IMAGES,)).module()
    assert_close(exported(IMAGES), vit(IMAGES), atol=1e-6, rtol=0)


def test_branches_are_scaled_by_default_as_in_cait():
    vit = model(dtype=torch.float64)
    for block in (*vit.blocks, *vit.class_blocks):
        for scale in (block.attention_scale, block.feed_forward_scale):
            assert_close(scale.gamma.detach(), torch.full((12,), 1e-5, dtype=torch.float64))
