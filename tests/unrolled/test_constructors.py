"""What layers hold of the arguments that their constructors are given.

Solvers of twins read numbers such as a penalty from the layer: a constructor that keeps another one
would deceive both sides alike.
"""

import copy
import importlib
import inspect
import math
import operator
import pkgutil
import re
from contextlib import suppress
from functools import partial
from typing import NamedTuple

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose
from torch import Size, nn

from twinsolve import unrolled
from twinsolve.solvers.nonlocal_energy import dct_filters
from twinsolve.solvers.sparse_coding import dct_dictionary
from twinsolve.unrolled.attention import Attention, Positive
from twinsolve.unrolled.integrations.forward_passes import ForwardPasses
from twinsolve.unrolled.models.windows import Windows
from twinsolve.unrolled.sparse_coding.patches import photograph_dictionary


def find_classes():
    """Modules of the package that have constructors of their own, but those of the check."""
    prefix = f"{unrolled.__name__}."
    names = [found.name for found in pkgutil.walk_packages(unrolled.__path__, prefix)]
    checks = (f"{prefix}twins", f"{prefix}laws", f"{prefix}audit")
    modules = [importlib.import_module(x) for x in names if not x.startswith(checks)]
    classes = {cls for module in modules for cls in vars(module).values() if inspect.isclass(cls)}
    own = [cls for cls in classes if cls.__module__.startswith(prefix) and "__init__" in vars(cls)]
    return {cls.__name__: cls for cls in own if issubclass(cls, nn.Module)}


CLASSES = find_classes()
BIASED = ("AffinityNetwork",)  # starts as PyTorch's own layers do
SHOWN_OTHERWISE = ("num_heads", "per_iteration", "operator")  # as numbers, and as a layer


class Number(NamedTuple):
    """A `Positive` as it must be."""

    value: float
    num_heads: int | None = None
    learnable: bool = True


class Row(NamedTuple):
    """A call of a constructor, and what its layer holds beside attributes of the same names.

    Keys of `holds` are paths into the layer. A method at its end is called, and a `Size` is that of
    a tensor. `stays` names the module that `reset_parameters` leaves as it is.
    """

    name: str
    given: dict
    holds: dict
    stays: str

    @property
    def parameters(self):
        return inspect.signature(CLASSES[self.name]).parameters

    def make(self):
        """A layer, its arguments and what it must hold, of which modules are copies."""
        given, holds = copy.deepcopy((self.given, self.holds))
        return CLASSES[self.name](**given), given, holds


def row(name, /, holds=None, stays="", **given):
    made = Row(name, given, holds or {}, stays)
    if "dtype" in made.parameters:
        given["dtype"] = torch.float64
    return made


def under(places, holds):
    return {f"{place}.{path}": x for place in places.split() for path, x in holds.items()}


def shown(name, *args, times=None, **given):
    """What a layer, or a list of several alike, shows of itself."""
    layer = CLASSES[name](*args, **given)
    return repr(nn.ModuleList([layer] * times) if times else layer)


def linear(n_inputs, n_outputs, **settings):
    return repr(nn.Linear(n_inputs, n_outputs, **settings))


def moved(module):
    with torch.no_grad():
        for parameter in module.parameters():
            parameter += 0.3
    return module


def first_column(value, n_rows, n_columns):
    return np.where(np.arange(n_columns) == 0, value, np.zeros((n_rows, n_columns)))


def patch_embedding(taps, channels):
    """Distances of patches with the weights of an outer product, of sum one."""
    weights = np.tile(np.outer(taps, taps).ravel(), channels) / channels / np.sum(taps) ** 2
    return np.diag(weights**0.5).reshape(-1, channels, len(taps), len(taps))


def dual_frame(D):
    """Of each atom, scaled so that their product is one."""
    dual = np.linalg.pinv(D).T
    return dual / (dual * D).sum(axis=1, keepdims=True)


def diffusion(threshold, lam):
    held = {"filters": dct_filters(3), "weights": first_column(1.0, 8, 5), "lam": lam}
    return held | {"log_threshold": np.full(8, math.log(threshold))}


def ridge(lam, threshold):
    held = {"coefficients": np.eye(8), "curvatures": first_column(lam / threshold, 8, 6)}
    return held | {"log_threshold": np.full(8, math.log(threshold))}


def coding(D, lam, step, **held):
    thresholds = np.full(len(D), math.log(step * lam / 2))
    return {"analysis": D, "log_threshold": thresholds, "step": Number(step)} | held


def means(taps, h, noise, tau, rho):
    held = {"means.embedding": patch_embedding(taps, 2), "means.patch_distance": 4}
    return held | {"means.h": Number(h), "means.noise": noise, "tau": tau, "rho": rho, "lam": 0.0}


def pursuit(D, threshold):
    return {"router": D, "analysis": D, "synthesis": D, "threshold": Number(threshold)}


