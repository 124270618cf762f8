"""Arguments and inputs out of range are refused by name: a table of all layers."""

import math
import re
from functools import partial

import numpy as np
import pytest
import torch
from torch import nn

import twinsolve.unrolled as layers
from twinsolve.unrolled import boosting, image_filters, kernel_smoothing
from twinsolve.unrolled.attention import Positive
from twinsolve.unrolled.models import Block, Segmenter, SelfExpressionTransformer, denoisers
from twinsolve.unrolled.models.stacks import make_blocks
from twinsolve.unrolled.nonlocal_energy import NonlocalEnergyStep
from twinsolve.unrolled.spectral_filtering import LayerScale

from .integrations.examples import Block as ForeignBlock
from .integrations.examples import WithPositions, vision_model

NAN = float("nan")
X = torch.ones(2, 3, 9, 5)
PAIRS = torch.ones(9, 9, dtype=torch.bool).tril()
IMAGE = torch.zeros(1, 1, 9, 9)
FILTER = image_filters.BilateralFilter()
PULLED = layers.Solved(layers.Neutreno(layers.Softmax()))
LISTA = partial(layers.LISTA, np.eye(3), 2, 1.0)
BAD_METRICS = ([-1.0, 1.0], [NAN], 1.0, [[[1.0]]])

