"""One context for several passes: each pass has what fresh contexts would give it."""

import copy

import pytest
import torch
from torch import nn
from torch.testing import assert_close
from torch.utils.checkpoint import checkpoint

from twinsolve.unrolled import (
    Attention,
    ClassAttentionTransformer,
    Context,
    GeneralizedResidual,
    LanguageModel,
    VisionTransformer,
    WindowedTransformer,
    make_operator,
    operator_names,
)
from twinsolve.unrolled.models import Block

GENERATOR = torch.Generator().manual_seed(0)
X, Y = torch.randn(2, 2, 24, 12, dtype=torch.float64, generator=GENERATOR).unbind()
POSITIONS = torch.randn(24, 12, dtype=torch.float64, generator=GENERATOR)
SHARING = [n for n in operator_names() if make_operator(n, num_heads=3, head_dim=4).needs]


def shells(name, depth=2):
    torch.manual_seed(0)
    made = (make_operator(name, num_heads=3, head_dim=4) for _ in range(depth))
    return [Attention(12, 3, operator=operator).double() for operator in made]


def run_shells(layers, x, context):
    for layer in layers:
        x, _, context = layer(x, x, x, need_weights=False, context=context)
    return x


def blocks(name, depth=2, **options):
    torch.manual_seed(0)
    return [Block(12, 3, operator=name, **options).double() for _ in range(depth)]


def run_blocks(layers, x, context):
    for layer in layers:
        x, context = layer(x, context)
    return x


@pytest.mark.parametrize("name", SHARING)
@pytest.mark.parametrize(
    ("make", "run"), [(shells, run_shells), (blocks, run_blocks)], ids=["shells", "blocks"]
)
def test_a_context_serves_several_passes(make, run, name):
    layers, shared = make(name), Context(positions=POSITIONS)
    for x in (X, Y):
        found = run(layers, x, shared)
        expected = run(layers, x, Context(positions=POSITIONS))
        assert (found == expected).all()
        parameters = [p for layer in layers for p in layer.parameters()]
        for a, b in zip(
            torch.autograd.grad(found.sum(), parameters, allow_unused=True),
            torch.autograd.grad(expected.sum(), parameters, allow_unused=True),
            strict=True,
        ):
            assert (a is None and b is None) or (a == b).all()
    assert shared == Context(positions=POSITIONS)


def backbones():
    sizes = {"dim": 12, "num_heads": 3, "dtype": torch.float64, "mlp_ratio": 1.0}
    images = torch.randn(2, 2, 1, 8, 8, dtype=torch.float64, generator=GENERATOR).unbind()
    ids = torch.randint(9, (2, 2, 8), generator=GENERATOR).unbind()
    yield lambda o: VisionTransformer(8, 2, 1, 3, depth=3, operator=o, **sizes), images
    yield lambda o: ClassAttentionTransformer(8, 2, 1, 3, depth=3, operator=o, **sizes), images
    yield lambda o: LanguageModel(9, depth=3, max_length=8, operator=o, **sizes), ids
    yield (
        lambda o: WindowedTransformer(
            8, 1, 1, 3, operator=o, **sizes | {"depths": (3,), "num_heads": (3,)}
        ),
        images,
    )


@pytest.mark.parametrize(("make", "inputs"), [*backbones()])
def test_two_passes_and_then_both_backward(make, inputs):
    torch.manual_seed(0)
    model = make("neutreno")
    losses = [model(x).square().sum() for x in inputs]
    for i in (1, 0):
        expected = torch.autograd.grad(model(inputs[i]).square().sum(), [*model.parameters()])
        found = torch.autograd.grad(losses[i], [*model.parameters()])
        assert_close(found, expected, atol=0, rtol=0)


@pytest.mark.parametrize("name", SHARING)
@pytest.mark.parametrize("residual", [None, lambda: GeneralizedResidual(0)])
def test_checkpointed_blocks_equal_plain_ones(name, residual):
    class Checkpointed(nn.Module):
        def __init__(self, block):
            super().__init__()
            self.block, self.attention = block, block.attention
            self.needs_history = block.needs_history

        def forward(self, x, context, **arguments):
            return checkpoint(self.block, x, context, use_reentrant=False, **arguments)

    torch.manual_seed(0)
    model = VisionTransformer(
        4, 1, 1, 3, 12, 3, 3, operator=name, residual=residual, dtype=torch.float64
    )
    images = torch.randn(2, 2, 1, 4, 4, dtype=torch.float64, generator=GENERATOR)
    plain = [torch.autograd.grad(model(x).sum(), [*model.blocks.parameters()]) for x in images]
    model.blocks = nn.ModuleList(Checkpointed(block) for block in model.blocks)
    losses = [model(x).sum() for x in images]
    for i in (0, 1):
        found = torch.autograd.grad(losses[i], [*model.blocks.parameters()])
        assert_close(found, plain[i], atol=1e-12, rtol=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["neutreno", "elliptical"])
def test_backbones_compile_whole(name):
    model = VisionTransformer(8, 2, 1, 3, 12, 2, 3, operator=name, dtype=torch.float64)
    images = torch.randn(2, 1, 8, 8, dtype=torch.float64, generator=GENERATOR)
    compiled = torch.compile(copy.deepcopy(model), fullgraph=True)
    for _ in range(2):
        assert_close(compiled(images), model(images), atol=1e-10, rtol=0)