DRAW = np.random.default_rng(0).standard_normal
D, PATCHES, METRIC, BIAS = (np.round(8 * DRAW(x)) / 8 for x in ((7, 4), (5, 16), (3, 6), (4, 5)))
DUAL, COSINES, ATOMS = dual_frame(D), dct_dictionary(3, 9, 2), photograph_dictionary(2).numpy()
D_STEP, PATCHES_STEP, COSINES_STEP = (np.linalg.norm(x, 2) ** -2.0 for x in (D, PATCHES, COSINES))
BELL = np.exp([-2, 0, -2])
DUAL_STEP = 1 / np.abs(np.linalg.eigvals(DUAL @ D.T)).max()
D_ROWS = torch.from_numpy(D)
GAUSSIAN = moved(unrolled.Gaussian(1.7, learnable=True, dtype=torch.float64))
FILTER = moved(unrolled.image_filters.BilateralFilter(dtype=torch.float64))
CODES = moved(unrolled.SparseCoding(0.3, learnable=True, dtype=torch.float64))
FEATURES = nn.Linear(3, 3, bias=False, dtype=torch.float64)
GRAYING = unrolled.TokenGraying()
FUSED = nn.ModuleDict({x: nn.LayerNorm(4) for x in ("q_norm", "k_norm", "norm", "proj_drop")})
FUSED.update({"qkv": nn.Linear(8, 24, bias=False), "proj": nn.Linear(8, 8, bias=False)})
FUSED.num_heads, FUSED.scale = 2, 0.3
PACKED = nn.MultiheadAttention(8, 2)
SEPARATE = nn.MultiheadAttention(8, 2, kdim=6, vdim=5, batch_first=True)
PASSES = ForwardPasses("sinusoidal")
HEADS = {"num_heads": 3, "learnable": True}
GRID, GRID_HELD = {"width": 4, "n_class_tokens": 1}, {"grid.width": 4, "grid.n_class_tokens": 1}
MEANS = {"patch_size": 3, "patch_distance": 4, "patch_weights": "gaussian", "channels": 2}
COSINE = {"patch_size": 3, "n_frequencies": 9, "channels": 2}
SLOPES = {
    "coefficient_slopes": np.zeros((8, 8)), "weight_slopes": np.zeros((2, 8, 5)),
    "lam_slopes": np.zeros(2),
}  # fmt: skip
DENOISED = {"sigma": 0.2, "n_layers": 2}
BLOCK = {"operator": "linear", "dropout": 0.2, "norm_eps": 1e-3}
CLASS_BLOCK = BLOCK | {"operator": "gaussian"}
LAYER_SCALE = CLASSES["LayerScale"]
SMALL = {"gamma": np.full(8, 1e-5)}
LARGE = np.full(8, 0.2)
IMAGE = {"image_size": (8, 16), "patch_size": 2, "in_channels": 3, "num_classes": 5, "dim": 8}
IMAGE |= {"norm_eps": 1e-3, "position_scale": 0.4}
IMAGE_HELD = {"patch_embedding.image_shape": (3, 8, 16), "patch_embedding.patch_size": (2, 2)}
IMAGE_HELD |= {"patch_embedding.projection": linear(12, 8), "norm.eps": 1e-3}
MODEL = IMAGE | BLOCK | {"positions": "sinusoidal", "add_positions": True, "token_graying": GRAYING}
PLACES = {"positions": shown("Positions", 32, 8, "sinusoidal", scale=0.4)}
MODEL_HELD = IMAGE_HELD | {"patch_embedding.token_graying": GRAYING}
WINDOWS = Windows((4, 8), (2, 2)), Windows((4, 8), (2, 2), (1, 1))

