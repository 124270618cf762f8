"""The catalogue of twins: what a twin is, how one is registered and found."""

import importlib
import pkgutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any, Literal

import numpy as np
from torch import Tensor, nn

from ..attention import Context
from .inequalities import Inequalities
from .relations import Bound, Limit, Measurement, Rate, Relation

Array = np.ndarray
Inputs = Literal["tokens", "features", "image", "patches"]
Pairing = Literal["any", "self", "cross"]
Rounded = Literal["anything", "weights", "output"]
Way = Literal["backward", "torch.func"]
Evidence = Literal["solver", "certificate", "formula", "bound"]

_MACHINERY = (
    "calls",
    "certificates",
    "heads",
    "inequalities",
    "model_check",
    "origin",
    "parameters",
    "registry",
    "relations",
    "report",
    "subjects",
)
_EXACT = ("identity", "init", "iterate")
_registered: dict[str, "Twin"] = {}


@dataclass(frozen=True)
class Problem:
    """The optimisation problem behind a layer, solved.

    Attributes
    ----------
    coef : ndarray of shape (n_queries, n_keys)
        Certified solution C*.
    objective : callable
        F: coefficients of that shape to a number, infinite outside the constraints.
    lower_bound : float
        Dual value: at most ``F* = min F``.
    rate : float
        The c of the proved rate ``F(C_K) - F* <= c / K`` of the layer's K iterations; infinite
        where the layer's step is too long for the proof.
    """

    coef: Array
    objective: Callable[[Array], float]
    lower_bound: float
    rate: float


@dataclass(frozen=True)
class Twin:
    """A layer, the solver that it unrolls, and how exactly the two must agree.

    Attributes
    ----------
    name : str
        Unique, as printed in tables.
    family : str
        File that both sides live in.
    relation : Relation
        What is compared and to which tolerance; see `twinsolve.unrolled.twins.relations`.
    source : str
        Paper, or whose layer it is.
    layer : type
        Class of the layer.
    build : callable
        ``build(*arrays)`` makes the layer with parameters that suit the data, at its origin.
    solve : callable
        ``solve(layer, *arrays)`` gives the solver's output in float64 at the layer's present
        parameters; it alone translates the one into the other's arguments. For tokens it is
        ``solve(layer, call)`` with the `HeadCall` of one head at a time.
    equation : str, optional
        Equation id.
    inputs : {"tokens", "features", "image", "patches"}
        What layer and solver take: ``(q, k, v)`` as an operator does, one array of tokens, or one
        batch of images (batch, channels, height, width). For tokens, the layer is given all heads
        and `solve` one at a time. A task may be of "patches", tokens of a noisy photograph alone.
    pairing : {"any", "self", "cross"}
        Whether keys are the queries themselves, other points, or either.
    by_rows : bool
        Whether a query's output depends on the keys that it sees alone, so that with masks the
        solver is given these; otherwise it reads ``call.visible`` itself, or takes no masks.
    reads_bias : bool
        Whether the output depends on which logits are the largest, so that the solver adds
        ``call.bias`` to them itself.
    differentiable : bool or tuple of str
        Whether gradients flow through all that `apply` gives, to inputs, context and parameters, or
        to which of these alone.
    differentiable_twice : tuple of {"backward", "torch.func"}
        The ways that give second derivatives, both by default: two backward passes, and two
        transforms. The others must be refused by a RuntimeError. Judged of twins that are
        differentiable in all.
    evidence : {"solver", "certificate", "formula", "bound"}
        What an agreement shows: an independent solver of the problem behind the layer reaches the
        same; the layer's output is optimal by a certificate of that problem; the same formula,
        written again; an inequality holds. Follows from the relation and from `certificate` where
        it is not given: "bound" of a `Bound`, "certificate" of a `Rate`, a `Limit` or a
        certificate, and "formula" otherwise.
    options : mapping of str to callable
        Further ``build`` functions, by the name of what they change: settings other than the
        default that change the mathematics, for which `solve` has the counterpart.
    task : mapping of str to Any
        Fields of the twin that differ where it is to serve clustering or denoising, such as
        `build`: those of `for_task`. None by default, where the layer as built does.
    covers : callable
        Which layers of the class the twin is about; all by default.
    context : callable, optional
        ``context(q, k, v)``, of arrays with heads, gives the `Context` of tensors that the layer
        needs beside them; the solver finds it in its `HeadCall`.
    apply : callable
        ``apply(layer, *tensors)`` runs the layer on its inputs; a plain call by default, with
        ``context=`` where there is one.
    problem : callable, optional
        ``problem(layer, call)`` solves the optimisation problem behind the layer, where there is
        one.
    certificate : callable, optional
        ``certificate(twin, layer, tensors)`` gives a residual of the conditions of optimality of
        the problem that the layer's output solves, in units of the output and without a formula of
        the solution; see `twinsolve.unrolled.twins.certificates`. In float64 it is held to the
        relation's tolerance.
    promised : callable, optional
        ``promised(layer, tensors, found, expected)``, of a layer that iterates to a tolerance of
        its own: how far its outputs `found` are from the solver's, and how far that tolerance and
        rounding let them be, as a `Measurement`. Outputs that miss the relation's tolerance are
        held to it.
    bound : callable, optional
        ``bound(layer, *tensors)`` measures both sides of the proved inequalities of a `Bound`, and
        gives them as `Inequalities`.
    summed : callable, optional
        ``summed(layer, call)`` gives, of the tokens of one head, the sizes of the terms that add up
        to the output, in its shape, where rounding may be all that is left of them; ``|C| |V|`` by
        default.
    chooses : bool
        Whether each query chooses some keys, so that equal ones may be chosen in more than one way;
        `solve` then takes the layer's choice among these from ``call.chosen``.
    rounded : {"anything", "weights", "output"}
        What a layer that computes in float32 at least rounds to bfloat16: its output alone, or its
        weights too. Each number of these is then that of the solver, rounded, to the tolerance of
        float32. A layer that rounds anything else has the tolerance of bfloat16.
    fitted : tuple of str
        Parameters of the layer that what is solved depends on, for `fit_origin`: `Positive`, or a
        number.
    fitted_default : callable, optional
        ``fitted_default(head_dim)``: the value of a fitted parameter that is None.
    logit_range : callable
        ``logit_range(layer, *arrays)``, by which the float32 tolerance scales, as rounding of a
        logit is multiplied by its size: the largest difference of two logits of a head; 1 by
        default.
    passes : callable
        ``passes(layer)``: sequential passes over the data, such as iterations, which scale the
        float32 tolerance, as each rounds anew; 1 by default. Whatever both are, the tolerance of
        outputs in float32 ends at 1e-2.
    """

    name: str
    family: str
    relation: Relation
    source: str
    layer: type[nn.Module]
    build: Callable[..., nn.Module]
    solve: Callable[..., Array]
    equation: str = ""
    inputs: Inputs = "tokens"
    pairing: Pairing = "any"
    by_rows: bool = True
    reads_bias: bool = False
    differentiable: bool | tuple[str, ...] = True
    differentiable_twice: tuple[Way, ...] = ("backward", "torch.func")
    evidence: Evidence = "formula"
    options: Mapping[str, Callable[..., nn.Module]] = field(default_factory=dict)
    task: Mapping[str, Any] = field(default_factory=dict)
    covers: Callable[[Any], bool] = lambda layer: True
    context: Callable[[Array, Array, Array], Context] | None = None
    apply: Callable[..., Tensor] = lambda layer, *tensors, **context: layer(*tensors, **context)
    problem: Callable[..., Problem] | None = None
    fitted: tuple[str, ...] = ()
    fitted_default: Callable[[int], float] | None = None
    certificate: Callable[..., float] | None = None
    promised: Callable[[Any, tuple[Tensor, ...], Array, Array], Measurement] | None = None
    bound: Callable[..., Inequalities] | None = None
    summed: Callable[..., Array] | None = None
    chooses: bool = False
    rounded: Rounded = "anything"
    logit_range: Callable[..., float] = lambda layer, *arrays: 1.0
    passes: Callable[[Any], int] = lambda layer: 1

    def __post_init__(self) -> None:
        if self.evidence == "formula":
            object.__setattr__(self, "evidence", self._derived_evidence())

    def for_task(self) -> "Twin":
        """The twin at parameters with which it serves clustering or denoising."""
        return replace(self, task={}, **self.task)

    def _derived_evidence(self) -> Evidence:
        if isinstance(self.relation, Bound):
            return "bound"
        certified = isinstance(self.relation, Rate | Limit) or self.certificate is not None
        return "certificate" if certified else "formula"


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


