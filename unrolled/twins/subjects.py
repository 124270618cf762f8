"""Layers as a trained model would hold them, with small inputs to run them on."""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import nn

from ..attention import Context, Operator, Positive
from .heads import Tensors
from .pairs import twin_context
from .registry import Twin, catalogue
from .relations import FixedPointLimit, Limit, Rate

N_HEADS = 3
_N_TOKENS, _WIDTH, _N_VALUES = 14, 6, 4
_IMAGES = (2, 3, 11, 9)
_N_ITER = (3, 5)
_SOLVED = 1e-5  # iterations that stop at a last change of 1e-10, and take up to some 10^4
_EXACTNESS = {"identity": 0, "iterate": 0, "init": 1}
_GENERAL_FIRST = ("any", "cross", "self")
_PLAIN = (bool, int, str, type(None))


@dataclass(frozen=True)
class Subject:
    """A layer and float64 inputs to hold it against its solver on.

    Attributes
    ----------
    twin : Twin
    layer : nn.Module
        In float64, at parameters that are not the initial ones and differ from head to head.
    inputs : tuple of Tensor
        For tokens of shape (heads, tokens, width).
    """

    twin: Twin
    layer: nn.Module
    inputs: Tensors

    @property
    def operator(self) -> Operator | None:
        """The layer, if it is called on queries, keys and values, with masks."""
        return _as_operator(self.twin, self.layer)

    @property
    def runs_to_limit(self) -> bool:
        """Whether the layer and its solver agree after many iterations alone."""
        return isinstance(self.twin.relation, Limit | Rate | FixedPointLimit)

    @property
    def tolerance(self) -> float:
        """Of outputs in float64."""
        relation = self.twin.relation
        inexact = isinstance(relation, Limit | Rate)
        return _SOLVED if inexact else relation.tolerance

    @property
    def context(self) -> Context | None:
        return twin_context(self.twin, self.inputs) if self.twin.inputs.kind == "tokens" else None

    def on(self, inputs: Tensors, context: Context | None = None) -> Subject:
        """The layer on other inputs; a context given is that of all inputs to come."""
        twin = self.twin if context is None else self.twin.with_context(lambda *_: context)
        return Subject(twin, self.layer, inputs)

    def drawn(self, rng: np.random.Generator, **sizes: Any) -> Subject:
        """The layer on inputs drawn anew."""
        return self.on(draw_inputs(self.twin, rng, **sizes))


def _as_operator(twin: Twin, layer: nn.Module) -> Operator | None:
    return layer if twin.inputs.kind == "tokens" and isinstance(layer, Operator) else None


def make_subject(twin: Twin, rng: np.random.Generator, **sizes: Any) -> Subject:
    """The twin's layer, built for drawn inputs, at parameters of its own for each head."""
    subject = as_built(twin, rng, **sizes)
    return replace(subject, layer=_trained(twin, subject.layer, rng))


def as_built(twin: Twin, rng: np.random.Generator, **sizes: Any) -> Subject:
    """The twin's layer, built for drawn inputs."""
    inputs = draw_inputs(twin, rng, **sizes)
    layer = _few_iterations(twin, twin.build(*(x.numpy() for x in inputs)).double().eval())
    return Subject(twin, layer, inputs)


def draw_inputs(
    twin: Twin,
    rng: np.random.Generator,
    *,
    n: int = _N_TOKENS,
    width: int = _WIDTH,
    n_values: int = _N_VALUES,
    images: tuple[int, ...] = _IMAGES,
) -> Tensors:
    """Random float64 inputs: three heads that differ, tokens, or images in colour."""
    if twin.inputs.kind == "image":
        return (torch.from_numpy(rng.random(images)),)
    if twin.inputs.kind == "features":
        return (torch.from_numpy(rng.standard_normal((n, width))),)
    q, k = (torch.from_numpy(rng.standard_normal((N_HEADS, n, width))) for _ in range(2))
    v = torch.from_numpy(rng.standard_normal((N_HEADS, n, n_values)))
    return (k if twin.inputs.pairing == "self" else q), k, v


def is_foremost(twin: Twin) -> bool:
    """Whether no other twin speaks for layers with the settings of this twin's.

    The one does whose solver gives the layer's output exactly, on the most general points
    and parameters; one whose outputs have gradients and one whose outputs have none both do, and
    each of the user's own that is as exact and as general.
    """
    settings = _settings_of(twin)
    kind = twin.layer, twin.inputs.kind, twin.derivatives.of
    others = [t for t in catalogue() if (t.layer, t.inputs.kind, t.derivatives.of) == kind]
    same = [t for t in others if t.name == twin.name or _settings_of(t) == settings]
    best = min(same, key=_rank, default=twin)
    solve = getattr(twin.solve, "func", twin.solve)  # of a partial
    own = not solve.__module__.startswith(f"{__package__.partition('.')[0]}.")
    return best.name == twin.name or (own and _rank(best) == _rank(twin))


