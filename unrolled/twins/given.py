"""What layers are given when a twin builds them, and whether they keep it.

Solvers read numbers such as a penalty from the layer. A constructor that stores another number
deceives both sides alike, so that its arguments are held against what the layer holds right after,
after its parameters were moved and reset, and against what its `repr` shows.
"""

from __future__ import annotations

import copy
import functools
import inspect
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from ..attention import Attention, Positive
from ..boosting import GeneralizedResidual
from ..conditioning import TokenGraying
from ..image_filters import NonLocalMeansAttention
from ..kernel_smoothing import (
    ALiBi,
    Bilateral,
    CrissCross,
    Gaussian,
    Kernel,
    Linear,
    Local,
    Logistic,
    SpatialGaussian,
    Tupe,
)
from ..kernel_smoothing.local import Neighborhood
from ..locally_linear import LocallyLinear
from ..nonlocal_energy import Neutreno
from ..self_expression import (
    LowRank,
    Ridge,
    SelfExpressiveNetwork,
    UnrolledADMM,
    UnrolledSelfExpression,
)
from ..sparse_coding import LISTA, SparseCoding, SparseMixtureOfExperts
from ..spectral_filtering import AttnScale, FeatScale, LayerScale, ReAttention
from .given_images import IMAGE_LAYERS, Comparison
from .heads import as_array
from .registry import Array, Twin

_WHERE = ("device", "dtype")
_COUNTED = ("num_heads", "per_iteration")  # shown by how many numbers there are
_TOLERANCE = 1e-10  # norms and inverses are computed in other ways than the layer does


# Numbers that a paper gives, as a signature's default, and the equation of it.
_DEFAULTS: dict[type[nn.Module], dict[str, float]] = {
    LayerScale: {"initial": 1e-5},  # AO-10
    Linear: {"scale": 1 / 16},  # SK-4
    LocallyLinear: {"reg": 1e-3},  # SE-9
    Neutreno: {"lam": 0.6},  # NT-22
    SelfExpressiveNetwork: {"width": 1024, "gamma": 200.0, "l1_ratio": 0.9},  # CL-11
    TokenGraying: {"eps": 0.95},  # SK-A2
}


class ConstructorError(Exception):
    """A layer does not hold what it was given, or does not start where it is to."""


class Made(NamedTuple):
    """A call of a constructor: its class and arguments, and what came of them.

    Attributes
    ----------
    cls : type
        The class whose constructor was called, of the layer or one of its bases.
    arguments : dict
        Defaults included.
    faults : list of str
        What the layer holds in place of what was expected.
    unheld : list of str
        Arguments that the layer has no attribute for.
    """

    cls: type[nn.Module]
    arguments: dict[str, Any]
    faults: list[str]
    unheld: list[str]


def build_as_given(twin: Twin, build: Callable[..., nn.Module] | None, *arrays: Array) -> nn.Module:
    """The layer that `build`, or None for that of the twin, makes of arrays.

    Every constructor in it must leave its arguments unchanged in the layer, and learnable
    parameters at the values that their papers start from, to which `reset_parameters` returns;
    those drawn at random are left out. Layers of this package show their settings in `repr`.

    Raises
    ------
    ConstructorError
        Otherwise; the message names class, attribute, what it holds and what it must.

    Examples
    --------
    >>> import numpy as np
    >>> from twinsolve.unrolled.twins import catalogue
    >>> from twinsolve.unrolled.twins.given import build_as_given
    >>> twin = next(twin for twin in catalogue() if twin.name == "alibi")
    >>> build_as_given(twin, None, *np.ones((3, 4, 5, 6))).num_heads
    4
    """
    with constructors(twin) as made:
        try:
            layer = (build or twin.build)(*arrays)
        finally:  # what a wrong constructor left may have broken the rest of the build
            faults = [fault for call in made for fault in call.faults]
            if faults:
                raise ConstructorError("; ".join(faults))
    return layer