ROWS = [
    row("Correction", base=GAUSSIAN),
    row("Positive", initial=0.3, name="width", **HEADS,
        holds={"log": np.full((3, 1, 1), math.log(0.3)), "forward": np.full((3, 1, 1), 0.3)}),
    row("Attention", dim=8, num_heads=2, operator=GAUSSIAN, bias=False,
        holds={"embed_dim": 8, "head_dim": 4, "in_proj_weight": Size((24, 8)),
               "in_proj_bias": None, "out_proj.bias": None}),
    row("BoostedFilter", base=FILTER, n_iter=3, rho=0.4, tau=0.7, stays="base"),
    row("GeneralizedResidual", holds={"t": 0.0}),
    row("GeneralizedResidual", source=-2, holds={"t": 1.0}),
    row("Twicing", base=GAUSSIAN),
    row("AffinityNetwork", n_features=3, n_context=2, width=5,
        holds={"mean": np.zeros(14), "scale": np.ones(14), "layers.0": linear(14, 5),
               "layers.2": linear(5, 5), "layers.4": linear(5, 1)}),
    row("TokenGraying", transform="svd", eps=0.7),
    row("FixedPoint", step=torch.cos, tol=1e-3, max_iter=7, contraction=0.3),
    row("BilateralFilter", sigma_color=0.3, sigma_spatial=1.7, win_size=5),
    row("EmbeddedMeans", h=0.2, noise=0.3, **MEANS,
        holds={"embedding": patch_embedding(BELL, 2)}),
    row("NonLocalMeansAttention", h=0.2, patch_size=3, patch_distance=4, sigma=0.3, learnable=True),
    row("NonLocalMeansAttention", sigma=0.3, holds={"h": Number(0.24, learnable=False)}),
    row("NonLocalMeansAttention", holds={"h": Number(0.1, learnable=False)}),
    row("FusedProjectionAttention", original=FUSED, operator=GAUSSIAN, passes=PASSES,
        holds=dict(FUSED.items()) | {"num_heads": 2, "head_dim": 4, "scale": 0.3}),
    row("MultiheadReplacement", original=PACKED, operator=GAUSSIAN, passes=PASSES,
        holds={"in_proj_weight": PACKED.in_proj_weight, "in_proj_bias": PACKED.in_proj_bias,
               "out_proj": PACKED.out_proj, "batch_first": False, "num_heads": 2, "head_dim": 4}),
    row("MultiheadReplacement", original=SEPARATE, operator=GAUSSIAN, passes=PASSES,
        holds={f"{x}_proj_weight": getattr(SEPARATE, f"{x}_proj_weight") for x in "qkv"}
        | {"in_proj_weight": None, "kdim": 6, "vdim": 5, "batch_first": True}),
    row("ALiBi", **HEADS, slopes=[0.3, 0.1, 0.2], holds={"relative_slope": 1.0}),
    row("ALiBi", num_heads=3, holds={"relative_slope": 1.0}),
    row("Sinkhorn", base=GAUSSIAN, n_iter=3),
    row("Biased", base=GAUSSIAN, bias=torch.from_numpy(BIAS)),
    row("Bilateral", position_bandwidth=0.8, token_bandwidth=1.3, distances=True, **HEADS),
    row("Bilateral", position_bandwidth=math.inf, token_bandwidth=1.3,
        holds={"position_bandwidth": None, "uses_positions": False}),
    row("DeltaRule", forget="token", preconditioned=True, largest_step=1.25,
        holds={"gates": {"beta": "token", "log_forget": "token", "metric": "feature"}}),
    row("Elliptical", metric=METRIC**2),
    row("Entmax", alpha=1.25, scale=0.3),
    row("Entmax", alpha=1.25, scale=0.3, **HEADS, holds={"odds": Number(1 / 3, 3)}),
    row("FeatureKernel", feature_map=torch.exp),
    row("GatedLinear", scale=0.3, forget="feature", holds={"gates": {"log_forget": "feature"}}),
    row("Gaussian", bandwidth=0.8),
    row("HeavyBall", largest_step=0.6),
    row("Gaussian", bandwidth=0.8, **HEADS),
    row("Kernel", kernel=torch.dot, bandwidth=0.8, **HEADS),
    row("Linear", scale=0.3),
    row("CrissCross", scale=0.3, **GRID, holds=GRID_HELD),
    row("Local", radius=3, scale=0.3, **GRID, holds=GRID_HELD),
    row("Neighborhood", scale=0.3, **GRID, holds=GRID_HELD),
    row("Logistic", head_dim=5, num_heads=3, negative_slope=0.3,
        holds={"key_weight": Size((3, 5, 1)), "query_weight": Size((3, 5, 1)),
               "bias": np.zeros((3, 1, 1))}),
    row("Logistic", head_dim=5, holds={"key_weight": Size((5, 1)), "bias": np.zeros((1, 1))}),
    row("CodingRate", lam=0.7, relative=True, **HEADS,
        holds={"ridge.lam": Number(0.7, 3), "ridge.relative": True}),
    row("Hopfield", n_iter=3, beta=0.4),
    row("ISTABlock", dim=6, step=0.3, lam=0.4, holds={"dictionary": Size((6, 6))}),
    row("Linformer", max_length=6, n_projected=3,
        holds={"project_keys": np.kron(np.eye(3), [[0.5, 0.5]]),
               "project_values": np.kron(np.eye(3), [[0.5, 0.5]])}),
    row("LocalLinear", probe="exact", reg=0.3, scale=0.7, holds={"query_gates": {}}),
    row("LocalLinear", probe="learned", scale=0.7, holds={"query_gates": {"probe": "feature"}}),
    row("Mesa", lam=0.8, n_iter=3, implicit=True, forget="token", **HEADS,
        holds={"lam": Number(0.8, 3), "gates": {"beta": "token", "log_forget": "token"}}),
    row("Mesa", lam=0.8, n_iter=3),
    row("MiniBatch", batch_size=5, largest_step=1.5, holds={"gates": {"eta": "token"}}),
    row("Nystrom", n_landmarks=4, n_iter=3),
    row("OnlineRule", forget="feature", holds={"gates": {"log_forget": "feature"}}),
    row("ProximalPoint", forget="token",
        holds={"gates": {"delta": "token", "log_forget": "token"}}),
    row("Sparsemax", scale=0.3),
    row("Softmax", scale=0.3),
    row("SpatialGaussian", bandwidth=0.8, **GRID, **HEADS, holds=GRID_HELD),
    row("SubspaceSelfAttention", scale=0.3),
    row("Symmetric", scale=0.3),
    row("TalkingHeads", num_heads=3,
        holds={"mix_logits": np.eye(3), "mix_weights": np.eye(3)}),
    row("TokenStatistics", sharpness=0.3, c=0.7, **HEADS,
        holds={"sharpness": Number(0.3, 3)}),
    row("TopK", n_largest=3, scale=0.3),
    row("Tupe", dim=6, num_heads=3, head_dim=5, holds={"position_weight": Size((30, 6))}),
    row("Tupe", dim=6, num_heads=3, holds={"position_weight": Size((12, 6))}),
    row("LocallyLinear", n_neighbors=4, reg=0.02, zero_diagonal=True),
    row("FeedForward", dim=4, hidden_dim=6, holds={"fc1": linear(4, 6), "fc2": linear(6, 4)}),
    row("Block", dim=8, num_heads=2, **BLOCK, mlp_ratio=1.5, scale=LAYER_SCALE,
        scale_feed_forward=False, residual=partial(CLASSES["GeneralizedResidual"], -2),
        feed_forward_residual=CLASSES["GeneralizedResidual"],
        holds={"attention": shown("Attention", 8, 2, operator=unrolled.Linear()), "dropout.p": 0.2,
               "attention.in_proj_bias": Size((24,)), "feed_forward": shown("FeedForward", 8, 12),
               "feed_forward_scale": "Identity()"}
        | under("attention_norm feed_forward_norm", {"eps": 1e-3}) | under("attention_scale", SMALL)
        | under("attention_residual", {"source": -2, "t": 1.0})
        | under("feed_forward_residual", {"source": None, "t": 0.0})),
    row("Block", dim=8, num_heads=2, operator=GAUSSIAN, attention_skip=False,
        feed_forward=LAYER_SCALE, feed_forward_skip=False, scale=LAYER_SCALE,
        holds={"attention.operator.bandwidth": Number(1.7), "attention_residual": "NoSkip()",
               "feed_forward_residual": "NoSkip()"}
        | under("feed_forward feed_forward_scale attention_scale", SMALL)),
    row("Block", dim=8, num_heads=2, feed_forward=False, holds={"feed_forward": None}),
    row("Block", dim=8, num_heads=2, layer_scale=0.2,
        holds=under("attention_scale feed_forward_scale", {"gamma": LARGE})),
    row("_ScaleThenLayerScale", scale=LAYER_SCALE(8, initial=0.25), dim=8, initial=0.5,
        holds={"scale.gamma": np.full(8, 0.25), "gamma": np.full(8, 0.5)}),
    row("ClassAttentionTransformer", depth=2, num_heads=2, **MODEL, class_depth=3,
        class_operator="gaussian", layer_scale=0.2, scale=CLASSES["FeatScale"],
        holds={"blocks": shown("Block", 8, 2, times=2, **BLOCK, layer_scale=0.2,
                               scale=CLASSES["FeatScale"]),
               "class_blocks": shown("Block", 8, 2, times=3, **CLASS_BLOCK, layer_scale=0.2),
               "head": linear(8, 5)}
        | under("blocks.1.attention_scale.scale", {"s": np.zeros(8), "t": np.zeros(8)})
        | under("blocks.1.attention_scale blocks.1.feed_forward_scale", {"gamma": LARGE})
        | under("class_blocks.2.attention_scale class_blocks.2.feed_forward_scale",
                {"gamma": LARGE})
        | MODEL_HELD | PLACES),
    row("ConvMixer", dim=4, depth=2, kernel_size=3, patch_size=2, num_classes=5, skip=False,
        in_channels=1,
        holds={"patch_embedding": repr(nn.Conv2d(1, 4, 2, stride=2)), "head": linear(4, 5),
               "layers": shown("MixerLayer", 4, 3, skip=False, times=2)}),
    row("MixerLayer", dim=4, kernel_size=3, skip=False,
        holds={"spatial": repr(nn.Conv2d(4, 4, 3, groups=4, padding="same"))}),
    row("ConvexRidgeDenoiser", sigma=0.2, filter_size=3, lam=1.5, threshold=0.3, rho=0.5, tol=1e-2,
        max_iter=7, holds=under("ridge", ridge(0.1, 0.02))),
    row("FilterDiffusionDenoiser", **DENOISED, filter_size=3, threshold=0.4, lam=0.3,
        holds=under("steps.0 steps.1", diffusion(0.08, 0.3))),
    row("NonlocalFilterDiffusionDenoiser", **DENOISED, filter_size=3, threshold=0.4, lam=0.3,
        n_similar=4, window=3,
        holds=under("steps.0 steps.1", diffusion(0.08, 0.3) | {"sharing": np.zeros(8)})),
    row("MixtureOfExpertsDenoiser", **DENOISED, threshold=0.7, channels=2,
        holds=under("layers.0 layers.1", pursuit(ATOMS, 0.7))),
    row("MixtureOfExpertsDenoiser", n_layers=1, sigma=0.2, holds={"threshold": 0.4}),
    row("NonLocalMeansStep", h=0.2, noise=0.3, tau=0.4, rho=0.6, **MEANS,
        holds=means(BELL, 0.2, 0.3, 0.4, 0.6)),
    row("NonLocalMeansDenoiser", **DENOISED, h=0.7, h_later=0.6, noise_later=0.4, tau=0.3,
        patch_size=3, patch_distance=4, patch_weights="uniform", channels=2,
        holds=under("layers.0", means(np.ones(3), 0.14, 0.2, 1.0, 0.0))
        | under("layers.1", means(np.ones(3), 0.12, 0.08, 0.3, -1.0))),
    row("PatchCodingDenoiser", **DENOISED, lam=0.7, **COSINE,
        holds=under("layers.0", coding(COSINES, 0.7, COSINES_STEP, synthesis=None))
        | under("layers.1", coding(COSINES, 0.7, COSINES_STEP, synthesis=COSINES))
        | {"dictionary": COSINES}),
    row("PatchCodingDenoiser", n_layers=1, sigma=0.2, holds={"lam": 0.6}),
    row("GroupCodingDenoiser", **DENOISED, n_similar=4, window=3, lam=0.7, **COSINE,
        holds=under("layers.0", coding(COSINES, 0.7, COSINES_STEP, synthesis=None))
        | under("layers.1", coding(COSINES, 0.7, COSINES_STEP, synthesis=COSINES))
        | under("layers.0 layers.1", {"sharing": np.zeros(160)}) | {"dictionary": COSINES}),
    row("LanguageModel", vocab_size=11, dim=8, depth=2, num_heads=2, max_length=7, **BLOCK,
        tie_weights=False, add_positions=False, position_scale=0.4,
        holds={"embedding": repr(nn.Embedding(11, 8)), "head": linear(8, 11, bias=False),
               "norm.eps": 1e-3, "positions": shown("Positions", 7, 8, scale=0.4),
               "blocks": shown("Block", 8, 2, times=2, **BLOCK)}),
    row("Segmenter", n_classes=3, image_size=(8, 16), patch_size=4, upscale=2, dim=8, depth=2,
        num_heads=2, operator="linear", residual=CLASSES["GeneralizedResidual"], dropout=0.2,
        in_channels=2,
        holds={"head": linear(8, 12), "backbone": shown(
            "VisionTransformer", (8, 16), 4, 2, 0, 8, 2, 2, operator="linear", pool="mean",
            dropout=0.2, residual=CLASSES["GeneralizedResidual"])}),
    row("SequenceClassifier", num_classes=3, dim=8, depth=2, num_heads=2, max_length=7, **BLOCK,
        vocab_size=11, add_positions=False, position_scale=0.4,
        holds={"embedding": repr(nn.Embedding(11, 8)), "head": linear(8, 3), "norm.eps": 1e-3,
               "positions": shown("Positions", 7, 8, scale=0.4),
               "blocks": shown("Block", 8, 2, times=2, **BLOCK)}),
    row("HeadProjection", dim=6, num_heads=3, holds={"projection": linear(6, 6, bias=False)}),
    row("SelfExpressionTransformer", **IMAGE, depth=2, num_heads=4, lam=0.3,
        holds={"codes": shown("UnrolledSelfExpression", 2, 0.3, relative=True),
               "token_norm.eps": 1e-3, "positions.scale": 0.4, "head": linear(8, 5)}
        | under("features values", {"num_heads": 4, "projection": linear(8, 8, bias=False)})
        | IMAGE_HELD),
    row("PatchEmbedding", image_size=(8, 12), patch_size=(4, 3), in_channels=2, dim=6,
        token_graying=GRAYING,
        holds={"image_shape": (2, 8, 12), "grid": (2, 4), "projection": linear(24, 6)}),
    row("Positions", n_tokens=5, dim=6, scale=0.3, holds={"weight": Size((5, 6))}),
    row("Positions", n_tokens=5, dim=6, kind=None, holds={"weight": None}),
    row("VisionTransformer", depth=2, num_heads=2, **MODEL, pool="mean",
        holds={"blocks": shown("Block", 8, 2, times=2, **BLOCK), "class_token": None,
               "head": linear(8, 5)} | MODEL_HELD | PLACES),
    row("PatchMerging", dim=3, norm_eps=1e-3,
        holds={"norm.eps": 1e-3, "reduction": linear(12, 6, bias=False)}),
    row("WindowedStage", grid=(4, 8), dim=8, num_heads=2, settings=[BLOCK, BLOCK], window_size=2,
        shift=True, positions="sinusoidal", position_scale=0.4,
        holds={"blocks": shown("Block", 8, 2, times=2, **BLOCK), "windows": WINDOWS} | PLACES),
    row("WindowedTransformer", depths=(1, 2), num_heads=(2, 8), **MODEL, window_size=2, shift=False,
        holds={"stages.0.blocks": shown("Block", 8, 2, times=1, **BLOCK),
               "stages.1.blocks": shown("Block", 16, 8, times=2, **BLOCK), "head": linear(16, 5),
               "stages.0.windows": (WINDOWS[0], WINDOWS[0]), "merges.0.norm.eps": 1e-3}
        | under("stages.0", PLACES) | MODEL_HELD),
    row("ConvexRidge", lam=0.2, threshold=0.3, rho=0.5, filter_size=3, tol=1e-2, max_iter=7,
        holds=ridge(0.2, 0.3)),
    row("NonlocalEnergyStep", base=FILTER, lam=0.3, step=0.7, stays="base"),
    row("FilterDiffusion", threshold=0.3, lam=0.2, filter_size=3, holds=diffusion(0.3, 0.2)),
    row("Neutreno", base=GAUSSIAN, lam=0.4, relaxed=True, n_iter=3, **HEADS),
    row("NoiseLevelFilterDiffusion", threshold=0.3, lam=0.2, filter_size=3,
        holds=diffusion(0.3, 0.2) | SLOPES),
    row("NonlocalFilterDiffusion", threshold=0.3, lam=0.2, filter_size=3,
        holds=diffusion(0.3, 0.2) | {"sharing": np.zeros(8)}),
    row("DeepSelfExpression", in_features=6, n_layers=1, num_heads=3, mixing=0.4, shrinkage=0.2,
        n_iter=4, lam=0.05, l1_ratio=0.8, threshold=0.06,
        holds={"projections.0": np.eye(6),
               "express": shown("UnrolledADMM", 4, 0.05, l1_ratio=0.8, threshold=0.06, times=2)}),
    row("LowRank", lam=0.3, relative=True, **HEADS),
    row("Ridge", lam=0.3, relative=True, zero_diagonal=True, **HEADS),
    row("SelfExpressiveNetwork", in_features=3, hidden_features=(5, 6), width=7, gamma=20.0,
        l1_ratio=0.8, threshold=0.02,
        holds=under("query key", {"0": linear(3, 5), "2": linear(5, 6), "4": linear(6, 7)})),
    row("UnrolledADMM", n_iter=3, lam=0.3, l1_ratio=0.8, threshold=0.02),
    row("UnrolledSelfExpression", n_iter=3, lam=0.3, relative=True, relative_step=0.7,
        features=FEATURES, stays="features", holds={"penalty": 0.3, "step": 0.7}),
    row("Solved", base=CODES, tol=1e-3, max_iter=7),
    row("CodingStep", dictionary=D_ROWS, lam=0.3, step=0.4, from_zero=True,
        holds=coding(D, 0.3, 0.4, synthesis=None)),
    row("GroupCodingStep", dictionary=D_ROWS, lam=0.3, step=0.4, from_zero=True,
        holds=coding(D, 0.3, 0.4, synthesis=None, sharing=np.zeros(7))),
    row("LassoEncoder", dictionary=np.float32(D), lam=0.3, ridge=0.2, nonnegative=True,
        unit_atoms=False, n_jobs=2),
    *(row("LISTA", dictionary=np.float32(D), n_iter=3, lam=0.3, parametrization=kind,
          holds={"penalty": 0.3, "step": step} | weights)
      for kind, step, weights in (
        ("lista", D_STEP, {"input_weight": [D.T] * 3, "gram_weight": [D @ D.T] * 3}),
        ("coupled", D_STEP, {"weight": [D] * 3}),
        ("step", D_STEP, {}),
        ("alista", DUAL_STEP, {"weight": DUAL}),
        ("adaptive", 1.0, {"input_weight": np.eye(4), "gram_weight": np.eye(4)}))),
    row("SparseMixtureOfExperts", dim=6, n_experts=4, expert_width=5, top_k=3, renormalize=True,
        holds={"router": Size((4, 6)), "analysis": Size((4, 5, 6)), "synthesis": Size((4, 6, 5))}),
    row("PatchSparseCoding", dictionary=np.float32(PATCHES), lam=0.3, n_iter=3, channels=4,
        holds={"step": PATCHES_STEP, "log_lam": np.full(5, math.log(0.3))}),
    row("PursuitStep", dictionary=D_ROWS, threshold=0.3, holds=pursuit(D, 0.3)),
    row("SparseCoding", lam=0.3, relative=True, n_iter=3, relative_step=0.7, zero_diagonal=True,
        nonnegative=True, per_iteration=True, **HEADS),
    row("SparseCoding", lam=0.3, relative_step=0.7, **HEADS),
    row("SparseCoding", lam=0.3, step="support", **HEADS,
        holds={"relative_step": Number(1.0, 3, learnable=False)}),
    row("AttnScale", base=GAUSSIAN, num_heads=3, holds={"omega": np.zeros((3, 1, 1))}),
    row("FeatScale", dim=5, holds={"s": np.zeros(5), "t": np.zeros(5)}),
    row("LayerScale", dim=5, initial=0.3, holds={"gamma": np.full(5, 0.3)}),
    row("ReAttention", base=GAUSSIAN, num_heads=3, holds={"theta": np.eye(3), "norm.eps": 1e-5}),
]  # fmt: skip


