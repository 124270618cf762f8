"""Laws of the data: the size of tokens, and their distance from the origin."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from functools import partial

import numpy as np
import torch

from .draws import masks_of, some_rows
from .finding import Finding, operator_law
from .gradients import Gradients, output_and_gradients
from .masks import NO_MASKS, Masks, causal, hiding
from .measurement import Array, Measurement, largest_difference, worst
from .outputs import compare_size, has_expected_output
from .subject import ROUNDED_ANEW, Declared, Subject

_SMALL, _LARGE = 0.01, 100.0
_FAR, _N_MOVED, _N_PADDED = 1e4, 32, 18  # most of them
_UNCHANGED = 1e-6  # in float64, whose digits far away leave 1e-8
_ROUNDING = 100 * torch.finfo(torch.float32).eps


@operator_law
def magnitudes(subject: Subject, declared: Declared) -> Iterator[Finding]:
    """Output and gradients are correct for queries and keys of 1/100 and of 100 times the size.

    The expected output is that of the reference, or of the matrix for operators that are linear in
    the values. Small tokens are tried under the hardest mask too, and the gradient by the first of
    the inputs. A reference may overflow for large ones. Then the matrix judges; if there is none,
    the output must be finite. The tolerances are those of the laws `output` and `gradient`.
    """
    reads_tokens = {"q", "k"} & set(declared.reads)
    if subject.accuracy.iterates or not reads_tokens or not has_expected_output(subject):
        return
    small, hardest = _scale_tokens(subject, _SMALL), masks_of(subject)[-1]
    yield Finding("small", partial(compare_size, small))
    rows = some_rows(small, hardest, subject.rng("magnitudes"))
    yield Finding(f"small, {hardest.name}", partial(compare_size, small, hardest, rows))
    gradients = Gradients(small)
    if subject.accuracy.continuous and gradients.names:
        yield Finding("small, gradient", partial(gradients.measure, gradients.names[0]))
    yield Finding("large", partial(_compare_large, _scale_tokens(subject, _LARGE)))


def _compare_large(subject: Subject) -> Measurement:
    with np.errstate(all="ignore"), suppress(ValueError):  # solvers refuse what has overflown
        found = compare_size(subject)
        if np.isfinite(found.deviation):
            return found
    own = replace(subject, reference=None)
    if has_expected_output(own):
        return compare_size(own)
    return Measurement(0.0 if np.isfinite(subject.output()).all() else np.inf, 0.0)


def _scale_tokens(subject: Subject, size: float) -> Subject:
    q, k, v = subject.inputs
    scaled = size * k
    return subject.on((scaled if subject.same_points else size * q, scaled, v))


@operator_law
def offset(subject: Subject, declared: Declared) -> Iterator[Finding]:
    """Outputs and gradients keep their digits in float32 when all visible tokens move by 1e4.

    Padding stays zero, so that no centre of all tokens is near the visible ones. The expected
    results are the layer's own in float64 on the rounded inputs. The tolerance is that of `leaks`
    for each pass. Applies to layers that compare tokens by their differences: the output in float64
    does not move.
    """
    reads_tokens = {"q", "k"} & set(declared.reads)
    if declared.data_dependent or not subject.accuracy.differences or not reads_tokens:
        return
    drawn = subject.resized(subject.rng("offset"), n=_N_MOVED)
    drawn = drawn.on(drawn.inputs, drawn.context)
    everywhere = np.ones(_N_MOVED, dtype=bool)
    moved = _move_tokens(drawn, everywhere).output()
    if not largest_difference(moved, drawn.output()) <= _UNCHANGED:
        return
    for masks, rows in _pad(declared, subject.rng("offset masks")):
        single = _move_tokens(drawn, rows).to(torch.float32)
        yield Finding(masks.name, partial(_compare_dtypes, single, masks, rows), "float32")


def _move_tokens(subject: Subject, visible: Array) -> Subject:
    """Return the layer on the visible tokens, far away, with zeros for all others."""
    q, k, v = subject.inputs
    present = torch.from_numpy(visible)[:, None]
    return subject.on(tuple(torch.where(present, x, 0) for x in (q + _FAR, k + _FAR, v)))


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
    exact = single.to(torch.float64)
    exact = exact.on(exact.inputs, single.context)
    pairs = zip(*(output_and_gradients(x, masks, rows) for x in (single, exact)), strict=True)
    tolerance = _ROUNDING * min(single.accuracy.passes(single.layer), ROUNDED_ANEW)
    return worst([Measurement(largest_difference(*pair), tolerance) for pair in pairs])