@contextmanager
def constructors(twin: Twin) -> Iterator[list[Made]]:
    """The calls of constructors while this is open: of this package's classes and the user's."""
    made: list[Made] = []
    classes = [cls for cls in _modules() if _root(cls) in (_root(Made), _root(twin.layer))]
    originals = [(cls, vars(cls)["__init__"]) for cls in classes if "__init__" in vars(cls)]
    try:
        for cls, original in originals:
            _set_init(cls, _watched(cls, original, made))
        yield made
    finally:
        for cls, original in originals:
            _set_init(cls, original)


def _modules(cls: type[nn.Module] = nn.Module) -> set[type[nn.Module]]:
    """All classes of modules but PyTorch's."""
    found = {cls} if _root(cls) != "torch" else set()
    return found.union(*(_modules(child) for child in cls.__subclasses__()))


def _root(cls: type) -> str:
    return cls.__module__.partition(".")[0]


def _set_init(cls: type[nn.Module], function: Callable[..., None]) -> None:
    cls.__init__ = function  # type: ignore[method-assign]


def _watched(
    cls: type[nn.Module], original: Callable[..., None], made: list[Made]
) -> Callable[..., None]:
    signature = inspect.signature(original)

    @functools.wraps(original)
    def init(self: nn.Module, *args: Any, **kwargs: Any) -> None:
        bound = signature.bind(self, *args, **kwargs)
        bound.apply_defaults()
        _, *arguments = bound.arguments.items()
        before = {name: _contents(x) for name, x in arguments if isinstance(x, nn.Module)}
        original(self, *args, **kwargs)
        comparisons, unheld = _comparisons(cls, self, dict(arguments))
        for name, number in _DEFAULTS.get(cls, {}).items():
            found = signature.parameters[name].default
            comparisons.append((f"default of {name}", float(found), number))
        for name, state in before.items():
            comparisons.append((f"parameters of {name}", _contents(dict(arguments)[name]), state))
        faults = _faults(cls, comparisons)
        if not faults and _constructed_by(type(self)) is cls:
            faults = _faults(cls, _after_reset(cls, self, dict(arguments)))
            if _root(cls) == _root(Made):
                faults += _faults(cls, [("what repr leaves out", _left_out(self, bound), [])])
        made.append(Made(cls, dict(arguments), faults, unheld))

    return init


def _faults(cls: type[nn.Module], comparisons: list[Comparison]) -> list[str]:
    return [
        f"{cls.__name__}: {name} is {_shown(found)}, must be {_shown(expected)}"
        for name, found, expected in comparisons
        if not _same(found, expected)
    ]


def _constructed_by(kind: type[nn.Module]) -> type[nn.Module]:
    """The class of its own or its bases' whose constructor makes it."""
    return next(cls for cls in kind.__mro__ if "__init__" in vars(cls))


def _after_reset(cls: type[nn.Module], layer: nn.Module, given: dict[str, Any]) -> list[Comparison]:
    """What is compared of a copy whose parameters were moved, and then reset."""
    again: Any = copy.deepcopy(layer)
    if not hasattr(again, "reset_parameters"):
        return []
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        for parameter in again.parameters():
            parameter.add_(0.3)
        again.reset_parameters()
    compared, _ = _comparisons(cls, again, given)
    own = [pair for pair in compared if not isinstance(pair[2], nn.Module)]
    return [(f"{name} after reset_parameters", *values) for name, *values in own]


def _left_out(layer: nn.Module, bound: inspect.BoundArguments) -> list[str]:
    """Settings other than the default that the layer keeps but does not show."""
    text = repr(layer)
    return [
        name
        for name, x in bound.arguments.items()
        if isinstance(x, int | float | str) and isinstance(getattr(layer, name, None), type(x))
        if name not in _COUNTED
        and x != bound.signature.parameters[name].default
        and _as_shown(name, x) not in text
    ]


