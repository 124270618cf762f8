"""Models, blocks and biases against those of PyTorch and Hugging Face, on shared weights."""

import pytest
import torch
import transformers
from torch import nn
from torch.nn import functional as F
from torch.testing import assert_close

from twinsolve.unrolled import (
    Attention,
    Biased,
    ClassAttentionTransformer,
    ConvMixer,
    LanguageModel,
    Softmax,
    VisionTransformer,
    WindowedTransformer,
)
from twinsolve.unrolled.models.stacks import make_blocks
from twinsolve.unrolled.spectral_filtering import LayerScale

EPS = 1e-3
GENERATOR = torch.Generator().manual_seed(0)
X = torch.randn(2, 7, 12, generator=GENERATOR, dtype=torch.float64)
IMAGES = torch.randn(2, 2, 8, 12, generator=GENERATOR, dtype=torch.float64)
IDS = torch.randint(11, (3, 9), generator=GENERATOR)
PADDING = torch.arange(7) >= torch.tensor([[7], [5]])
PAIRS = torch.rand(6, 7, 7, generator=GENERATOR) < 0.4
PAIRS[..., range(7), range(7)] = False
CAUSAL = torch.ones(7, 7, dtype=torch.bool).triu(1)
SIZES = {"image_size": (8, 12), "patch_size": (2, 3), "in_channels": 2, "num_classes": 5}
SIZES |= {"dim": 12, "num_heads": 3, "norm_eps": EPS, "mlp_ratio": 2.0}


def drawn(module):
    """All weights and running statistics moved at random, so that none is 0 or 1."""
    torch.manual_seed(1)
    module.double()
    with torch.no_grad():
        for parameter in module.parameters():
            parameter += 0.2 * torch.randn_like(parameter)
        for name, buffer in module.named_buffers():
            if name.endswith(("running_mean", "running_var")):
                buffer += 0.5 * torch.randn_like(buffer).abs()
    return module.eval()


def assert_same(found, expected):
    assert_close(found, expected, atol=1e-11, rtol=0)


def make_theirs(block):
    """PyTorch's encoder layer with the weights of a block; scales go into the linear maps."""
    network = block.feed_forward
    layer = nn.TransformerEncoderLayer(
        12, 3, network.fc1.out_features, 0.0, "gelu", EPS, batch_first=True, norm_first=True,
        dtype=torch.float64,
    )  # fmt: skip
    for part, ours in (
        (layer.self_attn, block.attention),
        (layer.norm1, block.attention_norm),
        (layer.norm2, block.feed_forward_norm),
        (layer.linear1, network.fc1),
        (layer.linear2, network.fc2),
    ):
        part.load_state_dict(ours.state_dict())
    scales = (block.attention_scale, block.feed_forward_scale)
    for linear, scale in zip((layer.self_attn.out_proj, layer.linear2), scales, strict=True):
        if isinstance(scale, LayerScale):
            linear.weight.data *= scale.gamma[:, None]
            linear.bias.data *= scale.gamma
    return layer.eval()


def run_theirs(blocks, x, **masks):
    for block in blocks:
        x = make_theirs(block)(x, **masks)
    return x


@pytest.mark.parametrize("padding", [None, PADDING])
@pytest.mark.parametrize("pairs", [None, CAUSAL, PAIRS], ids=["all", "causal", "heads"])
def test_a_block_is_pytorchs_encoder_layer(pairs, padding):
    (block,) = blocks = drawn(make_blocks(1, 12, 3, mlp_ratio=2, norm_eps=EPS, scale=LayerScale))
    expected = run_theirs(blocks, X, src_mask=pairs, src_key_padding_mask=padding)
    assert_same(block(X, attn_mask=pairs, key_padding_mask=padding), expected)
    if pairs is CAUSAL:
        assert_same(block(X, is_causal=True, key_padding_mask=padding), expected)


def embed(model, images):
    """Patches by a convolution, row by row."""
    linear = model.patch_embedding.projection
    weight = linear.weight.view(12, 2, 2, 3)
    return F.conv2d(images, weight, linear.bias, stride=(2, 3)).flatten(2).mT


