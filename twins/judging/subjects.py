"""The layer of a twin as the subject of laws, at parameters such as training leaves."""

from __future__ import annotations

import copy
import math
import warnings
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn

from ...unrolled.attention import Context, Operator, Positive
from ...unrolled.sparse_coding import SparseCoding
from ..heads import Array, Tensors
from ..laws import Accuracy, Masks, Measurement, Subject, Trial, draw_inputs, trials, worst
from ..laws.outputs import output
from ..laws.subject import N_HEADS, TooManyTokensError, Way, check_length
from ..pairs import solver_output, twin_context
from ..registry import Twin, add_base_contexts, catalogue, is_exact, judging_twin, twins_of
from ..relations import FixedPointLimit, Limit, Rate
from ..report import Finding

_N_ITER = (3, 5)
_LIMIT_TOLERANCE = 1e-5  # of up to 10^4 iterations that stop when they change by at most 1e-10
_EXACTNESS = {"identity": 0, "iterate": 0, "init": 1}
_GENERAL_FIRST = ("any", "cross", "self")
_SETTING_TYPES = (bool, int, str, type(None))
_LARGE_CODES = {"n": 530, "width": 8}  # more than one block of 2^18 entries of the codes
_WAYS: tuple[Way, ...] = ("backward", "torch.func")
_WIDEST, _LEAST_SPREAD = 30.0, 1e-9  # range of logits, and size of tokens
# Differences are only accurate to a percent at the parameters of a user's layer.
_SLOPE_LAWS, _SLOPE_ACCURACY = ("gradient", "second derivative", "mask gradient"), 1e-2
_NAMES = ("inputs", "tokens", "q", "k", "v", "parameters", "context")


def trials_of(twin: Twin, seed: int = 0) -> Iterator[Trial]:
    """Yield the trials of the laws for the twin's layer; its parameters differ between heads.

    Several twins may have layers with the same settings. Then only the most general one whose
    solver gives the output exactly yields the trials of all laws, and so does every twin of a
    user that is as exact and as general. The others yield only those of their options. An option
    has fewer trials: each law only in its hardest case.

    Parameters
    ----------
    twin : Twin
    seed : int, default=0
        Seed of the inputs, masks, parameters and directions.

    Yields
    ------
    Trial
    """
    all_laws = speaks_for_layer(twin)
    for option, build in twin.options.items():
        rng = np.random.default_rng([seed, *f"{option} of {twin.name}".encode()])
        for trial in _trials_of_option(replace(twin, build=build), rng, all_laws=all_laws):
            yield replace(trial, law=f"{option}: {trial.law}")
    if all_laws:
        yield from trials(make_subject(twin, np.random.default_rng([seed, *twin.name.encode()])))


def _trials_of_option(twin: Twin, rng: np.random.Generator, *, all_laws: bool) -> Iterator[Trial]:
    """Yield the trials of one build of the twin's layer."""
    subject = replace(as_built(twin, rng), brief=True)
    if runs_to_limit(twin):
        measure = partial(twin.relation.measure, twin, subject.layer, subject.inputs)
        yield Trial("", measure, law=twin.relation.name)
    elif all_laws:
        yield from trials(subject)
    else:
        yield from output(replace(subject, declared=None))


def runs_to_limit(twin: Twin) -> bool:
    """Whether the layer and its solver agree only after many iterations."""
    return isinstance(twin.relation, Limit | Rate | FixedPointLimit)


def make_subject(twin: Twin, rng: np.random.Generator) -> Subject:
    """Build the twin's layer for drawn inputs, and give each head its own parameters."""
    subject = as_built(twin, rng)
    return _with_layer(subject, twin, _move_parameters(twin, subject.layer, rng))


def as_built(twin: Twin, rng: np.random.Generator) -> Subject:
    """Build the twin's layer for drawn inputs; its solver is the reference."""

    def build(inputs: Tensors, rng: np.random.Generator) -> nn.Module:
        return _move_parameters(twin, _build_for(twin, inputs), rng)

    inputs = draw_inputs(twin.inputs.kind, rng, same=twin.inputs.pairing == "self")
    twice = {way: "right" if way in twin.derivatives.twice else "refused" for way in _WAYS}
    return replace(
        _make_subject_of(twin, _build_for(twin, inputs), inputs, rng, twice), build=build
    )


