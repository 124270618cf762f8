import pytest
import torch
from torch.testing import assert_close

from twinsolve.unrolled import ClassAttentionTransformer, FeatScale, SparseCoding, make_operator

from .kinds import KINDS

IMAGES = torch.randn(3, 1, 16, 16, generator=torch.Generator().manual_seed(0))


def model(**options):
    torch.manual_seed(0)
    return ClassAttentionTransformer(16, 4, 1, 5, 12, 2, 3, **options).eval()


def test_every_kind_of_operator_runs_in_class_attention_or_is_refused():
    for name in KINDS:
        operator = make_operator(name, num_heads=3, head_dim=4)
        if operator.square_only or operator.needs or operator.positional:
            with pytest.raises(ValueError, match=r"class_operator: .* needs .* one query"):
                model(class_operator=name)
            continue
        vit = model(class_operator=name, layer_scale=0.3).train()
        vit(IMAGES).square().sum().backward()
        grads = {n: p.grad for n, p in vit.named_parameters() if ".operator." not in n}
        assert all(g is not None and g.isfinite().all() for g in grads.values()), name
        assert grads["patch_embedding.projection.weight"].any(), name


def test_operators_that_cannot_serve_one_query_are_refused():
    for operator, message in (
        (SparseCoding(0.1, zero_diagonal=True), "SparseCoding needs as many queries as keys"),
        ("twicing", "Twicing needs as many queries as keys"),
        ("alibi", "ALiBi needs places of tokens"),
    ):
        with pytest.raises(ValueError, match=f"class_operator: {message}"):
            model(class_operator=operator)
        assert model(operator=operator)(IMAGES).isfinite().all()


def test_branches_are_scaled_by_default_as_in_cait():
    vit = model(dtype=torch.float64)
    for block in (*vit.blocks, *vit.class_blocks):
        for scale in (block.attention_scale, block.feed_forward_scale):
            assert_close(scale.gamma.detach(), torch.full((12,), 1e-5, dtype=torch.float64))
    assert_close(model(layer_scale=None)(IMAGES), model(layer_scale=1.0)(IMAGES))


def test_feat_scale_joins_the_layer_scale_of_patch_layers_alone():
    """As published: CaiT stays, attention of patch layers gains FeatScale."""
    cait = model(scale=FeatScale, layer_scale=0.3, dtype=torch.float64)
    layer, x = cait.blocks[0], torch.randn(2, 16, 12, dtype=torch.float64)
    s, t = (torch.randn(12, dtype=torch.float64) for _ in range(2))
    with torch.no_grad():
        layer.attention_scale.scale.s.copy_(s)
        layer.attention_scale.scale.t.copy_(t)
    y = layer.attention(*[layer.attention_norm(x)] * 3)[0]
    mean = y.mean(dim=1, keepdim=True)
    expected = x + 0.3 * (y + s * mean + t * (y - mean))
    expected = expected + 0.3 * layer.feed_forward(layer.feed_forward_norm(expected))
    assert_close(layer(x), expected, atol=1e-12, rtol=0)
