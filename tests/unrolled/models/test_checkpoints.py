"""Weights of timm and Hugging Face: the same scores as theirs."""

import re

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from twinsolve.unrolled import SparseCoding, VisionTransformer, attach_huggingface, record
from twinsolve.unrolled.models import load_huggingface_state_dict, load_timm_state_dict
from twinsolve.unrolled.spectral_filtering import LayerScale

DIM, HEADS, DEPTH, PATCH, SIZE, CLASSES = 12, 3, 2, 4, 12, 5
IMAGES = torch.randn(2, 3, SIZE, SIZE, generator=torch.Generator().manual_seed(0))


def timm_weights(layer_scale=False, n_positions=10):
    """Random weights under timm's names and in its shapes."""
    block = {
        "norm1.weight": (DIM,), "norm1.bias": (DIM,),
        "attn.qkv.weight": (3 * DIM, DIM), "attn.qkv.bias": (3 * DIM,),
        "attn.proj.weight": (DIM, DIM), "attn.proj.bias": (DIM,),
        "norm2.weight": (DIM,), "norm2.bias": (DIM,),
        "mlp.fc1.weight": (4 * DIM, DIM), "mlp.fc1.bias": (4 * DIM,),
        "mlp.fc2.weight": (DIM, 4 * DIM), "mlp.fc2.bias": (DIM,),
    }  # fmt: skip
    if layer_scale:
        block |= {"ls1.gamma": (DIM,), "ls2.gamma": (DIM,)}
    shapes = {
        "cls_token": (1, 1, DIM), "pos_embed": (1, n_positions, DIM),
        "patch_embed.proj.weight": (DIM, 3, PATCH, PATCH), "patch_embed.proj.bias": (DIM,),
    }  # fmt: skip
    shapes |= {f"blocks.{i}.{k}": shape for i in range(DEPTH) for k, shape in block.items()}
    shapes |= {"norm.weight": (DIM,), "norm.bias": (DIM,)}
    shapes |= {"head.weight": (CLASSES, DIM), "head.bias": (CLASSES,)}
    generator = torch.Generator().manual_seed(1)
    return {k: 0.4 * torch.randn(shape, generator=generator) for k, shape in shapes.items()}


HUGGINGFACE_NAMES = {
    "cls_token": "vit.embeddings.cls_token",
    "pos_embed": "vit.embeddings.position_embeddings",
    "patch_embed.proj": "vit.embeddings.patch_embeddings.projection",
    "norm1": "layernorm_before",
    "norm2": "layernorm_after",
    "attn.proj": "attention.output.dense",
    "mlp.fc1": "intermediate.dense",
    "mlp.fc2": "output.dense",
    "head": "classifier",
}


def huggingface_weights(timm):
    """The same weights under the names of files that Hugging Face saves."""
    renamed = {}
    for name, value in timm.items():
        name = re.sub(r"^norm\.", "vit.layernorm.", name)
        for old, new in HUGGINGFACE_NAMES.items():
            name = re.sub(rf"(^|\.){re.escape(old)}(\.|$)", rf"\g<1>{new}\g<2>", name)
        name = name.replace("blocks.", "vit.encoder.layer.")
        if "attn.qkv" in name:
            for part, rows in zip(("query", "key", "value"), value.chunk(3), strict=True):
                renamed[name.replace("attn.qkv", f"attention.attention.{part}")] = rows
        else:
            renamed[name] = value
    return renamed


def model(**options):
    torch.manual_seed(2)
    return VisionTransformer(
        **{"image_size": SIZE, "patch_size": PATCH, "in_channels": 3, "num_classes": CLASSES}
        | {"dim": DIM, "depth": DEPTH, "num_heads": HEADS}
        | options
    ).eval()


def test_timm_weights_are_those_of_hugging_face_under_other_names():
    vit, other, weights = model(), model(), timm_weights()
    load_timm_state_dict(vit, weights)
    load_huggingface_state_dict(other, huggingface_weights(weights))
    assert_close(vit(IMAGES), other(IMAGES), atol=0, rtol=0)
    assert not torch.allclose(model()(IMAGES), other(IMAGES), atol=0.1)


def test_timms_layer_scales_go_where_the_model_has_some():
    vit, plain, weights = model(scale=LayerScale), model(), timm_weights(layer_scale=True)
    load_timm_state_dict(vit, weights)
    with pytest.raises(ValueError, match=r"unexpected blocks\.0\.attention_scale\.gamma"):
        load_timm_state_dict(plain, weights)
    for name, linear in (("ls1", "attn.proj"), ("ls2", "mlp.fc2")):
        for block in range(DEPTH):
            gamma = weights.pop(f"blocks.{block}.{name}.gamma")
            weights[f"blocks.{block}.{linear}.weight"] *= gamma[:, None]
            weights[f"blocks.{block}.{linear}.bias"] *= gamma
    load_timm_state_dict(plain, weights)
    assert_close(vit(IMAGES), plain(IMAGES), atol=2e-5, rtol=0)


@pytest.mark.parametrize(("head", "saved"), [(False, False), (True, True)])
def test_huggingface_models_give_their_own_scores(head, saved, tmp_path):
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.ViTConfig(
        hidden_size=DIM, num_hidden_layers=DEPTH, num_attention_heads=HEADS, intermediate_size=20,
        image_size=SIZE, patch_size=PATCH, num_labels=CLASSES,
    )  # fmt: skip
    kind = transformers.ViTForImageClassification if head else transformers.ViTModel
    theirs = kind(config).eval()
    with torch.no_grad():
        for p in theirs.parameters():
            p.normal_(std=0.4)
    state = theirs.state_dict()
    if saved:
        theirs.save_pretrained(tmp_path)
        load_file = pytest.importorskip("safetensors.torch").load_file
        state = load_file(tmp_path / "model.safetensors")
        assert any("attention.attention.query" in name for name in state)
    ours = model(num_classes=CLASSES if head else 0, mlp_ratio=20 / DIM, norm_eps=1e-12)
    load_huggingface_state_dict(ours, state)
    with torch.no_grad():
        if head:
            assert_close(ours(IMAGES), theirs(IMAGES).logits, atol=1e-5, rtol=0)
        else:
            expected = theirs(IMAGES).last_hidden_state
            assert_close(ours.forward_features(IMAGES), expected, atol=1e-5, rtol=0)


