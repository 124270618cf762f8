"""Twins of the shell, blocks and backbones: faults that they have to find."""

import pkgutil

import pytest
import torch
from torch.nn import functional as F

from .conftest import TWINS, built, small_inputs

UNROLLED = "twinsolve.unrolled"
SHELL = "attention.shell.Attention"
SHELLS = ["attention-shell", "attention-shell-no-bias"]
IMAGES = [name for name in TWINS if name.startswith(("vision", "windowed", "class-attention"))]
ON_PATCHES = [*IMAGES, "self-expression-transformer"]


def measured(name):
    twin = TWINS[name]
    inputs = small_inputs(twin, torch.float64)
    return twin.relation.measure(twin, built(twin, inputs), inputs)


def without(name):
    """A method whose keyword argument is dropped."""

    def dropped(right):
        return lambda *args, **options: right(
            *args, **{k: v for k, v in options.items() if k != name}
        )

    return dropped


def of_zeros(name):
    """A method whose keyword argument, where it is given, is nothing but zeros."""

    def zeroed(right):
        return lambda *args, **options: right(
            *args, **options | ({name: 0 * options[name]} if name in options else {})
        )

    return zeroed


def unbiased(right):
    def project(self, *tokens):
        bias, self.in_proj_bias = self.in_proj_bias, None
        out = right(self, *tokens)
        self.in_proj_bias = bias
        return out

    return project


def other_eps(right):
    def init(self, *args, **options):
        right(self, *args, **options | {"norm_eps": 1e-5})

    return init


def one_less(right):
    return lambda grid, window, shift=(0, 0): right(
        grid, window, tuple(max(s - 1, 0) for s in shift)
    )


def columns_first(right):
    def merge(self, x):
        x = x.unflatten(2, (-1, 2)).unflatten(1, (-1, 2)).permute(0, 1, 3, 4, 2, 5)
        return self.reduction(self.norm(x.flatten(3)))

    return merge


def tanh_gelu(right):
    return lambda self, x: self.fc2(F.gelu(self.fc1(x), approximate="tanh"))


def unscaled_branch(right):
    def scaled(self, name, y, masks):
        return y if name == "feed_forward_scale" else right(self, name, y, masks)

    return scaled