def _make_subject_of(
    twin: Twin, layer: nn.Module, inputs: Tensors, rng: np.random.Generator, twice: dict[Way, str]
) -> Subject:
    """Return a layer on these inputs as a subject; the twin's solver is the reference."""

    def context_of(inputs: Tensors) -> Context | None:
        return twin_context(twin, inputs)

    def solve(
        layer: nn.Module, inputs: Tensors, context: Context | None, masks: Masks, rows: Array | None
    ) -> Array:
        twin_in_context = twin if context is None else twin.with_context(lambda *_: context)
        return solver_output(
            twin_in_context, layer, inputs, visible=masks.visible, bias=masks.bias, rows=rows
        )

    inexact = isinstance(twin.relation, Limit | Rate)
    subject = Subject(
        layer=layer,
        inputs=inputs,
        seed=tuple(int(x) for x in rng.integers(2**32, size=2)),
        kind=twin.inputs.kind,  # type: ignore[arg-type]  # patches are of tasks
        declared=_as_operator(twin, layer),
        reference=solve,
        apply=twin.inputs.apply,
        make_context=context_of if twin.inputs.kind == "tokens" else lambda inputs: None,
        accuracy=Accuracy(
            tolerance=_LIMIT_TOLERANCE if inexact else twin.relation.tolerance,
            passes=twin.numerics.passes,
            logit_range=twin.numerics.logit_range,
            rounded=twin.numerics.rounded,
            continuous=not twin.numerics.chooses and getattr(layer, "step", None) != "support",
            iterates=runs_to_limit(twin),
            differences=not twin.numerics.scales_first,
        ),
        twice=twice if twin.derivatives.of is True else {},
        same_points=twin.inputs.pairing == "self",
        rows_apart=twin.inputs.by_rows,
        large=_LARGE_CODES if twin.layer is SparseCoding else {},
    )
    return _with_layer(subject, twin, layer)


class LawsTried(NamedTuple):
    """Findings on laws that a layer breaks or takes too few tokens for, and the number tried."""

    findings: list[Finding]
    n_tried: int = 0

    @property
    def share(self) -> str:
        """How many of the tried laws hold, in words; "" if none was tried."""
        n_broken = sum(finding.verdict == "broken" for finding in self.findings)
        return f"{self.n_tried - n_broken} of {self.n_tried}" if self.n_tried else ""


def try_laws(layer: nn.Module, inputs: Tensors) -> LawsTried:
    """Try the laws that a user's layer declares.

    The laws are tried on a float64 copy with the layer's present parameters and few iterations. Its
    tokens are drawn, with the features of `inputs`, and with three heads or more if the layer takes
    any number, else with those of `inputs`. They are scaled until the range of the logits is small
    enough for accurate rounding and differences. No law is tried on a layer whose twin gives a
    limit or a bound, nor on one that iterates to a tolerance of its own.
    """
    twin = add_base_contexts(judging_twin(layer), layer)
    if not is_exact(twin) or twin.numerics.promised is not None:
        return LawsTried([])
    copied = _few_iterations(twin, copy.deepcopy(layer).cpu().double().eval())
    broken: dict[str, list[tuple[Trial, Measurement]]] = {}
    unjudged: dict[str, Finding] = {}
    laws: set[str] = set()
    try:
        subject = _draw_like(twin, copied, inputs)
    except TooManyTokensError:
        return LawsTried([_not_judged(layer, "all laws")])
    with torch.enable_grad(), torch.autocast("cpu", enabled=False), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for trial in trials(subject):
            try:
                measured = trial.measure()
            except TooManyTokensError:
                unjudged[trial.law] = _not_judged(layer, trial.law)
                continue
            except (RuntimeError, ValueError, IndexError, TypeError):
                measured = Measurement(math.inf, 0.0)
            laws.add(trial.law)
            accurate = trial.law in _SLOPE_LAWS and measured.deviation <= _SLOPE_ACCURACY
            if not (measured.holds or accurate):
                broken.setdefault(trial.law, []).append((trial, measured))
    findings = [*(_sum_up(layer, *tried) for tried in broken.values()), *unjudged.values()]
    return LawsTried(findings, len(laws))


def _not_judged(layer: Any, law: str) -> Finding:
    """Return the finding on a law that draws more tokens than the layer takes."""
    why = f"on more drawn tokens than the {layer.max_length} that it takes"
    return Finding(law, "not judged", why=why, details={"class": type(layer).__name__})


