"""Judges some queries of a recorded call of an operator."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from ...unrolled.attention import hidden_by
from ..heads import Array, HeadCall, head_calls
from ..laws import Measurement
from ..laws.measurement import dtype_name
from ..laws.subject import as_array
from ..pairs import solve_head, term_sizes, with_choice
from ..registry import Twin
from ..relations import ROUNDING_ADVICE, judge_outputs, rounding_of
from ..report import Finding, verdict_of
from .recording import RecordedCall, take_first_tokens

_TOKENS = 64


class NotJudgedError(Exception):
    """Says why a call is not judged."""


class Judgement(NamedTuple):
    """The twin that judged a module, the measurement, the judged dtype and the number of queries.

    If its float64 copy agrees with the solver and it does not, `rounding` is true.
    """

    twin: Twin
    measured: Measurement
    dtype: str
    n_rows: int
    rounding: bool = False

    def finding(self, layer: nn.Module, where: str = "", laws: str = "") -> Finding:
        """Return the finding on the layer, of whose laws "N of M" hold."""
        relation = self.twin.relation
        details = {
            "class": type(layer).__name__,
            "equation": self.twin.equation,
            "evidence": self.twin.evidence,
            "relation": relation.name,
            "dtype": self.dtype,
            "rows": self.n_rows,
            "laws": laws,
        }
        why = ROUNDING_ADVICE if self.rounding and not self.measured.holds else ""
        verdict, numbers = verdict_of(self.measured.holds), self.measured[:2]
        return Finding(self.twin.name, verdict, *numbers, why, where, details)


def tolerance_in(dtype: torch.dtype, tolerance: float) -> float:
    """Return `tolerance` for float64, and 32 times machine epsilon for other dtypes."""
    return tolerance if dtype == torch.float64 else 32 * torch.finfo(dtype).eps


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
    in `dtype` would excuse more than 1e-3. With `as_it_is` it is judged only if `own` holds.
    """
    name = dtype_name(dtype)
    if own is not None and (dtype == torch.float64 or (own.holds and not own.coarse)):
        return Judgement(twin, own, name, n_rows)
    of_copy = exact()
    if own is None or (own.coarse and (own.holds or not as_it_is)):
        return Judgement(twin, of_copy, f"float64 copy of {name}", n_rows)
    return Judgement(twin, own, name, n_rows, rounding=of_copy.holds)


def judge_call(twin: Twin, operator: nn.Module, call: RecordedCall, rows: Array) -> Judgement:
    """Judge the queries `rows` of a call.

    Where queries are coupled, all of them are judged, or under causal masks the first 64. Where
    rounding in the dtype of the call would excuse more than 1e-3, a float64 copy is judged on the
    same tokens too.
    """
    layer = copy.deepcopy(operator).cpu()
    if not twin.inputs.by_rows and call.output.shape[-2] > _TOKENS:
        call = take_first_tokens(call, _TOKENS)
    measured, n_rows = _measure_rows(twin, layer, call, rows)

    def exact() -> Measurement:
        wide = layer.double()
        return _measure_rows(twin, wide, call.double().run(wide), rows)[0]

    return judge_dtypes(twin, call.output.dtype, measured, exact, n_rows, as_it_is=True)


def _measure_rows(
    twin: Twin, layer: Any, call: RecordedCall, rows: Array
) -> tuple[Measurement, int]:
    """Measure the deviation of the output of these rows from the solver's."""
    visible, bias, dtype = call.visible, call.bias, call.inputs[0].dtype
    if bias is not None and not (twin.inputs.by_rows and layer.row_stochastic):
        raise NotJudgedError("its mask adds a finite bias, which its solver does not take")
    q, k, v = (as_array(x) for x in call.inputs)
    if visible is not None:  # keys that no query sees may be NaN; a token may read its own value
        seen = np.any(visible, axis=1)[..., None]
        k, v = np.where(seen, k, 0), np.where(seen | np.isfinite(v), v, 0)
    same_points = q.shape == k.shape and ("q" not in layer.reads or bool((q == k).all()))
    needs_all_rows = not twin.inputs.by_rows or (twin.inputs.pairing == "self" and not same_points)
    if needs_all_rows and visible is not None and twin.inputs.by_rows:
        raise NotJudgedError("its solver takes no masks unless the queries are the keys")
    if needs_all_rows:
        rows = np.arange(q.shape[1])

    per_head = head_calls(q, k, v, call.context, visible, bias)
    calls, some_rows = [_select_positions(x) for x in per_head], None if needs_all_rows else rows

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
