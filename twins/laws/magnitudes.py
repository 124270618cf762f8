"""Laws of the data: the size of tokens, and their distance from the origin."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from functools import partial

import numpy as np
import torch

from .draws import masks_of, some_rows
from .gradients import Gradients, output_and_gradients
from .masks import NO_MASKS, Masks, causal, hiding
from .measurement import Array, Measurement, dtype_name, largest_difference, rounding, worst
from .outputs import compare_size, has_expected_output
from .subject import ROUNDED_ANEW, Declared, Subject, as_array
from .trial import Trial, law, operator_law

_SMALL, _LARGE = 0.01, 100.0
_FAR, _N_MOVED, _N_PADDED = 1e4, 32, 18  # most of them
_UNCHANGED = 1e-6  # in float64, whose digits far away leave 1e-8
_ROUNDING = 100 * torch.finfo(torch.float32).eps
_SHIFTS = (10.0, 1e3, 1e4)


@operator_law
def magnitudes(subject: Subject, declared: Declared) -> Iterator[Trial]:
    """The output is correct for queries and keys of 1/100 and of 100 times the size.

    The expected output is that of the reference, or of the matrix for operators that are linear in
    the values. Small tokens are tried under the hardest mask too. Only for them the gradient in the
    first input that the layer reads is compared. A reference may overflow for large tokens. Then
    the matrix judges; if there is none, the output must be finite. The tolerances are those of the
    laws `output` and `gradient`.
    """
    reads_tokens = {"q", "k"} & set(declared.reads)
    if subject.accuracy.iterates or not reads_tokens or not has_expected_output(subject):
        return
    small, hardest = _scale_tokens(subject, _SMALL), masks_of(subject)[-1]
    yield Trial("small", partial(compare_size, small))
    rows = some_rows(small, hardest, subject.rng("magnitudes"))
    yield Trial(f"small, {hardest.name}", partial(compare_size, small, hardest, rows))
    gradients = Gradients(small)
    if subject.accuracy.continuous and gradients.names:
        yield Trial("small, gradient", partial(gradients.measure, gradients.names[0]))
    yield Trial("large", partial(_compare_large, _scale_tokens(subject, _LARGE)))


def _compare_large(subject: Subject) -> Measurement:
    """Compare outputs; if the solver overflows, with the matrix or for finite numbers only."""
    with np.errstate(all="ignore"), suppress(ValueError):  # solvers refuse what has overflown
        measured = compare_size(subject)
        if np.isfinite(measured.deviation):
            return measured
    without_reference = replace(subject, reference=None)
    if has_expected_output(without_reference):
        return compare_size(without_reference)
    return Measurement(0.0 if np.isfinite(subject.output()).all() else np.inf, 0.0)


def _scale_tokens(subject: Subject, size: float) -> Subject:
    """Return the layer on queries and keys of another size."""
    q, k, v = subject.inputs
    scaled = size * k
    return subject.on((scaled if subject.same_points else size * q, scaled, v))


@operator_law
def offset(subject: Subject, declared: Declared) -> Iterator[Trial]:
    """Outputs and gradients keep their digits in float32 when all visible tokens move by 1e4.

    Padding stays zero, so that no centre of all tokens is near the visible ones. Where weights of
    far keys vanish, some tokens move by 1e4 and the others by -1e4: no centre is near all visible
    ones. The expected results are the layer's own in float64 on the rounded inputs. The tolerance
    is that of `leaks` for each pass. Applies to layers that compare tokens by their differences:
    the output in float64 does not move.
    """
    reads_tokens = {"q", "k"} & set(declared.reads)
    if declared.data_dependent or not subject.accuracy.differences or not reads_tokens:
        return
    resized = subject.resized(subject.rng("offset"), n=_N_MOVED)
    resized = resized.on(resized.inputs, resized.context)
    everywhere = np.ones(_N_MOVED, dtype=bool)
    outputs_after = _move_tokens(resized, everywhere).output()
    if not largest_difference(outputs_after, resized.output()) <= _UNCHANGED:
        return
    for masks, rows in _pad(declared, subject.rng("offset masks")):
        single = _move_tokens(resized, rows).to(torch.float32)
        yield Trial(masks.name, partial(_compare_dtypes, single, masks, rows), "float32")
    yield from _two_sides(resized, declared)


def _two_sides(drawn: Subject, declared: Declared) -> Iterator[Trial]:
    """Yield trials on tokens that move to two sides, if each side then attends to itself."""
    if not declared.pair_masks:
        return
    everywhere = np.ones(_N_MOVED, dtype=bool)
    sides = drawn.rng("offset sides").choice([-_FAR, _FAR], _N_MOVED)
    apart, own_side = _move_tokens(drawn, everywhere, sides), sides == sides[:, None]
    unmoved = drawn.on((*drawn.inputs[:2], apart.inputs[2])).output(hiding(own_side))
    if not largest_difference(apart.output(), unmoved) <= _UNCHANGED:
        return
    for masks in (NO_MASKS, *(m for m in masks_of(apart) if m.name in ("causal", "pairs"))):
        compare = partial(_compare_dtypes, apart.to(torch.float32), masks, everywhere)
        yield Trial(f"two sides, {masks.name}", compare, "float32")


def _move_tokens(subject: Subject, visible: Array, by: Array | float = _FAR) -> Subject:
    """Return the layer on the visible tokens, far away, with zeros for all others."""
    q, k, v = subject.inputs
    present, moved = torch.from_numpy(visible)[:, None], torch.as_tensor(by).reshape(-1, 1)
    return subject.on(tuple(torch.where(present, x, 0) for x in (q + moved, k + moved, v)))


def _pad(declared: Declared, rng: np.random.Generator) -> Iterator[tuple[Masks, Array]]:
    """Yield masks of every kind, each with the tokens that are no padding."""
    n = _N_MOVED
    left, right, half = range(_N_PADDED), range(n - _N_PADDED, n), _N_PADDED // 2
    both = [*left[:half], *right[-half:]]
    ends = {"right": [*right], "left": [*left], "left and right": both}
    pairs = (rng.random((n, n)) < 0.6) | np.eye(n, dtype=bool)
    all_tokens = np.ones(n, dtype=bool)
    yield NO_MASKS, all_tokens
    if declared.causal:
        yield causal(n, n), all_tokens
    for name, hidden in ends.items():
        seen = all_tokens.copy()
        seen[hidden] = False
        yield hiding(seen[None], f"padding {name}"), seen
        if declared.causal:
            yield causal(n, n).hiding(seen[None], f"causal, padding {name}"), seen
    if declared.pair_masks:
        yield hiding(pairs & seen, f"pairs, padding {name}"), seen
    if declared.causal and declared.pair_masks:
        yield causal(n, n).hiding(pairs & seen, f"causal, pairs, padding {name}"), seen


def _compare_dtypes(single: Subject, masks: Masks, rows: Array) -> Measurement:
    """Compare outputs and gradients in the layer's dtype with those in float64."""
    exact = single.to(torch.float64)
    exact = exact.on(exact.inputs, single.context)
    pairs = zip(*(output_and_gradients(x, masks, rows) for x in (single, exact)), strict=True)
    tolerance = _ROUNDING * min(single.accuracy.passes(single.layer), ROUNDED_ANEW)
    return worst([Measurement(largest_difference(*pair), tolerance) for pair in pairs])


