"""The problem that a trained layer effectively solves."""

import copy
import itertools
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike
from scipy import optimize
from torch import Tensor, nn

from ..attention import Attention, Context, Operator, Positive
from .heads import Tensors, heads
from .parameters import head_value
from .registry import Array, Twin, general_first, twins_of
from .relations import layer_matrix
from .report import _as_tensor, _check_tokens, _coefficients, _n_heads, _reset

# A grid over six decades finds the valley, the simplex method its bottom.
_DECADES, _GRID = 6.0, 13


@dataclass(frozen=True)
class Origin:
    """The solved problem of a family that is nearest to given coefficients.

    Attributes
    ----------
    family, twin : str
        File and twin that say what is solved.
    parameters : dict of str to tuple of float
        The fitted parameters, a value for each head.
    distance : float
        ``|C - C*|_F / |C|_F`` at these, the mean over heads: what no choice of them explains.
    initial_distance : float
        The same at the initial parameters of the layer.
    """

    family: str
    twin: str
    parameters: dict[str, tuple[float, ...]]
    distance: float
    initial_distance: float


def fit_origin(
    source: Any,
    X: ArrayLike | Tensor,
    *,
    problem: nn.Module | None = None,
    context: Context | None = None,
) -> Origin:
    """Find the problem parameters that a layer effectively solves, and the distance left.

    ::

        min_theta  |C - C*(theta)|_F / |C|_F        head by head, over the logarithm of theta

    with C the layer's coefficients on its own queries and keys, and C* those that the solver of its
    twin finds at bandwidth or penalty theta. Of an iterative layer they are the optimum, which
    depends on no step length or number of iterations.

    Parameters
    ----------
    source : layer or coefficients
        An `Operator`, trained or not, which gets ``q = k = X`` in each head; an `Attention` shell,
        whose operator gets the projections of X; or, where `problem` is given, anything that
        `compare` takes, with coefficients of shape (n_tokens, n_tokens).
    X : array-like or Tensor of shape (n_tokens, dim)
    problem : Operator, optional
        The family to fit, at its initial parameters, and the settings that are not fitted, such as
        ``SparseCoding(0.1, zero_diagonal=True)``. By default the layer itself. Given, its
        problem is posed on ``q = k = X``.
    context : Context, optional
        What `source` needs beside its tokens, where `problem` is given; as in `check`.

    Returns
    -------
    Origin

    Raises
    ------
    LookupError
        If no twin of the layer, or of `problem`, says what is fitted.
    ValueError
        If X has the wrong shape or holds NaN or infinity, or the coefficients do, or coefficients
        come without `problem`.

    Examples
    --------
    >>> import numpy as np
    >>> import twinsolve
    >>> from twinsolve.solvers import least_squares_self_expression
    >>> from twinsolve.unrolled import Ridge
    >>> X = np.random.default_rng(0).standard_normal((20, 5))
    >>> C = least_squares_self_expression(X, lam=3.0)
    >>> origin = twinsolve.fit_origin(C, X, problem=Ridge(1.0))
    >>> round(origin.parameters["lam"][0], 4)
    3.0
    """
    layer = source if problem is None else problem
    if not isinstance(layer, Operator | Attention):
        raise ValueError(
            "problem: coefficients need a layer whose problem is fitted, such as "
            f"SparseCoding(0.1), got {type(layer).__name__}"
        )
    layer = copy.deepcopy(layer).cpu().double().eval()
    data = _as_tensor(layer, X).double()
    subject, inputs = _queries_and_keys(layer, data)
    twin = _fitted_twin(subject, same_points=subject is layer)
    if problem is None:
        targets = layer_matrix(twin, subject, *inputs)
    else:
        found = _coefficients(source, data.numpy(), context)
        targets = np.broadcast_to(found, (len(inputs[0]), *found.shape))
    if not np.isfinite(targets).all():
        raise ValueError("coefficients: must not hold NaN or infinity")
    initial = copy.deepcopy(subject)
    _reset(initial)
    fits = [
        _fit_head(twin, initial, target, q, k, head)
        for target, (head, (q, k)) in zip(targets, heads(inputs), strict=True)
    ]
    values, distances, before = zip(*fits, strict=True)
    return Origin(
        twin.family,
        twin.name,
        dict(zip(twin.fitted, zip(*values, strict=True), strict=True)),
        float(np.mean(distances)),
        float(np.mean(before)),
    )


def _queries_and_keys(layer: nn.Module, data: Tensor) -> tuple[nn.Module, Tensors]:
    _check_tokens(data, layer)
    if isinstance(layer, Attention):
        with torch.no_grad():
            q, k, _ = layer.project(data[None], data[None], data[None])
        return layer.operator, (q[0], k[0])
    tokens = data.expand(_n_heads(layer), -1, -1)
    return layer, (tokens, tokens)


def _fitted_twin(layer: nn.Module, same_points: bool) -> Twin:
    twins = twins_of(layer)
    for twin in twins if same_points else general_first(twins):
        if twin.fitted:
            return twin
    raise LookupError(f"no twin of {type(layer).__name__} says which parameters are fitted")


def _fit_head(
    twin: Twin, layer: nn.Module, target: Array, q: Array, k: Array, head: int
) -> tuple[tuple[float, ...], float, float]:
    """Fitted parameters, the distance at them and that at the initial ones."""
    start = np.log([_initial(layer, name, head) for name in twin.fitted])
    scale = float(np.linalg.norm(target)) or 1.0

    def distance(logs: Array) -> float:
        changed = _at(twin, layer, np.exp(logs))
        return float(np.linalg.norm(target - _solved(twin, changed, q, k, head)) / scale)

    steps = np.linspace(-_DECADES / 2, _DECADES / 2, _GRID) * np.log(10)
    points = [start + np.array(step) for step in itertools.product(steps, repeat=len(start))]
    nearest = min(points, key=distance)
    edges = np.diff(steps)[0] / 2 * np.eye(len(start))
    found = optimize.minimize(
        distance,
        nearest,
        method="Nelder-Mead",
        options={
            "initial_simplex": np.vstack([nearest, nearest + edges]),
            "xatol": 1e-7,
            "fatol": 1e-12,
        },
    )
    return tuple(np.exp(found.x).tolist()), float(found.fun), distance(start)


def _initial(layer: nn.Module, name: str, head: int) -> float:
    parameter = getattr(layer, name)
    if not isinstance(parameter, Positive | nn.ModuleList):
        raise ValueError(f"{name}: must be given to {type(layer).__name__} to be fitted")
    return head_value(parameter, head)


def _at(twin: Twin, layer: nn.Module, values: Array) -> nn.Module:
    changed = copy.deepcopy(layer)
    for name, value in zip(twin.fitted, values, strict=True):
        setattr(changed, name, Positive(float(value), name=name))
    return changed


def _solved(twin: Twin, layer: nn.Module, q: Array, k: Array, head: int) -> Array:
    if twin.problem is not None:
        return twin.problem(layer, q, k, head=head).coef
    return twin.solve(layer, q, k, np.eye(len(k)), head=head)
