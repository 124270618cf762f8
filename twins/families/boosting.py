"""Twins: twicing, boosting, and residual connections to earlier tokens around attention.

Twicing and boosting are formulas: they are defined by their passes, and stop before any minimum.
A stack with residual connections makes its kernel from the present tokens in every layer: a
recursion, whose iterates are formulas. Fixed points and Lipschitz constants are those of linear
filters: their twins keep the kernel of the first tokens, and limits are solved for.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch
from scipy.spatial.distance import cdist
from torch import Tensor, nn

from ...solvers import boost, l2_boosting, smoother_matrix, sos_boosting, twicing
from ...solvers.boosting import boosting_lipschitz_bound, generalized_residual, snr_gain_bound
from ...solvers.nonlocal_energy import neutreno_fixed_point
from ...unrolled.attention import Context
from ...unrolled.boosting import BoostedFilter, GeneralizedResidual, Residual, Twicing
from ...unrolled.image_filters import BilateralFilter, EmbeddedMeans, NonLocalMeansAttention
from ...unrolled.kernel_smoothing import Gaussian, Local, Softmax
from ..heads import Array, HeadCall, head_value, solve_each_image
from ..laws.subject import as_array
from ..pairs import Derivatives, Inputs, Numerics, solve_head
from ..registry import add_twin, exact_twin
from ..relations import Bound, FixedPointLimit, Identity, Inequalities, Iterate
from .image_filters import image_of, pixel_weights, pixels_of
from .kernel_smoothing.regression import build_gaussian, build_gaussian_heads, local_bandwidth
from .kernel_smoothing.smoothing_bounds import N_EXTREMAL, diffusion_modes


def _innermost(layer: Any) -> tuple[Any, int]:
    """Return the smoother inside nested twicing, and the number of boosting steps ``2^depth``."""
    steps = 1
    while isinstance(layer, Twicing):
        layer, steps = layer.base, 2 * steps
    return layer, steps


def _solve_twicing(layer: Twicing, call: HeadCall) -> Array:
    """Solve twicing by Tukey's two passes, and nested twicing by its steps of L2 boosting."""
    smoother, steps = _innermost(layer)
    base = exact_twin(smoother)

    def smooth(values: Array) -> Array:
        return solve_head(base, smoother, replace(call, v=values))

    if steps == 2:
        return twicing(smooth, call.v)
    return l2_boosting(smooth, call.v, n_iter=steps)


def _twicing_range(layer: Twicing, *arrays: Array) -> float:
    """Return the range of the innermost smoother's logits."""
    smoother, _ = _innermost(layer)
    return exact_twin(smoother).numerics.logit_range(smoother, *arrays)


def _twicing_passes(layer: Twicing) -> int:
    """Return how often values pass through the smoother."""
    smoother, steps = _innermost(layer)
    return steps * exact_twin(smoother).numerics.passes(smoother)


def _build_filter(image: Array, base: str = "bilateral", **settings: Any) -> BoostedFilter:
    """Build a boosted filter of images around the filter with this name."""
    kind: dict[str, Any] = {"dtype": torch.float64}
    bases = {
        "bilateral": lambda: BilateralFilter(0.4, 2.0, **kind),
        "embedded": lambda: EmbeddedMeans(
            0.5, noise=0.05, patch_size=3, patch_distance=2, channels=image.shape[1], **kind
        ),
        "nonlocal": lambda: NonLocalMeansAttention(0.5, patch_size=3, patch_distance=2, **kind),
    }
    return BoostedFilter(bases[base](), **settings, **kind)


def _solve_filter(layer: BoostedFilter, image: Array) -> Array:
    """Solve by boosting with the explicit matrix of the filter."""
    K = pixel_weights(layer.base, image)
    A, y, tau = K / K.sum(axis=1, keepdims=True), pixels_of(image), head_value(layer.tau, 0)
    if layer.rho >= 0:
        u = sos_boosting(A, y, n_iter=layer.n_iter, rho=layer.rho, tau=tau)
    elif layer.n_iter == 2 and tau == 1:
        u = twicing(A, y)
    else:
        u = l2_boosting(tau * A, y, n_iter=layer.n_iter)  # tau may be over 1, shrinkage not
    return image_of(u, image)


_DEPTHS = (1, 2, 5, 10)


def _run_layers(
    residual: nn.Module, X: Tensor, branch: Callable[[Tensor], Tensor], n_layers: int
) -> Tensor:
    """Run layers with the same branch and residual connection, as a model does.

    Layers before the block whose output the residual reads have no residual connection.
    """
    context = Context(first_tokens=X)
    for layer in range(n_layers):
        context = context._replace(history=(*context.history, X))
        connected = layer >= _n_plain(residual)
        X = residual(X, branch(X), context) if connected else branch(X)
    return X


