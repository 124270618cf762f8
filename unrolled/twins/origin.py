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
from ..self_expression import UnrolledADMM, UnrolledSelfExpression
from .heads import HeadCall, Tensors, as_array, heads
from .parameters import head_value
from .registry import Array, Twin, general_first, twins_of
from .relations import layer_matrix
from .report import _as_tensor, _check_tokens, _coefficients, _n_heads, _reset

# A grid over six decades finds the valley, the simplex method its bottom.
_DECADES, _GRID = 6.0, 13
_NOTHING = 1e-6


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
    baseline : float
        The same of the nearest matrix that knows nothing of the tokens, ``a I + b 1 1^T`` (for
        images, codes: of the nearest multiple of the image, of zeros).
    """

    family: str
    twin: str
    parameters: dict[str, tuple[float, ...]]
    distance: float
    initial_distance: float
    baseline: float

    @property
    def fits(self) -> bool:
        """Whether a problem of the family explains the coefficients.

        That is, whether the fit leaves less than half of what the baseline leaves, or next to
        nothing (1e-6).
        """
        return self.distance <= max(self.baseline / 2, _NOTHING)

    def __str__(self) -> str:
        fitted = ", ".join(
            f"{name} = {', '.join(f'{value:.4g}' for value in values)}"
            for name, values in self.parameters.items()
        )
        verdict = "" if self.fits else "NO problem of this family fits: "
        return (
            f"{self.twin}: {verdict}nearest at {fitted}, distance {self.distance:.3g} "
            f"(at the initial parameters {self.initial_distance:.3g}, without any problem "
            f"{self.baseline:.3g})"
        )


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
        whose operator gets the projections of X; an `UnrolledADMM` or `UnrolledSelfExpression`; or,
        where `problem` is given, anything that
        `compare` takes, with coefficients of shape (n_tokens, n_tokens).
    X : array-like or Tensor of shape (n_tokens, dim)
    problem : Operator, optional
        The family to fit, at its initial parameters, and the settings that are not fitted, such as
        ``SparseCoding(0.1, zero_diagonal=True)``. By default the layer itself. Given, its
        problem is posed on ``q = k = X``.
    context : Context, optional
        What `source` needs beside its tokens, where `problem` is given; as in `check`.

    Notes
    -----
    Fitted are bandwidths of `Gaussian`, `Kernel`, `SpatialGaussian` and `Bilateral` without
    positions, slopes of `ALiBi`, and penalties of `Ridge`, `LowRank`, `SparseCoding` (solved, too),
    `UnrolledADMM` and `UnrolledSelfExpression`. Steps and thresholds change no optimum; bandwidths
    of positions and pulls to first values need these; networks, codes in a dictionary and image
    layers have no coefficients among their tokens.

    Returns
    -------
    Origin
        Its `fits` says whether a problem of the family explains the coefficients at all: some
        parameters are nearest in any case.

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
    >>> origin.fits, twinsolve.fit_origin(-C, X, problem=Ridge(1.0)).fits
    (True, False)
    """
    layer = source if problem is None else problem
    if not isinstance(layer, Operator | Attention | UnrolledADMM | UnrolledSelfExpression):
        raise ValueError(
            "problem: coefficients need a layer whose problem is fitted, such as "
            f"SparseCoding(0.1), got {type(layer).__name__}"
        )
    layer = copy.deepcopy(layer).cpu().double().eval()
    data = _as_tensor(layer, X).double()
    subject, inputs = _queries_and_keys(layer, data)
    twin = _fitted_twin(subject, same_points=subject is layer)
    if problem is None:
        targets = _layer_matrix(twin, subject, inputs)
    else:
        found = _coefficients(source, data.numpy(), context)
        targets = np.broadcast_to(found, (len(inputs[0]), *found.shape))
    if not np.isfinite(targets).all():
        raise ValueError("coefficients: must not hold NaN or infinity")
    initial = copy.deepcopy(subject)
    _reset(initial)
    fits = [
        _fit_head(twin, initial, target, HeadCall(q, k, np.eye(len(k)), head))
        for target, (head, (q, k)) in zip(targets, heads(inputs), strict=True)
    ]
    values, distances, before = zip(*fits, strict=True)
    return Origin(
        twin.family,
        twin.name,
        dict(zip(twin.fitted, zip(*values, strict=True), strict=True)),
        float(np.mean(distances)),
        float(np.mean(before)),
        float(np.mean([_baseline(target) for target in targets])),
    )


