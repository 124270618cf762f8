"""Every operator and every part of a block, in every backbone that takes it."""

from functools import partial

import pytest
import torch
from torch.testing import assert_close

from twinsolve.unrolled import (
    ClassAttentionTransformer,
    ConvMixer,
    FeatScale,
    GeneralizedResidual,
    LanguageModel,
    SparseCoding,
    SparseMixtureOfExperts,
    TokenGraying,
    VisionTransformer,
    WindowedTransformer,
    make_operator,
    operator_names,
    replace_attention,
)
from twinsolve.unrolled.diagnostics import MEASURES, record
from twinsolve.unrolled.spectral_filtering import LayerScale

from .kinds import KINDS

GENERATOR = torch.Generator().manual_seed(0)
IMAGES = torch.randn(2, 1, 8, 8, generator=GENERATOR, dtype=torch.float64)
IDS = torch.randint(11, (2, 18), generator=GENERATOR)

# Options to a model, and what is refused of an operator there.
BACKBONES = {
    "vision": (partial(VisionTransformer, 8, 2, 1, 5, 8, 2, 2), None),
    "vision_mean": (partial(VisionTransformer, 8, 2, 1, 5, 8, 2, 2, pool="mean"), None),
    "windowed": (
        partial(WindowedTransformer, 8, 1, 1, 5, 8, (2, 1), (2, 2), window_size=4),
        lambda operator: not operator.pair_masks and "takes no masks of pairs",
    ),
    "windows_in_place": (
        partial(WindowedTransformer, 8, 1, 1, 5, 8, (2,), (2,), window_size=4, shift=False),
        None,
    ),
    "class_attention": (partial(ClassAttentionTransformer, 8, 2, 1, 5, 8, 2, 2), None),
    "language": (
        partial(LanguageModel, 11, 8, 2, 2, 18),
        lambda operator: not operator.causal and "does not support causal masks",
    ),
}
# Layers, and those among them that do not have the operator under test.
DEPTHS = {"windowed": (3, 0), "class_attention": (4, 2)}
PARTS = {
    "feat_scale": {"scale": FeatScale},
    "layer_scale": {"scale": partial(LayerScale, initial=0.5)},
    "boosting": {"residual": GeneralizedResidual},
    "from_first_block": {"residual": partial(GeneralizedResidual, 0)},
    "from_this_block": {"residual": partial(GeneralizedResidual, -1)},
    "experts": {"feed_forward": lambda dim: SparseMixtureOfExperts(dim, 3, 4)},
}
REFUSED = {("language", "feat_scale")}


def build(backbone, **options):
    torch.manual_seed(0)
    return BACKBONES[backbone][0](**options)


def inputs(backbone):
    return IDS if backbone == "language" else IMAGES


def weights_are_applied(seen):
    """Largest difference of the operator's output from its explicit matrix times the values."""
    if not seen.operator.linear_in_values:
        return None
    return (seen.matrix @ seen.v - seen.output).abs().amax()


def backbones(name):
    """Each backbone, or why it refuses the operator."""
    operator = make_operator(name, num_heads=2, head_dim=4)
    for backbone, (_, refuses) in BACKBONES.items():
        yield backbone, operator, refuses and refuses(operator)


@pytest.mark.parametrize("name", operator_names())
def test_every_operator_learns_and_is_measured_in_every_backbone_or_is_refused(name):
    """What `record` sees is what the layer did: its matrix gives the output, to rounding."""
    for backbone, operator, reason in backbones(name):
        if reason:
            with pytest.raises(ValueError, match=f"operator: {type(operator).__name__} .*{reason}"):
                build(backbone, operator=name)
            continue
        model, x = build(backbone, operator=name, dtype=torch.float64), inputs(backbone)
        with record(model, MEASURES | {"difference": weights_are_applied}) as rows:
            out = model(x)
        assert_close(out, model(x), atol=0, rtol=0)
        out.square().sum().backward()
        grads = {n: p.grad for n, p in model.named_parameters() if p.requires_grad}
        assert all(g is not None and g.isfinite().all() for g in grads.values()), backbone

        n_layers, n_softmax = DEPTHS.get(backbone, (2, 0))
        assert {row["layer"] for row in rows} == set(range(n_layers)), backbone
        assert all(row["value"] == row["value"] for row in rows), backbone
        differences = [row["value"] for row in rows if row["measure"] == "difference"]
        assert len(differences) == (n_layers if operator.linear_in_values else n_softmax)
        assert max(differences, default=0) < 1e-9, backbone