def _as_shown(name: str, x: bool | float | str) -> str:
    if isinstance(x, bool):
        return f"{name}={x}"
    return f"{x:.4g}" if isinstance(x, float) else str(x)


def _contents(module: nn.Module) -> list[Array]:
    return [as_array(x).copy() for x in module.state_dict().values()]


def _comparisons(
    cls: type[nn.Module], layer: nn.Module, given: dict[str, Any]
) -> tuple[list[Comparison], list[str]]:
    """What is compared of a layer, and the names of arguments that are not."""
    given = {name: x for name, x in given.items() if name not in _WHERE}
    special = list(_HELD[cls](layer, given)) if cls in _HELD else []
    plain = [(name, getattr(layer, name), x) for name, x in given.items() if hasattr(layer, name)]
    return special + plain, [name for name in given if not hasattr(layer, name)]


def _same(found: Any, expected: Any) -> bool:
    if isinstance(found, Positive | nn.ModuleList) and not isinstance(expected, nn.Module):
        parts = [found] if isinstance(found, Positive) else list(found)
        return all(_same(x, expected) for part in parts for x in (part(), part.initial))
    if isinstance(found, list | tuple) and isinstance(expected, list | tuple):
        pairs = zip(found, expected, strict=False)
        return len(found) == len(expected) and all(_same(a, b) for a, b in pairs)
    if found is None or expected is None:
        return found is expected
    if isinstance(found, float | Tensor | np.ndarray):
        a, b = np.broadcast_arrays(_numbers(found), _numbers(expected))
        rounding = 32 * torch.finfo(found.dtype).eps if isinstance(found, Tensor) else 0.0
        return bool(np.abs(a - b).max() <= max(_TOLERANCE, rounding) * np.abs(b).max())
    return found is expected or bool(found == expected)


def _numbers(x: Any) -> Array:
    return as_array(x) if isinstance(x, Tensor) else np.asarray(x, dtype=np.float64)


def _shown(x: Any) -> str:
    if isinstance(x, Positive | nn.ModuleList):
        return _shown(x()) if isinstance(x, Positive) else f"[{', '.join(map(_shown, x))}]"
    if isinstance(x, Tensor | np.ndarray):
        return np.array2string(_numbers(x).squeeze(), precision=6, threshold=4)
    return repr(x)


def _positives(*names: str) -> Callable[[Any, dict[str, Any]], Iterator[Comparison]]:
    """Of a layer whose parameters of these names share `num_heads` and `learnable`."""

    def held(layer: Any, given: dict[str, Any]) -> Iterator[Comparison]:
        num_heads, learnable = given.pop("num_heads", None), given.pop("learnable")
        for name in names:
            yield from _kind(name, getattr(layer, name), num_heads, learnable)

    return held


def _kind(
    name: str, parameter: Positive | nn.ModuleList | None, num_heads: int | None, learnable: bool
) -> Iterator[Comparison]:
    if parameter is None:
        return
    for part in [parameter] if isinstance(parameter, Positive) else list(parameter):
        yield f"{name}.num_heads", part.num_heads, num_heads
        yield f"whether {name} is learnable", part.log is not None, learnable


def _positive(layer: Positive, given: dict[str, Any]) -> Iterator[Comparison]:
    del given["name"]
    yield "whether it is learnable", layer.log is not None, given.pop("learnable")
    yield "its value", layer(), given["initial"]


def _alibi(layer: ALiBi, given: dict[str, Any]) -> Iterator[Comparison]:
    yield "relative_slope", layer.relative_slope, 1.0
    yield from _kind(
        "relative_slope", layer.relative_slope, given["num_heads"], given.pop("learnable")
    )


def _bilateral(layer: Bilateral, given: dict[str, Any]) -> Iterator[Comparison]:
    yield from _positives("token_bandwidth", "position_bandwidth")(layer, given)
    yield "uses_positions", layer.uses_positions, given["position_bandwidth"] != np.inf
    if not layer.uses_positions:
        del given["position_bandwidth"]