@pytest.mark.parametrize("positions", ["learned", "sinusoidal"])
@pytest.mark.parametrize("pool", ["class", "mean"])
def test_vision_transformer(pool, positions):
    model = drawn(VisionTransformer(**SIZES, depth=2, pool=pool, positions=positions))
    hidden = torch.arange(16) >= torch.tensor([[12], [9]])
    for padding in (None, hidden):
        x, seen = embed(model, IMAGES), padding
        if pool == "class":
            x = torch.cat([model.class_token.expand(2, 1, 12), x], dim=1)
            seen = None if padding is None else F.pad(padding, (1, 0))
        x = run_theirs(model.blocks, x + model.positions.weight, src_key_padding_mask=seen)
        x = F.layer_norm(x, (12,), model.norm.weight, model.norm.bias, EPS)
        shown = torch.ones(2, 16) if padding is None else ~padding
        mean = torch.stack([y[s.bool()].mean(0) for y, s in zip(x[:, -16:], shown, strict=True)])
        assert_same(model(IMAGES, padding), model.head(x[:, 0] if pool == "class" else mean))


def test_class_attention_transformer():
    model = drawn(ClassAttentionTransformer(**SIZES, depth=2))
    x = run_theirs(model.blocks, embed(model, IMAGES) + model.positions.weight)
    token = model.class_token.expand(2, 1, 12)
    for layer in map(make_theirs, model.class_blocks):
        tokens = layer.norm1(torch.cat([token, x], dim=1))
        token = token + layer.self_attn(tokens[:, :1], tokens, tokens)[0]
        token = token + layer.linear2(F.gelu(layer.linear1(layer.norm2(token))))
    features = model.norm(torch.cat([token, x], dim=1))
    assert_same(model.forward_features(IMAGES), features)
    assert_same(model(IMAGES), model.head(features[:, 0]))


@pytest.mark.parametrize("tie_weights", [True, False])
def test_language_model(tie_weights):
    model = drawn(
        LanguageModel(11, 12, 2, 3, 20, tie_weights=tie_weights, norm_eps=EPS, mlp_ratio=2.0)
    )
    hidden = torch.arange(9) >= torch.tensor([[9], [6], [4]])
    weight = model.embedding.weight
    later = torch.ones(9, 9, dtype=torch.bool).triu(1)
    for padding in (None, hidden):
        x = F.embedding(IDS, weight) * 12**0.5 + model.positions.weight[:9]
        x = run_theirs(model.blocks, x, src_mask=later, src_key_padding_mask=padding)
        scores = model.norm(x) @ (weight if tie_weights else model.head.weight).T
        assert_same(model(IDS, padding), scores)
        targets = IDS if padding is None else IDS.masked_fill(padding, -100)
        losses = F.cross_entropy(scores[:, :-1].flatten(0, 1), targets[:, 1:].flatten())
        assert_same(model.loss(IDS, padding), losses)
    additive = torch.zeros(3, 9).double().masked_fill(hidden, -torch.inf)
    assert_same(model.loss(IDS, additive), losses)


def copy_swin(ours, theirs):
    """Weights of Hugging Face's Swin transformer, their biases of positions among them."""
    blocks = [block for stage in ours.stages for block in stage.blocks]
    layers = [layer for stage in theirs.swin.encoder.layers for layer in stage.blocks]
    for block, layer in zip(blocks, layers, strict=True):
        attention = layer.attention
        parts = [getattr(attention, f"{name}_proj") for name in "qkv"]
        block.attention.in_proj_weight.data = torch.cat([part.weight for part in parts])
        block.attention.in_proj_bias.data = torch.cat([part.bias for part in parts])
        block.attention.operator = Biased(Softmax(), attention.relative_position_bias()[0])
        for part, source in (
            (block.attention.out_proj, attention.o_proj),
            (block.attention_norm, layer.layernorm_before),
            (block.feed_forward_norm, layer.layernorm_after),
            (block.feed_forward.fc1, layer.mlp.fc1),
            (block.feed_forward.fc2, layer.mlp.fc2),
        ):
            part.load_state_dict(source.state_dict())
    embeddings = theirs.swin.embeddings
    ours.patch_embedding.projection.weight.data = embeddings.patch_embeddings.projection.weight[
        ..., 0, 0
    ]
    ours.patch_embedding.projection.bias = embeddings.patch_embeddings.projection.bias
    ours.stages[0].positions.weight.data = embeddings.position_embeddings[0]
    # They count the four neighbours of a patch by columns.
    merge = theirs.swin.encoder.layers[0].downsample
    by_rows = torch.arange(24).view(2, 2, 6).transpose(0, 1).flatten()
    ours.merges[0].norm.weight.data = merge.norm.weight[by_rows]
    ours.merges[0].norm.bias.data = merge.norm.bias[by_rows]
    ours.merges[0].reduction.weight.data = merge.reduction.weight[:, by_rows]
    ours.norm.load_state_dict(theirs.swin.layernorm.state_dict())
    ours.head.load_state_dict(theirs.classifier.state_dict())


