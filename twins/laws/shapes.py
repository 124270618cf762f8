"""Laws of leading axes, of batches, and of sequences of one token or none."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial

import numpy as np
import torch
from torch import Tensor

from ...unrolled.attention import Context
from .masks import NO_MASKS, Masks, hiding
from .measurement import Measurement, worst
from .subject import Declared, Subject, as_array, call_layer, map_tensors
from .trial import Trial, law, operator_law
from .visibility import first_tokens

_HIDDEN = ((0, 3), (5,))
# Indices into the leading axes (2, heads) of q, k and v.
_LEADING: dict[str, tuple[tuple[slice | int, ...], ...]] = {
    "queries of one batch": ((slice(1),), (), ()),
    "keys of one batch": ((), (slice(1),), (0,)),
    "keys of one head": ((), (slice(None), slice(1)), (slice(None), slice(1))),
    "queries of one head": ((slice(None), slice(1)), (), ()),
}


@law
def batch(subject: Subject) -> Iterator[Trial]:
    """The output of a batch of two sets of inputs, each with its own padding, is that of each set.

    Applies to layers on queries, keys and values. The tolerance is that of the output.
    """
    if subject.kind != "tokens" or subject.brief:
        return
    other = subject.drawn(subject.rng("batch"))
    yield Trial("", partial(_compare_batch, subject, other))


def stack(first: Subject, second: Subject) -> Subject:
    """Return the layer on a batch of the inputs and contexts of two subjects."""
    inputs = tuple(torch.stack(pair) for pair in zip(first.inputs, second.inputs, strict=True))
    contexts = first.context, second.context
    if contexts[0] is None or contexts[1] is None:
        return first.on(inputs)
    of_second: list[Tensor] = []

    def keep(name: str, x: Tensor) -> Tensor:
        of_second.append(x)
        return x

    map_tensors(contexts[1], keep)
    others = iter(of_second)
    stacked_context = map_tensors(contexts[0], lambda name, x: torch.stack((x, next(others))))
    return first.on(inputs, stacked_context)


def _compare_batch(first: Subject, second: Subject) -> Measurement:
    """Compare the output of a batch of two with the outputs of each."""
    stacked = stack(first, second)
    n = stacked.inputs[1].shape[-2]
    seen = np.ones((2, 1, 1, n), dtype=bool)
    masks, of_each = NO_MASKS, [NO_MASKS, NO_MASKS]
    if first.declared is not None:
        for keys, places in zip(seen, _HIDDEN, strict=True):
            keys[..., list(places)] = False
        masks, of_each = hiding(seen), [hiding(keys[0]) for keys in seen]
    outputs = stacked.output(masks)
    parts = zip((first, second), outputs, of_each, strict=True)
    return worst([first.judge(out, alone.output(masks_alone)) for alone, out, masks_alone in parts])


@operator_law
def leading_axes(subject: Subject, declared: Declared) -> Iterator[Trial]:
    """Leading axes broadcast in `forward` and in `matrix`, and further leading axes are allowed.

    The tolerance is that of the output.
    """
    # The layer is called directly: a twin's own `apply` may give the output the queries' shape.
    subject = replace(subject, apply=call_layer)
    stacked = stack(subject, subject.drawn(subject.rng("leading axes")))
    v = subject.inputs[2]
    n = v.shape[-2]
    masks = hiding(np.arange(n)[None] > 0)
    for name, places in _LEADING.items():
        broadcast = tuple(x[place] for x, place in zip(stacked.inputs, places, strict=True))
        expanded = tuple(
            x.expand(y.shape).clone() for x, y in zip(broadcast, stacked.inputs, strict=True)
        )
        compared = stacked.on(broadcast, stacked.context), stacked.on(expanded, stacked.context)
        yield Trial(name, partial(_compare_forms, *compared, masks))
    context = stacked.context
    if context is not None:
        context = map_tensors(context, lambda name, x: x[None])
    more = stacked.on(tuple(x[None] for x in stacked.inputs), context)
    yield Trial("five axes", partial(_compare_forms, more, stacked, masks))
    twice = stack(subject, subject)
    fewer = subject.on(subject.inputs, twice.context)
    of_batch = hiding(np.arange(n) > np.arange(2)[:, None, None, None])
    yield Trial("masks of a batch", partial(_compare_forms, fewer, twice, of_batch))
    values = torch.stack((v, 2 * v))
    fewer, more = (x.on((*x.inputs[:2], values), twice.context) for x in (subject, twice))
    yield Trial("values of a batch", partial(_compare_outputs, fewer, more, masks))


def _compare_outputs(actual: Subject, expected: Subject, masks: Masks) -> Measurement:
    out = expected.output(masks)
    return expected.judge(actual.output(masks).reshape(out.shape), out)


def _compare_forms(actual: Subject, expected: Subject, masks: Masks) -> Measurement:
    """Compare outputs and matrices for two forms of the same inputs; matrices may broadcast."""
    matrices = np.broadcast_arrays(actual.matrix(masks), expected.matrix(masks))
    return worst([_compare_outputs(actual, expected, masks), expected.judge(*matrices)])


@operator_law
def single_token(subject: Subject, declared: Declared) -> Iterator[Trial]:
    """The weight of a single token is one, or zero if it does not see itself.

    The output is its value by this weight. Applies where rows sum to one. The tolerance is that of
    the output.
    """

    def measure() -> Measurement:
        alone = first_tokens(subject, 1)
        A = alone.matrix()
        weight = Measurement(np.minimum(np.abs(A - 1), np.abs(A)).max(), subject.accuracy.tolerance)
        if not declared.linear_in_values:
            return weight
        return worst([weight, alone.judge(alone.output(), A @ as_array(alone.inputs[2]))])

    if declared.row_stochastic:
        yield Trial("", measure)


@operator_law
def nothing(subject: Subject, declared: Declared) -> Iterator[Trial]:
    """Without tokens or without a batch, output and matrix are empty; without keys, it is zero.

    The zeros must be exact; they are required of layers whose output is linear in the values.
    """
    stacked = stack(subject, subject)
    no_batch = stacked.on(tuple(x[:0] for x in stacked.inputs), _cut(stacked.context, slice(0)))
    cases = {"no tokens": first_tokens(stacked, 0), "no batch": no_batch}
    if declared.linear_in_values and not declared.square_only and not declared.needs:
        q, k, v = stacked.inputs
        context = stacked.context and stacked.context._replace(gates=None)
        cases["no keys"] = stacked.on((q, k[..., :0, :], v[..., :0, :]), context)

    def measure(case: Subject) -> Measurement:
        q, k, v = case.inputs
        out, A = case.output(), case.matrix()
        right = out.shape == (*q.shape[:-1], v.shape[-1]) and A.shape == (q @ k.mT).shape
        return Measurement(np.abs(out).max(initial=0.0) if right else float("inf"), 0.0)

    for name, case in cases.items():
        yield Trial(name, partial(measure, case))


def _cut(context: Context | None, place: slice) -> Context | None:
    return None if context is None else map_tensors(context, lambda name, x: x[place])
