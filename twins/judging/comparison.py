"""Comparisons of coefficients from any two sources."""

import copy
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike
from scipy.sparse import issparse
from torch import Tensor, nn

from ...solvers import Solution
from ...solvers.inputs import as_numbers
from ...solvers.metrics import coefficient_distance, relative_residual
from ...unrolled.attention import Attention, Context, Operator
from ...unrolled.generators import kept_generators
from ...unrolled.integrations import replace_attention
from ...unrolled.integrations.replacements import FusedProjectionAttention
from ...unrolled.self_expression import (
    DeepSelfExpression,
    SelfExpressiveNetwork,
    UnrolledADMM,
    UnrolledSelfExpression,
)
from ...unrolled.sparse_coding import LISTA
from ..heads import Array
from ..laws.subject import as_array, map_tensors
from .tokens import Shell, as_dense, count_heads, project_tokens

_ADVICE = (
    "; instead of a whole model pass one of its attention modules, or for a model of Hugging Face "
    "the weights of one head: model(..., output_attentions=True).attentions[layer][0, head]"
)
_Coder = LISTA | UnrolledADMM | UnrolledSelfExpression | DeepSelfExpression | SelfExpressiveNetwork


@kept_generators()
def compare(
    first: Any,
    second: Any,
    X: ArrayLike | Tensor,
    *,
    keys: ArrayLike | Tensor | None = None,
    objective: Callable[[Array], float] | None = None,
    context: Context | None = None,
) -> dict[str, float]:
    """Compare the coefficients of two sources on the same tokens, such as learned and solved ones.

    Parameters
    ----------
    first, second : layer, callable, Solution, array-like or sparse array
        Sources of coefficients of shape (n_tokens, n_keys); the second is the reference. A source
        is one of these:

        - an `Operator`, an `Attention` shell, ``nn.MultiheadAttention`` or another module that
          `replace_attention` puts in or can replace: its matrix, averaged over heads
        - a `LISTA`: its codes
        - an `UnrolledADMM`, `UnrolledSelfExpression`, `DeepSelfExpression` or
          `SelfExpressiveNetwork`: its coefficients
        - a function of X, or of X and `keys` if these are given, that returns a `Solution` or
          coefficients
        - a `Solution` or the coefficients themselves
    X : array-like or Tensor of shape (n_tokens, dim)
        Queries, which the coefficients express in the keys.
    keys : array-like or Tensor of shape (n_keys, dim), optional
        By default the dictionary of a `LISTA` if one of the two sources is one, and else X.
    objective : callable, optional
        The objective F, a number for coefficients, such as
        ``lambda C: lasso_objective(X, X, C, lam=lam).sum()``.
    context : Context, optional
        What a layer needs beside its tokens; as in `check`.

    Returns
    -------
    dict
        ``distance``, ``cosine``, ``support_precision``, ``support_recall``, ``support_f1`` (see
        `coefficient_distance`), ``residual`` and ``residual_reference`` (``|X - C keys| / |X|``),
        and with an objective ``gap = (F(C) - F(C_ref)) / |X|_F^2``, negative if the first source
        is better.

    Raises
    ------
    ValueError
        If shapes do not fit or an entry is not finite.
    TypeError
        If `first` or `second` is no source of coefficients.

    References
    ----------
    EQUATIONS ME-4.

    Examples
    --------
    >>> import numpy as np
    >>> import twinsolve
    >>> from twinsolve.solvers import sparse_code, sparse_self_expression
    >>> from twinsolve.unrolled import LISTA, SparseCoding
    >>> X = np.random.default_rng(0).standard_normal((20, 5))
    >>> layer = SparseCoding(1.0, n_iter=5000, zero_diagonal=True)
    >>> numbers = twinsolve.compare(layer, lambda X: sparse_self_expression(X, lam=1.0), X)
    >>> numbers["distance"] < 1e-3
    True

    >>> atoms = np.random.default_rng(1).standard_normal((8, 5))
    >>> layer = LISTA(atoms, 3000, 1.0)
    >>> twinsolve.compare(layer, sparse_code(X, atoms, lam=1.0), X)["distance"] < 1e-3
    True
    """
    tokens = _to_array(X)
    own_keys = None if keys is None else _to_array(keys)
    points = next((as_array(x.dictionary) for x in (first, second) if isinstance(x, LISTA)), tokens)
    points = points if own_keys is None else own_keys
    if tokens.ndim != 2 or points.ndim != 2 or tokens.shape[1] != points.shape[1]:
        raise ValueError(
            "keys: X and keys must have the shapes (n_tokens, dim) and (n_keys, dim), got "
            f"{tokens.shape} and {points.shape}"
        )
    C, reference = (
        coefficients_of(source, tokens, context, keys=own_keys, n_keys=len(points))
        for source in (first, second)
    )
    numbers = coefficient_distance(C, reference)
    numbers["residual"] = relative_residual(C, points, tokens)
    numbers["residual_reference"] = relative_residual(reference, points, tokens)
    if objective is not None:
        numbers["gap"] = float((objective(C) - objective(reference)) / (tokens**2).sum())
    return numbers


