"""Twins: residual connections to earlier tokens, around Gaussian attention.

A stack makes its kernel from the present tokens in every layer: a recursion, whose iterates are
formulas. Fixed points and Lipschitz constants are those of linear filters: their twins keep the
kernel of the first tokens, and limits are solved for.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
from scipy.spatial.distance import cdist
from torch import Tensor, nn

from ....solvers import boost, smoother_matrix
from ....solvers.boosting import boosting_lipschitz_bound, generalized_residual, snr_gain_bound
from ....solvers.nonlocal_energy import neutreno_fixed_point
from ...attention import Context
from ...boosting import GeneralizedResidual, Residual
from ...kernel_smoothing import Gaussian
from ..heads import as_array
from ..inequalities import Inequalities
from ..kernel_smoothing.extremal_values import N_EXTREMAL, diffusion_modes
from ..kernel_smoothing.regression import local_bandwidth
from ..registry import Array, Twin, register
from ..relations import Bound, FixedPointLimit, Init, Iterate, Relation

_SOURCE = "Revisiting Transformers with Insights from Image Filtering"
_DEPTHS = (1, 2, 5, 10)


def _stack(
    residual: nn.Module, X: Tensor, branch: Callable[[Tensor], Tensor], n_layers: int
) -> Tensor:
    """Layers of the same branch, each connected by the residual, as a model runs them.

    Those before the block that the residual reads have none.
    """
    context = Context(first_tokens=X)
    for layer in range(n_layers):
        context = context._replace(history=(*context.history, X))
        connected = layer >= _n_plain(residual)
        X = residual(X, branch(X), context) if connected else branch(X)
    return X


def _n_plain(residual: Any) -> int:
    source = getattr(residual, "source", None) or 0
    return source if source >= 0 else -source - 1


def _present(X: Tensor) -> Callable[[Tensor], Tensor]:
    """Gaussian self-attention of any tokens, at a bandwidth for those that come first."""
    first = X.double().numpy()
    operator = Gaussian(local_bandwidth(first, first))
    return lambda tokens: operator(tokens, tokens, tokens)


def _frozen(X: Tensor) -> Callable[[Tensor], Tensor]:
    """Gaussian attention among the tokens X, of any values: a linear filter."""
    tokens = X.double().numpy()
    operator = Gaussian(local_bandwidth(tokens, tokens))
    return lambda values: operator(X, X, values)


def _matrix(X: Array) -> Array:
    return smoother_matrix(X, X, bandwidth=local_bandwidth(X, X))


def _filter(X: Array) -> Callable[[Array], Array]:
    """The smoother of the present iterate, ``A(Y) Y``, at a bandwidth for X."""
    bandwidth = local_bandwidth(X, X)
    return lambda Y: smoother_matrix(Y, Y, bandwidth=bandwidth) @ Y


def _t(layer: GeneralizedResidual) -> float:
    return float(layer.t.detach())


def _n_layers(layer: nn.Module) -> int:
    return getattr(layer, "n_iter", 3)


def _build_boosting(X: Array) -> GeneralizedResidual:
    layer = GeneralizedResidual(dtype=torch.float64)
    nn.init.constant_(layer.t, 0.3)
    return layer


def _apply_boosting(
    layer: GeneralizedResidual, X: Tensor, *, attend: Callable[..., Any] = _present
) -> Tensor:
    """The branch is ``A - I``: a step of diffusion, so that the residual alone is ``A``."""
    attention = attend(X)
    return _stack(layer, X, lambda tokens: attention(tokens) - tokens, _n_layers(layer))


def _solve_boosting(layer: GeneralizedResidual, X: Array) -> Array:
    smooth = _filter(X)
    return boost(lambda Y: smooth(Y) - Y, X, t=_t(layer), n_iter=_n_layers(layer))


def _solve_linear_boosting(layer: GeneralizedResidual, X: Array) -> Array:
    diffusion = _matrix(X) - np.eye(len(X))
    return boost(diffusion, X, t=_t(layer), n_iter=_n_layers(layer))


def _solve_plain(layer: GeneralizedResidual, X: Array) -> Array:
    """Blurring mean shift."""
    smooth, Y = _filter(X), X
    for _ in range(_n_layers(layer)):
        Y = smooth(Y)
    return Y


def _solve_fixed_point(layer: GeneralizedResidual, X: Array) -> Array:
    return neutreno_fixed_point(X, _matrix(X), lam=_t(layer), tol=1e-12).coef


def _build_reinjection(X: Array, *, source: int = 0) -> GeneralizedResidual:
    layer = GeneralizedResidual(source, dtype=torch.float64)
    nn.init.constant_(layer.t, 0.3)
    return layer


def _apply_reinjection(
    layer: GeneralizedResidual, X: Tensor, *, attend: Callable[..., Any] = _present
) -> Tensor:
    """The branch is ``(1 - t) A``, so that many layers have a limit."""
    attention, t = attend(X), layer.t
    return _stack(layer, X, lambda tokens: (1 - t) * attention(tokens), _n_layers(layer))


def _solve_reinjection(layer: GeneralizedResidual, X: Array) -> Array:
    t, n_layers, smooth = _t(layer), _n_layers(layer), _filter(X)
    source: Any = layer.source
    first = _n_plain(layer)
    blocks = np.arange(n_layers)
    sources = np.where(blocks < first, 0, source if source >= 0 else blocks + source + 1)
    return generalized_residual(
        lambda Y: (1 - t) * smooth(Y), X, sources=sources.tolist(), weights=t * (blocks >= first)
    )


def _solve_reinjection_limit(layer: GeneralizedResidual, X: Array) -> Array:
    """``t (I - (1 - t) A)^-1 X``: the fixed point of NeuTRENO at ``lam = t / (1 - t)``."""
    lam = _t(layer) / (1 - _t(layer))
    return neutreno_fixed_point(X, _matrix(X), lam=lam, tol=1e-12).coef


def _lipschitz_bound(layer: GeneralizedResidual, X: Tensor) -> Inequalities:
    """Growth of a difference of two inputs against K_n; equal to it for the branch ``L id``."""
    tokens, sides = X.double().numpy(), Inequalities()
    largest = float(np.linalg.norm(_matrix(tokens), 2))
    difference = torch.flip(X, (0,)) - X
    before, attention = as_array(difference), _frozen(X)
    for n_layers in _DEPTHS:
        grown = as_array(_stack(layer, difference, attention, n_layers))
        bound = boosting_lipschitz_bound(largest, n_layers, t=_t(layer))
        sides.at_most(np.linalg.norm(grown), bound * np.linalg.norm(before))
        for L in (0.1, _t(layer), 0.8):
            grown = as_array(_stack(layer, difference, partial(torch.mul, L), n_layers))
            bound = boosting_lipschitz_bound(L, n_layers, t=_t(layer))
            sides.attained((before * grown).sum(), bound * (before**2).sum())
    return sides


def _apply_residual(layer: Residual, X: Tensor) -> Tensor:
    return layer(X, _frozen(X)(X))


def _solve_residual(layer: Residual, X: Array) -> Array:
    return boost(_matrix(X), X, n_iter=1)


def _apply_diffusing(layer: Residual, X: Tensor) -> Tensor:
    """The branch takes each token to the mean of those near it."""
    return layer(X, _frozen(X)(X) - X)


def _solve_diffusing(layer: Residual, X: Array) -> Array:
    return _matrix(X) @ X


def _snr_bound(layer: Residual, X: Tensor) -> Inequalities:
    """What a residual connection gains in SNR, for tokens X and noise of a tenth of their size.

    The gain of noise along an eigenvector e of A is the bound. Its parts are held too, as a factor
    leaves it as it is: ``<x, x + A x> = (1 + a b) |x|^2`` and ``<e, e + A e> = (1 + g) |e|^2``.
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
    for found, expected in parts:
        sides.attained(found, expected)
    return sides