def test_parameters_that_the_plain_transformer_lacks_keep_their_values():
    operator = SparseCoding(0.3, num_heads=HEADS, learnable=True)
    vit = model(operator=operator, scale=lambda dim: nn.Linear(dim, dim))
    before = {k: v.clone() for k, v in vit.state_dict().items()}
    load_timm_state_dict(vit, timm_weights())
    kept = {k for k, v in vit.state_dict().items() if torch.equal(v, before[k])}
    own = {k for k in before if ".operator." in k or "_scale." in k}
    assert own
    assert kept == own


@pytest.mark.parametrize("load", [load_timm_state_dict, load_huggingface_state_dict])
def test_faults_are_named_and_nothing_is_loaded(load):
    weights = timm_weights()
    weights = weights if load is load_timm_state_dict else huggingface_weights(weights)
    head = "head.bias" if load is load_timm_state_dict else "classifier.bias"
    vit = model()
    before = {k: v.clone() for k, v in vit.state_dict().items()}
    cases = [
        ({k: v for k, v in weights.items() if k != head}, "missing head.bias"),
        (weights | {"dist_token": torch.zeros(1)}, "unexpected dist_token"),
        (weights | {head: torch.zeros(7)}, r"shape head.bias \(7,\) for \(5,\)"),
    ]
    for state, message in cases:
        with pytest.raises(ValueError, match=f"state_dict: {message}"):
            load(vit, state)
    for options in ({"pool": "mean"}, {"positions": "sinusoidal"}, {"depth": 3}):
        with pytest.raises(ValueError, match="state_dict: "):
            load(model(**options), weights)
    assert all(torch.equal(v, before[k]) for k, v in vit.state_dict().items())


def test_a_query_without_key_and_value_is_named():
    weights = huggingface_weights(timm_weights())
    del weights["vit.encoder.layer.0.attention.attention.key.weight"]
    with pytest.raises(ValueError, match=r"missing blocks.0.attention.in_proj_weight"):
        load_huggingface_state_dict(model(), weights)


def test_positions_of_another_grid_are_refused_or_resampled():
    weights = timm_weights(n_positions=1 + 6 * 6)
    with pytest.raises(ValueError, match=r"has 37 positions, .* 3 x 3 .* interpolate_positions"):
        load_timm_state_dict(model(), weights)
    no_square = weights | {"pos_embed": weights["pos_embed"][:, 1:]}
    with pytest.raises(ValueError, match="has 36 positions"):
        load_timm_state_dict(model(), no_square, interpolate_positions=True)
    # A plane of positions stays one, up to the border, whatever the two grids are.
    axis = (torch.arange(6.0) + 0.5) / 6
    plane = (axis[:, None] + 2 * axis).flatten()[:, None].expand(-1, DIM)
    first = torch.full((1, DIM), 9.0)
    weights["pos_embed"] = torch.cat([first, plane])[None]
    vit = model(image_size=48)
    load_timm_state_dict(vit, weights, interpolate_positions=True)
    axis = (torch.arange(12.0) + 0.5) / 12
    found = vit.positions.weight[1:, 0].unflatten(0, (12, 12))[4:-4, 4:-4]
    assert_close(found, (axis[:, None] + 2 * axis)[4:-4, 4:-4], atol=1e-5, rtol=0)
    assert_close(vit.positions.weight[:1], first)


@pytest.mark.filterwarnings("ignore:positions. .* takes them as a separate feature")
@pytest.mark.parametrize("operator", ["bilateral", "elliptical", "neutreno"])
def test_huggingface_models_with_operators_are_measured_as_ours_with_their_weights(operator):
    """The same operator in their model and in ours: equal scores, and equal rows of `record`."""
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.ViTConfig(
        hidden_size=16, num_hidden_layers=3, num_attention_heads=2, intermediate_size=32,
        image_size=8, patch_size=2, num_channels=1, initializer_range=0.3,
    )  # fmt: skip
    theirs = transformers.ViTForImageClassification(config).double().eval()
    ours = VisionTransformer(
        8, 2, 1, 2, 16, 3, 2, operator=operator, add_positions=True, mlp_ratio=2, norm_eps=1e-12,
        dtype=torch.float64,
    ).eval()  # fmt: skip
    load_huggingface_state_dict(ours, theirs.state_dict())
    made = [block.attention.operator for block in ours.blocks]
    attach_huggingface(
        theirs,
        lambda name: made[int(name.split("layer")[1].split(".")[1])],
        positions="vit.embeddings.position_embeddings",
    )
    images = torch.randn(2, 1, 8, 8, dtype=torch.float64)
    with record(theirs) as rows:
        scores = theirs(images).logits
    with record(ours) as expected:
        assert_close(scores, ours(images), atol=1e-10, rtol=0)
    keys = ("call", "layer", "measure")
    assert [[r[k] for k in keys] for r in rows] == [[r[k] for k in keys] for r in expected]
    for row, other in zip(rows, expected, strict=True):
        assert row["value"] == pytest.approx(other["value"], rel=1e-8, abs=1e-10)
