"""The catalogue of twins: the class `Twin`, how to register a twin and how to find one."""

import importlib
import pkgutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from torch import nn

from ..unrolled.attention import Context, Correction
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
        What is compared, and to which tolerance; see `twinsolve.twins.relations`.
    """

    relation: Relation

    @property
    def evidence(self) -> Evidence:
        """What an agreement proves: the evidence of the relation."""
        return self.relation.evidence

    def for_task(self) -> "Twin":
        """Return the twin with the fields of `task`, with which it clusters or denoises."""
        fields = dict(self.task)
        if "relation" in fields:
            fields["relation"] = replace(fields["relation"], evidence=self.evidence)
        return replace(self, task={}, **fields)


def register(twin: Twin) -> Twin:
    """Add a twin to the catalogue, from this package or from a user's own code.

    Raises
    ------
    ValueError
        If the catalogue already has a twin of this name.

    Examples
    --------
    >>> from twinsolve.solvers import smoother_matrix
    >>> from twinsolve.unrolled import Gaussian
    >>> from twinsolve.twins import Identity, Twin, catalogue, register, unregister
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
            f"name: {twin.name!r} is registered already; unregister({twin.name!r}) removes it"
        )
    _registered[twin.name] = twin
    return twin


def unregister(name: str) -> None:
    """Remove a twin from the catalogue.

    Raises
    ------
    KeyError
        If the catalogue has no twin of this name.
    """
    del _registered[name]


def add_twin(**fields: Any) -> Twin:
    """Register and return a twin with these fields."""
    return register(Twin(**fields))


def having(**settings: Any) -> Callable[[Any], bool]:
    """Return a test for ``covers``: whether the attributes of a layer have these values."""
    return lambda layer: all(getattr(layer, name) == value for name, value in settings.items())


def catalogue() -> list[Twin]:
    """Return all twins: those of every module in `families`, then those that users registered."""
    _import_families()
    return list(_registered.values())


@cache
def _import_families() -> None:
    """Import all modules of `families`, which register their twins."""
    package = importlib.import_module(f"{__package__}.families")
    for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
        importlib.import_module(module.name)


def twins_of(layer: nn.Module) -> list[Twin]:
    """Return the twins that cover a layer: those of its class, or else of its nearest base class.

    Raises
    ------
    LookupError
        If the layer has no twin.
    """
    for cls in type(layer).__mro__:
        twins = [twin for twin in catalogue() if twin.layer is cls and twin.covers(layer)]
        if twins:
            return twins
    name = type(layer).__name__
    others = [twin.name for twin in catalogue() if isinstance(layer, twin.layer)]
    which = (
        f"{name}({layer.extra_repr()}), but for other settings: {', '.join(others)}"
        if others
        else name
    )
    raise LookupError(
        f"no twin is registered for {which}; twinsolve.twins.register adds one, and "
        "twinsolve.twins.catalogue lists all twins"
    )


def is_exact(twin: Twin) -> bool:
    """Whether the twin's solver gives the layer's own output, not its limit or a bound."""
    return twin.relation.name in _EXACT


def exact_twin(layer: nn.Module, *, same_points: bool = False) -> Twin:
    """Return the first twin whose solver gives the layer's own output, not only its limit.

    Twins whose solver also takes keys other than the queries come first, unless `same_points` says
    that the keys are the queries.

    Raises
    ------
    LookupError
        If the layer has no such twin.
    """
    exact = [twin for twin in twins_of(layer) if is_exact(twin)]
    if not exact:
        raise LookupError(f"no twin of {type(layer).__name__} has a relation among {_EXACT}")
    return exact[0] if same_points else sort_general_first(exact)[0]


def judging_twin(layer: nn.Module, *, same_points: bool = False) -> Twin:
    """Return the twin that judges a layer: `exact_twin`, or else its limit, or else its bound.

    Raises
    ------
    LookupError
        If the layer has no twin.
    """
    twins = twins_of(layer) if same_points else sort_general_first(twins_of(layer))
    order = dict.fromkeys(_EXACT, 0) | {"limit": 1}
    return min(twins, key=lambda twin: order.get(twin.relation.name, 2))


def add_base_contexts(twin: Twin, layer: nn.Module) -> Twin:
    """Return the twin with the context that it and the twins of all wrapped operators need."""
    makers = [twin.inputs.context]
    while isinstance(layer, Correction):
        layer = layer.base
        makers.append(exact_twin(layer).inputs.context)
    makers = [make for make in makers if make is not None]

    def merge_contexts(*tokens: Any) -> Context:
        """Return a context with the fields that any of the makers gives."""
        merged = Context()
        for make in reversed(makers):  # the outermost operator overrides the inner ones
            fields = make(*tokens)._asdict().items()
            merged = merged._replace(**{name: x for name, x in fields if x is not None and x != ()})
        return merged

    return twin.with_context(merge_contexts if makers else None)


def numerics_of_base(n_passes: int = 1) -> Numerics:
    """Return the numerics of a layer whose passes are those of `n_passes` calls of its base."""
    return Numerics(
        logit_range=lambda layer, *arrays: exact_twin(layer.base).numerics.logit_range(
            layer.base, *arrays
        ),
        passes=lambda layer: n_passes * exact_twin(layer.base).numerics.passes(layer.base),
    )


def sort_general_first(twins: list[Twin]) -> list[Twin]:
    """Return the twins, with those that need equal queries and keys at the end."""
    return sorted(twins, key=lambda twin: twin.inputs.pairing == "self")