def _n_plain(residual: Any) -> int:
    """Return the number of layers before the block that the residual reads."""
    source = getattr(residual, "source", None) or 0
    return source if source >= 0 else -source - 1


def _attend_present(X: Tensor) -> Callable[[Tensor], Tensor]:
    """Return Gaussian self-attention of any tokens, with a bandwidth for the tokens X."""
    first = as_array(X)
    operator = Gaussian(local_bandwidth(first, first))
    return lambda tokens: operator(tokens, tokens, tokens)


def _attend_frozen(X: Tensor) -> Callable[[Tensor], Tensor]:
    """Return Gaussian attention among the tokens X as a linear filter of any values."""
    tokens = as_array(X)
    operator = Gaussian(local_bandwidth(tokens, tokens))
    return lambda values: operator(X, X, values)


def _matrix(X: Array) -> Array:
    """Return the matrix of Gaussian smoothing among the tokens X."""
    return smoother_matrix(X, X, bandwidth=local_bandwidth(X, X))


def _make_smoother(X: Array) -> Callable[[Array], Array]:
    """Return the smoother ``A(Y) Y`` of the present iterate Y, with a bandwidth for X."""
    bandwidth = local_bandwidth(X, X)
    return lambda Y: smoother_matrix(Y, Y, bandwidth=bandwidth) @ Y


def _weight(layer: GeneralizedResidual) -> float:
    """Return the weight t of the residual connection."""
    return float(layer.t.detach())


def _n_layers(layer: nn.Module) -> int:
    """Return the number of layers, by default 3."""
    return getattr(layer, "n_iter", 3)


def _build_boosting(X: Array) -> GeneralizedResidual:
    """Build a connection to the first tokens, with t = 0.3."""
    layer = GeneralizedResidual(dtype=torch.float64)
    nn.init.constant_(layer.t, 0.3)
    return layer


def _apply_boosting(
    layer: GeneralizedResidual, X: Tensor, *, attend: Callable[..., Any] = _attend_present
) -> Tensor:
    """Run layers with the branch ``A - I``, a step of diffusion: with the residual it is ``A``."""
    attention = attend(X)
    return _run_layers(layer, X, lambda tokens: attention(tokens) - tokens, _n_layers(layer))


def _solve_boosting(layer: GeneralizedResidual, X: Array) -> Array:
    """Solve by boosting with the kernel of the present tokens."""
    smooth = _make_smoother(X)
    return boost(lambda Y: smooth(Y) - Y, X, t=_weight(layer), n_iter=_n_layers(layer))


def _solve_linear_boosting(layer: GeneralizedResidual, X: Array) -> Array:
    """Solve by boosting with the kernel of the first tokens."""
    diffusion = _matrix(X) - np.eye(len(X))
    return boost(diffusion, X, t=_weight(layer), n_iter=_n_layers(layer))


def _solve_fixed_point(layer: GeneralizedResidual, X: Array) -> Array:
    """Solve for the fixed point of NeuTRENO, the limit of boosting."""
    return neutreno_fixed_point(X, _matrix(X), lam=_weight(layer), tol=1e-12).coef


def _build_reinjection(X: Array, *, source: int = 0) -> GeneralizedResidual:
    """Build a connection to a block's output, with t = 0.3."""
    layer = GeneralizedResidual(source, dtype=torch.float64)
    nn.init.constant_(layer.t, 0.3)
    return layer


def _apply_reinjection(
    layer: GeneralizedResidual, X: Tensor, *, attend: Callable[..., Any] = _attend_present
) -> Tensor:
    """Run layers with the branch ``(1 - t) A``, for which many layers have a limit."""
    attention, t = attend(X), layer.t
    return _run_layers(layer, X, lambda tokens: (1 - t) * attention(tokens), _n_layers(layer))


def _solve_reinjection(layer: GeneralizedResidual, X: Array) -> Array:
    """Solve by the recursion with a residual connection to the output of a block."""
    t, n_layers, smooth = _weight(layer), _n_layers(layer), _make_smoother(X)
    source: Any = layer.source
    n_plain = _n_plain(layer)
    blocks = np.arange(n_layers)
    sources = np.where(blocks < n_plain, 0, source if source >= 0 else blocks + source + 1)
    return generalized_residual(
        lambda Y: (1 - t) * smooth(Y), X, sources=sources.tolist(), weights=t * (blocks >= n_plain)
    )


def _solve_reinjection_limit(layer: GeneralizedResidual, X: Array) -> Array:
    """Solve for ``t (I - (1 - t) A)^-1 X``, NeuTRENO's fixed point at ``lam = t / (1 - t)``."""
    lam = _weight(layer) / (1 - _weight(layer))
    return neutreno_fixed_point(X, _matrix(X), lam=lam, tol=1e-12).coef


