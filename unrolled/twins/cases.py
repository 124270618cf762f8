"""The second pass of the check: each layer in the ways it is used, against its solver."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..attention import Context, Operator, Positive
from ..block_size import small_blocks
from ..solved_operator import Solved
from ..sparse_coding import SparseCoding
from .gradients import Gradients
from .heads import Array, Tensors, as_array, map_fields
from .registry import Twin, Way
from .relations import (
    Measurement,
    identity_values,
    largest_difference,
    layer_output,
    solver_output,
    tolerance_of,
    twin_context,
    worst,
)
from .subjects import N_HEADS, Subject, as_built, is_foremost, make_subject

_N_QUERIES, _N_FEW, _N_NARROW, _N_ROWS = 5, 8, 4, 4
# Beyond the sizes at which layers take another way: blocks of 128 and 256 queries, matrices of
# 256 x 256, twicing by the matrix up to 256 tokens, 1024 rows of a self-expressive network.
_LARGE: dict[str, dict[str, Any]] = {
    "tokens": {"n": 300, "width": 33},
    "features": {"n": 1100},
    "image": {"images": (1, 1, 21, 33)},
}
_SOME_MASKS = ("causal", "mask per head")
_LARGE_CODES = {"n": 530, "width": 8}  # codes go by blocks of 2^18 entries
_N_WIDE = 40  # values
_BLOCK, _N_BLOCKED = 2, 13  # seven blocks of tokens, of which the last is not full
_WIDE_KEYS = 33  # from which on values that are narrower take a way of their own
_HALVINGS = 36  # to 1e-11: where scores meet, more than rounding in float64, less than in float32
_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


@dataclass(frozen=True)
class Case:
    """One way in which a layer is used, to be held against its solver.

    Attributes
    ----------
    name : str
        What is done, such as "causal" or "gradient k".
    dtype : str
        In which the layer runs.
    measure : callable
        ``measure()`` gives the `Measurement`; what the layer or its solver raises is not caught.
    """

    name: str
    dtype: str
    measure: Callable[[], Measurement]


@dataclass(frozen=True)
class _Masks:
    """Masks as an operator takes them, and what they mean."""

    name: str
    given: dict[str, Any] = field(default_factory=dict)
    visible: Array | None = None
    bias: Array | None = None

    def hiding(self, visible: Array, name: str, **given: Any) -> _Masks:
        """These and another one."""
        both = visible if self.visible is None else self.visible & visible
        return _Masks(name, self.given | given, both)


_NO_MASKS = _Masks("heads")


def cases_of(twin: Twin, seed: int = 0) -> Iterator[Case]:
    """All cases of the twin's layer, at parameters that differ from head to head.

    They follow from the laws that an `Operator` declares: masks of every kind, fewer queries than
    keys, `matrix`, a batch, fewer tokens than features and many, gradients, dtypes, and what must
    be refused; layers of another kind have those of these that they can be given. Where several
    twins are about a layer at the same settings, the most general of those whose solver gives its
    output exactly has the cases, and each of the user's own that is so too. The others have those
    of options alone, and whole models, which the first pass runs with their
    masks, have none.

    Parameters
    ----------
    twin : Twin
    seed : int, default=0
        Seeds inputs, masks, parameters and directions.

    Yields
    ------
    Case
    """
    if twin.inputs == "model":
        return
    foremost = is_foremost(twin)
    yield from _of_settings(twin, seed, laws=foremost)
    if not foremost:
        return
    rng = np.random.default_rng([seed, *twin.name.encode()])
    subject = make_subject(twin, rng)
    yield _compared(subject, _NO_MASKS)
    if subject.operator is not None:
        yield from _of_operator(subject, subject.operator, rng)
    if subject.operator is not None or not subject.runs_to_limit:
        yield from _sizes(subject, rng)
        if twin.differentiable:
            yield from _gradients(subject, rng)
    yield from _dtypes(subject, rng)
    if not subject.runs_to_limit:
        rng = np.random.default_rng([seed, 2, *twin.name.encode()])
        yield from _in_blocks(twin, rng)
        yield Case("at a jump", "float64", partial(_at_jump, subject, subject.drawn(rng)))


def _of_settings(twin: Twin, seed: int, *, laws: bool) -> Iterator[Case]:
    """Each option: plain and, by the laws, where all is hardest."""
    rng = np.random.default_rng([seed, 4, *twin.name.encode()])
    for option, build in twin.options.items():
        subject = as_built(replace(twin, build=build), rng)
        for case in _of_option(subject, rng, laws=laws):
            yield replace(case, name=f"{option}: {case.name}")


def _of_option(subject: Subject, rng: np.random.Generator, *, laws: bool) -> Iterator[Case]:
    twin, layer = subject.twin, subject.layer
    if subject.runs_to_limit:
        measure = partial(twin.relation.measure, twin, layer, subject.inputs)
        yield Case(twin.relation.name, "float64", measure)
        return
    yield _compared(subject, _NO_MASKS)
    if not laws:
        return
    yield _taking_blocks(_compared(subject, _NO_MASKS))
    masks, rows = _NO_MASKS, None
    if subject.operator is not None:
        *_, masks = _masks(subject, subject.operator, rng)
        rows = _some_rows(subject, masks, rng)
        yield _compared(subject, masks, rows)
        matrix = partial(_matrix, subject, masks, rows)
        yield Case(f"matrix, {masks.name}", "float64", matrix)
    if twin.differentiable:
        gradients = Gradients(subject, rng, rows=rows, visible=masks.visible, **masks.given)
        names = gradients.names
        for name in dict.fromkeys([*names[:1], *(name for name in names if name == "parameters")]):
            yield Case(f"gradient {name}", "float64", partial(gradients.measure, name))


def _compared(
    subject: Subject, masks: _Masks, rows: Array | None = None, name: str | None = None
) -> Case:
    return Case(name or masks.name, "float64", partial(_compare, subject, masks, rows))


def _compare(subject: Subject, masks: _Masks, rows: Array | None = None) -> Measurement:
    twin, layer, inputs = subject.twin, subject.layer, subject.inputs
    judged = slice(None) if rows is None else rows
    found = layer_output(twin, layer, inputs, **masks.given)
    expected = solver_output(twin, layer, inputs, visible=masks.visible, bias=masks.bias, rows=rows)
    deviation = largest_difference(found[..., judged, :], expected[..., judged, :])
    passes = twin.passes(layer)
    if inputs[0].dtype == torch.bfloat16 and twin.rounded != "anything":
        return _but_rounded(found[..., judged, :], expected[..., judged, :], subject)
    if inputs[0].dtype == torch.bfloat16:
        # Layers compute in float32, but each pass may round weights and values, by eps / 2 each;
        # what lies several passes back is damped.
        return Measurement(deviation, torch.finfo(torch.bfloat16).eps * (1 + min(passes, 3)))
    return Measurement(deviation, tolerance_of(twin, layer, inputs, subject.tolerance, passes))


def _but_rounded(found: Array, expected: Array, subject: Subject) -> Measurement:
    """What differs by more than rounding each number to bfloat16, by eps / 2 of its size at most.

    It is held to the tolerance of outputs in float32.
    """
    twin, layer = subject.twin, subject.layer
    rounding = torch.finfo(torch.bfloat16).eps / 2 * np.abs(expected)
    excess = np.maximum(np.abs(found - expected) - rounding, 0)
    wide = tuple(x.float() for x in subject.inputs)
    tolerance = tolerance_of(twin, layer, wide, subject.tolerance, twin.passes(layer))
    return Measurement(largest_difference(excess + expected, expected), tolerance)


def _spoiled(subject: Subject, masks: _Masks) -> Measurement:
    """Keys and values that no query sees hold NaN, for the layer alone; rows of tokens seen."""
    twin, (q, k, v) = subject.twin, subject.inputs
    assert masks.visible is not None
    seen = masks.visible.any(axis=-2)
    rows, unseen = np.flatnonzero(seen)[::3], torch.from_numpy(~seen)[..., None]
    spoiled = (q, *(x.masked_fill(unseen, torch.nan) for x in (k, v)))
    context = twin_context(twin, subject.inputs)
    of_seen = replace(twin, context=None if context is None else lambda *tokens: context)
    found = layer_output(of_seen, subject.layer, spoiled, **masks.given)[:, rows]
    expected = solver_output(twin, subject.layer, subject.inputs, visible=masks.visible, rows=rows)
    return Measurement(largest_difference(found, expected[:, rows]), subject.tolerance)


def _sizes(subject: Subject, rng: np.random.Generator) -> Iterator[Case]:
    twin = subject.twin
    if twin.inputs != "image":
        narrow = subject.drawn(rng, n=_N_NARROW)
        yield _compared(narrow, _NO_MASKS, name="narrow")
        if subject.operator is not None:
            first_hidden = _hiding(np.arange(_N_NARROW)[None] > 0)
            yield _compared(narrow, first_hidden, np.array([_N_NARROW - 1]), "narrow, padding")
    if twin.inputs == "tokens":
        yield Case("batch", "float64", partial(_batch, subject, subject.drawn(rng)))
        yield _compared(subject.drawn(rng, n_values=_N_WIDE), _NO_MASKS, name="wide values")
    if subject.runs_to_limit:
        return
    names = ["large"]
    if subject.operator is not None:
        names += ["large, masked"]
        if subject.operator.causal and not subject.operator.square_only:
            names += ["large, fewer queries"]
    seed = int(rng.integers(2**32))
    for name in names:
        yield Case(name, "float64", partial(_large, twin, seed, name))


def _large(twin: Twin, seed: int, name: str) -> Measurement:
    """Few of many rows, and masks under which few problems are to be solved."""
    rng = np.random.default_rng(seed)
    size = _LARGE_CODES if twin.layer is SparseCoding else _LARGE[twin.inputs]
    subject = make_subject(twin, rng, **size)
    operator = subject.operator
    if operator is None:
        return _compare(subject, _NO_MASKS)
    q, k, v = subject.inputs
    n, masks = k.shape[-2], _NO_MASKS
    if name == "large, fewer queries":
        subject, masks = subject.on((q[:, -n // 2 :], k, v)), _causal(n // 2, n)
    elif name == "large, masked" and operator.causal and twin.by_rows:
        masks = _causal(n, n)
    elif name == "large, masked":
        patterns = rng.random((3 if operator.pair_masks else 1, n)) < 0.6
        masks = _hiding(patterns[np.arange(n) % len(patterns)])
    return _compare(subject, masks, _some_rows(subject, masks, rng, 2, with_last=True))


def _hiding(visible: Array, name: str = "") -> _Masks:
    return _Masks(name, {"mask": torch.from_numpy(visible)}, visible)


def _batch(first: Subject, second: Subject) -> Measurement:
    """Two sets of inputs at once, and where masks are taken another padding for each."""
    inputs = tuple(torch.stack(pair) for pair in zip(first.inputs, second.inputs, strict=True))
    both = first.on(inputs, _stacked(first.context, second.context))
    n = inputs[1].shape[-2]
    visible = np.ones((2, n), dtype=bool)
    given = {}
    if first.operator is not None:
        visible[[0, 0, 1], [0, 3, 5]] = False
        given["mask"] = torch.from_numpy(visible)[:, None, None]
    found = layer_output(both.twin, both.layer, both.inputs, **given)
    deviations = []
    for subject, out, keys in zip((first, second), found, visible, strict=True):
        masks = _Masks("padding", visible=keys[None, None]) if given else _NO_MASKS
        rows = _some_rows(subject, masks, np.random.default_rng(0))
        expected = solver_output(
            subject.twin, subject.layer, subject.inputs, visible=masks.visible, rows=rows
        )
        deviations.append(largest_difference(out[:, rows], expected[:, rows]))
    return Measurement(max(deviations), first.tolerance)


def _stacked(first: Context | None, second: Context | None) -> Context | None:
    if first is None or second is None:
        return None
    of_second: list[Tensor] = []
    map_fields(second, lambda name, x: of_second.append(x))
    others = iter(of_second)
    return Context(**map_fields(first, lambda name, x: torch.stack((x, next(others)))))


def _of_operator(subject: Subject, operator: Operator, rng: np.random.Generator) -> Iterator[Case]:
    masks = list(_masks(subject, operator, rng))
    for each in masks:
        yield _compared(subject, each, _some_rows(subject, each, rng))
    yield Case("padding of NaN", "float64", partial(_spoiled, subject, masks[0]))
    yield Case("matrix", "float64", partial(_matrix, subject, _NO_MASKS))
    hardest = masks[-1]
    rows = _some_rows(subject, hardest, rng)
    of_matrix = [hardest, *(each for each in masks if each.bias is not None)]
    for each in of_matrix:
        yield Case(f"matrix, {each.name}", "float64", partial(_matrix, subject, each, rows))
    if not operator.square_only:
        q, k, v = subject.inputs
        fewer = subject.on((q[:, -_N_QUERIES:], k, v))
        n = k.shape[-2]
        every = _Masks("", visible=np.ones((_N_QUERIES, n), dtype=bool))
        yield _compared(fewer, every, name="fewer queries")
        if operator.causal:
            masks_of_last = _causal(_N_QUERIES, n)
            yield _compared(fewer, masks_of_last, name="fewer queries, causal")
            padding = masks[0]
            assert padding.visible is not None
            padded = masks_of_last.hiding(padding.visible, "", **padding.given)
            yield _compared(fewer, padded, name="fewer queries, causal, padding")
            yield Case(
                "matrix, fewer queries, causal", "float64", partial(_matrix, fewer, masks_of_last)
            )
    yield from _refused(subject, operator)


def _causal(n_queries: int, n_keys: int) -> _Masks:
    visible = np.tri(n_queries, n_keys, k=n_keys - n_queries, dtype=bool)
    return _Masks("causal", {"is_causal": True}, visible)


def _masks(subject: Subject, operator: Operator, rng: np.random.Generator) -> Iterator[_Masks]:
    """Masks that the operator's laws allow; the hardest comes last."""
    n = subject.inputs[1].shape[-2]
    padding = np.ones((1, n), dtype=bool)
    padding[0, [0, *rng.choice(np.arange(1, n), 3, replace=False)]] = False
    yield _hiding(padding, "padding")
    hidden = torch.zeros(1, n, dtype=torch.float64)
    hidden[~torch.from_numpy(padding)] = -torch.inf
    yield _Masks("additive mask", {"mask": hidden}, padding)
    per_head = np.stack([np.roll(padding, shift, axis=1) for shift in range(N_HEADS)])
    if not operator.pair_masks:
        if operator.causal:
            yield _causal(n, n)
        yield _hiding(per_head, "mask per head")
        return
    if operator.additive_masks:
        bias = rng.standard_normal((n, n))
        yield _Masks("additive bias", {"mask": torch.from_numpy(bias)}, bias=bias)
    pairs = rng.random((3, n))[rng.integers(0, 3, n)] < 0.6
    pairs = pairs | np.eye(n, dtype=bool)
    if operator.causal:
        causal = _causal(n, n)
        yield causal
        yield causal.hiding(padding, "causal, padding", mask=torch.from_numpy(padding))
    yield _hiding(pairs, "pairs")
    pairs_per_head = np.stack([pairs, pairs[::-1, ::-1], pairs.T])
    yield _hiding(pairs_per_head, "mask per head")
    if operator.causal:
        yield _causal(n, n).hiding(pairs, "causal, pairs", mask=torch.from_numpy(pairs))