@law
def shift(subject: Subject) -> Iterator[Trial]:
    """A constant added to images, values, or queries with keys costs no digits of the weights.

    Constants are 10, 1000 and 1e4. Applies where a shift in float64 leaves the output as it is, or
    moves it as much. The expected output is the layer's own in float64 on the rounded inputs, and
    the tolerance that of `dtypes`, or of `many_tokens` in 16 bits. Products of queries and keys
    that move alone grow with the constant, and so may their rounding.
    """
    accuracy = subject.accuracy
    if subject.brief or accuracy.iterates or not (accuracy.continuous and accuracy.differences):
        return
    for name in ("tokens", "values") if subject.kind == "tokens" else ("inputs",):
        shifted, unshifted = _shift_inputs(subject, name, 1.0).output(), subject.output()
        if min(largest_difference(x, unshifted) for x in (shifted, shifted - 1.0)) > _UNCHANGED:
            continue
        for dtype in (torch.float32, torch.bfloat16, torch.float16):
            yield Trial(name, partial(_compare_shifts, subject, name, dtype), dtype_name(dtype))


def _shift_inputs(subject: Subject, name: str, by: float) -> Subject:
    """Add a number to the named inputs."""
    if name == "inputs":
        return subject.on(tuple(x + by for x in subject.inputs))
    q, k, v = subject.inputs
    inputs = (q + by, k + by, v) if name == "tokens" else (q, k, v + by)
    return subject.on(inputs, subject.context)


def _compare_shifts(subject: Subject, name: str, dtype: torch.dtype) -> Measurement:
    """Compare outputs in a dtype with the expected ones, for inputs shifted by constants."""
    accuracy, layer = subject.accuracy, subject.layer
    passes, arrays = accuracy.passes(layer), map(as_array, subject.inputs)
    tolerance = rounding(dtype, passes, float(accuracy.logit_range(layer, *arrays)))
    if dtype.itemsize == 2:
        tolerance = 4 * (1 + min(passes, ROUNDED_ANEW)) * torch.finfo(dtype).eps
    measured = []
    for by in _SHIFTS:
        low = replace(_shift_inputs(subject, name, by), reference=None).to(dtype)
        measured.append(Measurement(largest_difference(low.output(), low.expected()), tolerance))
    return worst(measured)
