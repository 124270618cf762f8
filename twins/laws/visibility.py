"""Laws of masks and causality, which compare an operator with itself and need no reference."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import numpy as np
import torch
from torch import Tensor

from .draws import masks_of
from .gradients import output_and_gradients
from .masks import NO_MASKS, Masks, causal, hiding
from .measurement import Array, Measurement, dtype_name, largest_difference, worst
from .subject import Declared, Subject, as_array, map_tensors
from .trial import Trial, operator_law

_LAST = (1, 4)
_N_PADDED, _N_MANY = 4, 300
_FAR: tuple[float, ...] = (1e3, 1e5)
_MODERATE: tuple[float, ...] = (10.0,)
# 100 eps: subtracted centres and sums in blocks may only change the rounding.
_ROUNDING = 100 * torch.finfo(torch.float32).eps
_SOLVED, _SOLVED_FAR = 1000 * torch.finfo(torch.float64).eps, 1e-10
_SCALES = ((1e3, 1e3, 1e3), (1.0, 1e8, 1e8))
_N_FAR, _N_NEAR = 40, 18
_PREFIXES = (5, 8)


def first_tokens(subject: Subject, n: int) -> Subject:
    """Return the layer on the first n tokens and their context."""
    context = subject.context
    if context is not None:
        context = map_tensors(context, lambda name, x: x[..., :n, :])
    return subject.on(tuple(x[..., :n, :] for x in subject.inputs), context)


@operator_law
def forward(subject: Subject, declared: Declared) -> Iterator[Trial]:
    """The output equals the matrix times the values, under every mask.

    Applies where the output is linear in the values, or in the first values of the context. The
    tolerance is that of the output.
    """
    if not (declared.linear_in_values or declared.of_first_values):
        return

    def measure(masks: Masks) -> Measurement:
        v, context = subject.inputs[2], subject.context
        if declared.of_first_values:
            assert context is not None
            assert context.first_values is not None
            v = context.first_values
        return subject.judge(subject.output(masks), subject.matrix(masks) @ as_array(v))

    for masks in (NO_MASKS, *masks_of(subject)):
        yield Trial(masks.name, partial(measure, masks))


@operator_law
def weights(subject: Subject, declared: Declared) -> Iterator[Trial]:
    """Rows of the matrix sum to one and its entries are nonnegative, if the layer declares so.

    Under masks a row may be zero if no key that it sees is near enough; without masks no row is
    zero. Queries that see no key are not judged. The tolerance of sums is that of the output;
    entries are at least 0 exactly.
    """
    if not (declared.row_stochastic or declared.nonnegative):
        return

    def measure(masks: Masks) -> Measurement:
        A = subject.matrix(masks)
        below = max(0.0, -A.min()) if declared.nonnegative else 0.0
        sums = A.sum(axis=-1)
        off = np.abs(sums - 1) if declared.row_stochastic else 0 * sums
        if masks.visible is not None:
            off = off[(A != 0).any(axis=-1) & masks.visible.any(axis=-1)]
        tolerance = subject.accuracy.tolerance
        return worst([Measurement(below, 0.0), Measurement(off.max(initial=0.0), tolerance)])

    for masks in (NO_MASKS, *masks_of(subject)):
        yield Trial(masks.name, partial(measure, masks))


@operator_law
def causality(subject: Subject, declared: Declared) -> Iterator[Trial]:
    """`is_causal` equals the lower triangular mask, and tokens do not depend on later ones.

    The tolerance is that of the output, since the order of sums may differ.
    """
    if not declared.causal:
        return
    n = subject.inputs[1].shape[-2]
    masks = causal(n, n)

    def as_mask() -> Measurement:
        assert masks.visible is not None
        return subject.judge(subject.output(masks), subject.output(hiding(masks.visible)))

    def as_prefix(length: int) -> Measurement:
        alone = first_tokens(subject, length).output(causal(length, length))
        return subject.judge(subject.output(masks)[..., :length, :], alone)

    if declared.pair_masks:
        yield Trial("as a mask", as_mask)
    for length in _PREFIXES:
        yield Trial(f"first {length} tokens", partial(as_prefix, length))


@operator_law
def last_tokens(subject: Subject, declared: Declared) -> Iterator[Trial]:
    """Fewer queries than keys are the last tokens: decoding with a cache equals the full pass.

    It compares outputs and matrices under the causal mask, alone and with others. A single query
    needs no causal mask. Applies to layers that take fewer queries than keys. The tolerance is that
    of the output.
    """
    if declared.square_only:
        return

    def measure(n_queries: int, masks: Masks) -> Measurement:
        q, k, v = subject.inputs
        context = subject.context
        if context is not None and context.query_gates is not None:
            context = context._replace(query_gates=context.query_gates[..., -n_queries:, :])
        fewer = subject.on((q[..., -n_queries:, :], k, v), context)
        arguments, mask = dict(masks.given), masks.given.get("mask")
        if mask is not None and mask.shape[-2] > 1:
            arguments["mask"] = mask[..., -n_queries:, :]
        forms = [Masks("", arguments)]
        if n_queries == 1:
            forms.append(Masks("", {name: x for name, x in arguments.items() if name == "mask"}))
        output, matrix = (
            x[..., -n_queries:, :] for x in (subject.output(masks), subject.matrix(masks))
        )
        return worst(
            [subject.judge(fewer.output(form), output) for form in forms]
            + [subject.judge(fewer.matrix(form), matrix) for form in forms]
        )

    for masks in masks_of(subject):
        if "is_causal" in masks.given:
            for n_queries in _LAST:
                yield Trial(f"{n_queries}, {masks.name}", partial(measure, n_queries, masks))


@operator_law
def absent(subject: Subject, declared: Declared) -> Iterator[Trial]:
    """Hidden keys have no effect: the output of visible rows is the same without the padding.

    The tolerance is that of the output.
    """
    n = subject.inputs[1].shape[-2]
    seen = np.arange(n)[None] < n - _N_PADDED

    def measure() -> Measurement:
        padded_output = subject.output(hiding(seen))[..., : n - _N_PADDED, :]
        alone = first_tokens(subject, n - _N_PADDED).output()
        return subject.judge(padded_output, alone)

    yield Trial("", measure)


def _ways_to_hide(subject: Subject, n: int, hidden: int) -> Iterator[tuple[Masks, Array]]:
    """Yield masks that hide some tokens, each with the rows that see none of these tokens."""
    assert subject.declared is not None
    early = np.arange(n) < n - hidden
    dtype = subject.inputs[0].dtype
    floating = torch.zeros(1, n, dtype=dtype).masked_fill(~torch.from_numpy(early), -torch.inf)
    yield hiding(early[None], "padding"), early
    yield Masks("lowest number", {"mask": floating.clamp(min=torch.finfo(dtype).min)}), early
    if subject.declared.causal:
        yield causal(n, n), early
        late = np.arange(n) >= hidden
        yield causal(n, n).hiding(late[None], "causal, padding"), late
    if subject.declared.pair_masks:
        visible = early[:, None] == early
        yield hiding(visible, "pairs"), early
        lower = torch.zeros(n, n, dtype=dtype).masked_fill(
            torch.ones(n, n, dtype=torch.bool).triu(1), -torch.inf
        )
        yield Masks("additive mask", {"mask": lower}), early


def _hold(subject: Subject, hidden: Array, value: float, *, queries: bool = True) -> Subject:
    """Return the layer with `value` in place of the `hidden` tokens and of their context values."""
    place = torch.from_numpy(hidden)[:, None]
    q, *keys_and_values = (x.masked_fill(place, value) for x in subject.inputs)
    context = subject.context
    if context is not None:
        replaced = {
            name: x.masked_fill(place, value)
            for name in ("values", "previous_values", "gates")
            if (x := getattr(context, name)) is not None
        }
        context = context._replace(**replaced)
    return subject.on((q if queries else subject.inputs[0], *keys_and_values), context)


@operator_law
def leaks(subject: Subject, declared: Declared) -> Iterator[Trial]:
    """A hidden token of any size does not change the rows that do not see it.

    The tolerance is 100 eps of float32: a large token may only change how sums are rounded, such as
    by a centre that is subtracted before a product. A layer that iterates runs in float64, with a
    hidden token small enough for convergence and a tolerance of 1000 eps of float64.
    """
    dtype, sizes, tolerance = torch.float32, _FAR, _ROUNDING
    if subject.accuracy.iterates:
        dtype, sizes, tolerance = torch.float64, _MODERATE, _SOLVED
    single = subject.to(dtype)
    n = subject.inputs[1].shape[-2]

    def measure(masks: Masks, rows: Array) -> Measurement:
        expected = single.output(masks)[..., rows, :]
        outputs = [_hold(single, ~rows, size).output(masks)[..., rows, :] for size in sizes]
        return _compare_pairs([(x, expected) for x in outputs], tolerance)

    for masks, rows in _ways_to_hide(subject.to(dtype), n, 1):
        yield Trial(masks.name, partial(measure, masks, rows), dtype_name(dtype))


def _compare_pairs(pairs: list[tuple[Array, Array]], tolerance: float) -> Measurement:
    return worst([Measurement(largest_difference(*pair), tolerance) for pair in pairs])


@operator_law
def far_tokens(subject: Subject, declared: Declared) -> Iterator[Trial]:
    """Rows keep outputs and gradients when most tokens, which they do not see, move far away.

    22 of 40 tokens are multiplied by 1e3, or only their keys and values by 1e8: with such queries
    logits would overflow. Keys that are the queries as well are multiplied by 1e4, so that their
    logits grow by 1e8 too. Applies to layers whose output is continuous. The tolerance is 100 eps
    of float32, as for `leaks`, or 1e-10 in float64 if the layer's work depends on the data.
    """
    if subject.accuracy.iterates or not subject.accuracy.continuous:
        return
    dtype, tolerance = torch.float32, _ROUNDING
    if declared.data_dependent:
        dtype, tolerance = torch.float64, _SOLVED_FAR
    resized = subject.resized(subject.rng("far tokens"), n=_N_FAR).to(dtype)
    resized = resized.on(resized.inputs, resized.context)

    def measure(masks: Masks, rows: Array) -> Measurement:
        expected = output_and_gradients(resized, masks, rows)
        pairs: list[tuple[Array, Array]] = []
        for q, k, v in _SCALES:
            scales = (q, k if "q" in declared.reads else (q * k) ** 0.5, v)
            scaled = output_and_gradients(_scale(resized, rows, scales), masks, rows)
            pairs += zip(scaled, expected, strict=True)
        return _compare_pairs(pairs, tolerance)

    for masks, rows in _ways_to_hide(resized, _N_FAR, _N_FAR - _N_NEAR):
        yield Trial(masks.name, partial(measure, masks, rows), dtype_name(dtype))


def _scale(subject: Subject, rows: Array, scales: tuple[float, ...]) -> Subject:
    """Return the layer with these scales on the inputs of all tokens but the given rows."""
    near = torch.from_numpy(rows)[:, None]
    pairs = zip(scales, subject.inputs, strict=True)
    return subject.on(tuple(torch.where(near, x, scale * x) for scale, x in pairs))


@operator_law
def padding_of_nan(subject: Subject, declared: Declared) -> Iterator[Trial]:
    """NaN or infinity in padded tokens does not change visible rows, the matrix or gradients.

    They stand in keys and values that no query sees and in queries of padded tokens, among few
    tokens and many. The expected result is that with zeros there. The tolerance is that of the
    output.
    """
    hidings = ("padding", "lowest number", "causal, padding")
    cases = [(subject, name, name) for name in hidings]
    if not subject.accuracy.iterates:
        many = subject.resized(subject.rng("padding of nan"), n=_N_MANY)
        cases.append((many, "padding", f"{_N_MANY} tokens"))
    for case, hiding_name, name in cases:
        for masks, rows in _ways_to_hide(case, case.inputs[1].shape[-2], _N_PADDED):
            if masks.name == hiding_name:
                yield Trial(name, partial(_compare_held, case, masks, rows))


def _compare_held(subject: Subject, masks: Masks, rows: Array) -> Measurement:
    """Compare rows when hidden tokens hold NaN or infinity with those when they hold 0."""
    expected = _all_of_rows(_hold(subject, ~rows, 0.0), masks, rows)
    outputs_when_held = [
        _all_of_rows(_hold(subject, ~rows, value, queries=False), masks, rows)
        for value in (torch.nan, torch.inf)
    ]
    with_queries = _hold(subject, ~rows, torch.nan)
    outputs = with_queries.output(masks), with_queries.matrix(masks)
    outputs_when_held.append(tuple(x[..., rows, :] for x in outputs))
    pairs = [pair for arrays in outputs_when_held for pair in zip(arrays, expected, strict=False)]
    return worst([subject.judge(*pair) for pair in pairs])


def _all_of_rows(subject: Subject, masks: Masks, rows: Array) -> tuple[Array, ...]:
    """Return output and matrix of some rows, and gradients by these tokens and by parameters."""
    leaves = tuple(x.detach().requires_grad_() for x in subject.inputs)
    parameters = [x for x in subject.layer.parameters() if x.requires_grad]
    on_leaves = subject.on(leaves, subject.context)
    judged = torch.from_numpy(rows)
    results = [x[..., judged, :] for x in (on_leaves.run(masks), on_leaves.run_matrix(masks))]
    total = sum(x.square().sum() for x in results)
    assert isinstance(total, Tensor)
    gradients = torch.autograd.grad(
        total, [*leaves, *parameters], allow_unused=True, materialize_grads=True
    )
    of_tokens = (as_array(g)[..., rows, :] for g in gradients[: len(leaves)])
    of_parameters = (as_array(g) for g in gradients[len(leaves) :])
    return *map(as_array, results), *of_tokens, *of_parameters


@operator_law
def empty_rows(subject: Subject, declared: Declared) -> Iterator[Trial]:
    """The output of a query that sees no key is zero, and gradients stay finite.

    A mask of the lowest finite number counts as -inf; else such a row would be the mean of hidden
    tokens. If the output is linear in the values, it must be exactly zero; else it must be the same
    under each form of the mask.
    """
    n = subject.inputs[1].shape[-2]
    rows = np.arange(n) == 2 if declared.pair_masks else np.ones(n, dtype=bool)
    hidden = torch.from_numpy(rows)[:, None].expand(n, n)
    zeros = torch.zeros(n, n, dtype=torch.float64)
    boolean = Masks("", {"mask": ~hidden})
    exact, lowest = (
        Masks("", {"mask": zeros.masked_fill(hidden, value)})
        for value in (-torch.inf, torch.finfo(torch.float64).min)
    )

    def measure() -> Measurement:
        outputs = [subject.output(masks) for masks in (boolean, exact, lowest)]
        off = [np.abs(x - outputs[0]).max() for x in outputs[1:]]
        gradients = output_and_gradients(subject, boolean, rows)
        if declared.linear_in_values:
            off += [np.abs(x[..., rows, :]).max() for x in (*outputs, subject.matrix(lowest))]
        finite = all(np.isfinite(g).all() for g in gradients)
        return Measurement(float(max(off)) if finite else float("inf"), 0.0)

    yield Trial("", measure)