FAULTS = {
    "projection bias dropped": (f"{SHELL}.project", unbiased, SHELLS[:1]),
    "heads interleaved": (
        f"{SHELL}._split_heads",
        lambda right: lambda self, x: x.unflatten(-1, (self.head_dim, -1)).movedim(-1, 1),
        SHELLS,
    ),
    "keys for values": (
        f"{SHELL}.project", lambda right: lambda self, q, k, v: right(self, q, k, k), SHELLS
    ),
    "masks dropped": (f"{SHELL}._merge_masks", lambda right: lambda self, *a: None, SHELLS),
    "pairs dropped": (
        f"{SHELL}._merge_masks",
        lambda right: lambda self, hidden, _, n: right(self, hidden, None, n), SHELLS,
    ),
    "causal dropped": (
        f"{SHELL}._operate", lambda right: lambda self, q, k, v, mask, causal, *rest: right(
            self, q, k, v, mask, False, *rest), SHELLS,
    ),
    "branch rolled": (
        "boosting.Residual.forward",
        lambda right: lambda self, x, y, context=None: x + y.roll(1, -2),
        ["block", "vision-transformer", "class-attention-transformer"],
    ),
    "residual kept": (
        "models.blocks.NoSkip.forward", lambda right: lambda self, x, y, context=None: x + y,
        ["block-without-skips"],
    ),
    "first tokens for present ones": (
        "boosting.GeneralizedResidual.forward",
        lambda right: lambda self, x, y, context=None: right(self, y, x, context),
        ["block-boosted", "block-generalized-residual"],
    ),
    "another eps": ("models.blocks.Block.__init__", other_eps, ["block", *IMAGES]),
    "approximate GELU": ("models.blocks.FeedForward.forward", tanh_gelu, ["block", *IMAGES]),
    "scale of the feed-forward branch dropped": (
        "models.blocks.Block._scale_branch", unscaled_branch,
        ["block-without-skips", "class-attention-transformer"],
    ),
    "scale before the mean": (
        "spectral_filtering.feature_scaling.FeatScale.forward",
        lambda right: lambda self, y, *a, **masks: y * (1 + self.t) + self.s * y[..., :1, :],
        ["block-feat-scale"],
    ),
    "positions dropped": (
        "models.tokens.Positions.forward", lambda right: lambda self: 0 * self.weight,
        [*ON_PATCHES, "language-model"],
    ),
    "positions in the tokens": (
        "models.vision_transformer.position_places",
        lambda right: lambda made, add: (True, [False] * len(made)),
        ["vision-transformer-positions-apart"],
    ),
    "patches by columns": (
        "models.tokens.PatchEmbedding.patches",
        lambda right: lambda self, images: right(self, images).unflatten(
            1, self.grid).transpose(1, 2).flatten(1, 2), ON_PATCHES,
    ),
    "shift off by one": ("models.windowed_transformer.Windows", one_less, ["windowed-transformer"]),
    "edges see each other": (
        "models.windows.Windows.hidden_pairs", lambda right: lambda self, *a: None,
        ["windowed-transformer"],
    ),
    "neighbours by columns": (
        "models.windowed_transformer.PatchMerging.forward", columns_first, ["windowed-transformer"]
    ),
    "values of another layer": (
        "models.windows.Windows.enter", lambda right: lambda self, context, *a: right(
            self, context._replace(first_values=None), *a), ["windowed-transformer"],
    ),
    "patches not asked": (
        "models.class_attention.run_blocks", of_zeros("memory"), ["class-attention-transformer"]
    ),
    "padding dropped": (
        "models.vision_transformer.run_blocks", without("key_padding_mask"),
        ["vision-transformer", "vision-transformer-mean"],
    ),
    "future seen": ("models.language_model.run_blocks", without("is_causal"), ["language-model"]),
    "padding read": (
        "models.language_model.run_blocks", without("key_padding_mask"), ["language-model"]
    ),
    "bias dropped": (
        "kernel_smoothing.bilateral.Biased._add_stored_bias",
        lambda right: lambda self, call: call,
        ["biased-attention"],
    ),
    "mask of the bias dropped": (
        "kernel_smoothing.bilateral.Biased._add_stored_bias",
        lambda right: lambda self, call: right(self, call._replace(mask=None)),
        ["biased-attention"],
    ),
    "columns of the heads side by side": (
        "self_expression.deep_self_expression.DeepSelfExpression._columns_of_heads",
        lambda right: property(lambda self: [slice(0, 4), slice(4, 8)]),
        ["deep-self-expression"],
    ),
    "norm over all heads": (
        "self_expression.deep_self_expression.DeepSelfExpression._normalize",
        lambda right: lambda self, z: z / z.norm(dim=-1, keepdim=True),
        ["deep-self-expression"],
    ),
    "codes begun anew in each layer": (
        "self_expression.unrolled_ista.proximal_step",
        lambda right: lambda codes, *rest: right(0 * codes, *rest),
        ["self-expression-transformer"],
    ),
    "points among their own atoms": (
        "self_expression.unrolled_ista.own_keys", lambda right: lambda *a: None,
        ["self-expression-transformer"],
    ),
    "heads exchanged": (
        "models.self_expression_transformer.HeadProjection.forward",
        lambda right: lambda self, x: right(self, x).roll(1, 1),
        ["self-expression-transformer"],
    ),
    "norm of tokens dropped": (
        "models.self_expression_transformer.SelfExpressionTransformer.tokens",
        lambda right: lambda self, images: self.patch_embedding(images) + self.positions(),
        ["self-expression-transformer"],
    ),
    "skip around both convolutions": (
        "models.conv_mixer.MixerLayer.forward",
        lambda right: lambda self, x: right(self, x) + x * self.skip, ["conv-mixer"],
    ),
    "kernels shifted by a pixel": (
        "models.conv_mixer.MixerLayer.forward",
        lambda right: lambda self, x: right(self, x.roll(1, -1)),
        ["conv-mixer", "conv-mixer-without-skip"],
    ),
}  # fmt: skip


def test_the_bound_on_high_frequencies_bites(monkeypatch):
    twin = TWINS["block-high-frequencies"]
    inputs = small_inputs(twin, torch.float64)
    block = built(twin, inputs)
    assert twin.relation.measure(twin, block, inputs).passed
    right = type(block.attention.operator).attend
    monkeypatch.setattr(
        type(block.attention.operator), "attend", lambda self, call: 1.2 * right(self, call)
    )
    assert not twin.relation.measure(twin, block, inputs).passed


@pytest.mark.parametrize("fault", FAULTS)
def test_finds(monkeypatch, fault):
    target, make, names = FAULTS[fault]
    path = f"{UNROLLED}.{target}"
    monkeypatch.setattr(path, make(pkgutil.resolve_name(path)))
    assert not any(measured(name).passed for name in names)