def _lipschitz_bound(layer: GeneralizedResidual, X: Tensor) -> Inequalities:
    """Compare the growth of a difference with its bound K_n, which the branch ``L id`` attains."""
    tokens, sides = as_array(X), Inequalities()
    largest = float(np.linalg.norm(_matrix(tokens), 2))
    difference = torch.flip(X, (0,)) - X
    before, attention = as_array(difference), _attend_frozen(X)
    for n_layers in _DEPTHS:
        grown = as_array(_run_layers(layer, difference, attention, n_layers))
        bound = boosting_lipschitz_bound(largest, n_layers, t=_weight(layer))
        sides.at_most(np.linalg.norm(grown), bound * np.linalg.norm(before))
        for L in (0.1, _weight(layer), 0.8):
            grown = as_array(_run_layers(layer, difference, partial(torch.mul, L), n_layers))
            bound = boosting_lipschitz_bound(L, n_layers, t=_weight(layer))
            sides.attained((before * grown).sum(), bound * (before**2).sum())
    return sides


def _apply_residual(layer: Residual, X: Tensor) -> Tensor:
    """Run the layer with the branch A: the output is ``X + A X``."""
    return layer(X, _attend_frozen(X)(X))


def _solve_residual(layer: Residual, X: Array) -> Array:
    """Solve by one step of boosting."""
    return boost(_matrix(X), X, n_iter=1)


def _apply_diffusing(layer: Residual, X: Tensor) -> Tensor:
    """Run the layer with the branch ``A - I``: the output is the mean of nearby tokens."""
    return layer(X, _attend_frozen(X)(X) - X)


def _solve_diffusing(layer: Residual, X: Array) -> Array:
    """Solve by one smoothing."""
    return _matrix(X) @ X


def _snr_bound(layer: Residual, X: Tensor) -> Inequalities:
    """Compare the gain in SNR by a residual connection with its bound.

    The noise is a tenth of the tokens X. Along an eigenvector of A, noise e attains the bound. A
    factor on the output would leave the gain as it is; so ``<x, x + A x>`` and ``<e, e + A e>`` are
    compared too.
    """
    sides = Inequalities()
    bound, gain, *_ = _snr_gain(layer, X, np.random.default_rng(0).standard_normal(X.shape))
    sides.at_most(bound, gain)
    few = X[:N_EXTREMAL]
    tokens = as_array(few)
    precision = local_bandwidth(tokens, tokens) ** -2
    modes = diffusion_modes(np.exp(-precision / 2 * cdist(tokens, tokens, "sqeuclidean")))[1]
    bound, gain, *parts = _snr_gain(layer, few, np.outer(modes[:, -2], np.ones(X.shape[1])))
    sides.attained(bound, gain)
    for part in parts:
        sides.attained(*part)
    return sides


def _snr_gain(layer: Residual, X: Tensor, noise: Array) -> tuple[Any, ...]:
    """Return the bound and the gain, then ``<x, layer(x)>`` and its expected value.

    x are first the tokens and then the noise.
    """
    signal, attention = as_array(X), _attend_frozen(X)
    A = _matrix(signal)
    noise = noise * 0.1 * np.linalg.norm(signal) / np.linalg.norm(noise)
    signal_out, noise_out = (
        as_array(layer(part, attention(part))) for part in (X, torch.from_numpy(noise).to(X.dtype))
    )
    sizes = [float(np.linalg.norm(x)) for x in (signal, noise, signal_out, noise_out)]
    size, noise_size = sizes[0] ** 2, sizes[1] ** 2
    with np.errstate(divide="ignore", invalid="ignore"):
        gain = np.divide(sizes[2], sizes[3]) / np.divide(sizes[0], sizes[1])
    share, noise_share = (float(np.linalg.norm(A @ x) / np.linalg.norm(x)) for x in (signal, noise))
    cosine = float((signal * (A @ signal)).sum() / (share * size))
    return (
        snr_gain_bound(share, min(cosine, 1.0), noise_share),
        gain,
        ((signal * signal_out).sum(), (1 + share * cosine) * size),
        ((noise * noise_out).sum(), (1 + noise_share) * noise_size),
    )


def _logit_range(layer: nn.Module, X: Array) -> float:
    """Return an upper bound of the range of the Gaussian's logits."""
    squares = ((X - X.mean(axis=0)) ** 2).sum(axis=1).max()
    return 2 * float(squares) / local_bandwidth(X, X) ** 2


def _contraction(layer: GeneralizedResidual) -> int:
    """Return the growth of rounding: layers that shrink it by 0.7 add up to 1 / (1 - 0.7)."""
    return 4


