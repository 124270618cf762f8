"""Judges a module on the inputs that reach it in a model."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ...unrolled.attention import Attention, Operator
from ...unrolled.attention.inputs import of_common_batch
from ..heads import Array, Tensors
from ..laws import Measurement, largest_difference
from ..laws.measurement import dtype_name
from ..laws.subject import as_array
from ..registry import Twin, is_exact, judging_twin
from ..relations import compare_outputs
from .calls import (
    Judgement,
    NotJudgedError,
    draw_elements,
    draw_indices,
    judge_call,
    judge_dtypes,
    tolerance_in,
)
from .projections import judge_projections
from .recording import batch_shape, record_element

_ELEMENTS = 2
_PIXELS = 32
_TOKENS = 64
_MASKS = ("key_padding_mask", "attn_mask", "is_causal")
Judged = tuple[list[Judgement], Tensors | None]


@dataclass
class ModuleJudge:
    """Judges modules, one call after the other.

    A judge takes a module, its arguments by name and its output. It returns judgements, and the
    inputs on which the module's laws are tried, if it has any.
    """

    n_rows: int
    random_state: int
    operated: dict[int, tuple[dict[str, Any], Tensor]] = field(default_factory=dict)

    def way_of(self, module: nn.Module) -> Callable[..., Judged] | None:
        """Return the judge of a module, if it has a twin or projections."""
        if isinstance(module, Operator):
            return self._judge_operator
        if isinstance(module, Attention):
            return self._judge_projections
        try:
            twin = judging_twin(module, same_points=True)
        except LookupError:
            return None
        if twin.layer is nn.Module:
            return None
        return {
            "tokens": self._judge_coefficients,
            "features": self._judge_features,
            "image": self._judge_image,
        }[twin.inputs.kind]

    def _generator(self) -> np.random.Generator:
        return np.random.default_rng(self.random_state)

    def _judge_operator(
        self, operator: nn.Module, arguments: dict[str, Any], output: Tensor
    ) -> Judged:
        """Judge an operator on a few rows of one element of the batch."""
        self.operated[id(operator)] = arguments, output
        q, k, v = (arguments[name] for name in "qkv")
        twin, generator = judging_twin(operator), self._generator()
        if twin.inputs.kind != "tokens":
            raise NotJudgedError(f"the twin {twin.name} takes no separate queries and keys")
        judgements = []
        n_elements = _ELEMENTS if twin.inputs.by_rows else 1
        for element in draw_elements(
            batch_shape(q, k, v), n_elements, generator, arguments.get("mask")
        ):
            call = record_element(arguments, output, element)
            if not is_exact(twin):
                if call.visible is not None:
                    raise NotJudgedError(f"the {twin.relation.name} {twin.name} takes no masks")
                inputs = _take_first_tokens(call.inputs)
                judgements.append(_judge_relation(twin, operator, inputs, q.dtype))
                continue
            rows = draw_indices(q.shape[-2], self.n_rows, generator)
            judgements.append(judge_call(twin, operator, call, rows))
        return judgements, call.inputs

    def _judge_projections(self, shell: Any, arguments: dict[str, Any], output: Any) -> Judged:
        """Judge the projections of a shell on some tokens, by NumPy."""
        call = self.operated.pop(id(shell.operator), None)
        if call is None or shell.in_proj_weight is None or not shell.batch_first:
            raise NotJudgedError("its projections have another form than those of Attention")
        projected, operated = call
        tokens = [arguments[name] for name in ("query", "key", "value")]
        if tokens[0].ndim == 2:
            tokens, output = [x[None] for x in tokens], (output[0][None], *output[1:])
        inputs = dict(zip("qkv", of_common_batch(None, *tokens), strict=True))
        n, generator = len(output[0]), self._generator()
        rows = {
            name: draw_indices(x.shape[-2], self.n_rows, generator) for name, x in inputs.items()
        }
        judgements = []
        for (b,) in draw_elements((n,), _ELEMENTS, generator):
            pairs = {
                name: (inputs[name][b], _expand_batch(projected[name], n)[b])
                for name in shell.projected
            }
            of_heads = _expand_batch(operated, n)[b]
            judgements.append(judge_projections(shell, pairs, of_heads, output[0][b], rows))
        return judgements, None

    def _judge_coefficients(
        self, layer: nn.Module, arguments: dict[str, Any], output: Any
    ) -> Judged:
        """Judge a layer that returns coefficients, on some tokens."""
        queries, keys = (*arguments.values(), None)[:2]
        twin = judging_twin(layer, same_points=keys is None)
        if (twin.inputs.pairing == "self") != (keys is None):
            raise NotJudgedError(f"the twin {twin.name} takes other keys")
        q, k = (
            _take_first_set(x)[:_TOKENS][None] for x in (queries, queries if keys is None else keys)
        )
        return [_judge_relation(twin, layer, (q, k, k), queries.dtype)], (q, k, k)

    def _judge_features(self, layer: nn.Module, arguments: dict[str, Any], output: Any) -> Judged:
        """Judge a layer on features of tokens, in one element of the batch."""
        tokens = next(iter(arguments.values()))
        twin, generator = judging_twin(layer, same_points=True), self._generator()
        (element,) = draw_elements(tuple(tokens.shape[:-2]), 1, generator)
        X = tokens[element].detach().cpu()
        if len(X) < 2 and not is_exact(twin):
            raise NotJudgedError(f"the {twin.relation.name} {twin.name} needs more than one token")
        visible = _visible_tokens(arguments, element, len(X))
        if visible is None:
            judged = _judge_relation(twin, layer, (X,), tokens.dtype)
        else:
            judged = self._judge_masked(twin, layer, X, output[element], visible, generator)
        return [judged], (X,)

    def _judge_masked(
        self,
        twin: Twin,
        layer: nn.Module,
        X: Tensor,
        output: Tensor,
        visible: Array,
        generator: np.random.Generator,
    ) -> Judgement:
        """Judge some tokens; each is solved in the sequence of the tokens that it sees."""
        rows, copied = draw_indices(len(X), self.n_rows, generator), copy.deepcopy(layer).cpu()
        rows = rows[visible[rows, rows]]
        places = [int(visible[i, :i].sum()) for i in rows]
        expected = [
            twin.solve(copied, as_array(X)[visible[i]])[place]
            for i, place in zip(rows, places, strict=True)
        ]
        tolerance = tolerance_in(X.dtype, twin.relation.tolerance)
        deviation = largest_difference(
            as_array(output)[rows], np.reshape(expected, (-1, output.shape[-1]))
        )
        return Judgement(twin, Measurement(deviation, tolerance), dtype_name(X.dtype), len(rows))

    def _judge_image(self, layer: nn.Module, arguments: dict[str, Any], output: Any) -> Judged:
        """Judge a part of an image, since the whole may take a solver hours."""
        images = next(iter(arguments.values()))
        images = images[(None,) * (4 - images.ndim)]
        part = images[:1, :, :_PIXELS, :_PIXELS].detach().cpu()
        twin = judging_twin(layer, same_points=True)
        judged = _judge_relation(twin, layer, (part,), images.dtype)
        return [judged._replace(n_rows=part.shape[-1] * part.shape[-2])], (part,)


def _take_first_tokens(inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    n = min(_TOKENS, *(x.shape[-2] for x in inputs))
    return tuple(x[..., :n, :] for x in inputs)


def _expand_batch(x: Tensor, n: int) -> Tensor:
    """Expand heads, tokens and features to a batch of n."""
    return x.expand(n, *x.shape[-3:])


def _take_first_set(x: Tensor) -> Tensor:
    return x.detach().cpu().reshape(-1, *x.shape[-2:])[0]


def _judge_relation(
    twin: Twin, layer: nn.Module, inputs: tuple[Tensor, ...], dtype: torch.dtype
) -> Judgement:
    """Judge a copy of the layer on the CPU by its twin's relation; see `judge_dtypes`.

    Layers in dtypes of less than 32 bits are judged only in float64.
    """
    copied = copy.deepcopy(layer).cpu()

    def measure_in_float64() -> Measurement:
        return measure(twin, copied.double(), tuple(x.double() for x in inputs))

    with torch.autocast("cpu", enabled=False):
        measured = None if dtype.itemsize < 4 else measure(twin, copied, inputs)
        return judge_dtypes(twin, dtype, measured, measure_in_float64, inputs[0].shape[-2])


def measure(twin: Twin, layer: nn.Module, inputs: tuple[Tensor, ...]) -> Measurement:
    """Compare the layer with its solver as it is, or measure its relation if that is not exact."""
    if is_exact(twin):
        return compare_outputs(twin, layer, inputs, tolerance=twin.relation.tolerance)
    return twin.relation.measure(twin, layer, inputs)


def _visible_tokens(
    arguments: dict[str, Any], element: tuple[int, ...], n_tokens: int
) -> Array | None:
    """Return which tokens each token sees in one element of the batch; None is all.

    Beside a mask of pairs, torch ignores `is_causal`.
    """
    padding, pairs, is_causal = (arguments.get(name) for name in _MASKS)
    if padding is None and pairs is None and not is_causal:
        return None
    visible = np.ones((n_tokens, n_tokens), dtype=bool)
    if padding is not None:
        visible &= ~padding[element].cpu().numpy()
    if pairs is not None:
        visible &= ~(pairs if pairs.ndim == 2 else pairs[element]).cpu().numpy()
    elif is_causal:
        visible &= np.tri(n_tokens, dtype=bool)
    return visible