def _grid(layer: Any, given: dict[str, Any]) -> Iterator[Comparison]:
    yield "grid.width", layer.grid.width, given.pop("width")
    yield "grid.n_class_tokens", layer.grid.n_class_tokens, given.pop("n_class_tokens")


def _spatial(layer: SpatialGaussian, given: dict[str, Any]) -> Iterator[Comparison]:
    yield from _grid(layer, given)
    yield from _positives("bandwidth")(layer, given)


def _logistic(layer: Logistic, given: dict[str, Any]) -> Iterator[Comparison]:
    heads = () if given["num_heads"] is None else (given["num_heads"],)
    yield "shape of key_weight", tuple(layer.key_weight.shape), (*heads, given["head_dim"], 1)
    yield "bias", layer.bias, 0.0


def _tupe(layer: Tupe, given: dict[str, Any]) -> Iterator[Comparison]:
    dim, width = given.pop("dim"), given.pop("head_dim")
    rows = 2 * given["num_heads"] * (dim // given["num_heads"] if width is None else width)
    yield "shape of position_weight", tuple(layer.position_weight.shape), (rows, dim)


def _attention(layer: Attention, given: dict[str, Any]) -> Iterator[Comparison]:
    yield "embed_dim", layer.embed_dim, given["dim"]
    yield "head_dim", layer.head_dim, given.pop("dim") // given["num_heads"]
    bias = given.pop("bias")
    yield "whether it has in_proj_bias", layer.in_proj_bias is not None, bias
    yield "whether it has out_proj.bias", layer.out_proj.bias is not None, bias


def _residual(layer: GeneralizedResidual, given: dict[str, Any]) -> Iterator[Comparison]:
    yield "t", layer.t, 0.0 if given["source"] is None else 1.0


def _attn_scale(layer: AttnScale, given: dict[str, Any]) -> Iterator[Comparison]:
    yield "omega", layer.omega, 0.0


def _feat_scale(layer: FeatScale, given: dict[str, Any]) -> Iterator[Comparison]:
    yield from (("s", layer.s, 0.0), ("t", layer.t, 0.0))


def _layer_scale(layer: LayerScale, given: dict[str, Any]) -> Iterator[Comparison]:
    yield "gamma", layer.gamma, given["initial"]


def _reattention(layer: ReAttention, given: dict[str, Any]) -> Iterator[Comparison]:
    yield "theta", layer.theta, np.eye(given["num_heads"])
    yield "norm.eps", layer.norm.eps, 1e-5
    yield from (("norm.weight", layer.norm.weight, 1.0), ("norm.bias", layer.norm.bias, 0.0))


def _sparse_coding(layer: SparseCoding, given: dict[str, Any]) -> Iterator[Comparison]:
    num_heads, learnable = given.pop("num_heads"), given.pop("learnable")
    yield from _kind("lam", layer.lam, num_heads, learnable)
    learnable = learnable and given["step"] == "safe"
    yield from _kind("relative_step", layer.relative_step, num_heads, learnable)
    if given["per_iteration"]:
        yield from _lengths(layer, given["n_iter"], "lam", "relative_step")


def _unrolled(layer: UnrolledSelfExpression, given: dict[str, Any]) -> Iterator[Comparison]:
    yield "penalty", layer.penalty, given["lam"]
    yield "step", layer.step, given.pop("relative_step")
    yield from _lengths(layer, given["n_iter"], "lam", "step")
    if given["features"] is None:
        yield "features", type(layer.features), nn.Identity
        del given["features"]


def _lengths(layer: Any, n_iter: int, *names: str) -> Iterator[Comparison]:
    for name in names:
        yield f"number of {name}", len(getattr(layer, name)), n_iter


def _lista(layer: LISTA, given: dict[str, Any]) -> Iterator[Comparison]:
    D, kind = as_array(layer.dictionary), given["parametrization"]
    W = analytic_weights(D)
    radii: dict[str, Callable[[], float]] = {
        "adaptive": lambda: 1.0,
        "alista": lambda: float(np.abs(np.linalg.eigvals(W @ D.T)).max()),
    }
    radius = radii.get(kind, lambda: float(np.linalg.norm(D, 2) ** 2))
    yield "penalty", layer.penalty, given["lam"]
    yield "step", layer.step, 1 / radius()
    yield from _lengths(layer, given["n_iter"], "lam", "step")
    weights = {
        "lista": {"input_weight": D.T, "gram_weight": D @ D.T},
        "coupled": {"weight": D},
        "alista": {"weight": W},
        "adaptive": {"input_weight": np.eye(D.shape[1]), "gram_weight": np.eye(D.shape[1])},
    }.get(kind, {})
    for name, weight in weights.items():
        yield name, getattr(layer, name, None), weight


def analytic_weights(D: Array) -> Array:
    """The dual frame of the atoms, scaled so that each has a product of one with its own."""
    dual = np.linalg.pinv(D).T
    return np.asarray(dual / (dual * D).sum(axis=1, keepdims=True))


def _network(layer: SelfExpressiveNetwork, given: dict[str, Any]) -> Iterator[Comparison]:
    widths = [given["in_features"], *given.pop("hidden_features"), given["width"]]
    for name in ("query", "key"):
        linear = [part for part in getattr(layer, name) if isinstance(part, nn.Linear)]
        found = [part.in_features for part in linear] + [linear[-1].out_features]
        yield f"widths of {name}", found, widths
        for i, part in enumerate(linear):
            yield f"{name}: bias {i}", part.bias, 0.0


def _nonlocal_means(layer: NonLocalMeansAttention, given: dict[str, Any]) -> Iterator[Comparison]:
    if given["h"] is None:
        given["h"] = 0.8 * given["sigma"] or 0.1
    yield from _positives("h")(layer, given)


def _experts(layer: SparseMixtureOfExperts, given: dict[str, Any]) -> Iterator[Comparison]:
    dim, n, width = (given[name] for name in ("dim", "n_experts", "expert_width"))
    for name, shape in (
        ("router", (n, dim)), ("analysis", (n, width, dim)), ("synthesis", (n, dim, width))
    ):  # fmt: skip
        yield f"shape of {name}", tuple(getattr(layer, name).shape), shape


def _admm(layer: UnrolledADMM, given: dict[str, Any]) -> Iterator[Comparison]:
    for name in ("lam", "threshold"):
        yield from _kind(name, getattr(layer, name), None, True)


# What constructors keep under another name, and the values that parameters start from.
_HELD: dict[type[nn.Module], Callable[[Any, dict[str, Any]], Iterable[Comparison]]] = {
    ALiBi: _alibi,
    Attention: _attention,
    AttnScale: _attn_scale,
    Bilateral: _bilateral,
    CrissCross: _grid,
    FeatScale: _feat_scale,
    Gaussian: _positives("bandwidth"),
    GeneralizedResidual: _residual,
    Kernel: _positives("bandwidth"),
    LISTA: _lista,
    LayerScale: _layer_scale,
    Local: _grid,
    Logistic: _logistic,
    LowRank: _positives("lam"),
    Neighborhood: _grid,
    Neutreno: _positives("lam"),
    NonLocalMeansAttention: _nonlocal_means,
    Positive: _positive,
    ReAttention: _reattention,
    Ridge: _positives("lam"),
    SelfExpressiveNetwork: _network,
    SparseCoding: _sparse_coding,
    SparseMixtureOfExperts: _experts,
    SpatialGaussian: _spatial,
    Tupe: _tupe,
    UnrolledADMM: _admm,
    UnrolledSelfExpression: _unrolled,
    **IMAGE_LAYERS,
}
