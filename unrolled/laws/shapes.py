"""Laws of leading axes, of batches and of sequences that are empty or a single token."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial

import numpy as np
import torch
from torch import Tensor

from ..attention import Context
from .finding import Finding, law
from .masks import NO_MASKS, hiding
from .measurement import Measurement, largest_difference
from .subject import Subject, call_layer, map_tensors
from .visibility import first_tokens

_HIDDEN = ((0, 3), (5,))
# Leading axes of q, k, v and of a mask, of which a batch has (2, heads).
_LEADING: dict[str, tuple[tuple[slice | int, ...], ...]] = {
    "queries of one batch": ((slice(1),), (), ()),
    "keys of one batch": ((), (slice(1),), (0,)),
    "keys of one head": ((), (slice(None), slice(1)), (slice(None), slice(1))),
    "queries of one head": ((slice(None), slice(1)), (), ()),
}


@law
def batch(subject: Subject) -> Iterator[Finding]:
    """Two sets of inputs at once give what each gives, with another padding for each.

    Applies to layers on queries, keys and values. The tolerance is that of the output.
    """
    if subject.kind != "tokens" or subject.brief:
        return
    other = subject.drawn(subject.rng("batch"))
    yield Finding("", partial(_compare_batch, subject, other))


def stack(first: Subject, second: Subject) -> Subject:
    """Inputs and contexts of two subjects as a batch."""
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
    both = map_tensors(contexts[0], lambda name, x: torch.stack((x, next(others))))
    return first.on(inputs, both)


def _compare_batch(first: Subject, second: Subject) -> Measurement:
    both = stack(first, second)
    n = both.inputs[1].shape[-2]
    seen = np.ones((2, 1, 1, n), dtype=bool)
    masks, of_each = NO_MASKS, [NO_MASKS, NO_MASKS]
    if first.declared is not None:
        for keys, places in zip(seen, _HIDDEN, strict=True):
            keys[..., list(places)] = False
        masks, of_each = hiding(seen), [hiding(keys[0]) for keys in seen]
    found = both.output(masks)
    parts = zip((first, second), found, of_each, strict=True)
    deviation = max(largest_difference(out, each.output(own)) for each, out, own in parts)
    return Measurement(deviation, first.numerics.tolerance)


@law
def leading_axes(subject: Subject) -> Iterator[Finding]:
    """Leading axes broadcast, in `forward` and in `matrix`, and there may be more of them.

    Applies to operators. The tolerance is that of the output.
    """
    if subject.declared is None or subject.brief:
        return
    # As a twin runs its layer, the shape of the output may be that of the queries.
    subject = replace(subject, apply=call_layer)
    both = stack(subject, subject.drawn(subject.rng("leading axes")))
    for name, places in _LEADING.items():
        yield Finding(name, partial(_compare_broadcast, both, places))
    yield Finding("five axes", partial(_compare_five_axes, both))


def _compare_broadcast(both: Subject, places: tuple[tuple[slice | int, ...], ...]) -> Measurement:
    parts = tuple(x[place] for x, place in zip(both.inputs, places, strict=True))
    whole = tuple(x.expand(y.shape).clone() for x, y in zip(parts, both.inputs, strict=True))
    return _worst_of_forms(both.on(parts, both.context), both.on(whole, both.context))


def _compare_five_axes(both: Subject) -> Measurement:
    context = both.context
    if context is not None:
        context = map_tensors(context, lambda name, x: x[None])
    return _worst_of_forms(both.on(tuple(x[None] for x in both.inputs), context), both)


def _worst_of_forms(found: Subject, expected: Subject) -> Measurement:
    """Output and matrix of two ways to give the same."""
    n = expected.inputs[1].shape[-2]
    masks = hiding(np.arange(n)[None] > 0)
    forms = [(x.output(masks), x.matrix(masks)) for x in (found, expected)]
    tolerance = expected.numerics.tolerance
    deviations = [largest_difference(a.reshape(b.shape), b) for a, b in zip(*forms, strict=True)]
    return Measurement(max(deviations), tolerance)


@law
def single_token(subject: Subject) -> Iterator[Finding]:
    """A single token is all that it sees: its weight is one, or zero where it does not see itself.

    Applies to operators whose rows sum to one. The tolerance is that of the output.
    """
    declared = subject.declared
    if declared is None or not declared.row_stochastic or subject.brief:
        return

    def measure() -> Measurement:
        A = first_tokens(subject, 1).matrix()
        deviation = float(np.minimum(np.abs(A - 1), np.abs(A)).max())
        return Measurement(deviation, subject.numerics.tolerance)

    yield Finding("", measure)


@law
def nothing(subject: Subject) -> Iterator[Finding]:
    """Without tokens, or without a batch, there is an output without rows; without keys, of zeros.

    Applies to operators; zeros are due where the output is linear in the values, and exact.
    """
    declared = subject.declared
    if declared is None or subject.brief:
        return
    both = stack(subject, subject)
    no_batch = both.on(tuple(x[:0] for x in both.inputs), _cut(both.context, slice(0)))
    cases = {"no tokens": first_tokens(both, 0), "no batch": no_batch}
    if declared.linear_in_values and not declared.square_only and not declared.needs:
        q, k, v = both.inputs
        cases["no keys"] = both.on((q, k[..., :0, :], v[..., :0, :]))

    def measure(case: Subject) -> Measurement:
        q, _, v = case.inputs
        out = case.output()
        right = out.shape == (*q.shape[:-1], v.shape[-1])
        return Measurement(np.abs(out).max(initial=0.0) if right else float("inf"), 0.0)

    for name, case in cases.items():
        yield Finding(name, partial(measure, case))


def _cut(context: Context | None, place: slice) -> Context | None:
    return None if context is None else map_tensors(context, lambda name, x: x[place])