def _some_rows(
    subject: Subject,
    masks: _Masks,
    rng: np.random.Generator,
    n_rows: int = _N_ROWS,
    *,
    with_last: bool = False,
) -> Array:
    """Queries to judge: where queries are keys, some that see themselves in every head."""
    n_queries, n_keys = (x.shape[-2] for x in subject.inputs[:2])
    rows = np.arange(n_queries)
    if subject.twin.pairing == "self" and masks.visible is not None:
        visible = np.broadcast_to(masks.visible, (N_HEADS, n_queries, n_keys))
        rows = np.flatnonzero(np.diagonal(visible, axis1=1, axis2=2).all(axis=0))
    drawn = rng.choice(rows, min(n_rows, len(rows)), replace=False)
    return np.union1d(drawn, rows[-1:]) if with_last else np.sort(drawn)


def _matrix(subject: Subject, masks: _Masks, rows: Array | None = None) -> Measurement:
    """`matrix` against the solver on values that are the identity, at one and the same context."""
    q, k, _ = subject.inputs
    values = identity_values(k)
    judged = slice(None) if rows is None else rows
    layer: Any = subject.layer
    context = twin_context(subject.twin, (q, k, values))

    def solved(values: Tensor, context: Context | None) -> Array:
        given = subject.on((q, k, values), context)
        seen: dict[str, Any] = {"visible": masks.visible, "bias": masks.bias}
        return solver_output(given.twin, layer, given.inputs, **seen, rows=rows)

    expected = solved(values, context)
    if not layer.linear_in_values:
        zeros = torch.zeros_like(values)
        if isinstance(layer, Solved):  # its matrix acts on the first values
            assert context is not None
            expected = solved(zeros, context._replace(first_values=values))
        else:
            expected = expected - solved(zeros, context)
    with torch.no_grad():
        found = as_array(layer.matrix(q, k, context=context, **masks.given))
    deviation = largest_difference(found[:, judged], expected[:, judged])
    return Measurement(deviation, subject.tolerance)


