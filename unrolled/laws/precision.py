"""Laws of dtypes that need no reference."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial

import torch

from .finding import Finding, operator_law
from .gradients import output_and_gradients
from .masks import NO_MASKS, Masks, causal
from .measurement import Measurement, largest_difference
from .subject import ROUNDED_ANEW, Declared, Subject

_LOW = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}
_N_MANY = 260  # more tokens than bfloat16 has integers


@operator_law
def keeps_dtype(subject: Subject, declared: Declared) -> Iterator[Finding]:
    """Output and matrix have the dtype of the inputs, whatever the dtype of the parameters.

    The deviation is 0 or infinite.
    """

    def measure(dtype: torch.dtype) -> Measurement:
        low = subject.to(dtype)
        mixed = replace(low, layer=subject.to(torch.float32).layer)
        dtypes = {x.dtype for form in (low, mixed) for x in (form.run(), form.run_matrix())}
        return Measurement(0.0 if dtypes == {dtype} else float("inf"), 0.0)

    for name, dtype in _LOW.items():
        yield Finding("", partial(measure, dtype), name)


@operator_law
def many_tokens(subject: Subject, declared: Declared) -> Iterator[Finding]:
    """In low precision the output is correct for many tokens: positions and counts are not rounded.

    The expected output is the layer's own in float64 on the rounded inputs. The tolerance is that
    of `dtypes` or, if larger, four times that of rounding in each pass, as means of many tokens are
    small. Applies to layers that do not iterate to a tolerance.
    """
    if subject.accuracy.iterates:
        return
    many = subject.resized(subject.rng("many tokens"), n=_N_MANY)
    masks = causal(_N_MANY, _N_MANY) if declared.causal else NO_MASKS
    for name, dtype in _LOW.items():
        rounded = replace(many, reference=None).to(dtype)
        yield Finding("", partial(compare_coarsely, rounded, masks), name)


def compare_coarsely(subject: Subject, masks: Masks) -> Measurement:
    """Compare with the expected output, to the tolerance of rounding in each pass if larger."""
    found = subject.compare(masks)
    passes = min(subject.accuracy.passes(subject.layer), ROUNDED_ANEW)
    coarse = 4 * (1 + passes) * torch.finfo(subject.inputs[0].dtype).eps
    return found._replace(tolerance=max(found.tolerance, coarse))


@operator_law
def autocast(subject: Subject, declared: Declared) -> Iterator[Finding]:
    """Autocast changes neither output nor gradients: the layer computes nothing in lower precision.

    Inputs are in float32 and in bfloat16, the dtype of autocast. The tolerance is eps of float32,
    as another kernel may add in another order.
    """
    for name in ("float32", "bfloat16"):
        yield Finding("", partial(_compare_autocast, subject.to(_LOW[name])), name)


def _compare_autocast(subject: Subject) -> Measurement:
    inside, outside = (output_and_gradients(subject, autocast=on) for on in (True, False))
    deviations = [largest_difference(a, b) for a, b in zip(inside, outside, strict=True)]
    with torch.autocast("cpu", torch.bfloat16):
        same = subject.run().dtype == subject.inputs[0].dtype
    return Measurement(max(deviations) if same else float("inf"), torch.finfo(torch.float32).eps)