def _sum_up(layer: nn.Module, *broken: tuple[Trial, Measurement]) -> Finding:
    """Return the finding on a law from the trials that broke it: the worst, and their number."""
    measured = worst([x for _, x in broken])
    trial = next(trial for trial, x in broken if x is measured)
    and_more = f" and {len(broken) - 1} more" if len(broken) > 1 else ""
    why = f"on drawn tokens{f', {trial.detail}' if trial.detail else ''}{and_more}"
    details = {"class": type(layer).__name__, "dtype": trial.dtype}
    return Finding(trial.law, "broken", *measured[:2], why, details=details)


def _draw_like(twin: Twin, layer: nn.Module, inputs: Tensors) -> Subject:
    """Draw inputs of the kind of `inputs`, close enough that logits stay in range."""
    rng, kind, shape = np.random.default_rng(0), twin.inputs.kind, inputs[0].shape
    sizes: dict[str, Any] = {"channels": shape[1]} if kind == "image" else {"width": shape[-1]}
    if kind == "tokens":
        free = not any(getattr(part, "num_heads", None) for part in layer.modules())
        sizes |= {"heads": max(len(inputs[0]), N_HEADS if free else 1), "spread": 1.0}

    def draw() -> Tensors:
        same, rng = twin.inputs.pairing == "self", np.random.default_rng(0)
        inputs = draw_inputs(kind, rng, same=same, **sizes)
        check_length(_as_operator(twin, layer), inputs)
        return inputs

    while kind == "tokens" and sizes["spread"] > _LEAST_SPREAD:
        arrays = (x.numpy() for x in draw())
        if float(twin.numerics.logit_range(layer, *arrays)) <= _WIDEST:
            break
        sizes["spread"] /= 2
    subject = _make_subject_of(twin, layer, draw(), rng, dict.fromkeys(_WAYS, "either"))
    smooth = subject.accuracy.continuous and not any(_chooses(x) for x in layer.modules())
    accuracy = replace(subject.accuracy, continuous=smooth)
    return replace(subject, kept=sizes, accuracy=accuracy)


def _chooses(part: nn.Module) -> bool:
    return isinstance(part, Operator) and any(t.numerics.chooses for t in twins_of(part))


def _with_layer(subject: Subject, twin: Twin, layer: nn.Module) -> Subject:
    """Return the subject with this layer and the names of what the layer has gradients by."""
    declared: Any = _NAMES if twin.derivatives.of is True else twin.derivatives.of or ()
    free = covers_nearby_parameters(twin, layer)
    names = tuple(name for name in declared if name != "parameters" or free)
    return replace(subject, layer=layer, declared=_as_operator(twin, layer), differentiable=names)


def _as_operator(twin: Twin, layer: nn.Module) -> Operator | None:
    return layer if twin.inputs.kind == "tokens" and isinstance(layer, Operator) else None


def speaks_for_layer(twin: Twin) -> bool:
    """Whether all laws are measured on this twin's layer, and not on that of a similar twin.

    Among twins whose layers have the same class, settings and gradients it is the one whose solver
    gives the output exactly, for the most general points and parameters. A twin of a user that is
    as exact and as general speaks for its layer too.
    """
    settings = settings_of(_build_drawn(twin))
    kind = twin.layer, twin.inputs.kind, twin.derivatives.of
    candidates = [t for t in catalogue() if (t.layer, t.inputs.kind, t.derivatives.of) == kind]
    equal_twins = [
        t for t in candidates if t.name == twin.name or settings_of(_build_drawn(t)) == settings
    ]
    best = min(equal_twins, key=_rank, default=twin)
    solve = getattr(twin.solve, "func", twin.solve)  # the function of a partial
    users = not solve.__module__.startswith(f"{__package__.partition('.')[0]}.")
    return best.name == twin.name or (users and _rank(best) == _rank(twin))


def _rank(twin: Twin) -> tuple[int, bool, int]:
    """Return a key that sorts twins: exact ones first, then general ones."""
    layer = _build_drawn(twin)
    bound = any(True for _ in layer.parameters()) and not covers_nearby_parameters(twin, layer)
    return _EXACTNESS.get(twin.relation.name, 2), bound, _GENERAL_FIRST.index(twin.inputs.pairing)


