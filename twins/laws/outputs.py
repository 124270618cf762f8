"""Laws of the output: compared with a reference, in blocks, at every size, in every dtype."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
import torch

from ...unrolled.block_size import small_blocks
from .draws import masks_of, some_rows
from .masks import NO_MASKS, Masks, causal, hiding
from .measurement import Array, Measurement, worst
from .subject import Subject, Tensors, identity_values
from .trial import Trial, law

_N_QUERIES, _N_NARROW = 5, 4
_N_WIDE = 40  # values
_WIDE_KEYS = 33  # keys of this width or more have another code path if the values are narrower
# Larger than the sizes at which layers switch code paths: blocks of 128 and 256 queries, matrices
# of 256 x 256, twicing by the matrix up to 256 tokens, 1024 rows of a self-expressive network.
_LARGE: dict[str, dict[str, Any]] = {
    "tokens": {"n": 300, "width": 33},
    "features": {"n": 1100},
    "image": {"images": (1, 1, 21, 33)},
}
BLOCK, _N_BLOCKED = 2, 13  # seven blocks of tokens, of which the last is not full
_HALVINGS = 36  # leave a gap of 1e-11 between scores: over rounding in float64, below float32's
_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
_FIRST_MASKS = ("causal", "mask per head")


@law
def output(subject: Subject) -> Iterator[Trial]:
    """The output equals that of the reference, under every mask and for fewer queries than keys.

    Applies where there is a reference. The tolerance is that of the subject: 1e-10 relative to the
    largest output where the reference is a closed form, more where a system is solved.
    """
    if subject.reference is None or (subject.brief and subject.accuracy.iterates):
        return
    yield Trial(NO_MASKS.name, subject.compare)
    rng = subject.rng("output")
    masks = masks_of(subject)
    for mask in masks[-1:] if subject.brief else masks:
        rows = some_rows(subject, mask, rng)
        yield Trial(mask.name, partial(subject.compare, mask, rows))
    declared = subject.declared
    if declared is None or declared.square_only or subject.brief:
        return
    fewer, all_visible, of_last = _last_queries(subject)
    yield Trial("fewer queries", partial(fewer.compare, all_visible))
    if declared.causal:
        yield Trial("fewer queries, causal", partial(fewer.compare, of_last))
        assert masks[0].visible is not None
        padded = of_last.hiding(masks[0].visible, "")
        yield Trial("fewer queries, causal, padding", partial(fewer.compare, padded))


def _last_queries(subject: Subject) -> tuple[Subject, Masks, Masks]:
    """Return the layer on its last queries, a mask that shows all keys, and the causal mask."""
    q, k, v = subject.inputs
    n = k.shape[-2]
    all_visible = Masks("", visible=np.ones((_N_QUERIES, n), dtype=bool))
    return subject.on((q[:, -_N_QUERIES:], k, v)), all_visible, causal(_N_QUERIES, n)


@law
def matrix(subject: Subject) -> Iterator[Trial]:
    """`matrix` equals the output of the reference for identity values.

    If the output is affine in the values, the matrix is its linear part. If the matrix acts on the
    first values of the context, the first values are the identity. Applies to operators with a
    reference. The tolerance is that of the output.
    """
    declared = subject.declared
    if subject.reference is None or declared is None:
        return
    masks = masks_of(subject)
    rng = subject.rng("matrix")
    chosen = [NO_MASKS, masks[-1], *(mask for mask in masks if mask.bias is not None)]
    for mask in chosen[1:2] if subject.brief else chosen:
        rows = None if mask is NO_MASKS else some_rows(subject, mask, rng)
        yield Trial(mask.name, partial(_compare_matrix, subject, mask, rows))
    if declared.causal and not declared.square_only and not subject.brief:
        fewer, _, of_last = _last_queries(subject)
        yield Trial("fewer queries, causal", partial(_compare_matrix, fewer, of_last))


def _compare_matrix(subject: Subject, masks: Masks, rows: Array | None = None) -> Measurement:
    """Compare the matrix with the reference's output for identity values."""
    assert subject.declared is not None
    q, k, _ = subject.inputs
    values = identity_values(k)
    judged = slice(None) if rows is None else rows
    on_identity = subject.on((q, k, values))
    on_zeros = (q, k, torch.zeros_like(values))
    context = on_identity.context
    if subject.declared.of_first_values:
        assert context is not None
        context = context._replace(first_values=values)
        expected = subject.on(on_zeros, context).expected(masks, rows)
    else:
        expected = on_identity.expected(masks, rows)
        if not subject.declared.linear_in_values:
            expected = expected - subject.on(on_zeros, context).expected(masks, rows)
    return subject.judge(on_identity.matrix(masks)[:, judged], expected[:, judged])


