"""Laws of dtypes that need no reference."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial

import torch

from .gradients import output_and_gradients
from .masks import NO_MASKS, Masks, causal
from .measurement import Measurement, largest_difference
from .subject import ROUNDED_ANEW, Declared, Subject
from .trial import Trial, operator_law

_LOW = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
_N_MANY = 260  # more tokens than bfloat16 has integers
_N_KEYS = 8192


@operator_law
def keeps_dtype(subject: Subject, declared: Declared) -> Iterator[Trial]:
    """Output and matrix have the dtype of the inputs, whatever the dtype of the parameters.

    The deviation is 0 or infinite.
    """

    def measure(dtype: torch.dtype) -> Measurement:
        low = subject.to(dtype)
        mixed = replace(low, layer=subject.to(torch.float32).layer)
        dtypes = {x.dtype for form in (low, mixed) for x in (form.run(), form.run_matrix())}
        return Measurement(0.0 if dtypes == {dtype} else float("inf"), 0.0)

    for name, dtype in _LOW.items():
        yield Trial("", partial(measure, dtype), name)


@operator_law
def many_tokens(subject: Subject, declared: Declared) -> Iterator[Trial]:
    """In low precision the output is correct for many tokens: positions and counts are not rounded.

    The expected output is the layer's own in float64 on the rounded inputs. The tolerance is that
    of `dtypes` or, if larger, four times that of rounding in each pass, as means of many tokens are
    small. Layers that know positions are given the last of 8192 tokens as a query too, with a
    tolerance of 2 eps. Applies to layers that do not iterate to a tolerance.
    """
    if subject.accuracy.iterates:
        return
    many = subject.resized(subject.rng("many tokens"), n=_N_MANY)
    masks = causal(_N_MANY, _N_MANY) if declared.causal else NO_MASKS
    for name, dtype in _LOW.items():
        rounded = replace(many, reference=None).to(dtype)
        yield Trial("", partial(compare_coarsely, rounded, masks), name)
    if declared.square_only or declared.positional is None:
        return
    last = many.resized(many.rng("many keys"), n=_N_KEYS)
    q, k, v = last.inputs
    last = replace(last.on((q[..., -1:, :], k, v), last.context), reference=None)
    masks = causal(1, _N_KEYS) if declared.causal else NO_MASKS
    rounded = last.to(torch.bfloat16)
    yield Trial(f"{_N_KEYS} keys", partial(_compare_closely, rounded, masks), "bfloat16")


def _compare_closely(subject: Subject, masks: Masks) -> Measurement:
    difference = largest_difference(subject.output(masks), subject.expected(masks))
    return Measurement(difference, 2 * torch.finfo(torch.bfloat16).eps)


def compare_coarsely(subject: Subject, masks: Masks) -> Measurement:
    """Compare with the expected output, to the tolerance of rounding in each pass if larger."""
    measured = subject.compare(masks)
    passes = min(subject.accuracy.passes(subject.layer), ROUNDED_ANEW)
    coarse = 4 * (1 + passes) * torch.finfo(subject.inputs[0].dtype).eps
    return measured._replace(tolerance=max(measured.tolerance, coarse))


@operator_law
def autocast(subject: Subject, declared: Declared) -> Iterator[Trial]:
    """Autocast changes neither output nor gradients: the layer computes nothing in lower precision.

    Inputs are in float64, in float32 and in bfloat16, the dtype of autocast. If values alone are in
    float32, the layer works in float64. The tolerance is eps of float32, and a millionth of it in
    float64, as another kernel may add in another order.
    """
    for name in ("float32", "bfloat16"):
        yield Trial("", partial(_compare_autocast, subject.to(_LOW[name])), name)
    if not declared.data_dependent:
        yield Trial("", partial(_compare_autocast, subject, 1e-6))
        yield Trial("mixed", partial(_compare_mixed, subject))


def _compare_autocast(subject: Subject, share: float = 1.0) -> Measurement:
    """Compare outputs and gradients under autocast with those without."""
    inside, outside = (output_and_gradients(subject, autocast=on) for on in (True, False))
    deviations = [largest_difference(a, b) for a, b in zip(inside, outside, strict=True)]
    with torch.autocast("cpu", torch.bfloat16):
        same = subject.run().dtype == subject.inputs[0].dtype
    tolerance = share * torch.finfo(torch.float32).eps
    return Measurement(max(deviations) if same else float("inf"), tolerance)


def _compare_mixed(subject: Subject) -> Measurement:
    """Compare the output for values in float32 under autocast with the exact one."""
    q, k, v = subject.inputs
    mixed = subject.on((q, k, v.float()), subject.context)
    with torch.autocast("cpu", torch.bfloat16):
        output = mixed.output()
    return subject.judge(output, mixed.on((q, k, v.float().double()), mixed.context).output())
