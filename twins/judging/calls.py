"""Records one sequence of a call of an operator, and judges some of its queries."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from ...unrolled.attention import Context, causal_mask, hidden_by, read_mask
from ..heads import Array, HeadCall, Tensors, head_calls
from ..laws import Measurement
from ..laws.measurement import dtype_name
from ..laws.subject import as_array, map_tensors
from ..pairs import solve_head, term_sizes, with_choice
from ..registry import Twin
from ..relations import judge_outputs, rounding_of

# Number of axes after those of the batch; tensors of other names have three, one of them heads.
_OWN_AXES = {"positions": 2, "first_tokens": 2}
_TOKENS = 64


class NotJudgedError(Exception):
    """Says why a call is not judged."""


class Judgement(NamedTuple):
    """The twin that judged a module, the measurement, the judged dtype and the number of queries.

    If the module is not correct, `rounding` says whether its float64 copy is, and `law` names the
    law that it breaks, if any.
    """

    twin: Twin
    measured: Measurement
    dtype: str
    n_rows: int
    rounding: bool = False
    law: str = ""


def judge_dtypes(
    twin: Any,
    dtype: torch.dtype,
    own: Measurement | None,
    exact: Callable[[], Measurement],
    n_rows: int,
    *,
    as_it_is: bool = False,
) -> Judgement:
    """Judge a measurement in the module's own dtype, or that of a float64 copy if it is coarse.

    `own` was measured in `dtype`; ``exact()`` measures the copy. The copy is judged where rounding
    in `dtype` would excuse more than 1e-3. With `as_it_is` it is judged only if `own` passed.
    """
    name = dtype_name(dtype)
    if own is not None and (dtype == torch.float64 or (own.passed and not own.coarse)):
        return Judgement(twin, own, name, n_rows)
    of_copy = exact()
    if own is None or (own.coarse and (own.passed or not as_it_is)):
        return Judgement(twin, of_copy, f"float64 copy of {name}", n_rows)
    return Judgement(twin, own, name, n_rows, rounding=of_copy.passed)


@dataclass(frozen=True)
class RecordedCall:
    """Inputs and output of an operator for one sequence of a batch.

    Attributes
    ----------
    inputs : tuple of Tensor of shape (heads, tokens, width)
        q, k and v.
    output : Tensor of shape (heads, n_queries, width)
    mask : Tensor that broadcasts to (heads, n_queries, n_keys), optional
    is_causal : bool
    context : Context, optional
        Without axes of the batch.
    """

    inputs: Tensors
    output: Tensor
    mask: Tensor | None
    is_causal: bool
    context: Context | None

    @property
    def visible(self) -> Array | None:
        """The keys that each query sees, of shape (heads, n_queries, n_keys); None is all."""
        q, k, _ = self.inputs
        visible: Array | None = causal_mask(q, k).numpy() if self.is_causal else None
        if self.mask is not None:
            seen = ~hidden_by(self.mask).numpy()
            visible = seen if visible is None else seen & visible
        return None if visible is None else np.broadcast_to(visible, self._pairs)

    @property
    def bias(self) -> Array | None:
        """The numbers that the mask adds to visible logits; None if they are all zero."""
        if self.mask is None or self.mask.dtype == torch.bool:
            return None
        bias = as_array(self.mask.masked_fill(hidden_by(self.mask), 0))
        return np.broadcast_to(bias, self._pairs) if bias.any() else None

    @property
    def _pairs(self) -> tuple[int, int, int]:
        q, k, _ = self.inputs
        return len(q), q.shape[-2], k.shape[-2]

    def double(self) -> RecordedCall:
        """Return the call with inputs in float64; the output stays as it was."""
        inputs, context = tuple(x.double() for x in self.inputs), self.context
        mask = None if self.mask is None else read_mask(self.mask, inputs[0])
        if context is not None:
            context = map_tensors(context, lambda name, x: x.double())
        return replace(self, inputs=inputs, mask=mask, context=context)

    def run(self, operator: nn.Module) -> RecordedCall:
        """Return the call with the output of this operator."""
        with torch.no_grad(), torch.autocast("cpu", enabled=False):
            return replace(self, output=operator(*self.inputs, **self._masks))

    def matrix(self, operator: Any) -> Array:
        """Return the operator's coefficients, of shape (heads, n_queries, n_keys)."""
        q, k, _ = self.inputs
        with torch.no_grad(), torch.autocast("cpu", enabled=False):
            return as_array(operator.matrix(q, k, **self._masks))

    @property
    def _masks(self) -> dict[str, Any]:
        return {"mask": self.mask, "is_causal": self.is_causal, "context": self.context}


def batch_shape(q: Tensor, k: Tensor, v: Tensor) -> tuple[int, ...]:
    """Return the shape of the axes before the heads."""
    return tuple(torch.broadcast_shapes(*(x.shape[:-3] for x in (q, k, v))))