def _refused(subject: Subject, operator: Operator) -> Iterator[Case]:
    """What the laws exclude."""
    q, k, v = subject.inputs
    n = k.shape[-2]
    lower = torch.ones(n, n, dtype=torch.bool).tril()
    excluded: list[tuple[str, bool, Tensors, dict[str, Any]]] = [
        ("is_causal", not operator.causal, (q, k, v), {"is_causal": True}),
        ("mask of pairs", not operator.pair_masks, (q, k, v), {"mask": lower}),
        (
            "finite bias",
            not operator.additive_masks,
            (q, k, v),
            {"mask": torch.full((1, n), 0.5, dtype=k.dtype)},
        ),
        ("fewer queries", operator.square_only, (q[:, -_N_QUERIES:], k, v), {}),
        (
            "is_causal with more queries than keys",
            operator.causal,
            (q, k[:, -_N_QUERIES:], v[:, -_N_QUERIES:]),
            {"is_causal": True},
        ),
    ]
    if not operator.needs:
        of_heads = any(isinstance(x, Positive) and x.num_heads for x in operator.modules())
        two = tuple(x[:2] for x in subject.inputs)
        excluded.append(("another number of heads", of_heads, two, {}))
    for name, holds, inputs, given in excluded:
        if holds:
            refusal = partial(_refusal, subject, inputs, given)
            yield Case(f"refused: {name}", "float64", refusal)


