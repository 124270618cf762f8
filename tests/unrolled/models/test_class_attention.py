from functools import partial

import pytest
import torch
from torch import nn

from twinsolve.unrolled import (
    ClassAttentionTransformer,
    Softmax,
    SparseCoding,
    make_operator,
)
from twinsolve.unrolled.spectral_filtering import LayerScale

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
        vit = model(class_operator=name, scale=partial(LayerScale, initial=0.3)).train()
        vit(IMAGES).square().sum().backward()
        grads = {n: p.grad for n, p in vit.named_parameters() if ".operator." not in n}
        assert all(g is not None and g.isfinite().all() for g in grads.values()), name
        assert grads["patch_embedding.projection.weight"].any(), name


class NeedsFirst(Softmax):
    needs = ("first_values",)


def test_operators_that_cannot_serve_one_query_are_refused():
    for operator, message in (
        (SparseCoding(0.1, zero_diagonal=True), "SparseCoding needs as many queries as keys"),
        ("twicing", "Twicing needs as many queries as keys"),
        ("alibi", "ALiBi needs places of tokens"),
        (NeedsFirst(), "NeedsFirst needs first_values"),
    ):
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