def settings_of(layer: nn.Module) -> tuple[Any, ...]:
    """Return the names, classes and settings of all parts of a layer, without numbers."""
    return tuple((name, type(x), *_list_settings(x)) for name, x in layer.named_modules())


def _build_drawn(twin: Twin) -> nn.Module:
    rng, same = np.random.default_rng(0), twin.inputs.pairing == "self"
    return twin.build(*(x.numpy() for x in draw_inputs(twin.inputs.kind, rng, same=same)))


def _list_settings(part: nn.Module) -> list[tuple[str, Any]]:
    """Return the settings of a module, with classes in place of other modules."""
    settings: list[tuple[str, Any]] = []
    for name, value in sorted(vars(part).items()):
        if name in ("_parameters", "_buffers"):
            settings += [(key, x is None) for key, x in value.items()]
        elif not name.startswith("_") and name not in ("training", "n_iter"):
            plain = isinstance(value, _SETTING_TYPES) or callable(value)
            settings.append((name, value if plain else type(value)))
    return settings


def _build_for(twin: Twin, inputs: Tensors) -> nn.Module:
    return _few_iterations(twin, twin.build(*(x.numpy() for x in inputs)).double().eval())


def _few_iterations(twin: Twin, layer: nn.Module) -> nn.Module:
    """Return the layer with 3 to 5 iterations, or with those of its limit."""
    n_iter = getattr(layer, "n_iter", None)
    if not isinstance(n_iter, int):
        return layer
    changed: Any = copy.deepcopy(layer)
    if isinstance(twin.relation, Limit | FixedPointLimit):
        changed.n_iter = twin.relation.n_iter
    else:
        changed.n_iter = int(np.clip(n_iter, *_N_ITER))
    return changed if twin.covers(changed) else layer


def _move_parameters(twin: Twin, layer: nn.Module, rng: np.random.Generator) -> nn.Module:
    """Return a copy of the layer with as many moved parameters as the twin covers."""
    heads = None if _as_operator(twin, layer) is None else N_HEADS
    numbers_moved = _draw_numbers(layer, heads, rng)
    for candidate in (move_weights(numbers_moved, rng), numbers_moved):
        if twin.covers(candidate):
            return candidate
    return layer


def _draw_numbers(layer: nn.Module, heads: int | None, rng: np.random.Generator) -> nn.Module:
    """Return a copy whose positive numbers are learnable and drawn anew, one for each head."""
    layer = copy.deepcopy(layer)
    for part in list(layer.modules()):
        for name, number in list(part.named_children()):
            if isinstance(number, Positive):
                part.register_module(name, _draw_number(number, heads, rng))
    return layer


def _draw_number(number: Positive, heads: int | None, rng: np.random.Generator) -> Positive:
    """Return a learnable number, drawn anew for each head."""
    heads = heads or number.num_heads
    drawn = Positive(number.initial, num_heads=heads, learnable=True, dtype=torch.float64)
    assert drawn.log is not None
    logs = torch.tensor(math.log(number.initial)) if number.log is None else number.log
    shift = torch.from_numpy(rng.uniform(-0.4, 0.0, drawn.log.shape))
    drawn.log.data = (logs.detach().double() + shift).expand(drawn.log.shape).clone()
    return drawn


def move_weights(layer: nn.Module, rng: np.random.Generator) -> nn.Module:
    """Return a copy with noise of 20 % on all parameters except the positive numbers."""
    layer = copy.deepcopy(layer)
    logs = {id(x.log) for x in layer.modules() if isinstance(x, Positive)}
    with torch.no_grad():
        for parameter in layer.parameters():
            if id(parameter) not in logs:
                size = float(parameter.square().mean().sqrt()) or 1.0
                noise = torch.from_numpy(rng.standard_normal(parameter.shape))
                parameter.add_(0.2 * size * noise)
    return layer


def covers_nearby_parameters(twin: Twin, layer: nn.Module) -> bool:
    """Whether the layer has parameters and the twin covers it at nearby values of them."""
    perturbed = copy.deepcopy(layer)
    parameters = list(perturbed.parameters())
    with torch.no_grad():
        for index, parameter in enumerate(parameters):
            places = torch.arange(parameter.numel(), dtype=parameter.dtype) + index
            parameter.add_(1e-3 * places.cos().reshape(parameter.shape))
    return len(parameters) > 0 and twin.covers(perturbed)