def _rank(twin: Twin) -> tuple[int, bool, int]:
    layer = _built(twin)
    bound = any(True for _ in layer.parameters()) and not free_parameters(twin, layer)
    return _EXACTNESS.get(twin.relation.name, 2), bound, _GENERAL_FIRST.index(twin.inputs.pairing)


def _settings_of(twin: Twin) -> tuple[Any, ...]:
    """What the built layer is made of: its parts and what they are set to, numbers aside."""
    return tuple((name, type(x), *_plain(x)) for name, x in _built(twin).named_modules())


def _built(twin: Twin) -> nn.Module:
    return twin.build(*(x.numpy() for x in draw_inputs(twin, np.random.default_rng(0))))


def _plain(part: nn.Module) -> list[tuple[str, Any]]:
    found: list[tuple[str, Any]] = []
    for name, value in sorted(vars(part).items()):
        if name in ("_parameters", "_buffers"):
            found += [(key, x is None) for key, x in value.items()]
        elif not name.startswith("_") and name not in ("training", "n_iter"):
            kept = value if isinstance(value, _PLAIN) or callable(value) else type(value)
            found.append((name, kept))
    return found


def _few_iterations(twin: Twin, layer: nn.Module) -> nn.Module:
    """More than one iteration, but no more than it takes to tell one from another."""
    n_iter = getattr(layer, "n_iter", None)
    if not isinstance(n_iter, int):
        return layer
    changed: Any = copy.deepcopy(layer)
    if isinstance(twin.relation, Limit | FixedPointLimit):
        changed.n_iter = twin.relation.n_iter
    else:
        changed.n_iter = int(np.clip(n_iter, *_N_ITER))
    return changed if twin.covers(changed) else layer


def _trained(twin: Twin, layer: nn.Module, rng: np.random.Generator) -> nn.Module:
    """The layer with as many of its parameters moved as the twin allows."""
    heads = None if _as_operator(twin, layer) is None else N_HEADS
    numbers_moved = _with_own_numbers(layer, heads, rng)
    for candidate in (with_moved_weights(numbers_moved, rng), numbers_moved):
        if twin.covers(candidate):
            return candidate
    return layer


def _with_own_numbers(layer: nn.Module, heads: int | None, rng: np.random.Generator) -> nn.Module:
    """Every positive number drawn apart, learnable, and of each head if it has some."""
    layer = copy.deepcopy(layer)
    for part in list(layer.modules()):
        for name, number in list(part.named_children()):
            if isinstance(number, Positive):
                part.register_module(name, _drawn_number(number, heads, rng))
    return layer


def _drawn_number(number: Positive, heads: int | None, rng: np.random.Generator) -> Positive:
    heads = heads or number.num_heads
    drawn = Positive(number.initial, num_heads=heads, learnable=True, dtype=torch.float64)
    assert drawn.log is not None
    logs = torch.tensor(math.log(number.initial)) if number.log is None else number.log
    shift = torch.from_numpy(rng.uniform(-0.4, 0.0, drawn.log.shape))
    drawn.log.data = (logs.detach().double() + shift).expand(drawn.log.shape).clone()
    return drawn


def with_moved_weights(layer: nn.Module, rng: np.random.Generator) -> nn.Module:
    """All parameters but the positive numbers off their values by some percent, or off zero."""
    layer = copy.deepcopy(layer)
    logs = {id(x.log) for x in layer.modules() if isinstance(x, Positive)}
    with torch.no_grad():
        for parameter in layer.parameters():
            if id(parameter) not in logs:
                size = float(parameter.square().mean().sqrt()) or 1.0
                noise = torch.from_numpy(rng.standard_normal(parameter.shape))
                parameter.add_(0.2 * size * noise)
    return layer


def free_parameters(twin: Twin, layer: nn.Module) -> bool:
    """Whether the twin is about the layer at all parameters near by."""
    moved = copy.deepcopy(layer)
    parameters = list(moved.parameters())
    with torch.no_grad():
        for index, parameter in enumerate(parameters):
            places = torch.arange(parameter.numel(), dtype=parameter.dtype) + index
            parameter.add_(1e-3 * places.cos().reshape(parameter.shape))
    return len(parameters) > 0 and twin.covers(moved)