CONSTRUCTORS = [
    (lambda: layers.Kernel("cosine", 1.0), "kernel: must be a callable or one of exponential"),
    (lambda: kernel_smoothing.FeatureKernel("elu"), "feature_map: must be callable"),
    (lambda: layers.Gaussian(learnable=True), "bandwidth: must be given"),
    (lambda: layers.Gaussian(num_heads=2), "bandwidth: must be given"),
    (lambda: layers.Bilateral(learnable=True), "position_bandwidth: must be given to be learnable"),
    (lambda: layers.Bilateral(math.inf, num_heads=2), "token_bandwidth: must be given"),
    (lambda: layers.Bilateral(1.0, math.inf), "token_bandwidth: must be a finite number > 0"),
    (lambda: layers.ALiBi(2, slopes=[0.1]), "slopes: must hold one slope for each of 2 heads"),
    (lambda: layers.ALiBi(1, slopes=[-0.1]), "slopes: must be a finite number >= 0"),
    (lambda: layers.Tupe(10, 3), "dim: must be a multiple of num_heads=3, got 10"),
    (lambda: layers.Biased(layers.SparseCoding(0.1), X[0, 0]), "base: must take additive mas"),
    (lambda: layers.Biased(layers.Softmax(), X[0, 0, 0]), "bias: must be floating point"),
    (lambda: layers.Biased(layers.Softmax(), X.long()), "bias: must be floating point"),
    *[(partial(layers.Elliptical, m), "metric: must be finite and >= 0") for m in BAD_METRICS],
    (lambda: layers.Sinkhorn(layers.Twicing(layers.Softmax())), "base: must have a nonnegative m"),
    (lambda: layers.Twicing(3), "base: must be an Operator"),
    (lambda: layers.AttnScale(3), "base: must be an Operator"),
    *[(lambda base=base: layers.ReAttention(base, 3), r"base: must be Softmax\(\) or Gaussian\(\)")
      for base in (layers.SparseCoding(0.3), layers.Twicing(layers.Softmax()), None)],
    (lambda: LayerScale(4, initial="0.1"), "initial: must be a finite number"),
    (lambda: layers.Neutreno(3), "base: must be an Operator"),
    (lambda: layers.Solved(layers.Softmax()), "base: must be iterative"),
    (lambda: layers.Solved(layers.Neutreno(layers.Neutreno(layers.Softmax()))),
     "must hold a smoother that is linear in its values"),
    *[(lambda wrap=wrap: wrap(PULLED), "base: must act on the values that a correction")
      for wrap in (layers.Twicing, layers.AttnScale, layers.Neutreno, layers.Sinkhorn,
                   partial(layers.Biased, bias=X[0, 0]))],
    (lambda: layers.SparseCoding(1.0, step="long"), 'step: must be "safe" or "support"'),
    (lambda: layers.SparseCoding(1.0, step="support", relative_step=0.5), "relative_step: must be"),
    (lambda: layers.SparseCoding(0.2, per_iteration=True), "per_iteration: needs learnable=True"),
    (lambda: layers.SparseCoding(0.2, per_iteration=True, learnable=True, step="support"),
     'per_iteration: needs learnable=True and step="safe"'),
    (lambda: LISTA("cp"), "parametrization: must be one of lista, coupled"),
    *[(partial(layers.LISTA, D, 2, 1.0), r"dictionary: must be finite, of shape \(n_atoms, d\)")
      for D in (np.ones(3), np.ones((0, 3)), [[NAN, 1.0]])],
    (lambda: layers.UnrolledADMM(5, 1.0), "lam: must be in"),
    (lambda: layers.UnrolledADMM(5, 0.1, l1_ratio=1.5), "l1_ratio: must be in"),
    (lambda: layers.DeepSelfExpression(5, 1, mixing=1.5), "mixing: must be in"),
    (lambda: layers.DeepSelfExpression(5, 1, num_heads=6), "num_heads: must be at most 5"),
    (lambda: layers.SelfExpressiveNetwork(3, hidden_features=(3, 0)), "hidden_features: must be"),
    (lambda: layers.SelfExpressiveNetwork(3, l1_ratio=1.5), r"l1_ratio: must be in \(0, 1\]"),
    (lambda: layers.SparseMixtureOfExperts(2, 3, 4, top_k=4), "top_k: must be at most the 3 exper"),
    (lambda: layers.TokenGraying(eps=1.5), "eps: must be"),
    (lambda: layers.TokenGraying("fft"), 'transform: must be "dct" or "svd", got \'fft\''),
    (lambda: image_filters.BilateralFilter(win_size=4), "win_size: must be odd"),
    (lambda: boosting.BoostedFilter(FILTER, rho=-0.5), "rho: must be -1 or at least 0"),
    *[(partial(layers.GeneralizedResidual, source), "source: must be a whole number or None")
      for source in (True, 1.0, "first")],
    (lambda: layers.FilterDiffusion(1.0, filter_size=1), "filter_size: must"),
    (lambda: layers.ConvexRidge(1.0, 1.0, rho=1.0), "rho: must"),
    (lambda: layers.Attention(12, 5, operator=layers.Softmax()), "dim: must be a multiple of num"),
    (lambda: layers.Attention(12, 3, operator=layers.Softmax), "operator: must be an Operator"),
    *[(partial(Positive, bad, name="lam"), "lam: must be a finite number > 0")
      for bad in (math.inf, "1", None)],
]  # fmt: skip

