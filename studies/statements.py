"""Statements of the papers that a formula or a shipped network settles in minutes.

``python studies/statements.py`` writes a table for each of them. Nothing is trained.
"""

import math
from collections.abc import Callable, Iterator
from copy import deepcopy
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch
from costs import N_TIMED, SIZES, build
from scipy.sparse.linalg import LinearOperator, eigsh
from scipy.special import softmax
from shared.script import run_script
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from twinsolve.bench.costs import size_measures, speed_ratios
from twinsolve.bench.options import Output
from twinsolve.bench.speed.attention import profile_run
from twinsolve.bench.tables import Lines, Results, number, write_table
from twinsolve.bench.terminal import progress
from twinsolve.bench.vision.classification.study import ROWS
from twinsolve.bench.vision.inspection.measures import observe, parts_of_logits
from twinsolve.bench.vision.inspection.sources import digits, find_source
from twinsolve.unrolled import Neutreno, TokenGraying
from twinsolve.unrolled.diagnostics import (
    MEASURES,
    attention_spectrum,
    condition_bounds,
    high_frequency_bounds,
    jacobian_spectrum,
    record,
)
from twinsolve.unrolled.kernel_smoothing import store_positions
from twinsolve.unrolled.models import Block
from twinsolve.unrolled.models.blocks import NoSkip

Array = np.ndarray


class Found(NamedTuple):
    """A number, what it is of, at which layer, size or the like, and a bound or another number."""

    part: str
    at: Any
    value: float
    bound: float | None = None


def blocks_of(model: nn.Module) -> list[Block]:
    """Its blocks, in the order of computation."""
    return [module for module in model.modules() if isinstance(module, Block)]


# What is left of a block: whether there is a feed-forward part, and whether there are skips.
PARTS = {
    "attention": (False, False),
    "attention, feed-forward": (True, False),
    "attention with skip": (False, True),
    "whole block": (True, True),
}


def measure_high_frequencies(model: nn.Module, images: Tensor) -> Iterator[Found]:
    """``log(|HC X_l| / |HC X_0|)`` behind layer l of what is left of the blocks, by image.

    X_0 are the tokens in front of the first layer, and HC takes their mean away. The bound is that
    of Theorem 3 and Propositions 4 to 6 on X_l, from what enters the last part of the layer.
    """
    for part, (feeds, skips) in PARTS.items():
        left = deepcopy(model)
        started: list[Tensor] = []
        blocks_of(left)[0].register_forward_pre_hook(lambda _, given, to=started: to.extend(given))
        for block in blocks_of(left):
            if not feeds:
                block.feed_forward = None
            if not skips:
                block.attention_residual = block.feed_forward_residual = NoSkip()
        last = {side.name: side for side in high_frequency_bounds(left, images)}
        start = torch.linalg.norm(started[0] - started[0].mean(dim=1, keepdim=True), dim=(1, 2))
        for layer, side in enumerate(last.values(), 1):
            sizes = ((x / start).log().mean().item() for x in (side.measured, side.bound))
            yield Found(part, layer, *sizes)


def count_bands(part: str, matrices: Tensor) -> Iterator[Found]:
    """Maps of shape (..., n, n) whose strongest Fourier band is not the mean over tokens."""
    bands = attention_spectrum(matrices)[1].flatten(end_dim=-2)
    yield Found(part, "maps", len(bands))
    yield Found(part, "of them, another band strongest", int((bands.argmax(dim=1) != 0).sum()))
    yield Found(part, "largest intensity of another band", bands[:, 1:].max().item())


def read_bands() -> Iterator[Found]:
    """The same of the softmax network, and of the layer with AttnScale of the mixed one."""
    for name, operator in (("digits", "Softmax"), ("digits-mixed", "AttnScale")):
        source = find_source(name)
        seen = [layer.seen for layer in observe(source.model, source.images)]
        own = [each.matrix for each in seen if type(each.operator).__name__ == operator]
        yield from count_bands(operator, torch.stack(own))


_LARGER: dict[str, dict[str, Any]] = {
    "DeiT-S, 24 layers": SIZES["DeiT-S"] | {"depth": 24},
    "CaiT-S": SIZES["CaiT-XXS24"] | {"dim": 384, "num_heads": 8},
    "Swin-S": SIZES["Swin-T"] | {"depths": [2, 2, 18, 2]},
}