def replace_with_operator(source: Any) -> Any:
    """Apply `replace_attention` to attention of PyTorch or timm; return other sources unchanged."""
    if not isinstance(source, nn.Module) or not hasattr(source, "num_heads"):
        return source
    if isinstance(source, Operator | Shell | _Coder):
        return source
    with warnings.catch_warnings():  # about dropout, which does not affect the coefficients
        warnings.simplefilter("ignore")
        try:
            replaced = replace_attention(copy.deepcopy(source), "softmax")
        except ValueError:
            return source
    return replaced if isinstance(replaced, Shell) else source


def coefficients_of(
    source: Any,
    tokens: Array,
    context: Context | None = None,
    *,
    keys: Array | None = None,
    n_keys: int | None = None,
) -> Array:
    """Return the coefficients of a source, after a check of their shape."""
    source = replace_with_operator(source)
    if isinstance(source, Operator | Shell | _Coder):
        layer: Any = copy.deepcopy(source).cpu().double().eval()
        source = _evaluate_layer(layer, tokens, keys, context)
    elif callable(source) and not isinstance(source, nn.Module):
        source = source(tokens) if keys is None else source(tokens, keys)
    if isinstance(source, Solution):
        source = source.coef
    if isinstance(source, Tensor):
        source = _as_numpy(source)
    coefficients = source.toarray() if issparse(source) else np.asarray(source)
    if coefficients.dtype.kind not in "bifu":
        raise TypeError(
            "coefficients: must come from a layer, a function of X, a Solution or an array, got "
            f"{type(source).__name__}{_ADVICE if isinstance(source, nn.Module) else ''}"
        )
    shape = len(tokens), len(tokens) if n_keys is None else n_keys
    if coefficients.shape != shape:
        raise ValueError(f"coefficients: must have shape {shape}, got {coefficients.shape}")
    return coefficients.astype(np.float64)


def _evaluate_layer(layer: Any, tokens: Array, keys: Array | None, context: Context | None) -> Any:
    """Return the coefficients of a layer on tokens."""
    data = torch.from_numpy(tokens)
    key_points = None if keys is None else torch.from_numpy(keys)
    if context is not None:
        context = map_tensors(context, lambda name, x: x.double())
    with torch.no_grad():
        if isinstance(layer, LISTA):
            if keys is not None and not np.array_equal(keys, as_array(layer.dictionary)):
                raise ValueError("keys: must be None for a LISTA, whose keys are its dictionary")
            return layer(data)
        if isinstance(layer, SelfExpressiveNetwork):
            return layer.coefficients(data, key_points)
        if isinstance(layer, _Coder):
            return layer(data, key_points)
        points = data if key_points is None else key_points
        if isinstance(layer, FusedProjectionAttention):
            q, k = project_tokens(layer, data)[0], project_tokens(layer, points)[1]
            return layer.operator.matrix(q, k, context=context).mean(dim=0).numpy()
        if isinstance(layer, Attention):
            q, k = data[None], points[None]
            k, layer.batch_first = q if key_points is None else k, True
            return layer(q, k, k, context=context)[1][0].numpy()
        q, k = (x.expand(count_heads(layer), -1, -1) for x in (data, points))
        return layer.matrix(q, k, context=context).mean(dim=0).numpy()


def _as_numpy(x: Tensor) -> Array:
    """Return a dense array; NumPy has no bfloat16."""
    dense = as_dense(x, "x")
    return (dense.double() if dense.is_floating_point() else dense).numpy()


def _to_array(X: ArrayLike | Tensor) -> Array:
    given = _as_numpy(X) if isinstance(X, Tensor) else X
    data = np.array(as_numbers(given, "X", np.float64))
    if not np.isfinite(data).all() or not data.size:
        raise ValueError("X: must have at least one token, and neither NaN nor infinity")
    return data