def record_element(
    arguments: dict[str, Any], output: Tensor, element: tuple[int, ...]
) -> RecordedCall:
    """Record one element of the batch on the CPU; `arguments` are those of `Operator.forward`."""
    tokens = [arguments[name] for name in "qkv"]
    n_heads = (1, *torch.broadcast_shapes(*(x.shape[:-2] for x in tokens)))[-1]
    batch = batch_shape(*tokens)

    def of_element(x: Tensor, *shape: int) -> Tensor:
        return x.detach().expand(*batch, *shape)[element].cpu()

    def of_context(name: str, x: Tensor) -> Tensor:
        n_axes = _OWN_AXES.get(name, 3)
        return x.detach().cpu() if x.ndim <= n_axes else of_element(x, *x.shape[-n_axes:])

    mask, context = arguments.get("mask"), arguments.get("context")
    if mask is not None:
        pairs = tokens[0].shape[-2], tokens[1].shape[-2]
        mask = of_element(mask, n_heads, *pairs)
    if context is not None:
        context = map_tensors(context._replace(history=()), of_context)
    return RecordedCall(
        tuple(of_element(x, n_heads, *x.shape[-2:]) for x in tokens),
        of_element(output, n_heads, *output.shape[-2:]),
        mask,
        bool(arguments.get("is_causal", False)),
        context,
    )


def _take_first_tokens(call: RecordedCall, count: int) -> RecordedCall:
    """Return the call on the first tokens if they see no others, or else the call itself."""
    q, k, _ = call.inputs
    visible = call.visible
    if visible is None or q.shape[-2] != k.shape[-2] or visible[:, :count, count:].any():
        return call
    mask, context = torch.from_numpy(visible[:, :count, :count].copy()), call.context
    if context is not None:
        context = map_tensors(context, lambda name, x: x[..., :count, :])
    inputs, output = tuple(x[:, :count] for x in call.inputs), call.output[:, :count]
    return RecordedCall(inputs, output, mask, False, context)


def judge_call(twin: Twin, operator: nn.Module, call: RecordedCall, rows: Array) -> Judgement:
    """Judge the queries `rows` of a call.

    Where queries are coupled, all of them are judged, or under causal masks the first 64. Where
    rounding in the dtype of the call would excuse more than 1e-3, a float64 copy is judged on the
    same tokens too.
    """
    layer = copy.deepcopy(operator).cpu()
    if not twin.inputs.by_rows and call.output.shape[-2] > _TOKENS:
        call = _take_first_tokens(call, _TOKENS)
    measured, n_rows = _measure_rows(twin, layer, call, rows)

    def exact() -> Measurement:
        wide = layer.double()
        return _measure_rows(twin, wide, call.double().run(wide), rows)[0]

    return judge_dtypes(twin, call.output.dtype, measured, exact, n_rows, as_it_is=True)


def _measure_rows(
    twin: Twin, layer: Any, call: RecordedCall, rows: Array
) -> tuple[Measurement, int]:
    visible, bias, dtype = call.visible, call.bias, call.inputs[0].dtype
    if bias is not None and not (twin.inputs.by_rows and layer.row_stochastic):
        raise NotJudgedError("its mask adds a finite bias, which its solver does not take")
    q, k, v = (as_array(x) for x in call.inputs)
    if visible is not None:  # keys that no query sees may be NaN; a token may read its own value
        seen = np.any(visible, axis=1)[..., None]
        k, v = np.where(seen, k, 0), np.where(seen | np.isfinite(v), v, 0)
    same = q.shape == k.shape and ("q" not in layer.reads or bool((q == k).all()))
    whole = not twin.inputs.by_rows or (twin.inputs.pairing == "self" and not same)
    if whole and visible is not None and twin.inputs.by_rows:
        raise NotJudgedError("its solver takes no masks unless the queries are the keys")
    if whole:
        rows = np.arange(q.shape[1])

    per_head = head_calls(q, k, v, call.context, visible, bias)
    calls, some_rows = [_select_positions(x) for x in per_head], None if whole else rows

    def solve(chosen: Array | None) -> Array:
        with_choices = (with_choice(x, chosen, dtype) for x in calls)
        return np.stack([solve_head(twin, layer, x, rows=some_rows)[rows] for x in with_choices])

    tensors = tuple(torch.from_numpy(x).to(dtype) for x in (q, k, v))
    rounding = rounding_of(twin, layer, tensors, twin.numerics.passes(layer))
    measured = judge_outputs(
        twin,
        layer,
        tensors,
        as_array(call.output)[:, rows],
        solve,
        tolerance=twin.relation.tolerance if dtype == torch.float64 else rounding,
        rounding=rounding,
        summed=lambda: term_sizes(twin, layer, calls, rows=some_rows),
        choice=lambda: call.matrix(layer) != 0,
    )
    return measured, len(rows)


def _select_positions(call: HeadCall) -> HeadCall:
    """Return the call with the projected positions of its own queries only."""
    if call.projected_positions is None:
        return call
    of_queries, of_keys = call.projected_positions
    return replace(call, projected_positions=(of_queries[call.places[0]], of_keys))


def draw_indices(n: int, count: int, generator: np.random.Generator) -> Array:
    """Draw at most `count` of the indices below n, sorted."""
    return np.sort(generator.choice(n, min(count, n), replace=False))


def draw_elements(
    batch: tuple[int, ...], count: int, generator: np.random.Generator, mask: Tensor | None = None
) -> list[tuple[int, ...]]:
    """Draw at most `count` indices of elements of a batch of this shape.

    If `mask` has the same batch shape, the first index is an element of which it hides most.
    """
    chosen = list(generator.permutation(math.prod(batch)))
    if mask is not None and tuple(mask.shape[:-3]) == batch:
        hidden = hidden_by(mask).flatten(-3).sum(dim=-1).flatten()
        chosen.sort(key=lambda b: -int(hidden[b]))
        chosen = chosen[:1] + sorted(chosen[1:])
    return [tuple(int(i) for i in np.unravel_index(b, batch)) for b in chosen[:count]]