CALLS = [
    (lambda: layers.Ridge(1.0)(X, X, X, mask=PAIRS), "may only hide whole keys"),
    (lambda: layers.Ridge(1.0, zero_diagonal=True)(X[..., :4, :], X, X),
     "as many queries as keys, got 4 and 9"),
    (lambda: layers.SparseCoding(0.5)(X, X, X, mask=X[0, 0, :, :1]), "masks may only hide keys"),
    (lambda: layers.Tupe(6, 3)(X, X, X), "context: .* needs positions"),
    (lambda: layers.Softmax()(X, X[..., :8, :], X[..., :8, :], is_causal=True),
     "at most as many queries as keys, got 9 and 8"),
    (lambda: layers.Kernel(lambda q, k: q, 1.0)(X, X, X), "kernel: must give logarithms of shape"),
    (lambda: layers.Logistic(4)(X, X, X), "head_dim: Logistic has 4, but q has 5"),
    (lambda: layers.Logistic(5, num_heads=2)(X, X, X), "num_heads: Logistic has 2, but q has 3"),
    (lambda: layers.ALiBi(4)(X, X, X), "num_heads: ALiBi has 4, but q has 3"),
    (lambda: layers.AttnScale(layers.Softmax(), num_heads=4)(X, X, X), "AttnScale has 4, but q ha"),
    (lambda: layers.ReAttention(layers.Softmax(), 2)(X, X, X), "ReAttention has 2, but q has"),
    (lambda: layers.Elliptical(torch.ones(2, 5))(X, X, X), "metric: must be of shape"),
    (lambda: layers.Sinkhorn(layers.Softmax())(X, X, X, is_causal=True), "does not support is_ca"),
    (lambda: layers.Neutreno(layers.Softmax())(X, X, X), "context: Neutreno needs first_values"),
    (lambda: layers.Neutreno(layers.Softmax())(X, X, X, context=layers.Context(first_values=X[0])),
     "first_values must have the shape"),
    (lambda: layers.FeatScale(4)(X), r"y: must be \(\.\.\., n_tokens, 4\), got"),
    (lambda: layers.FeatScale(5)(X, torch.ones(2, 4).bool()), "key_padding_mask: must have shape"),
    (lambda: layers.FeatScale(5)(X[0], attn_mask=X[0, :, :3].bool()), "attn_mask: must be bool of"),
    (lambda: layers.TokenGraying()(torch.ones(5)), r"X: must be \(\.\.\., n_tokens, n_features\)"),
    (lambda: LISTA()(torch.ones(5, 4)), "signals and dictionary must have rows of width 3"),
    (lambda: LISTA()(torch.ones(5, 3).long()), "signals: must be of a floating dtype"),
    (lambda: LISTA()(torch.ones(5, 3), torch.ones(5, 3)), "dictionary: must be None unless"),
    (lambda: LISTA("adaptive")(torch.ones(5, 3), torch.ones(3, 4)), "must have rows of width"),
    (lambda: layers.UnrolledSelfExpression(2, 1.0)(torch.ones(4)), "queries: must be"),
    (lambda: layers.UnrolledSelfExpression(2, 1.0)(X[0, 0], X[0, 0, :, :3]), "queries: must be"),
    (lambda: layers.UnrolledSelfExpression(2, 1.0)(X.long()), "queries: must have features of a"),
    (lambda: layers.UnrolledSelfExpression(2, 1.0)(X[0, 0], own=torch.arange(9)), "own: must be"),
    (lambda: layers.UnrolledSelfExpression(2, 1.0)(X[0, 0], X[0, 0], own=torch.arange(3)),
     r"own: must be of shape \(9,\) and needs keys, got shape \(3,\) with keys"),
    (lambda: layers.UnrolledADMM(5, 0.1)(torch.zeros(3)), "queries: must be"),
    (lambda: layers.UnrolledADMM(5, 0.1)(torch.zeros(3, 2).long()), "queries: must be of"),
    (lambda: layers.UnrolledADMM(5, 0.1)(torch.full((3, 2), NAN)), "queries: .* must be finite"),
    (lambda: layers.UnrolledADMM(5, 0.1)(torch.ones(3, 2), torch.full((3, 2), NAN)),
     "keys: entries and their products must be finite"),
    (lambda: layers.UnrolledADMM(5, 1e-20, dtype=torch.float64)(torch.ones(4, 2).double()),
     "lam: is too small for these queries, the ridge"),
    (lambda: layers.DeepSelfExpression(5, 1)(torch.full((3, 5), NAN)), "queries: .* be finite"),
    (lambda: layers.DeepSelfExpression(4, 1)(X[0, 0]), r"queries: must be \(n_tokens, 4\)"),
    (lambda: layers.DeepSelfExpression(5, 1)(X[0, 0], X[0, 0, :, :3]), "keys: must be"),
    (lambda: layers.SelfExpressiveNetwork(4)(X[0, 0]), r"queries: must be \(n_points, 4\)"),
    (lambda: layers.SelfExpressiveNetwork(5).coefficients(X[0, 0], X), "keys: must be"),
    (lambda: layers.SparseMixtureOfExperts(4, 3, 2)(X), r"x: must be \(\.\.\., 4\), got"),
    (lambda: layers.NonLocalMeansAttention()(IMAGE[0]), "image: must be"),
    (lambda: layers.NonLocalMeansAttention(patch_size=7)(IMAGE[..., :3, :]), "image: must be"),
    (lambda: layers.NonLocalMeansAttention()(IMAGE.byte()), "image: must be floating"),
    (lambda: FILTER(IMAGE[0]), "guide: must be"),
    (lambda: FILTER(IMAGE, IMAGE[..., :4]), "values: must be"),
    (lambda: NonlocalEnergyStep(FILTER)(IMAGE, IMAGE[0]), "f: must be of the shape of u"),
    (lambda: layers.FilterDiffusion(1.0)(IMAGE, IMAGE[..., :8]), "f: must"),
    (lambda: denoisers.FilterDiffusionDenoiser()(IMAGE[..., :6]), "u: must"),
    (lambda: denoisers.NonlocalFilterDiffusionDenoiser()(IMAGE[..., :6]), "u: must"),
    (lambda: denoisers.ConvexRidgeDenoiser()(IMAGE[0]), "noisy: must"),
    (lambda: denoisers.ConvexRidgeDenoiser().certificate(IMAGE, IMAGE[..., :8]), "denoised: must"),
]  # fmt: skip


