"""The law of arguments that must be refused."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import torch

from ...unrolled.attention import Positive
from .measurement import Measurement
from .subject import Declared, Subject, Tensors
from .trial import Trial, operator_law

_FEWER = 5


@operator_law
def refused(subject: Subject, declared: Declared) -> Iterator[Trial]:
    """Arguments that the layer declares not to take raise a ValueError in `forward` and `matrix`.

    Another error or an output is a failure. The deviation is 0 or infinite.
    """
    for name, inputs, given in _list_excluded(subject, declared):
        yield Trial(name, partial(_measure_refusal, subject, inputs, given))


def _list_excluded(
    subject: Subject, declared: Declared
) -> Iterator[tuple[str, Tensors, dict[str, Any]]]:
    """Yield the cases that must be refused: a name, the inputs and the keyword arguments."""
    q, k, v = inputs = subject.inputs
    n, context = k.shape[-2], {"context": subject.context}
    fewer = tuple(x[..., -_FEWER:, :] for x in inputs)
    if not declared.causal:
        yield "is_causal", inputs, {"is_causal": True, **context}
    if not declared.pair_masks:
        pairs = torch.ones(n, n, dtype=torch.bool)
        pairs = pairs.triu(-1) if declared.causal else pairs.tril()  # a causal one may be taken
        yield "mask of pairs", inputs, {"mask": pairs, **context}
    if not declared.additive_masks:
        bias = torch.full((1, n), 0.5, dtype=k.dtype)
        yield "finite bias", inputs, {"mask": bias, **context}
    if declared.square_only:
        yield "fewer queries", (fewer[0], k, v), context
    if declared.causal:
        more = (q, *fewer[1:])
        yield "is_causal with more queries than keys", more, {"is_causal": True, **context}
    yield "keys of another width", (q[..., :-1], k, v), context
    for shape in ((n - 1,), (n, n - 1), (n - 1, n)):
        mask = torch.ones(shape, dtype=torch.bool)
        yield f"mask of shape {shape}", inputs, {"mask": mask, **context}
    yield "mask of integers", inputs, {"mask": torch.ones(n, n, dtype=torch.long), **context}
    if [name for name in declared.needs if name != "previous_values"]:
        yield "no context", inputs, {}
    elif any(isinstance(x, Positive) and (x.num_heads or 1) > 1 for x in subject.layer.modules()):
        yield "another number of heads", tuple(x[:-1] for x in inputs), {}


def _measure_refusal(subject: Subject, inputs: Tensors, given: dict[str, Any]) -> Measurement:
    """Return 0 if `forward` and `matrix` raise a ValueError for these arguments, else infinity."""
    layer: Any = subject.layer
    for call in (lambda: layer(*inputs, **given), lambda: layer.matrix(*inputs[:2], **given)):
        try:
            call()
        except ValueError:
            continue
        except (RuntimeError, IndexError, TypeError):
            pass
        return Measurement(float("inf"), 0.0)
    return Measurement(0.0, 0.0)