def has_gates(name):
    operator = make_operator(name, num_heads=2, head_dim=4)
    return bool(operator.gates or operator.query_gates)


REPLACING = [name for name in KINDS if not has_gates(name)]


@pytest.mark.parametrize("name", REPLACING)
def test_a_replaced_operator_is_the_one_that_a_backbone_is_built_with(name):
    """Whatever layers share, windows and class attention included; twice, as no state stays."""
    for backbone, operator, reason in backbones(name):
        replaced, x = build(backbone, dtype=torch.float64), inputs(backbone)
        replaced = replace_attention(
            replaced, lambda layer: None if layer.startswith("class") else name
        )
        if reason:
            with pytest.raises(ValueError, match=type(operator).__name__):
                replaced(x)
            continue
        built = build(backbone, operator=name, dtype=torch.float64)
        built.load_state_dict(replaced.state_dict())
        for other in (x.flip(0), x):
            assert_close(replaced(other), built(other), atol=1e-11, rtol=0)
        with record(replaced) as rows, record(built) as expected:
            replaced(x)
            built(x)
        assert [r["measure"] for r in rows] == [r["measure"] for r in expected], backbone
        for row, other in zip(rows, expected, strict=True):
            assert row["value"] == pytest.approx(other["value"], rel=1e-8, abs=1e-10), backbone


@pytest.mark.parametrize("part", PARTS)
def test_every_part_of_a_block_learns_in_every_backbone_or_is_refused(part):
    for backbone in BACKBONES:
        if (backbone, part) in REFUSED:
            with pytest.raises(ValueError, match="scale: must act on each token alone"):
                build(backbone, **PARTS[part])
            continue
        model, x = build(backbone, **PARTS[part], dtype=torch.float64), inputs(backbone)
        model(x).square().sum().backward()
        assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())
        again = build(backbone, **PARTS[part], dtype=torch.float64)
        assert_close(again(x), model(x), atol=0, rtol=0)


def conv_mixer(**options):
    torch.manual_seed(0)
    return ConvMixer(6, 2, 3, 2, 5, in_channels=1, **options)


@pytest.mark.parametrize("backbone", [*BACKBONES, "conv_mixer"])
def test_backbones_construct_on_the_meta_device_and_export(backbone):
    make = conv_mixer
    if backbone in BACKBONES:
        operator = SparseCoding(0.2, num_heads=2, learnable=True)
        make = partial(build, backbone, operator=operator)
    empty, model = (make(device=d) for d in ("meta", "cpu"))
    assert all(t.is_meta for t in (*empty.parameters(), *empty.buffers()))
    empty = empty.to_empty(device="cpu")
    for m in (empty, model):
        torch.manual_seed(1)
        m.reset_parameters()
        m.eval()
    x = inputs(backbone)
    x = x.float() if x.is_floating_point() else x
    assert_close(empty(x), model(x), atol=0, rtol=0)
    exported = torch.export.export(model, (x,)).module()
    assert_close(exported(x), model(x), atol=1e-6, rtol=0)


@pytest.mark.parametrize("part", PARTS)
def test_hidden_patches_reach_no_part_and_no_graying(part):
    hidden = torch.zeros(2, 16, dtype=torch.bool)
    hidden[1, 8:] = True
    changed = IMAGES.clone()
    changed[1, :, 4:] = 7.0
    for pool, transform in (("class", "dct"), ("mean", "svd")):
        options = {"pool": pool, "token_graying": TokenGraying(transform, eps=0.6), **PARTS[part]}
        model = build("vision", **options, dtype=torch.float64)
        with torch.no_grad():
            for p in model.parameters():
                p.add_(0.1 * torch.randn_like(p))
        found, expected = model(changed, hidden), model(IMAGES, hidden)
        assert_close(found, expected, atol=1e-12, rtol=0)
        assert not torch.allclose(model(changed), model(IMAGES), atol=1e-3)


def test_images_are_grayed_before_the_embedding_of_every_backbone():
    graying = TokenGraying("svd", eps=0.5)
    for backbone in ("vision", "windowed", "class_attention"):
        model = build(backbone, token_graying=graying, dtype=torch.float64)
        plain = build(backbone, dtype=torch.float64)
        plain.patch_embedding.register_forward_hook(
            lambda module, args, output: module.projection(graying(module.patches(args[0])))
        )
        assert_close(model(IMAGES), plain(IMAGES), atol=1e-13, rtol=0)