def catalogue() -> list[Twin]:
    """All twins: those of every family file beside this one, then the users' own."""
    _import_families()
    return list(_registered.values())


@cache
def _import_families() -> None:
    package = importlib.import_module(__package__)
    modules = pkgutil.walk_packages(package.__path__, f"{__package__}.")
    for module in sorted(info.name for info in modules):
        if module.removeprefix(f"{__package__}.") not in _MACHINERY:
            importlib.import_module(module)


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


def exact_twin(layer: nn.Module, *, same_points: bool = False) -> Twin:
    """The first twin of a layer whose solver gives the layer's own output, not only its limit.

    Unless `same_points` says that the keys are the queries, twins whose solver serves other keys
    too come first.

    Raises
    ------
    LookupError
        If there is none.
    """
    exact = [twin for twin in twins_of(layer) if twin.relation.name in _EXACT]
    if not exact:
        raise LookupError(f"no twin of {type(layer).__name__} has a relation among {_EXACT}")
    return exact[0] if same_points else general_first(exact)[0]


def judging_twin(layer: nn.Module, *, same_points: bool = False) -> Twin:
    """The twin that a layer is held against: `exact_twin`, or else its limit, or else its bound.

    Raises
    ------
    LookupError
        If there is none.
    """
    twins = twins_of(layer) if same_points else general_first(twins_of(layer))
    order = dict.fromkeys(_EXACT, 0) | {"limit": 1}
    return min(twins, key=lambda twin: order.get(twin.relation.name, 2))


def general_first(twins: list[Twin]) -> list[Twin]:
    """Those that are about equal queries and keys alone come last."""
    return sorted(twins, key=lambda twin: twin.pairing == "self")