def _refusal(subject: Subject, inputs: Tensors, given: dict[str, Any]) -> Measurement:
    """0 if both calls of the layer raise a ValueError, else infinity."""
    layer: Any = subject.layer
    context = subject.context
    calls: tuple[Callable[[], Tensor], ...] = (
        lambda: layer(*inputs, context=context, **given),
        lambda: layer.matrix(*inputs[:2], context=context, **given),
    )
    return max(_refusal_of(call, ValueError) for call in calls)


def _refusal_of(call: Callable[[], Any], kind: type[Exception]) -> Measurement:
    """0 if the call raises an error of this kind, else infinity, also where it breaks."""
    try:
        call()
    except kind:
        return Measurement(0.0, 0.0)
    except (RuntimeError, IndexError):
        pass
    return Measurement(float("inf"), 0.0)


def _gradients(subject: Subject, rng: np.random.Generator) -> Iterator[Case]:
    sets = [(subject, _NO_MASKS)]
    if subject.operator is not None:
        few = subject.drawn(rng, n=_N_FEW)
        sets.append((few, list(_masks(few, subject.operator, rng))[-1]))
    for few, masks in sets:
        rows = None if masks is _NO_MASKS else _some_rows(few, masks, rng, 3)
        gradients = Gradients(few, rng, rows=rows, visible=masks.visible, **masks.given)
        for name in gradients.names:
            suffix = "" if masks is _NO_MASKS else f", {masks.name}"
            yield Case(f"gradient {name}{suffix}", "float64", partial(gradients.measure, name))
        if subject.twin.differentiable is not True:
            continue
        if masks is _NO_MASKS:
            yield _second_derivative(gradients, "torch.func")
        if masks is sets[-1][1]:
            yield _second_derivative(gradients, "backward", suffix)
    if subject.operator is not None:
        wide = Gradients(subject.drawn(rng, n_values=_N_WIDE), rng)
        for name in wide.names[:2]:
            yield Case(f"gradient {name}, wide values", "float64", partial(wide.measure, name))