def keeps(layer, name, argument):
    """Whether the layer has an attribute of the name that is no module made by the argument."""
    found = getattr(layer, name, NotImplemented)
    made = isinstance(found, nn.Module) and not isinstance(found, Positive | nn.ModuleList)
    return found is not NotImplemented and (not made or isinstance(argument, nn.Module))


def check(row, layer, given, holds):
    """Fail unless the layer holds its arguments, and starts where the row says."""
    arguments = {name: x.default for name, x in row.parameters.items()} | given
    named = {name: x for name, x in arguments.items() if keeps(layer, name, x)}
    for path, expected in (named | holds).items():
        found = operator.attrgetter(path)(layer)
        if isinstance(found, Positive | nn.ModuleList) and isinstance(expected, float):
            learnable = arguments.get("learnable", True)
            expected = Number(expected, arguments.get("num_heads"), learnable)
            if isinstance(found, nn.ModuleList):
                expected = [expected] * arguments["n_iter"]
        assert_held(found() if inspect.ismethod(found) else found, expected, path)
    for name, parameter in layer.named_parameters():
        part = layer.get_submodule(name.rpartition(".")[0])
        if isinstance(part, nn.LayerNorm | nn.BatchNorm2d):
            assert bool((parameter == name.endswith("weight")).all()), name
        elif isinstance(part, Attention | nn.Linear) and row.name not in BIASED:
            assert not name.endswith("bias") or not parameter.any(), name
        assert parameter.dtype == arguments.get("dtype", parameter.dtype), name