@law
def sizes(subject: Subject) -> Iterator[Trial]:
    """The output is correct at sizes on both sides of every switch between code paths.

    The sizes are fewer tokens than features, more values than tokens, and several hundred tokens,
    images of several tiles or a thousand features, masked or not. The expected output is that of
    the reference. Without a reference it is the matrix times the values, for operators that are
    linear in them. The tolerance is that of the output.
    """
    iterates = subject.accuracy.iterates
    if subject.brief or (iterates and subject.declared is None) or not has_expected_output(subject):
        return
    rng = subject.rng("sizes")
    if subject.kind != "image":
        narrow = subject.drawn(rng, n=_N_NARROW)
        yield Trial("narrow", partial(compare_size, narrow))
        if subject.declared is not None:
            masks, last = hiding(np.arange(_N_NARROW)[None] > 0), np.array([_N_NARROW - 1])
            yield Trial("narrow, padding", partial(compare_size, narrow, masks, last))
    if subject.kind == "tokens":
        wide = subject.drawn(rng, n_values=_N_WIDE)
        yield Trial("wide values", partial(compare_size, wide))
    if iterates:
        return
    for name in _names_of_large(subject):
        yield Trial(name, partial(_compare_large, subject, name))


def has_expected_output(subject: Subject) -> bool:
    """Whether there is a reference, or the output is the matrix times the values of the call."""
    declared = subject.declared
    linear = declared is not None and declared.linear_in_values and not declared.of_first_values
    return subject.reference is not None or linear


def compare_size(
    subject: Subject, masks: Masks = NO_MASKS, rows: Array | None = None
) -> Measurement:
    """Compare outputs with the reference's or, without one, with the matrix times values."""
    if subject.reference is not None:
        return subject.compare(masks, rows)
    judged = slice(None) if rows is None else rows
    expected = subject.matrix(masks) @ subject.inputs[2].numpy()
    return subject.judge(subject.output(masks)[..., judged, :], expected[..., judged, :])


def _names_of_large(subject: Subject) -> Iterator[str]:
    """Yield the names of the cases with large inputs."""
    yield "large"
    if subject.declared is not None:
        yield "large, masked"
        if subject.declared.causal and not subject.declared.square_only:
            yield "large, fewer queries"


