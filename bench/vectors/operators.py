"""The operators of this package whose twins compute them in float64, and their cases."""

import copy
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ...twins import catalogue, laws
from ...twins.judging.subjects import as_built, speaks_for_layer
from ...twins.laws import Masks
from ...twins.laws.subject import as_array, map_tensors
from ...twins.registry import is_exact
from ...unrolled.attention import Context
from .cases import Arrays, KernelCase, Subject, Tensors, round_to_bfloat16

_N, _WIDTHS = 11, {"width": 2, "n_values": 2}
_PLAIN = (int, float, str, type(None))


def operators() -> Iterator[Subject]:
    """Yield every operator on q, k and v whose twin computes exactly its output.

    Those that learn at test time are left out: the recurrences have vectors of their own.
    """
    for twin in catalogue():
        any_points = twin.inputs.kind == "tokens" and twin.inputs.pairing != "self"
        if twin.family == "online_regression" or not any_points:
            continue
        if is_exact(twin) and speaks_for_layer(twin):
            rng = np.random.default_rng([*twin.name.encode()])
            subject = as_built(twin, rng).resized(rng, n=_N, **_WIDTHS)
            words = f"{type(subject.layer).__name__}: {_first_line(type(subject.layer))}"
            cases = list(_cases(subject, rng, ties=not twin.numerics.chooses))
            settings = _settings(subject.layer)
            tolerance = subject.accuracy.tolerance
            yield Subject(twin.name, twin.equation, words, cases, settings, tolerance)


def _first_line(layer: type) -> str:
    return (layer.__doc__ or "").strip().partition("\n")[0]


def _settings(layer: torch.nn.Module) -> dict[str, Any]:
    """Return the numbers and words that a layer was made with, of all its parts."""
    return {
        f"{name}.{key}".lstrip("."): value
        for name, part in layer.named_modules()
        for key, value in sorted(vars(part).items())
        if key[0] != "_" and key != "training" and isinstance(value, _PLAIN)
    }


class _Edge(NamedTuple):
    catches: str
    change: Callable[[Arrays], None] = lambda x: None
    n: int = _N
    by: tuple[str, ...] = ("q", "k", "v")
    ties: bool = False  # kinks of some operators in their keys


def _scale(x: Arrays) -> None:
    x["q"] *= 16
    x["k"] *= 16


def _repeat_first_key(x: Arrays) -> None:
    x["k"][...] = x["k"][:, :1]


def _clear_even_keys(x: Arrays) -> None:
    x["k"][:, ::2] = 0


_EDGES = {
    "plain": _Edge("axes that are swapped; parameters of heads"),
    "large-logits": _Edge("overflow of exp", _scale),
    "equal-keys": _Edge("systems that are singular, ties", _repeat_first_key, by=("v",), ties=True),
    "zero-keys": _Edge("normalisation of keys of zero", _clear_even_keys, by=("v",), ties=True),
    "one-token": _Edge("sums and statistics of one token", n=1),
    "long": _Edge("growth of rounding over 128 tokens", n=128, by=()),
}


def _cases(subject: laws.Subject, rng: np.random.Generator, *, ties: bool) -> Iterator[KernelCase]:
    for name, edge in _EDGES.items():
        if ties or not edge.ties:
            sized = subject if edge.n == _N else subject.drawn(rng, n=edge.n, **_WIDTHS)
            inputs = _tokens(sized)
            edge.change(inputs)
            yield _make_case(sized, rng, name, edge.catches, inputs, by=edge.by)
    if subject.declared is not None:
        causal = subject.declared.causal
        masks = laws.masks.causal(_N, _N) if causal else laws.NO_MASKS
        name = "causal-hidden-key" if causal else "hidden-key"
        catches = "rows without a key: -inf - -inf; statistics over hidden keys; off by one"
        masks = masks.hiding(np.arange(_N)[None] != 0, name)
        yield _make_case(subject, rng, name, catches, _tokens(subject), masks)


def _tokens(subject: laws.Subject) -> Arrays:
    tokens = zip("qkv", map(as_array, subject.inputs), strict=True)
    return {name: round_to_bfloat16(x) for name, x in tokens}


def _make_case(
    subject: laws.Subject,
    rng: np.random.Generator,
    name: str,
    catches: str,
    inputs: Arrays,
    masks: Masks = laws.NO_MASKS,
    by: tuple[str, ...] = ("q", "k", "v"),
) -> KernelCase:
    context = subject.make_context(tuple(torch.from_numpy(inputs[name]) for name in "qkv"))
    given = dict(inputs) | {x: round_to_bfloat16(as_array(y)) for x, y in _flatten(context)}
    parameters = dict(subject.layer.named_parameters())
    given |= {f"parameter.{name}": as_array(x) for name, x in parameters.items()}
    if masks.visible is not None:
        given["mask"] = np.where(masks.visible, 0.0, -np.inf)
    if by:
        given["weights"] = round_to_bfloat16(rng.standard_normal(inputs["v"].shape))

    def call(x: Tensors) -> tuple[tuple[Tensor, ...], Context | None]:
        tokens = tuple(x[name] for name in "qkv")
        return tokens, _unflatten(context, x)

    def reference(x: Arrays) -> Arrays:
        assert subject.reference is not None
        tokens, context = call({name: torch.from_numpy(y) for name, y in x.items()})
        return {"out": subject.reference(subject.layer, tokens, context, masks, None)}

    def form(x: Tensors) -> Tensors:
        tokens, context = call(x)
        layer = copy.deepcopy(subject.layer).to(tokens[0].dtype)
        more = {} if context is None else {"context": context}
        return {"out": subject.apply(layer, *tokens, **more, **masks.given)}

    return KernelCase(name, catches, given, reference, form, by)


def _flatten(context: Context | None) -> Iterator[tuple[str, Tensor]]:
    """Yield the tensors of a context with their names in the files."""
    found: list[tuple[str, Tensor]] = []
    _map_named(context, lambda name, x: found.append((name, x)))
    yield from found


def _unflatten(context: Context | None, x: Tensors) -> Context | None:
    return _map_named(context, lambda name, _: x[name])


def _map_named(context: Context | None, function: Callable[[str, Tensor], Any]) -> Context | None:
    """Return the context with ``function(name, tensor)``; several of a field are numbered."""
    counts: dict[str, int] = {}

    def replace(field: str, x: Tensor) -> Any:
        counts[field] = counts.get(field, -1) + 1
        return function(f"context.{field}.{counts[field]}", x)

    return None if context is None else map_tensors(context, replace)