def _snr_gain(layer: Residual, X: Tensor, noise: Array) -> tuple[Any, ...]:
    """Bound and gain, then ``<x, y>`` and what it is, for x the tokens and the noise."""
    signal, attention = as_array(X), _frozen(X)
    A = _matrix(signal)
    noise = noise * 0.1 * np.linalg.norm(signal) / np.linalg.norm(noise)
    kept, left = (
        as_array(layer(part, attention(part))) for part in (X, torch.from_numpy(noise).to(X.dtype))
    )
    sizes = [float(np.linalg.norm(x)) for x in (signal, noise, kept, left)]
    size, noise_size = sizes[0] ** 2, sizes[1] ** 2
    with np.errstate(divide="ignore", invalid="ignore"):
        gain = np.divide(sizes[2], sizes[3]) / np.divide(sizes[0], sizes[1])
    share, noise_share = (float(np.linalg.norm(A @ x) / np.linalg.norm(x)) for x in (signal, noise))
    cosine = float((signal * (A @ signal)).sum() / (share * size))
    return (
        snr_gain_bound(share, min(cosine, 1.0), noise_share),
        gain,
        ((signal * kept).sum(), (1 + share * cosine) * size),
        ((noise * left).sum(), (1 + noise_share) * noise_size),
    )


def _logit_range(layer: nn.Module, X: Array) -> float:
    squares = ((X - X.mean(axis=0)) ** 2).sum(axis=1).max()
    return 2 * float(squares) / local_bandwidth(X, X) ** 2