def test_windowed_transformer_is_swin():
    """But for the norm of their embeddings; ours has positions in the second stage too."""
    config = transformers.SwinConfig(
        image_size=(8, 12), patch_size=1, num_channels=2, embed_dim=6, depths=(3, 2),
        num_heads=(2, 3), window_size=2, mlp_ratio=2.0, layer_norm_eps=1e-5, num_labels=5,
        use_absolute_embeddings=True,
    )  # fmt: skip
    theirs = drawn(transformers.SwinForImageClassification(config))
    theirs.swin.embeddings.norm = nn.Identity()
    ours = WindowedTransformer(
        (8, 12), 1, 2, 5, 6, (3, 2), (2, 3), window_size=2, mlp_ratio=2.0, norm_eps=1e-5,
        dtype=torch.float64,
    )  # fmt: skip
    with torch.no_grad():
        copy_swin(ours, theirs)
    positions = ours.stages[1].positions.weight
    theirs.swin.encoder.layers[1].register_forward_pre_hook(
        lambda stage, args: (args[0] + positions, *args[1:])
    )
    assert_same(ours(IMAGES), theirs(IMAGES).logits)


class Skip(nn.Sequential):
    def forward(self, x):
        return super().forward(x) + x


@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel lengths")
@pytest.mark.parametrize(("skip", "kernel_size"), [(True, 3), (True, 4), (False, 3)])
def test_conv_mixer_is_that_of_the_paper(skip, kernel_size):
    def followed(convolution):
        return [convolution, nn.GELU(), nn.BatchNorm2d(6)]

    ours = drawn(ConvMixer(6, 2, kernel_size, 2, 5, skip, in_channels=2))
    layers = []
    for _ in range(2):
        spatial = followed(nn.Conv2d(6, 6, kernel_size, groups=6, padding="same"))
        layers += [(Skip if skip else nn.Sequential)(*spatial), *followed(nn.Conv2d(6, 6, 1))]
    theirs = nn.Sequential(
        *followed(nn.Conv2d(2, 6, 2, stride=2)), *layers,
        nn.AdaptiveAvgPool2d((1, 1)), nn.Flatten(), nn.Linear(6, 5),
    ).double()  # fmt: skip
    weights = zip(theirs.state_dict(), ours.state_dict().values(), strict=True)
    theirs.load_state_dict(dict(weights))
    for training in (False, True):
        assert_same(ours.train(training)(IMAGES), theirs.train(training)(IMAGES))


@pytest.mark.parametrize("mask", [torch.zeros(7, 7).bool(), CAUSAL, PADDING[:, None, None]])
def test_biased_attention_is_that_of_t5(mask):
    """T5's logits are not divided by a root of the width."""
    config = transformers.T5Config(
        d_model=12, d_kv=4, num_heads=3, relative_attention_num_buckets=6,
        relative_attention_max_distance=8,
    )  # fmt: skip
    theirs = drawn(transformers.models.t5.modeling_t5.T5Attention(config, True))
    bias = theirs.compute_bias(7, 7).detach()
    ours = Attention(12, 3, operator=Biased(Softmax(), bias), bias=False, dtype=torch.float64)
    parts = 2 * theirs.q.weight, theirs.k.weight, theirs.v.weight
    ours.load_state_dict(
        {
            "in_proj_weight": torch.cat(parts), "out_proj.weight": theirs.o.weight,
            "operator.bias": bias,
        }
    )  # fmt: skip
    additive = torch.zeros(mask.shape).double().masked_fill(mask, -torch.inf)
    expected, _, matrix = theirs(X, mask=additive.expand(2, 1, 7, 7))
    masks = {"attn_mask": mask} if mask.ndim == 2 else {"key_padding_mask": PADDING}
    found, weights = ours(X, X, X, average_attn_weights=False, **masks)
    assert_same(found, expected)
    assert_same(weights, matrix)