class ReadsPositions(layers.Operator):
    needs = ("positions",)


class ReadsWeather(layers.Softmax):
    needs = ("weather",)


def vision(image_size=(8, 12), patch_size=(2, 3), **options):
    settings = {"in_channels": 2, "num_classes": 5, "dim": 12, "depth": 2, "num_heads": 3}
    return layers.VisionTransformer(image_size, patch_size, **settings | options)


def windowed(image_size=(12, 16), **options):
    settings = {"dim": 8, "depths": (4,), "num_heads": (2,), "window_size": 4}
    return layers.WindowedTransformer(image_size, 1, 1, 5, **settings | options)


def language(**options):
    settings = {"vocab_size": 11, "dim": 12, "depth": 1, "num_heads": 3, "max_length": 20}
    return layers.LanguageModel(**settings | options)


def mixer(**options):
    settings = {"dim": 6, "depth": 2, "kernel_size": 3, "patch_size": 2}
    return layers.ConvMixer(**settings | {"num_classes": 5, "in_channels": 2} | options)


def residual(source, context):
    return layers.GeneralizedResidual(source)(X, X, context)


def elliptical(**values):
    context = layers.Context(**{"values": X, "previous_values": X} | values)
    return layers.Elliptical()(X, X, X, context=context)


def foreign(name, part):
    block = ForeignBlock()
    setattr(block.attn, name, part)
    return layers.replace_attention(block, "softmax")


def replaced(operator, **options):
    return layers.replace_attention(vision_model(), operator, **options)