def assert_held(found, expected, path):
    if found is None or expected is None or isinstance(expected, nn.Parameter | nn.Module):
        assert found is expected, path
    elif isinstance(expected, Size):
        assert found.shape == expected, path
    elif isinstance(expected, Number):
        assert (found.num_heads, found.log is not None) == expected[1:], path
        for x in (found().detach(), found.initial):
            assert_allclose(x, expected.value, rtol=1e-12, err_msg=path)
    elif isinstance(found, nn.ModuleList) and isinstance(expected, list):
        assert len(found) == len(expected), path
        for pair in zip(found, expected, strict=True):
            assert_held(*pair, path)
    elif isinstance(found, float | torch.Tensor):
        found, expected = (
            x.detach() if isinstance(x, torch.Tensor) else np.asarray(x) for x in (found, expected)
        )
        assert found.shape == expected.shape, path
        assert_allclose(found, expected, rtol=1e-12, atol=1e-12, err_msg=path)
    else:
        assert (repr(found) if isinstance(found, nn.Module) else found) == expected, path


def accepts(*held):
    try:
        check(*held)
    except (AssertionError, AttributeError):
        return False
    return True


def left_out(layer, row):
    """Settings other than the default that the layer keeps but does not show."""
    for name, x in row.given.items():
        kept = isinstance(x, int | float | str) and type(getattr(layer, name, None)) is type(x)
        text = f"{x:.4g}" if isinstance(x, float) else str(x)
        pattern = f"{name}={text}" if isinstance(x, bool) else rf"(?<![\w.]){text}(?![\w.])"
        if kept and name not in SHOWN_OTHERWISE and not re.search(pattern, repr(layer)):
            yield name


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_layers_hold_and_show_their_arguments(row):
    layer, given, holds = row.make()
    check(row, layer, given, holds)
    assert list(left_out(layer, row)) == []
    for name, x in given.items():
        if isinstance(x, nn.Module):
            torch.testing.assert_close(x.state_dict(), row.given[name].state_dict(), rtol=0, atol=0)