def _twin(
    name: str,
    relation: Relation,
    equation: str,
    layer: type[nn.Module] = GeneralizedResidual,
    passes: Callable[[Any], int] = _n_layers,
    **rest: Any,
) -> Twin:
    return Twin(
        name=name,
        family="boosting",
        relation=relation,
        equation=equation,
        source=_SOURCE,
        layer=layer,
        inputs="features",
        differentiable=("parameters",),  # attention is at a bandwidth for the tokens at hand
        logit_range=_logit_range,
        passes=passes,
        **rest,
    )


_BOOSTING: dict[str, Any] = {
    "build": _build_boosting,
    "apply": _apply_boosting,
    "covers": lambda layer: layer.source is None,
}
_REINJECTION: dict[str, Any] = {
    "build": _build_reinjection,
    "apply": _apply_reinjection,
    "covers": lambda layer: layer.source is not None,
    "options": {
        "second-block": partial(_build_reinjection, source=1),
        "present-block": partial(_build_reinjection, source=-1),
        "block-before": partial(_build_reinjection, source=-2),
    },
}
_LINEAR_BOOSTING = _BOOSTING | {"apply": partial(_apply_boosting, attend=_frozen)}
_LINEAR_REINJECTION = _REINJECTION | {"apply": partial(_apply_reinjection, attend=_frozen)}
_PLAIN: dict[str, Any] = _BOOSTING | {
    "build": lambda X: GeneralizedResidual(dtype=torch.float64),
    "covers": lambda layer: layer.source is None and bool(layer.t == 0),
}
_ITERATES = Iterate(n_iter=_DEPTHS)
_LIMIT = FixedPointLimit(n_iter=100)


def _contraction(layer: GeneralizedResidual) -> int:
    """Layers that shrink differences to 0.7 add up rounding as 1 / (1 - 0.7) of them would."""
    return 4


for twin in (
    _twin("boosted-residual", _ITERATES, "IF-26", solve=_solve_boosting, **_BOOSTING),
    _twin("boosted-residual-init", Init(), "IF-26", solve=_solve_plain, **_PLAIN),
    _twin(
        "boosted-residual-limit",
        _LIMIT,
        "NT-FP",
        solve=_solve_fixed_point,
        passes=_contraction,
        evidence="solver",
        **_LINEAR_BOOSTING,
    ),
    _twin(
        "boosted-residual-lipschitz",
        Bound(),
        "IF-29",
        solve=_solve_linear_boosting,
        bound=_lipschitz_bound,
        **_LINEAR_BOOSTING,
    ),
    _twin("generalized-residual", _ITERATES, "IF-GRC", solve=_solve_reinjection, **_REINJECTION),
    _twin(
        "generalized-residual-limit",
        _LIMIT,
        "NT-FP",
        solve=_solve_reinjection_limit,
        passes=_contraction,
        evidence="solver",
        **_LINEAR_REINJECTION | {"covers": lambda layer: layer.source == 0, "options": {}},
    ),
    _twin(
        "residual-snr",
        Bound(),
        "IF-18",
        Residual,
        build=lambda X: Residual(),
        covers=lambda layer: type(layer) is Residual,  # a subclass may leave out x
        apply=_apply_residual,
        solve=_solve_residual,
        bound=_snr_bound,
        task={"apply": _apply_diffusing, "solve": _solve_diffusing},
    ),
):
    register(twin)