def _taking_blocks(case: Case) -> Case:
    """The case, with few rows, keys, tiles or images at a time."""

    def measure() -> Measurement:
        with small_blocks(_BLOCK):
            return case.measure()

    return replace(case, name=f"in blocks, {case.name}", measure=measure)


def _in_blocks(twin: Twin, rng: np.random.Generator) -> Iterator[Case]:
    """Outputs and gradients that many blocks add up to: plain, masked, and of wide keys."""
    subject = make_subject(twin, rng, n=_N_BLOCKED)
    sets = [(subject, _NO_MASKS, "heads")]
    if subject.operator is not None:
        every = list(_masks(subject, subject.operator, rng))
        sets += [(subject, masks, masks.name) for masks in every if masks.name in _SOME_MASKS]
        wide = make_subject(twin, rng, n=_N_BLOCKED, width=_WIDE_KEYS)
        sets.append((wide, _NO_MASKS, "wide keys"))
    for subject, masks, name in sets:
        rows = _some_rows(subject, masks, rng, with_last=True) if masks is not _NO_MASKS else None
        yield _taking_blocks(_compared(subject, masks, rows, name))
        if twin.differentiable:
            gradients = Gradients(subject, rng, rows=rows, visible=masks.visible, **masks.given)
            if gradients.names:
                measure = partial(gradients.measure, *gradients.names)
                yield _taking_blocks(Case(f"gradient, {name}", "float64", measure))


