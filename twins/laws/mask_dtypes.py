"""Laws of the dtype and the form in which a mask is given, which must not change what it means."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial

import numpy as np
import torch
from torch import Tensor

from .gradients import SLOPE_TOLERANCE, STEPS
from .masks import Masks
from .measurement import Array, Measurement, dtype_name, largest_difference, worst
from .precision import compare_coarsely
from .subject import ROUNDED_ANEW, Declared, Subject, as_array
from .trial import Trial, operator_law

_N_TOKENS = 20  # with fewer than 16 tokens the kernels of PyTorch compute otherwise
_DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
_SHARE_HIDDEN = 0.3
_BIASES = (8.0, 1024.0, 8192.0)


@operator_law
def mask_dtypes(subject: Subject, declared: Declared) -> Iterator[Trial]:
    """A mask means the same in every dtype, whatever the dtype of queries, keys and values.

    Biases are numbers that every dtype has. Hidden pairs hold -inf or the lowest number of the
    dtype. Output, matrix and gradients by tokens are those with a float64 mask, to the tolerance
    of the output. In lower precision, the output is that in float64, to the tolerance of
    `many_tokens`. Applies to layers that do not iterate to a tolerance.
    """
    if subject.accuracy.iterates:
        return
    rng = subject.rng("mask dtypes")
    resized = subject.resized(rng, n=_N_TOKENS)
    resized = resized.on(resized.inputs, resized.context)
    bias, hidden = _draw_mask(resized, rng)
    for dtype in _DTYPES:
        compare = _compare_all if dtype == torch.float64 else _compare_outputs
        rounded = replace(resized, reference=None).to(dtype)
        yield Trial("", partial(compare, rounded, bias, hidden), dtype_name(dtype))


def _draw_mask(subject: Subject, rng: np.random.Generator) -> tuple[Tensor, Tensor]:
    """Biases and hidden pairs that the layer takes: of all pairs, or of whole keys."""
    declared, n = subject.declared, subject.inputs[1].shape[-2]
    assert declared is not None
    shape = (n, n) if declared.pair_masks else (1, n)
    hidden = torch.from_numpy(rng.random(shape) < _SHARE_HIDDEN)
    bias = torch.from_numpy(rng.integers(-16, 16, shape) / 8)
    if not declared.additive_masks:
        bias = torch.zeros_like(bias)
    return bias, hidden & ~torch.eye(n, dtype=torch.bool)[-len(hidden) :]


def _as_masks(mask: Tensor) -> Masks:
    return Masks("", {"mask": mask})


def _masks_of_dtypes(bias: Tensor, hidden: Tensor) -> Iterator[Tensor]:
    """Yield the bias as masks in all dtypes, with -inf or the lowest number where it hides."""
    for i, dtype in enumerate(_DTYPES):
        hiding = (-torch.inf, torch.finfo(dtype).min)[i % 2]
        yield bias.to(dtype).masked_fill(hidden, hiding)


def _compare_outputs(subject: Subject, bias: Tensor, hidden: Tensor) -> Measurement:
    """Compare outputs under these masks with the expected one."""
    expected = subject.expected(_as_masks(bias.masked_fill(hidden, -torch.inf)))
    fixed = replace(subject, reference=lambda *_: expected)
    masks = _masks_of_dtypes(bias, hidden)
    return worst([compare_coarsely(fixed, _as_masks(mask)) for mask in masks])


def _compare_all(subject: Subject, bias: Tensor, hidden: Tensor) -> Measurement:
    """Compare outputs, matrices and gradients under these masks with those in float64."""
    expected = _measure_all(subject, bias.masked_fill(hidden, -torch.inf))
    masks = list(_masks_of_dtypes(bias, hidden))
    in_narrow_dtypes = [_measure_all(subject, masks[i]) for i in (1, 2)]  # float32 and bfloat16
    others = [subject.output(_as_masks(masks[i])) for i in (0, 3)]
    pairs = [pair for arrays in in_narrow_dtypes for pair in zip(arrays, expected, strict=True)]
    pairs += [(output, expected[0]) for output in others]
    return worst([subject.judge(*pair) for pair in pairs])


def _measure_all(subject: Subject, mask: Tensor) -> list[Array]:
    """Output, matrix and gradients of their squares by the tokens."""
    leaves = tuple(x.detach().requires_grad_() for x in subject.inputs)
    on_leaves, masks = subject.on(leaves, subject.context), _as_masks(mask)
    results = on_leaves.run(masks), on_leaves.run_matrix(masks)
    total = results[0].square().sum() + results[1].square().sum()
    gradients = torch.autograd.grad(total, leaves, allow_unused=True, materialize_grads=True)
    return [as_array(x) for x in (*results, *gradients)]


@operator_law
def constant_bias(subject: Subject, declared: Declared) -> Iterator[Trial]:
    """A bias that is the same for all keys changes nothing, in any dtype.

    Biases are 8, 1024 and 8192, which every dtype has; only 8 for layers that choose keys, as
    rounding beside larger ones decides near ties. Applies where biases are added to logits and rows
    sum to one. The expected output and matrix are those without a mask in float64. The
    tolerance is that of rounding in each pass, and of logits so far from zero in float32.
    """
    if not (declared.additive_masks and declared.row_stochastic) or subject.accuracy.iterates:
        return
    resized = subject.drawn(subject.rng("constant bias"), n=_N_TOKENS)
    resized = replace(resized, reference=None).on(resized.inputs, resized.context)
    sizes = _BIASES if subject.accuracy.continuous else _BIASES[:1]

    def measure(dtype: torch.dtype) -> Measurement:
        low = resized.to(dtype)
        exact = low.to(torch.float64)
        biases = [Masks("", {"mask": torch.full((1, _N_TOKENS), x, dtype=dtype)}) for x in sizes]
        pairs = [(low.output(masks), exact.output()) for masks in biases]
        pairs += [(low.matrix(masks), exact.matrix()) for masks in biases]
        rounded = 4 * (1 + ROUNDED_ANEW) * torch.finfo(dtype).eps
        far = 4 * (1 + ROUNDED_ANEW) * max(sizes) * torch.finfo(torch.float32).eps
        return worst([Measurement(largest_difference(*pair), max(rounded, far)) for pair in pairs])

    for dtype in _DTYPES[1:]:
        yield Trial("", partial(measure, dtype), dtype_name(dtype))


@operator_law
def mask_gradient(subject: Subject, declared: Declared) -> Iterator[Trial]:
    """The gradient by a mask, in float64 or float32, is the slope of the output.

    Applies where biases are added to logits. The tolerance is 1e-5 of the slope, the accuracy of
    central differences; where the slope jumps within a step, a shorter step decides.
    """
    if subject.accuracy.iterates or not declared.additive_masks:
        return
    rng = subject.rng("mask gradient")
    resized = subject.resized(rng, n=_N_TOKENS)
    bias, hidden = _draw_mask(resized, rng)
    move = torch.from_numpy(rng.standard_normal(bias.shape))

    def slope_by_mask(bias: Tensor) -> float:
        bias = bias.requires_grad_()
        output = resized.run(_as_masks(bias.masked_fill(hidden, -torch.inf)))
        [gradient] = torch.autograd.grad(output.square().sum(), bias)
        return float((gradient * move).sum())

    def difference(step: float) -> float:
        shifted = [(bias + h * move).masked_fill(hidden, -torch.inf) for h in (step, -step)]
        ahead, behind = (np.square(resized.output(_as_masks(mask))).sum() for mask in shifted)
        return float(ahead - behind) / (2 * step)

    def measure() -> Measurement:
        slopes = np.array([slope_by_mask(bias.to(dtype)) for dtype in _DTYPES[:2]])
        deviations = [largest_difference(slopes, np.full(2, difference(h))) for h in STEPS]
        return Measurement(min(deviations), SLOPE_TOLERANCE)

    yield Trial("", measure)


@operator_law
def mask_forms(subject: Subject, declared: Declared) -> Iterator[Trial]:
    """A mask of any shape that broadcasts, in any layout in memory, means what it means in full.

    Applies to layers that do not iterate to a tolerance. The tolerance is that of the output.
    """
    if subject.accuracy.iterates:
        return
    rng = subject.rng("mask forms")
    resized = subject.resized(rng, n=_N_TOKENS)
    resized = resized.on(resized.inputs, resized.context)
    heads, n = resized.inputs[1].shape[-3:-1]
    shapes = [(n, 1), (heads, n, n)] if declared.pair_masks else []

    def measure(mask: Tensor) -> Measurement:
        parted = torch.stack((mask, mask), dim=-1)[..., 0]
        expected = _as_masks(mask.expand(heads, n, n).contiguous())
        outputs = resized.output(_as_masks(parted)), resized.output(expected)
        matrices = resized.matrix(_as_masks(parted)), resized.matrix(expected)
        return worst([resized.judge(*pair) for pair in (outputs, matrices)])

    for shape in ((heads, 1, n), *shapes):
        mask = torch.from_numpy(rng.random(shape) > _SHARE_HIDDEN)
        if declared.additive_masks:
            drawn_bias = torch.from_numpy(rng.standard_normal(shape))
            mask = drawn_bias.masked_fill(~mask, -torch.inf)
        yield Trial(" x ".join(map(str, shape)), partial(measure, mask))