IMAGES, TOKENS = torch.zeros(3, 2, 8, 12), torch.ones(2, 7, 12)
IDS, HIDDEN = torch.zeros(2, 7).long(), torch.zeros(2, 7).bool()
CLASS = "operator: must be .* an Operator such as .*; got"
PATCHES = r"images: must be floating point \(batch, 1, "
MODELS = [
    (lambda: Block(12, 3, operator=3), "operator: must be a name"),
    (lambda: Block(12, 3, operator="soft"), "operator: must be one of"),
    (lambda: layers.make_operator("soft", num_heads=1, head_dim=4),
     "operator: must be one of .*softmax.*, got 'soft'; close is softmax"),
    (lambda: layers.register_operator("softmax", lambda num_heads, head_dim: layers.Softmax()),
     "name: an operator 'softmax' is registered already"),
    *[(lambda kind=kind: Block(12, 3, operator=kind), f"{CLASS} the class {kind.__name__}")
      for kind in (layers.Softmax, layers.Bilateral)],  # which take other arguments
    (lambda: layers.replace_attention(nn.MultiheadAttention(12, 3), layers.Bilateral),
     f"{CLASS} the class Bilateral .for the model"),
    (lambda: Block(12, 3, operator=lambda heads, dim: nn.Identity()), "operator: must be a name, "),
    (lambda: Block(12, 5), "dim: must be a multiple of num_heads=5"),
    (lambda: make_blocks(3, 12, 3, operator=["softmax"] * 2), "operator: must be one value or a l"),
    (lambda: mixer()(torch.randn(3, 2, 8, 11)), r"images: must be \(batch, 2, height, width"),
    (lambda: language()(torch.zeros(1, 21).long()), "ids: must have at most 20 tokens, got 21"),
    (lambda: language()(torch.zeros(3).long()), "ids: must be integers of shape"),
    (lambda: language()(torch.zeros(1, 3)), "ids: must be integers of shape"),
    (lambda: language()(IDS + 11), "ids: must be among 0 to 10, got 11 to 11"),
    (lambda: language()(IDS.tolist()), "ids: must be a Tensor, got list"),
    (lambda: language()(IDS.to("meta")), "ids: must be on cpu as the weights, got meta"),
    (lambda: language()(IDS, HIDDEN[:, :5]), r"key_padding_mask: must have shape \(2, 7\)"),
    (lambda: Block(12, 3)(TOKENS[..., :4]), r"x: must be \(batch, tokens, 12\), got \(2, 7, 4\)"),
    (lambda: Block(12, 3)(TOKENS.double()), r"x: must be torch\.float32 as the weights, got"),
    (lambda: Block(12, 3)(TOKENS, memory=TOKENS.double()), r"memory: must be torch\.float32 as th"),
    (lambda: Block(12, 3)(TOKENS, memory=TOKENS[:1]), r"memory: must be \(2, tokens, 12\), got"),
    (lambda: Block(12, 3)(TOKENS, {}), "context: must be a Context, got dict"),
    (lambda: Block(12, 3)(TOKENS, layers.Context(TOKENS[0, :5]), add_positions=True),
     r"context\.positions: must be \(\.\.\., 7, 12\), got \(5, 12\)"),
    (lambda: Block(12, 3)(TOKENS, key_padding_mask=HIDDEN.long()), "key_padding_mask: must be one"),
    (lambda: Block(12, 3)(TOKENS, attn_mask=torch.ones(2, 7, 7).bool()), r"attn_mask: must be .* "),
    (lambda: vision()(IMAGES, np.zeros((3, 16), bool)), "patch_padding_mask: must be a Tensor, go"),
    *[(lambda mask=mask: vision()(IMAGES, mask), r"patch_padding_mask: must be bool .*\(3, 16\)")
      for mask in (torch.zeros(3, 16).long(), torch.zeros(3, 16).bool().to("meta"))],
    (lambda: vision(9, 2), "image_size: must be a multiple of patch_size"),
    (lambda: vision((8, 12, 3)), "image_size: must be one number or"),
    (lambda: vision(dim=13), "dim: must be a multiple of num_heads=3"),
    (lambda: vision(dim=9, positions="sinusoidal"), "dim: must be even"),
    (lambda: vision(positions="rotary"), "positions: must be 'learned', 'sinusoidal' or None"),
    (lambda: vision(add_positions="apart"), "add_positions: must be True, False or None, got 'ap"),
    (lambda: vision(pool="max"), "pool: must be 'class' or 'mean'"),
    (lambda: vision(operator=["softmax"]), "operator: must be one value or a list of 2"),
    (lambda: vision(operator=ReadsPositions(), positions=None), "positions: ReadsPositions reads"),
    (lambda: layers.ClassAttentionTransformer(
        16, 4, 1, 5, 12, 2, 3, operator=ReadsPositions(), positions=None),
     "positions: ReadsPositions reads positions"),
    (lambda: windowed(depths=(1, 1)), "num_heads: must have one entry for each of 2 stages"),
    (lambda: windowed((6, 4), depths=(1, 1, 1), num_heads=(1, 1, 1), window_size=9),
     r"image_size: must give grids .* got \(3, 2\)"),
    (lambda: windowed(operator=["softmax"]), "operator: must be one value or a list of 4"),
    (lambda: windowed(operator=ReadsPositions(), positions=None), "positions: ReadsPositions read"),
    (lambda: Segmenter(1, (16, 24)), "n_classes"),
    (lambda: SelfExpressionTransformer(8, 2, 1, 5, dim=12, depth=4, num_heads=5), "num_heads=5"),
    (lambda: SelfExpressionTransformer(8, 2, 1, 5, dim=12, depth=0, num_heads=3), "depth"),
    *[(lambda images=images: denoisers.PatchCodingDenoiser(1, patch_size=4)(images), PATCHES)
      for images in (IMAGE.expand(1, 2, 9, 9), IMAGE[..., :3], IMAGE.byte())],
    (lambda: denoisers.NonLocalMeansDenoiser(1)(IMAGE.expand(1, 2, 9, 9)), PATCHES),
    *[(partial(residual, None, context), "context: GeneralizedResidual needs first_tokens")
      for context in (None, layers.Context())],
    (lambda: residual(0, None), r"GeneralizedResidual\(source=0\) reads history"),
    *[(partial(residual, source, layers.Context(history=(X, X))), "reads history, which has 2 bloc")
      for source in (2, -3)],
    (lambda: residual(None, layers.Context(first_tokens=X[..., :5, :])),
     r"context: the earlier tokens have shape \(2, 3, 5, 5\)"),
    *[(partial(elliptical, **{name: x}), rf"context\.{name}: {words}")
      for name in ("values", "previous_values")
      for x, words in ((X[..., :8, :], "must have as many"), (X[..., :4], "must be of 9"))],
    (lambda: foreign("relative_position_bias_table", nn.Parameter(torch.zeros(9, 3))),
     "has relative_position_bias_table: not served"),
    (lambda: foreign("proj", nn.Conv2d(12, 12, 1)), "has Conv2d as proj instead of Linear"),
    (lambda: foreign("qkv", nn.Linear(12, 20)), "heads of unequal number or width"),
    (lambda: layers.replace_attention(nn.Linear(3, 3), "softmax"), "model: no self attention to r"),
    *[(partial(replaced, bad), "operator: must be a name, .* a factory")
      for bad in (3, layers.Gaussian, lambda name: 3, lambda heads, width: "softmax")],
    (lambda: replaced("nothing"), "operator: must be one of .*softmax"),
    (lambda: replaced(ReadsWeather()), "needs weather, which no replaced layer gets"),
    (lambda: replaced(WithPositions()), r"positions: WithPositions at blocks\.0\.attn needs them"),
    (lambda: replaced(WithPositions(), positions="pos"), "model has no parameter or buffer 'pos'"),
    (lambda: replaced(WithPositions(), positions=X[0, 0, 0]), "positions: must be a name, or a te"),
]  # fmt: skip


@pytest.mark.parametrize(
    "table", [CONSTRUCTORS, CALLS, MODELS], ids=["constructors", "calls", "models"]
)
def test_what_is_out_of_range_is_refused_by_name(table):
    said = []
    for call, words in table:
        with pytest.raises(ValueError, match=r".") as error:
            call()
        said.append((words, str(error.value)))
    assert [pair for pair in said if not re.search(*pair)] == []
