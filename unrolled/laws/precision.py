"""Laws of dtypes that need no reference."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial

import numpy as np
import torch

from .finding import Finding, law
from .masks import NO_MASKS, Masks, causal
from .measurement import Measurement, largest_difference, worst
from .subject import ROUNDED_ANEW, Subject

_LOW = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}
_N_MANY = 260  # more tokens than bfloat16 has integers


@law
def keeps_dtype(subject: Subject) -> Iterator[Finding]:
    """Output and matrix have the dtype of the inputs, whatever that of the parameters.

    Applies to operators; the deviation is 0 or infinite.
    """
    if subject.declared is None or subject.brief:
        return

    def measure(dtype: torch.dtype) -> Measurement:
        given = subject.to(dtype)
        single = replace(given, layer=subject.to(torch.float32).layer)
        found = {form.dtype for each in (given, single) for form in (each.run(), each.run_matrix())}
        return Measurement(0.0 if found == {dtype} else float("inf"), 0.0)

    for name, dtype in _LOW.items():
        yield Finding("", partial(measure, dtype), name)


@law
def many_tokens(subject: Subject) -> Iterator[Finding]:
    """In low precision, many tokens are as right as few: positions and counts are not rounded.

    The layer's own output in float64 on the rounded inputs is expected, to the tolerance of
    `dtypes`, or four times that of rounding in each pass, as sums of many tokens are small.
    Applies to operators that do not iterate to a tolerance.
    """
    declared = subject.declared
    if declared is None or subject.brief or subject.numerics.iterates:
        return
    many = subject.resized(subject.rng("many tokens"), n=_N_MANY)
    masks = causal(_N_MANY, _N_MANY) if declared.causal else NO_MASKS
    for name, dtype in _LOW.items():
        rounded = replace(many, reference=None).to(dtype)
        yield Finding("", partial(_compare_coarsely, rounded, masks), name)


def _compare_coarsely(subject: Subject, masks: Masks) -> Measurement:
    found = subject.compare(masks)
    passes = min(subject.numerics.passes(subject.layer), ROUNDED_ANEW)
    coarse = 4 * (1 + passes) * torch.finfo(subject.inputs[0].dtype).eps
    return found._replace(tolerance=max(found.tolerance, coarse))


@law
def autocast(subject: Subject) -> Iterator[Finding]:
    """Autocast changes neither output nor gradients: nothing is lowered.

    Applies to operators, on inputs of the dtype that it lowers to and of float32; exact up to
    eps of float32, as another kernel may add in another order.
    """
    if subject.declared is None or subject.brief:
        return
    for name in ("float32", "bfloat16"):
        yield Finding("", partial(_compare_autocast, subject.to(_LOW[name])), name)


def _compare_autocast(subject: Subject) -> Measurement:
    found = []
    for enabled in (False, True):
        leaves = tuple(x.detach().requires_grad_() for x in subject.inputs)
        with torch.autocast("cpu", torch.bfloat16, enabled=enabled):
            out = subject.on(leaves, subject.context).run()
        gradients = torch.autograd.grad(
            out.square().sum(), leaves, allow_unused=True, materialize_grads=True
        )
        found.append([x.detach().double().numpy() for x in (out, *gradients)])
        if out.dtype != subject.inputs[0].dtype:
            return Measurement(float("inf"), 0.0)
    tolerance = float(np.finfo(np.float32).eps)
    return worst(
        [Measurement(largest_difference(b, a), tolerance) for a, b in zip(*found, strict=True)]
    )