def values(layer):
    return {name: x.detach().clone() for name, x in layer.named_parameters()}


def free(row):
    """Parameters that are drawn at random, or those of modules given."""
    torch.manual_seed(0)
    layer, given, _ = row.make()
    torch.manual_seed(1)
    again = values(row.make()[0])
    modules = [x for x in given.values() if isinstance(x, nn.Module)]
    theirs = {id(x) for module in modules for x in module.parameters()}
    return {
        name
        for name, x in layer.named_parameters()
        if id(x) in theirs or not torch.equal(x, again[name])
    }


@pytest.mark.parametrize(
    "row",
    [row for row in ROWS if hasattr(CLASSES[row.name], "reset_parameters")],
    ids=lambda row: row.name,
)
def test_moved_parameters_return_to_their_start(row):
    """Those drawn at random are drawn anew, and those of modules given are reset, or stay."""
    layer, *_ = row.make()
    start, resets = values(layer), []
    for _ in range(2):
        before = values(moved(layer))
        torch.manual_seed(0)
        layer.reset_parameters()
        resets.append(values(layer))
    for name in start:
        expected = before if name.partition(".")[0] == row.stays else resets[0]
        assert torch.equal(resets[1][name], expected[name]), name
        assert torch.equal(resets[1][name], start[name]) or name in free(row), name


