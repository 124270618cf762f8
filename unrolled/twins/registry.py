"""The catalogue of twins: what a twin is, how one is registered and found."""

import importlib
import pkgutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from torch import nn

from ..attention import Context, Correction
from .pairs import Numerics, Pair
from .relations import Evidence, Relation

_EXACT = ("identity", "init", "iterate")
_registered: dict[str, "Twin"] = {}


@dataclass(frozen=True, kw_only=True)
class Twin(Pair):
    """A layer, the solver that it unrolls, and how exactly the two must agree.

    Attributes
    ----------
    name, family, source, layer, build, solve, equation, options, covers, inputs, numerics, \
derivatives, fitted, task
        As in `Pair`.
    relation : Relation
        What is compared and to which tolerance; see `twinsolve.unrolled.twins.relations`.
    """

    relation: Relation

    @property
    def evidence(self) -> Evidence:
        """What an agreement shows, as the relation says."""
        return self.relation.evidence

    def for_task(self) -> "Twin":
        """The twin at parameters with which it serves clustering or denoising."""
        fields = dict(self.task)
        if "relation" in fields:
            fields["relation"] = replace(fields["relation"], evidence=self.evidence)
        return replace(self, task={}, **fields)


def register(twin: Twin) -> Twin:
    """Add a twin to the catalogue, from this package or from a user's own code.

    Raises
    ------
    ValueError
        If another twin has the name already.

    Examples
    --------
    >>> from twinsolve.solvers import smoother_matrix
    >>> from twinsolve.unrolled import Gaussian
    >>> from twinsolve.unrolled.twins import Identity, Twin, catalogue, register, unregister
    >>> class Narrow(Gaussian):
    ...     def __init__(self):
    ...         super().__init__(0.1)
    >>> twin = Twin(
    ...     name="narrow-attention", family="mine", relation=Identity(), source="my notes",
    ...     layer=Narrow, build=lambda q, k, v: Narrow(),
    ...     solve=lambda layer, call: smoother_matrix(
    ...         call.q, call.k, bandwidth=float(layer.bandwidth())) @ call.v,
    ... )
    >>> register(twin).name in {twin.name for twin in catalogue()}
    True
    >>> unregister("narrow-attention")
    """
    if twin.name in _registered:
        raise ValueError(
            f"name: a twin {twin.name!r} is registered already; unregister({twin.name!r}) takes it "
            "out"
        )
    _registered[twin.name] = twin
    return twin


def unregister(name: str) -> None:
    """Take a twin out of the catalogue again.

    Raises
    ------
    KeyError
        If there is none of that name.
    """
    del _registered[name]


def add_twin(**fields: Any) -> Twin:
    """Register a twin of these fields."""
    return register(Twin(**fields))


def having(**settings: Any) -> Callable[[Any], bool]:
    """For ``covers``: layers whose attributes have these values."""
    return lambda layer: all(getattr(layer, name) == value for name, value in settings.items())


def catalogue() -> list[Twin]:
    """All twins: those of every module in `families`, then the users' own."""
    _import_families()
    return list(_registered.values())


@cache
def _import_families() -> None:
    package = importlib.import_module(f"{__package__}.families")
    for found in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
        importlib.import_module(found.name)


def twins_of(layer: nn.Module) -> list[Twin]:
    """The twins of a layer: those of its class that cover it, or else of its nearest base class.

    Raises
    ------
    LookupError
        If there is none.
    """
    twins = catalogue()
    for cls in type(layer).__mro__:
        found = [twin for twin in twins if twin.layer is cls and twin.covers(layer)]
        if found:
            return found
    raise LookupError(
        f"no twin is registered for {type(layer).__name__}; twinsolve.unrolled.twins.register adds "
        "one, and catalogue lists those that there are"
    )


def is_exact(twin: Twin) -> bool:
    """Whether the twin's solver gives the layer's own output, not its limit or a bound."""
    return twin.relation.name in _EXACT


def exact_twin(layer: nn.Module, *, same_points: bool = False) -> Twin:
    """The first twin of a layer whose solver gives the layer's own output, not only its limit.

    Unless `same_points` says that the keys are the queries, twins whose solver serves other keys
    too come first.

    Raises
    ------
    LookupError
        If there is none.
    """
    exact = [twin for twin in twins_of(layer) if is_exact(twin)]
    if not exact:
        raise LookupError(f"no twin of {type(layer).__name__} has a relation among {_EXACT}")
    return exact[0] if same_points else sort_general_first(exact)[0]


def judging_twin(layer: nn.Module, *, same_points: bool = False) -> Twin:
    """The twin that a layer is held against: `exact_twin`, or else its limit, or else its bound.

    Raises
    ------
    LookupError
        If there is none.
    """
    twins = twins_of(layer) if same_points else sort_general_first(twins_of(layer))
    order = dict.fromkeys(_EXACT, 0) | {"limit": 1}
    return min(twins, key=lambda twin: order.get(twin.relation.name, 2))


def add_base_contexts(twin: Twin, layer: nn.Module) -> Twin:
    """The twin, with the context that it and the twins of all that a correction wraps need."""
    makers = [twin.inputs.context]
    while isinstance(layer, Correction):
        layer = layer.base
        makers.append(exact_twin(layer).inputs.context)
    present = [make for make in makers if make is not None]

    def make_all(*tokens: Any) -> Context:
        merged = Context()
        for make in reversed(present):  # the outermost has the last word
            given = make(*tokens)._asdict().items()
            merged = merged._replace(**{name: x for name, x in given if x is not None and x != ()})
        return merged

    return twin.with_context(make_all if present else None)


def numerics_of_base(n_passes: int = 1) -> Numerics:
    """Numerics of a layer that passes so often over what its `base` does."""
    return Numerics(
        logit_range=lambda layer, *arrays: exact_twin(layer.base).numerics.logit_range(
            layer.base, *arrays
        ),
        passes=lambda layer: n_passes * exact_twin(layer.base).numerics.passes(layer.base),
    )


def sort_general_first(twins: list[Twin]) -> list[Twin]:
    """Those that are about equal queries and keys alone come last."""
    return sorted(twins, key=lambda twin: twin.inputs.pairing == "self")