def _at_jump(subject: Subject, other: Subject) -> Measurement:
    """Both sides of the largest jump of the layer between two inputs, where its choice changes."""
    twin, layer = subject.twin, subject.layer
    ends = [(x.inputs, layer_output(twin, layer, x.inputs)) for x in (subject, other)]
    for _ in range(_HALVINGS):
        inputs = tuple((a + b) / 2 for a, b in zip(ends[0][0], ends[1][0], strict=True))
        middle = inputs, layer_output(twin, layer, inputs)
        ends = list(max(pairwise([ends[0], middle, ends[1]]), key=_jump))
    return worst([_compare(subject.on(inputs), _NO_MASKS) for inputs, _ in ends])


def _jump(ends: Iterable[tuple[Tensors, Array]]) -> float:
    (_, before), (_, after) = ends
    return float(np.abs(after - before).max())


def _second_derivative(gradients: Gradients, way: Way, suffix: str = "") -> Case:
    measure = partial(gradients.measure_second, transformed=way == "torch.func")
    name = f"second derivative by {way}{suffix}"
    if way in gradients.subject.twin.differentiable_twice:
        return Case(name, "float64", measure)
    return Case(f"refused: {name}", "float64", partial(_refusal_of, measure, RuntimeError))


def _dtypes(subject: Subject, rng: np.random.Generator) -> Iterator[Case]:
    """The solver reads inputs and parameters as the dtype rounds them.

    Values are the identity: what is wrong with a weight is not averaged with the other weights.
    Where no weights are rounded there are drawn ones too, as products with 0 and 1 are exact.
    """
    operator = subject.operator
    if subject.twin.inputs == "tokens":
        q, k, v = subject.inputs
        values = identity_values(k)
        if subject.twin.rounded == "output":
            values = torch.cat([values, v], dim=-1)
        subject = subject.on((q, k, values))
    sets = [_NO_MASKS]
    if operator is not None:
        sets.append(next(m for m in _masks(subject, operator, rng) if m.name in _SOME_MASKS))
    for name, dtype in _DTYPES.items():
        layer = copy.deepcopy(subject.layer).to(dtype)
        inputs = tuple(x.to(dtype) for x in subject.inputs)
        rounded = replace(subject, layer=layer, inputs=inputs)
        for masks in sets:
            rows = None if masks is _NO_MASKS else _some_rows(subject, masks, rng)
            yield Case(masks.name, name, partial(_compare, rounded, masks, rows))