def _compare_large(subject: Subject, name: str) -> Measurement:
    """Compare a few rows of a large input, under masks with few different sets of visible keys."""
    rng = subject.rng(name)
    subject = subject.resized(rng, **{**_LARGE[subject.kind], **subject.large})
    declared = subject.declared
    if declared is None:
        return subject.compare()
    q, k, v = subject.inputs
    n, masks = k.shape[-2], NO_MASKS
    if name == "large, fewer queries":
        subject, masks = subject.on((q[:, -n // 2 :], k, v)), causal(n // 2, n)
    elif name == "large, masked" and declared.causal and subject.rows_apart:
        masks = causal(n, n)
    elif name == "large, masked":
        patterns = rng.random((3 if declared.pair_masks else 1, n)) < 0.6
        masks = hiding(patterns[np.arange(n) % len(patterns)])
    rows = some_rows(subject, masks, rng, 2, with_last=True)
    return compare_size(subject, masks, rows)


@law
def blocks(subject: Subject) -> Iterator[Trial]:
    """A layer that works in blocks has the same output in many small blocks.

    Blocks have two rows, keys, tiles or images; the inputs are plain, masked, or have wide keys.
    The tolerance is that of the output. (The law `gradient` has the gradients in blocks.)
    """
    if subject.accuracy.iterates:
        return
    for small, masks, rows, name in blocked_subjects(subject):
        yield Trial(name, partial(_compare_in_blocks, small, masks, rows))
        if subject.brief:
            return


def blocked_subjects(subject: Subject) -> Iterator[tuple[Subject, Masks, Array | None, str]]:
    """Yield subjects of many small blocks, with masks, the rows to judge and a name."""
    rng = subject.rng("blocks")
    small = subject if subject.brief else subject.resized(rng, n=_N_BLOCKED)
    yield small, NO_MASKS, None, NO_MASKS.name
    if subject.declared is None:
        return
    for masks in masks_of(small):
        if masks.name in _FIRST_MASKS:
            rows = some_rows(small, masks, rng, with_last=True)
            yield small, masks, rows, masks.name
    wide = subject.resized(rng, n=_N_BLOCKED, width=_WIDE_KEYS)
    yield wide, NO_MASKS, None, "wide keys"


def _compare_in_blocks(subject: Subject, masks: Masks, rows: Array | None) -> Measurement:
    """Compare the output in small blocks with the expected one."""
    expected = subject.expected(masks, rows)
    fixed = replace(subject, reference=lambda *_: expected)
    with small_blocks(BLOCK):
        return fixed.compare(masks, rows)


@law
def jump(subject: Subject) -> Iterator[Trial]:
    """The output is correct on both sides of the largest jump between two inputs.

    At a jump a choice changes. A layer that compares scores with less precision than it computes
    them chooses wrongly there. Applies where there is a reference. The tolerance is that of the
    output.
    """
    if subject.brief or subject.reference is None or subject.accuracy.iterates:
        return
    yield Trial("", partial(_compare_at_jump, subject, subject.drawn(subject.rng("jump"))))


def _compare_at_jump(subject: Subject, other: Subject) -> Measurement:
    """Compare outputs on both sides of the largest jump between two inputs."""
    ends = [(x.inputs, x.output()) for x in (subject, other)]
    for _ in range(_HALVINGS):
        inputs = tuple((a + b) / 2 for a, b in zip(ends[0][0], ends[1][0], strict=True))
        middle = inputs, subject.on(inputs).output()
        ends = list(max(pairwise([ends[0], middle, ends[1]]), key=_size_of_jump))
    return worst([subject.on(inputs).compare() for inputs, _ in ends])


def _size_of_jump(ends: Iterable[tuple[Tensors, Array]]) -> float:
    (_, before), (_, after) = ends
    return float(np.abs(after - before).max())


@law
def dtypes(subject: Subject) -> Iterator[Trial]:
    """In float32 and bfloat16 the output is the expected one for the rounded inputs and parameters.

    Values are the identity, so that errors of weights do not average out. For a layer that does not
    round weights random values are added, as products with 0 and 1 are exact. In float32 the
    tolerance is 32 eps times passes times the range of the logits. In bfloat16 it allows for one
    rounding of the output, or for the rounding of weights and values in each pass.
    """
    if subject.brief:
        return
    if subject.kind == "tokens":
        q, k, v = subject.inputs
        values = identity_values(k)
        if subject.accuracy.rounded == "output":
            values = torch.cat([values, v], dim=-1)
        subject = subject.on((q, k, values))
    rng = subject.rng("dtypes")
    first = [mask for mask in masks_of(subject) if mask.name in _FIRST_MASKS][:1]
    for name, dtype in _DTYPES.items():
        rounded = subject.to(dtype)
        for masks in (NO_MASKS, *first):
            rows = None if masks is NO_MASKS else some_rows(subject, masks, rng)
            yield Trial(masks.name, partial(rounded.compare, masks, rows), name)