def count_costs() -> Iterator[Found]:
    """Parameters, 10^6 products with additions on an image, and speed, as `costs.py` has them."""
    images = torch.rand(N_TIMED, 3, 224, 224)
    for size, sizes in _LARGER.items():
        plain = build(sizes, {})
        for row in ("softmax", "AttnScale", "FeatScale"):
            model = build(sizes, ROWS[row])
            found = size_measures(model, images) | speed_ratios(model, plain, images)
            yield Found(f"{size}, {row}", "parameters", found["parameters"])
            yield Found(f"{size}, {row}", "MMACs", found["flops"] / 2e6)
            yield Found(f"{size}, {row}", "throughput, % of softmax", 100 * found["inference"])


@torch.no_grad()
def measure_memory() -> Iterator[Found]:
    """Largest memory of a DeiT-Ti for one image, with its weights, and the ratio to softmax."""
    image, plain = torch.rand(1, 3, 224, 224), math.nan
    for row in ("softmax", "NeuTRENO"):
        model = build(SIZES["DeiT-Ti"], ROWS[row])
        weights = sum(p.numel() * p.element_size() for p in model.parameters())
        size = (weights + profile_run(partial(model, image), "cpu").peak_memory) / 2**20
        plain = size if row == "softmax" else plain
        yield Found(row, "MiB", size)
        yield Found(row, "of softmax", size / plain)


@torch.no_grad()
def share_of_places(model: nn.Module, images: Tensor) -> Iterator[Found]:
    """How much of a part of the logits is the same in all images, in % of its mean square.

    Constants of a row count nothing, as softmax does not see them. A part without a pattern of
    places has a share of one over the number of images.
    """
    for name, part in parts_of_logits(observe(model, images)[0]).items():
        centred = part - part.mean(dim=-1, keepdim=True)
        share = centred.mean(dim=0).square().sum() / centred.square().mean(dim=0).sum()
        yield Found(name.replace("_", "-"), f"{len(images)} digits", 100 * float(share))


def measure_conditions(model: nn.Module, images: Tensor) -> Iterator[Found]:
    """Medians of ``ln kappa`` of what each part of a block puts out, with its skip and without."""
    layers: dict[str, int] = {}
    for side in condition_bounds(model, images):
        part = side.part.replace("_skip", " with skip").replace("_", "-")
        layers[part] = layers.get(part, 0) + 1
        yield Found(part, layers[part], side.measured.log().median().item())


def replace_by_neutreno(model: nn.Module, images: Tensor) -> Iterator[Found]:
    """Mean token cosine behind each layer once NeuTRENO takes the place of softmax, and before."""
    plain = _token_cosines(model, images)
    for lam in (0.2, 0.4, 0.6):
        changed = deepcopy(model)
        for block in blocks_of(changed):
            block.attention.operator = Neutreno(block.attention.operator, lam)
        for layer, pair in enumerate(zip(_token_cosines(changed, images), plain, strict=True), 1):
            yield Found(f"{lam:g}", layer, *pair)


@torch.no_grad()
def _token_cosines(model: nn.Module, images: Tensor) -> list[float]:
    with record(model, {"cosine": MEASURES["token_similarity"]}) as rows:
        model(images)
    return [row["value"] for row in rows]


def compare_jacobians(model: nn.Module, images: Tensor) -> Iterator[Found]:
    """``ln kappa`` of the Jacobian of all blocks together, and that of the worst sub-block.

    Sub-blocks are attention and the feed-forward network: with norm and skip, or behind the norm.
    """
    blocks = blocks_of(model)
    for image, X in enumerate(_first_tokens(model, images), 1):
        conditions, x = [], X
        for block in blocks:
            parts: list[tuple[Any, Any]] = [
                (block.attention_norm, partial(attend, block)),
                (block.feed_forward_norm, block.feed_forward),
            ]
            for norm, branch in parts:
                step = partial(add_branch, norm, branch)
                conditions.append((log_condition(step, x), log_condition(branch, norm(x))))
                x = step(x)
        network = log_condition(nn.Sequential(*blocks), X)
        for part, worst in zip(("with skips", "without skips"), np.max(conditions, 0), strict=True):
            yield Found(f"sub-blocks {part}", image, network, float(worst))


def attend(block: Block, y: Tensor) -> Tensor:
    """What attention makes of normalised tokens."""
    return block.attention(y, y, y, need_weights=False)[0]


