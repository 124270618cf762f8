"""Judges the projections of an attention shell by NumPy."""

import copy
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from ..heads import Array
from ..laws import Measurement, worst
from ..laws.measurement import dtype_name
from ..laws.subject import as_array
from ..relations import Identity, measure_difference
from .calls import Judgement, judge_dtypes, tolerance_in

# Stands for the twin, which projections do not have.
_PROJECTIONS: Any = SimpleNamespace(
    name="projections", equation="SE-1 to SE-4", evidence="formula", relation=Identity()
)


def judge_projections(
    shell: Any,
    pairs: dict[str, tuple[Tensor, Tensor]],
    operated: Tensor,
    output: Tensor,
    rows: dict[str, Array],
) -> Judgement:
    """Judge ``q = x W_q^T + b_q`` and so on in each head, and the output projection of all heads.

    `pairs` holds the tokens and their projections by the names q, k and v, `operated` the output of
    the operator and `output` that of the shell.
    """

    def exact() -> Measurement:
        """Measure a float64 copy of the shell."""
        copied = copy.deepcopy(shell).cpu().double()
        tokens = {name: x.detach().cpu().double() for name, (x, _) in pairs.items()}
        anything = next(iter(tokens.values()))  # for tokens that the shell does not project
        projected = copied.project(*(tokens.get(name, anything)[None] for name in "qkv"))
        by_name = dict(zip("qkv", projected, strict=True))
        exact_pairs = {name: (x, by_name[name][0]) for name, x in tokens.items()}
        out = operated.detach().cpu().double()
        exact_output = F.linear(out.transpose(0, 1).flatten(1), *copied.out_proj.parameters())
        return _measure_projections(copied, exact_pairs, out, exact_output, rows)

    measured = _measure_projections(shell, pairs, operated, output, rows)
    if not measured.holds:
        return Judgement(_PROJECTIONS, measured, dtype_name(output.dtype), len(rows["q"]))
    return judge_dtypes(_PROJECTIONS, output.dtype, measured, exact, len(rows["q"]))


def _measure_projections(
    shell: Any,
    pairs: dict[str, tuple[Tensor, Tensor]],
    operated: Tensor,
    output: Tensor,
    rows: dict[str, Array],
) -> Measurement:
    """Measure the worst deviation of the projections in `pairs` and of the output projection."""
    weights = np.split(as_array(shell.in_proj_weight), len(shell.projected))
    biases: list[Any] = [0.0] * len(weights)
    if shell.in_proj_bias is not None:
        biases = np.split(as_array(shell.in_proj_bias), len(weights))
    parts = [
        (as_array(x)[rows[name]], W, b, as_array(y)[:, rows[name]].transpose(1, 0, 2))
        for (name, (x, y)), W, b in zip(pairs.items(), weights, biases, strict=True)
    ]
    bias = 0.0 if shell.out_proj.bias is None else as_array(shell.out_proj.bias)
    joined = as_array(operated)[:, rows["q"]].transpose(1, 0, 2).reshape(len(rows["q"]), -1)
    outputs = as_array(output)[rows["q"]][:, None]
    parts.append((joined, as_array(shell.out_proj.weight), bias, outputs))
    return worst([_compare_linear_map(*part, output.dtype) for part in parts])


def _compare_linear_map(x: Array, W: Array, b: Any, y: Array, dtype: torch.dtype) -> Measurement:
    """Compare y with ``x W^T + b``."""
    tolerance = tolerance_in(dtype, 1e-10)
    return measure_difference(
        y.reshape(len(x), -1),
        x @ W.T + b,
        tolerance=tolerance,
        rounding=32 * torch.finfo(dtype).eps,
        summed=lambda: np.abs(x) @ np.abs(W).T + np.abs(b),
    )