def another(x, default):
    """A value that a faulty constructor might take in place of one given."""
    if default is not inspect.Parameter.empty:
        return default
    if isinstance(x, bool):
        return not x
    if isinstance(x, int | float | np.ndarray | torch.Tensor):
        return 2 * x
    if isinstance(x, str):
        return None
    if isinstance(x, tuple | list):
        return tuple(2 * n for n in x) if isinstance(x, tuple) else x[1:]
    return partial(x) if inspect.isbuiltin(x) else copy.deepcopy(x)


def test_every_argument_of_every_class_has_a_row_that_sees_it():
    """Where another value takes its place, the check of the row fails."""
    unseen = {
        (name, argument)
        for name, cls in CLASSES.items()
        for argument, x in inspect.signature(cls).parameters.items()
        if argument != "device" and x.kind is not x.VAR_POSITIONAL
    }
    for row in ROWS:
        further = [x.name for x in row.parameters.values() if x.kind is x.VAR_KEYWORD]
        for name in row.given:
            given, holds = copy.deepcopy((row.given, row.holds))
            wrong = dict(given)
            value = wrong.pop(name)
            if name in row.parameters:
                wrong[name] = another(value, row.parameters[name].default)
            with suppress(ValueError, TypeError, RuntimeError):
                if not accepts(row, CLASSES[row.name](**wrong), given, holds):
                    unseen.discard((row.name, name if name in row.parameters else further[0]))
    assert unseen == {("Positive", "name")}, sorted(unseen)


