"""Weights of timm and Hugging Face: the same scores as theirs."""

import pytest
import torch
from safetensors.torch import load_file
from torch import nn
from torch.testing import assert_close

from twinsolve.unrolled import SparseCoding, VisionTransformer, attach_huggingface, record
from twinsolve.unrolled.models import load_huggingface_state_dict, load_timm_state_dict
from twinsolve.unrolled.spectral_filtering import LayerScale

DIM, HEADS, DEPTH, PATCH, SIZE, CLASSES = 12, 3, 2, 4, 12, 5
IMAGES = torch.randn(2, 3, SIZE, SIZE, generator=torch.Generator().manual_seed(0))


transformers = pytest.importorskip("transformers")


def theirs(kind=transformers.ViTForImageClassification, **settings):
    torch.manual_seed(1)
    config = transformers.ViTConfig(
        **{"hidden_size": DIM, "num_hidden_layers": DEPTH, "num_attention_heads": HEADS}
        | {"intermediate_size": 4 * DIM, "image_size": SIZE, "patch_size": PATCH}
        | {"num_labels": CLASSES, "initializer_range": 0.4}
        | settings
    )
    vit = kind(config).eval()
    with torch.no_grad():
        for parameter in vit.parameters():
            parameter.normal_(std=0.4)
    return vit


TIMM = {
    "vit.embeddings.patch_embeddings.projection": "patch_embed.proj",
    "vit.embeddings.position_embeddings": "pos_embed",
    "vit.embeddings.": "", "vit.layers.": "blocks.", "vit.layernorm": "norm", "classifier": "head",
    "layernorm_before": "norm1", "layernorm_after": "norm2", "attention.o_proj": "attn.proj",
}  # fmt: skip


def timm_weights():
    """Those of their model under the names of timm, and packed as there."""
    renamed = {}
    for name, value in theirs().state_dict().items():
        for old, new in TIMM.items():
            name = name.replace(old, new)
        renamed[name] = value
    for block in range(DEPTH):
        for kind in ("weight", "bias"):
            parts = [renamed.pop(f"blocks.{block}.attention.{x}_proj.{kind}") for x in "qkv"]
            renamed[f"blocks.{block}.attn.qkv.{kind}"] = torch.cat(parts)
    return renamed


def model(**options):
    torch.manual_seed(2)
    return VisionTransformer(
        **{"image_size": SIZE, "patch_size": PATCH, "in_channels": 3, "num_classes": CLASSES}
        | {"dim": DIM, "depth": DEPTH, "num_heads": HEADS}
        | options
    ).eval()


def test_weights_of_timm_give_their_scores():
    vit = model(norm_eps=1e-12)
    load_timm_state_dict(vit, timm_weights())
    assert_close(vit(IMAGES), theirs()(IMAGES).logits, atol=1e-5, rtol=0)


def test_timms_layer_scales_go_where_the_model_has_some():
    vit, plain, weights = model(scale=LayerScale), model(), timm_weights()
    for block in range(DEPTH):
        for name in ("ls1", "ls2"):
            weights[f"blocks.{block}.{name}.gamma"] = torch.randn(DIM)
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
    kind = transformers.ViTForImageClassification if head else transformers.ViTModel
    vit = theirs(kind)
    state = vit.state_dict()
    if saved:
        vit.save_pretrained(tmp_path)
        state = load_file(tmp_path / "model.safetensors")
        assert any("attention.attention.query" in name for name in state)
    ours = model(num_classes=CLASSES if head else 0, norm_eps=1e-12)
    load_huggingface_state_dict(ours, state)
    found = ours(IMAGES) if head else ours.forward_features(IMAGES)
    expected = vit(IMAGES).logits if head else vit(IMAGES).last_hidden_state
    assert_close(found, expected, atol=1e-5, rtol=0)


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
    weights = timm_weights() if load is load_timm_state_dict else theirs().state_dict()
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
    weights = theirs().state_dict()
    del weights["vit.layers.0.attention.k_proj.weight"]
    with pytest.raises(ValueError, match=r"missing blocks.0.attention.in_proj_weight"):
        load_huggingface_state_dict(model(), weights)


def test_positions_of_another_grid_are_refused_or_resampled():
    weights = timm_weights() | {"pos_embed": torch.randn(1, 1 + 6 * 6, DIM)}
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
    vit = theirs(num_hidden_layers=3).double()
    ours = model(
        depth=3, operator=operator, add_positions=True, norm_eps=1e-12, dtype=torch.float64
    )
    load_huggingface_state_dict(ours, vit.state_dict())
    made = [block.attention.operator for block in ours.blocks]
    attach_huggingface(
        vit,
        lambda name: made[int(name.split("layer")[1].split(".")[1])],
        positions="vit.embeddings.position_embeddings",
    )
    with record(vit) as rows:
        scores = vit(IMAGES.double()).logits
    with record(ours) as expected:
        assert_close(scores, ours(IMAGES.double()), atol=1e-10, rtol=0)
    keys = ("call", "layer", "measure")
    assert [[r[k] for k in keys] for r in rows] == [[r[k] for k in keys] for r in expected]
    for row, other in zip(rows, expected, strict=True):
        assert row["value"] == pytest.approx(other["value"], rel=1e-8, abs=1e-10)