def _queries_and_keys(layer: nn.Module, data: Tensor) -> tuple[nn.Module, Tensors]:
    _check_tokens(data, layer)
    if isinstance(layer, Attention):
        with torch.no_grad():
            q, k, _ = layer.project(data[None], data[None], data[None])
        return layer.operator, (q[0], k[0])
    tokens = data.expand(_n_heads(layer), -1, -1)
    return layer, (tokens, tokens)


def _baseline(target: Array) -> float:
    """Relative distance of the nearest ``a I + b 1 1^T``."""
    scale = float(np.linalg.norm(target))
    if scale == 0:
        return 0.0
    parts = np.stack([np.eye(*target.shape).ravel(), np.ones(target.size)], axis=1)
    nearest = parts @ np.linalg.lstsq(parts, target.ravel(), rcond=None)[0]
    return float(np.linalg.norm(target.ravel() - nearest)) / scale


def _fitted_twin(layer: nn.Module, same_points: bool) -> Twin:
    twins = twins_of(layer)
    for twin in twins if same_points else general_first(twins):
        if twin.fitted:
            return twin
    raise LookupError(f"no twin of {type(layer).__name__} says which parameters are fitted")


def _fit_head(
    twin: Twin, layer: nn.Module, target: Array, call: HeadCall
) -> tuple[tuple[float, ...], float, float]:
    """Fitted parameters, the distance at them and that at the initial ones."""
    start = np.log([_initial(layer, name, call.head) for name in twin.fitted])
    scale = float(np.linalg.norm(target)) or 1.0

    def distance(logs: Array) -> float:
        changed = _at(twin, layer, np.exp(logs))
        return float(np.linalg.norm(target - _solved(twin, changed, call)) / scale)

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


def _layer_matrix(twin: Twin, layer: Any, inputs: Tensors) -> Array:
    """Coefficients; of a layer that is not linear in its values by `matrix`."""
    if isinstance(layer, Operator) and not layer.linear_in_values:
        with torch.no_grad():
            return as_array(layer.matrix(*inputs))
    return layer_matrix(twin, layer, *inputs)


def _owner(layer: Any, name: str) -> tuple[Any, str]:
    """The module that holds a parameter of a dotted name, and its last part."""
    *path, last = name.split(".")
    for part in path:
        layer = getattr(layer, part)
    return layer, last


def _initial(layer: nn.Module, name: str, head: int) -> float:
    owner, last = _owner(layer, name)
    parameter = getattr(owner, last)
    if not isinstance(parameter, Positive | nn.ModuleList):
        raise ValueError(f"{name}: must be given to {type(owner).__name__} to be fitted")
    return head_value(parameter, head)


def _at(twin: Twin, layer: nn.Module, values: Array) -> nn.Module:
    changed = copy.deepcopy(layer)
    for name, value in zip(twin.fitted, values, strict=True):
        owner, last = _owner(changed, name)
        made: nn.Module = Positive(float(value), name=name)
        if isinstance(getattr(owner, last), nn.ModuleList):
            made = nn.ModuleList([made])
        setattr(owner, last, made)
    return changed


def _solved(twin: Twin, layer: nn.Module, call: HeadCall) -> Array:
    return twin.solve(layer, call) if twin.problem is None else twin.problem(layer, call).coef