_twicing = partial(
    add_twin,
    family="boosting",
    relation=Identity(),
    equation="IF-TW",
    source="Tukey (1977); Bühlmann and Yu (2003); Revisiting Transformers from Image Filtering",
)
_twicing(
    name="twicing-attention",
    layer=Twicing,
    build=lambda q, k, v: Twicing(build_gaussian(q, k, v)),
    options={
        "bandwidths-of-heads": lambda q, k, v: Twicing(build_gaussian_heads(q, k, v)),
        "dot-products": lambda q, k, v: Twicing(Softmax()),
        "window": lambda q, k, v: Twicing(Local(3)),
        "of-twicing": lambda q, k, v: Twicing(Twicing(build_gaussian(q, k, v))),
        "three-times": lambda q, k, v: Twicing(Twicing(Twicing(Softmax()))),
    },
    solve=_solve_twicing,
    inputs=Inputs(by_rows=False),
    numerics=Numerics(_twicing_range, _twicing_passes),
)
_twicing(
    name="boosted-filter",
    layer=BoostedFilter,
    build=_build_filter,
    options={
        "l2-boosting": partial(_build_filter, n_iter=5, tau=0.7),
        "sos-boosting": partial(_build_filter, n_iter=4, rho=0.6, tau=0.8),
        "once": partial(_build_filter, n_iter=1),
        "of-embedded-means": partial(_build_filter, base="embedded"),
        "sos-of-nonlocal-means": partial(_build_filter, base="nonlocal", n_iter=3, rho=1.0),
    },
    solve=solve_each_image(_solve_filter),
    inputs=Inputs("image"),
    numerics=Numerics(
        logit_range=lambda layer, images: float(np.ptp(images)) ** 2 / 0.16,
        passes=lambda layer: layer.n_iter,
    ),
)

_residual = partial(
    add_twin,
    family="boosting",
    source="Revisiting Transformers with Insights from Image Filtering",
    layer=GeneralizedResidual,
    numerics=Numerics(_logit_range, _n_layers),
    derivatives=Derivatives(of=("parameters",)),  # the bandwidth of attention depends on the tokens
)
_boosting = partial(
    _residual,
    build=_build_boosting,
    inputs=Inputs("features", apply=_apply_boosting),
    covers=lambda layer: layer.source is None,
)
_reinjection = partial(
    _residual,
    build=_build_reinjection,
    inputs=Inputs("features", apply=_apply_reinjection),
    covers=lambda layer: layer.source is not None,
)
_LINEAR_BOOSTING = Inputs("features", apply=partial(_apply_boosting, attend=_attend_frozen))
_LINEAR_REINJECTION = Inputs("features", apply=partial(_apply_reinjection, attend=_attend_frozen))
_ITERATES = Iterate(n_iter=_DEPTHS)
_LIMIT = FixedPointLimit(n_iter=100, evidence="solver")
_CONTRACTION = Numerics(_logit_range, _contraction)

_boosting(
    name="boosted-residual",
    relation=_ITERATES,
    equation="IF-26",
    options={"initial": lambda X: GeneralizedResidual(dtype=torch.float64)},
    solve=_solve_boosting,
)
_boosting(
    name="boosted-residual-limit",
    relation=_LIMIT,
    equation="NT-FP",
    solve=_solve_fixed_point,
    inputs=_LINEAR_BOOSTING,
    numerics=_CONTRACTION,
)
_boosting(
    name="boosted-residual-lipschitz",
    relation=Bound(sides=_lipschitz_bound),
    equation="IF-29",
    solve=_solve_linear_boosting,
    inputs=_LINEAR_BOOSTING,
)
_reinjection(
    name="generalized-residual",
    relation=_ITERATES,
    equation="IF-GRC",
    options={
        "second-block": partial(_build_reinjection, source=1),
        "present-block": partial(_build_reinjection, source=-1),
        "block-before": partial(_build_reinjection, source=-2),
    },
    solve=_solve_reinjection,
)
_reinjection(
    name="generalized-residual-limit",
    relation=_LIMIT,
    equation="NT-FP",
    solve=_solve_reinjection_limit,
    inputs=_LINEAR_REINJECTION,
    covers=lambda layer: layer.source == 0,
    numerics=_CONTRACTION,
)
_residual(
    name="residual-snr",
    relation=Bound(sides=_snr_bound),
    equation="IF-18",
    layer=Residual,
    build=lambda X: Residual(),
    covers=lambda layer: type(layer) is Residual,  # a subclass may leave out x
    inputs=Inputs("features", apply=_apply_residual),
    solve=_solve_residual,
    task={"inputs": Inputs("features", apply=_apply_diffusing), "solve": _solve_diffusing},
)