def add_branch(norm: nn.Module, branch: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """Tokens with what a branch adds to them."""
    return x + branch(norm(x))


def log_condition(function: Callable[[Tensor], Tensor], x: Tensor) -> float:
    """``ln kappa`` of the Jacobian at x."""
    values = jacobian_spectrum(function, x)
    return (values[0] / values[-1]).log().item()


@torch.no_grad()
def _first_tokens(model: nn.Module, images: Tensor) -> Tensor:
    found: list[Tensor] = []
    handle = blocks_of(model)[0].register_forward_pre_hook(lambda _, given: found.append(given[0]))
    model(images)
    handle.remove()
    return found[0][:, None]


def cosine_matrix(n: int) -> Tensor:
    """The orthogonal matrix of the cosine transform of type II, eq. 8."""
    wave = torch.arange(n, dtype=torch.float64)
    D = torch.cos(torch.pi * (wave + 0.5) * wave[:, None] / n) * (2 / n) ** 0.5
    D[0] /= 2**0.5
    return D


def gray_by_dct(X: Tensor, eps: float = 0.95) -> Tensor:
    """Token graying by Algorithm 2, with all steps in the precision of X."""
    left, right = (cosine_matrix(n).to(X.dtype) for n in X.shape[-2:])
    F = left @ X @ right.mT
    largest = F.abs().amax(dim=(-2, -1), keepdim=True)
    return left.mT @ (F.sign() * (F.abs() / largest) ** eps * largest) @ right


def gray_by_svd(X: Tensor, eps: float = 0.95) -> Tensor:
    """Token graying by Algorithm 1, which keeps the largest singular value."""
    U, s, Vh = torch.linalg.svd(X, full_matrices=False)
    return U * ((s / s[..., :1]) ** eps * s[..., :1])[..., None, :] @ Vh


def measure_rounding(X: Tensor) -> Iterator[Found]:
    """Largest error of token graying in low precision, over the largest entry of the exact one."""
    for name, gray, dtypes in (
        ("SVD", gray_by_svd, (torch.float32,)),
        ("DCT", gray_by_dct, (torch.float32, torch.bfloat16)),
        ("DCT, our layer", TokenGraying("dct"), (torch.float32, torch.bfloat16)),
        ("none", nn.Identity(), (torch.float32, torch.bfloat16)),
    ):
        exact = gray(X)
        for dtype in dtypes:
            error = (gray(X.to(dtype)).double() - exact).abs().max() / exact.abs().max()
            yield Found(name, str(dtype).removeprefix("torch."), error.item())


# Laws of the scores of N keys.
LAWS: dict[str, Callable[[np.random.Generator, int], Array]] = {
    "equal": lambda rng, n: np.zeros(n),
    "N(0, 1)": lambda rng, n: rng.standard_normal(n),
    "N(0, 2 ln N)": lambda rng, n: np.sqrt(2 * np.log(n)) * rng.standard_normal(n),
    "two large": lambda rng, n: np.r_[0, 0, np.full(n - 2, -50.0)],
}
_KEYS = (100, 1000, 10_000)


def local_constant(scores: Array) -> float:
    """Largest singular value of ``diag(p) - p p'``, the Jacobian of softmax at these scores."""
    p = softmax(scores)
    n, start = len(p), scores - p @ scores
    jacobian = LinearOperator((n, n), matvec=lambda v: p * v.ravel() - p * (p @ v.ravel()))
    return float(eigsh(jacobian, 1, v0=start if start.any() else None)[0][0])


def mean_change(law: str, n: int, n_draws: int) -> float:
    """Mean of ``|softmax(c + eta) - softmax(c)|`` over scores c of a law and eta of N(0, 1)."""
    rng = np.random.default_rng(0)
    changes = []
    for _ in range(n_draws):
        scores = LAWS[law](rng, n)
        changes.append(softmax(scores + rng.standard_normal(n)) - softmax(scores))
    return float(np.linalg.norm(changes, axis=1).mean())


def measure_constants(n_draws: int = 20) -> Iterator[Found]:
    """The largest local Lipschitz constant of softmax among draws of the scores."""
    for law, draw in LAWS.items():
        for n in _KEYS:
            rng = np.random.default_rng(0)
            yield Found(law, n, max(local_constant(draw(rng, n)) for _ in range(n_draws)))


def measure_changes(n_draws: int = 1000) -> Iterator[Found]:
    """The mean change of the weights."""
    for law in LAWS:
        for n in _KEYS:
            yield Found(law, n, mean_change(law, n, n_draws))


def kept_shares(u: Tensor, n: Tensor, bandwidth: float) -> Tensor:
    """Rows of ``alpha = |A u| / |u|``, beta the cosine of A u and u, and ``gamma = |A n| / |n|``.

    A are the weights of attention of Theorem III.1 on patches ``y = u + n``, of shape
    (images, patches, pixels): softmax of ``y y' / bandwidth^2``.
    """
    y = u + n
    A = torch.softmax(y @ y.mT / bandwidth**2, dim=-1)
    sizes = [torch.linalg.norm(x, dim=(1, 2)) for x in (u, n, A @ u, A @ n)]
    cosine = (u * (A @ u)).sum(dim=(1, 2)) / (sizes[0] * sizes[2])
    return torch.stack([sizes[2] / sizes[0], cosine, sizes[3] / sizes[1]])


def measure_denoising(n_images: int = 200, noise: float = 0.3) -> Iterator[Found]:
    """Means of alpha, beta and gamma, and the share of images in which both exceed gamma, in %."""
    u = nn.functional.unfold(digits()[1][0][:n_images].double(), 2, stride=2).mT
    u = u - u.mean(dim=1, keepdim=True)
    n = noise * torch.randn(u.shape, dtype=u.dtype, generator=torch.Generator().manual_seed(0))
    for bandwidth in (0.1, 0.3, 1.0, 2**0.5):
        shares = kept_shares(u, n, bandwidth)
        for name, values in zip(("alpha", "beta", "gamma"), shares, strict=True):
            yield Found(f"{bandwidth:.2f}", name, values.mean().item())
        both = (shares[:2] > shares[2]).all(dim=0).double()
        yield Found(f"{bandwidth:.2f}", "alpha, beta > gamma, %", 100 * both.mean().item())


def count_products(model: nn.Module, images: Tensor) -> dict[str, float]:
    """Products with additions, 10^9, without the products of attention and with them.

    The products of attention are those of two matrices that both depend on the image.
    """
    counter = FlopCounterMode(display=False)
    with sdpa_kernel(SDPBackend.MATH), counter, torch.no_grad():
        model.requires_grad_(False)(images)
    counts = {str(kind): flops / 2e9 for kind, flops in counter.get_flop_counts()["Global"].items()}
    total = sum(counts.values())
    return {"": total - counts["aten.bmm"], ", with attention": total}


def count_passes() -> Iterator[Found]:
    """The same of a DeiT of width 192 in training and in inference, where positions are stored."""
    images = torch.rand(1, 3, 224, 224)
    for row in ("softmax", "GRC", "bilateral"):
        model = build(SIZES["DeiT-Ti"], ROWS[row])
        passes = {"training": model, "inference": store_positions(model, images)}
        found = {kind: count_products(each, images) for kind, each in passes.items()}
        for name in ("", ", with attention"):
            for kind, counts in found.items():
                yield Found(row, f"{kind}{name}", counts[name])


def with_digits(measure: Callable[..., Iterator[Found]], n_images: int = 16) -> Iterator[Found]:
    """What is measured on the shipped network and the first test digits."""
    model = find_source("digits").model
    images = digits()[1][0][:n_images]
    return measure(model, images.to(next(model.parameters())))


class Statement(NamedTuple):
    """How it is found, what the lines are, a format, and what is said of the numbers."""

    find: Callable[[], Iterator[Found]]
    head: str
    form: str
    note: str


_SHIPPED = "The network is the shipped one of 6 layers, trained on digits."
STATEMENTS: dict[str, Statement] = {
    "IF Figure 1, left": Statement(
        measure_constants, "scores, by N", ".4f",
        "The largest Lipschitz constant of softmax at 20 draws of the scores. Over all scores it "
        "is 1/2 for every N.",
    ),
    "IF Figure 1, right": Statement(
        measure_changes, "scores, by N", ".4f",
        "The mean change of the weights under noise of variance 1 in the scores, over 1,000 draws "
        "of both.",
    ),
    "IF Remark III.2": Statement(
        measure_denoising, "bandwidth", ".3f",
        "The attention of Theorem III.1 on 200 test digits, patches of 2 x 2 without their mean, "
        "noise of deviation 0.3. What is kept of the norm of the signal (alpha) and of the noise "
        "(gamma), and the cosine of old and new signal (beta). 1.41 divides by sqrt(d), as "
        "attention does.",
    ),
    "IF Table V": Statement(
        count_passes, "GMACs of a DeiT-Ti", ".3f",
        "Without the products of queries with keys and of weights with values, and with them. In "
        "inference bilateral attention stores its positions.",
    ),
    "AO Figure 1": Statement(
        lambda: with_digits(measure_high_frequencies), "parts, by layer", ".2f",
        f"{_SHIPPED} log(|HC X_l| / |HC X_0|), and in brackets the bound on it, means over 16 "
        "images. Parts are taken out without training. The bounds take the tokens behind the norm. "
        "The last numbers without skips are near the rounding of float64.",
    ),
    "AO Table 1": Statement(
        count_costs, "network", ",.0f",
        "MMACs are products with additions, 10^6 an image of 224 x 224 pixels, that torch counts. "
        "Throughput is inference in processor time, timed in turns, also softmax against itself. "
        "Our CaiT has no talking heads, our Swin learned positions and no relative biases.",
    ),
    "AO Figure 10": Statement(
        read_bands, "operator", ".4g",
        f"{_SHIPPED} AttnScale is one layer of the shipped mixed network. The intensity of the "
        "mean is at least 1 in each map.",
    ),
    "IF Figure 2": Statement(
        lambda: with_digits(share_of_places, 200), "part of the logits", ".0f",
        f"{_SHIPPED} Shares, in %, of a part's mean square that are the same in all images, of the "
        "first layer and all heads. A part that is noise would have half a percent.",
    ),
    "NT Figure 7, left": Statement(
        lambda: with_digits(replace_by_neutreno), "lambda, by layer", ".2f",
        f"{_SHIPPED} Mean cosines of tokens behind a layer, over 16 images, with NeuTRENO in place "
        "of softmax attention, and in brackets without. Nothing is trained further.",
    ),
    "NT Appendix G.4": Statement(
        measure_memory, "DeiT-Ti", ".4f",
        "Weights, and the largest memory of inference beside them, of one image of 224 x 224 "
        "pixels in float32. Nothing is trained.",
    ),
    "SK Figure 1b": Statement(
        lambda: with_digits(measure_conditions), "ln kappa, by layer", ".2f",
        f"{_SHIPPED} Medians over 16 images.",
    ),
    "SK Assumption 1": Statement(
        lambda: with_digits(compare_jacobians, 4), "ln kappa, by image", ".2f",
        f"{_SHIPPED} The Jacobian of its blocks together, and in brackets that of the worst "
        "sub-block: attention or a feed-forward network, with its norm and its skip, or with "
        "neither.",
    ),
    "SK Section 7": Statement(
        lambda: measure_rounding(
            torch.rand(16, 196, 768, generator=torch.Generator().manual_seed(0)).double()
        ),
        "token graying", ".1e",
        "Largest error over the largest entry, of 16 x 196 x 768 tokens from U(0, 1). All steps "
        "are in that precision; our layer computes in float32 inside. torch has no SVD in "
        "bfloat16.",
    ),
}  # fmt: skip


def lines_of(table: pd.DataFrame, statement: Statement) -> Lines:
    """Headings and cells: a line for each part, with the bounds in brackets."""
    places = table["at"].unique()
    lines = []
    for part, own in table.groupby("part", sort=False):
        cells = {
            found.at: number(found.value, statement.form)
            + ("" if pd.isna(found.bound) else f" ({found.bound:{statement.form}})")
            for found in own.itertuples()
        }
        lines.append((str(part) or "all", *(cells.get(at, "-") for at in places)))
    return (statement.head, *map(str, places)), lines


def main(output: Output = Path("results/statements")) -> None:
    """Find all numbers, and write a table of each statement."""
    results, tables = Results("python studies/statements.py", {}, output), []
    for name, statement in progress("Measuring")(STATEMENTS.items(), len(STATEMENTS)):
        own = pd.DataFrame(statement.find(), columns=Found._fields)
        tables.append(own.assign(statement=name))
        results.add_table(name, lines_of(own, statement))
        results.add_sentences([statement.note])
    write_table(pd.concat(tables), results.directory)
    results.write()


if __name__ == "__main__":
    run_script(__file__)