def test_every_start_has_a_row_that_sees_it():
    """Where a parameter that is not drawn starts elsewhere, the check of the row fails."""
    seen, unseen = set(), set()
    for row in ROWS:
        layer, given, holds = row.make()
        for name in values(layer).keys() - free(row):
            parameter = layer.get_parameter(name).data
            start = parameter.clone()
            parameter += 0.1
            place = row.name, re.sub(r"\.\d+\.", ".", name)  # one of a list is enough
            (unseen if accepts(row, layer, given, holds) else seen).add(place)
            parameter.copy_(start)
    assert unseen <= seen, sorted(unseen - seen)


def test_layers_are_made_on_the_device_asked_for():
    elsewhere = set()
    for row in ROWS:
        if "device" in row.parameters:
            given = copy.deepcopy(row.given).items()
            given = {name: x.to("meta") if isinstance(x, nn.Module) else x for name, x in given}
            layer = CLASSES[row.name](**given, device="meta")
            tensors = [*layer.named_parameters(), *layer.named_buffers()]
            elsewhere |= {(row.name, place) for place, x in tensors if not x.is_meta}
    assert elsewhere == set()


# Parts of layers, whose arguments these check, and what joblib takes.
UNCHECKED = {
    "AffinityNetwork", "CodingStep", "FeedForward", "GroupCodingStep", "HeadProjection",
    "MixerLayer", "NonLocalMeansStep", "PatchMerging", "Positions", "WindowedStage", "n_jobs",
}  # fmt: skip
SIGNED = {"LayerScale.initial", "_ScaleThenLayerScale.initial", "layer_scale", "source"}
MAY_BE_ZERO = SIGNED | {
    "class_depth", "contraction", "depth", "dropout", "mixing", "n_class_tokens", "noise",
    "noise_later", "norm_eps", "num_classes", "patch_distance", "radius", "ridge", "window",
    "DeepSelfExpression.n_layers", "Nystrom.n_iter", "Sinkhorn.n_iter",
    "NonLocalMeansAttention.sigma", "NonLocalMeansDenoiser.tau", "BoostedFilter.rho",
    *(f"{name}.lam" for name in CLASSES if "FilterDiffusion" in name),
}  # fmt: skip
# What messages call them.
CALLED = {"class_depth": "depth", "initial": "width", "layer_scale": "initial",
          "relative_step": "step"}  # fmt: skip


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_numbers_out_of_range_are_refused_by_name(row):
    """NaN, what is negative, fractions of a count, and zero where it means nothing."""
    for name, x in row.given.items():
        places = {name, row.name, f"{row.name}.{name}"}
        bad = {float: (math.nan, -2.5, 0.0), int: (1.5, -3, 0)}.get(type(x), ())
        for y in bad[: 1 if places & SIGNED else 2 if places & MAY_BE_ZERO else 3]:
            if not places & UNCHECKED:
                with pytest.raises(ValueError, match=f"^({name}|{CALLED.get(name)}): must"):
                    CLASSES[row.name](**copy.deepcopy(row.given) | {name: y})


DEFAULTS = {
    "LayerScale": {"initial": 1e-5},  # Touvron et al. (2021), of 24 layers
    "Linear": {"scale": 1 / 16},  # SK-4
    "LocallyLinear": {"reg": 1e-3},  # SE-9
    "Neutreno": {"lam": 0.6},  # NT-22
    "Nystrom": {"n_iter": 6},  # QK-pinv
    "SelfExpressiveNetwork": {"width": 1024, "gamma": 200.0, "l1_ratio": 0.9},  # CL-11
    "TokenGraying": {"eps": 0.95},  # SK-A2
}


def test_defaults_are_those_of_the_papers():
    for name, expected in DEFAULTS.items():
        parameters = inspect.signature(CLASSES[name]).parameters
        assert {x: parameters[x].default for x in expected} == expected, name
