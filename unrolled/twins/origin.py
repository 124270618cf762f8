"""The problem that a trained layer effectively solves."""

import copy
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike
from scipy import optimize
from torch import Tensor, nn

from ..attention import Attention, Context, Operator, Positive
from ..kernel_smoothing import Gaussian, Kernel, Softmax
from ..laws.subject import as_array, map_tensors
from ..self_expression import LowRank, Ridge, UnrolledADMM, UnrolledSelfExpression
from ..sparse_coding import SparseCoding
from .heads import Array, HeadCall, Tensors, head_value, heads
from .pairs import layer_matrix
from .registry import Twin, sort_general_first, twins_of
from .report import (
    Shell,
    as_tensor,
    check_tokens,
    coefficients_of,
    count_heads,
    project_tokens,
    replace_with_operator,
    reset_parameters,
)

# A grid over six decades finds the valley, the simplex method its bottom.
_DECADES, _GRID = 6.0, 13
_NOTHING = 1e-6

_Layer = Operator | Shell | UnrolledADMM | UnrolledSelfExpression
_Family = tuple[Twin, nn.Module]


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
    at_edge : tuple of str
        Parameters that are not determined in some head: an end of the search, three decades from
        the initial value, is as near as any value in it.
    others : tuple of Origin
        Of the other families that were tried, nearest first.
    """

    family: str
    twin: str
    parameters: dict[str, tuple[float, ...]]
    distance: float
    initial_distance: float
    baseline: float
    at_edge: tuple[str, ...] = ()
    others: tuple["Origin", ...] = ()

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
        said = (
            f"{self.twin}: {verdict}nearest at {fitted}, distance {self.distance:.3g} "
            f"(at the initial parameters {self.initial_distance:.3g}, without any problem "
            f"{self.baseline:.3g})"
        )
        for name in self.at_edge:
            said += f"; {name} is NOT DETERMINED: an end of the search is as near as any value"
        return "\n".join([said, *(str(other) for other in self.others)])


def fit_origin(
    source: Any,
    X: ArrayLike | Tensor,
    *,
    problem: nn.Module | Sequence[nn.Module] | None = None,
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
        An `Operator`, trained or not, which gets ``q = k = X`` in each head; an `Attention` shell
        or a module that `replace_attention` put in or could, such as ``nn.MultiheadAttention``,
        whose operator gets the projections of X; an `UnrolledADMM` or `UnrolledSelfExpression`; or
        anything that `compare` takes, with coefficients of shape (n_tokens, n_tokens).
    X : array-like or Tensor of shape (n_tokens, dim)
    problem : Operator or sequence of Operator, optional
        The family to fit, at its initial parameters, and the settings that are not fitted, such as
        ``SparseCoding(0.1, zero_diagonal=True)``; of several, the nearest is returned, and the
        others are its `others`. Given, problems are posed on ``q = k = X``. By default it is the
        layer itself; where that says nothing of what it solves, as coefficients and layers such as
        `Twicing` do, `Gaussian`, `Softmax`, the Laplacian `Kernel`, `Ridge`, `LowRank` and
        `SparseCoding` are ranked, the last two of them with zero diagonals too where queries are
        the keys.
    context : Context, optional
        What `source` needs beside its tokens, where it is not fitted itself; as in `check`.

    Notes
    -----
    Fitted are bandwidths of `Gaussian`, `Kernel`, `SpatialGaussian` and `Bilateral` without
    positions, the scale of `Softmax`, slopes of `ALiBi`, and penalties of `Ridge`, `LowRank`,
    `SparseCoding` (solved, too), `UnrolledADMM` and `UnrolledSelfExpression`. Steps and thresholds
    change no optimum; bandwidths of positions and pulls to first values need these; networks, codes
    in a dictionary and image layers have no coefficients among their tokens.

    Returns
    -------
    Origin
        Its `fits` says whether a problem of the family explains the coefficients at all: some
        parameters are nearest in any case. Its `at_edge` names those that could be anything beyond
        an end of the search, such as the bandwidth of constant coefficients.

    Raises
    ------
    LookupError
        If no twin of `problem` says what is fitted.
    ValueError
        If X has the wrong shape or holds NaN or infinity, or the coefficients do.

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
    >>> twinsolve.fit_origin(C, X).twin
    'ridge-self-expression'
    """
    source = replace_with_operator(source)
    if isinstance(source, _Layer) and problem is None:
        found = list(_origins_of_layer(source, X, context))
    else:
        found = list(_origins_of_coefficients(source, X, problem, context))
    nearest, *others = sorted(found, key=lambda origin: origin.distance)
    return replace(nearest, others=tuple(others))


def _origins_of_layer(source: Any, X: Any, context: Context | None) -> Iterator[Origin]:
    """On the layer's own queries and keys, of its own family if it has one."""
    layer = copy.deepcopy(source).cpu().double().eval()
    data = as_tensor(layer, X).double()
    subject, inputs = _queries_and_keys(layer, data)
    own = _fitted_twin(subject, same_points=subject is layer)
    if own is not None:
        yield _fit_heads(own, subject, inputs, _layer_matrix(own, subject, inputs))
        return
    targets = _operator_matrix(layer, subject, data, inputs, context)
    for twin, problem in _list_families(inputs):
        yield _fit_heads(twin, problem, inputs, targets)


def _origins_of_coefficients(
    source: Any, X: Any, problem: Any, context: Context | None
) -> Iterator[Origin]:
    data = as_tensor(nn.Identity(), X).double()
    check_tokens(data, nn.Identity())
    target = coefficients_of(source, data.numpy(), context)
    if problem is None:
        for twin, layer in _list_families((data[None], data[None])):
            yield _fit_heads(twin, layer, (data[None], data[None]), target[None])
        return
    problems = problem if isinstance(problem, Sequence) else [problem]
    if not problems:
        raise ValueError("problem: no layer was given whose problem is fitted")
    for given in problems:
        if not isinstance(given, _Layer):
            raise ValueError(
                "problem: must be a layer whose problem is fitted, such as SparseCoding(0.1), or "
                f"several, got {type(given).__name__}"
            )
        layer = copy.deepcopy(given).cpu().double().eval()
        subject, inputs = _queries_and_keys(layer, data)
        family = _fitted_twin(subject, same_points=subject is layer)
        if family is None:
            raise LookupError(
                f"no twin of {type(subject).__name__} says which parameters are fitted"
            )
        yield _fit_heads(
            family, subject, inputs, np.broadcast_to(target, (len(inputs[0]), *target.shape))
        )


def _list_families(inputs: Tensors) -> Iterator[_Family]:
    """The problems that are ranked, at parameters of the tokens' scale."""
    q, k = inputs
    square = float((q.square().sum(dim=-1).mean() + k.square().sum(dim=-1).mean()) / 2) or 1.0
    same = q.shape == k.shape and bool((q == k).all())
    problems: list[Operator] = [
        Gaussian(square**0.5),
        Softmax(1 / square),
        Kernel("laplace", square**0.5),
        Ridge(square),
        LowRank(square),
        SparseCoding(0.1 * square),
    ]
    if same:
        problems += [
            Ridge(square, zero_diagonal=True),
            SparseCoding(0.1 * square, zero_diagonal=True),
        ]
    for problem in problems:
        twin = _fitted_twin(problem, same_points=same)
        assert twin is not None
        yield twin, problem.double()


def _fit_heads(twin: Twin, subject: nn.Module, inputs: Tensors, targets: Array) -> Origin:
    if not np.isfinite(targets).all():
        raise ValueError("coefficients: must not hold NaN or infinity")
    initial = copy.deepcopy(subject)
    reset_parameters(initial)
    fits = [
        _fit_head(twin, initial, target, HeadCall(q, k, np.eye(len(k)), head))
        for target, (head, (q, k)) in zip(targets, heads(inputs), strict=True)
    ]
    values, distances, before, edges = zip(*fits, strict=True)
    return Origin(
        twin.family,
        twin.name,
        dict(zip(twin.fitted, zip(*values, strict=True), strict=True)),
        float(np.mean(distances)),
        float(np.mean(before)),
        float(np.mean([_baseline_distance(target) for target in targets])),
        tuple(name for name in twin.fitted if any(name in found for found in edges)),
    )


def _queries_and_keys(layer: nn.Module, data: Tensor) -> tuple[nn.Module, Tensors]:
    if isinstance(layer, Shell):
        return layer.operator, project_tokens(layer, data)[:2]
    check_tokens(data, layer)
    tokens = data.expand(count_heads(layer), -1, -1)
    return layer, (tokens, tokens)


def _baseline_distance(target: Array) -> float:
    """Relative distance of the nearest ``a I + b 1 1^T``."""
    scale = float(np.linalg.norm(target))
    if scale == 0:
        return 0.0
    parts = np.stack([np.eye(*target.shape).ravel(), np.ones(target.size)], axis=1)
    nearest = parts @ np.linalg.lstsq(parts, target.ravel(), rcond=None)[0]
    return float(np.linalg.norm(target.ravel() - nearest)) / scale


def _fitted_twin(layer: nn.Module, same_points: bool) -> Twin | None:
    try:
        twins = twins_of(layer)
    except LookupError:
        return None
    return next(
        (t for t in (twins if same_points else sort_general_first(twins)) if t.fitted), None
    )


def _fit_head(
    twin: Twin, layer: nn.Module, target: Array, call: HeadCall
) -> tuple[tuple[float, ...], float, float, list[str]]:
    """Fitted parameters, the distance at them, that at the initial ones, and which are at an edge.

    A parameter is if an end of the search is as near as the nearest point in it.
    """
    start = np.log(
        [_initial_value(twin, layer, name, call.head, call.q.shape[-1]) for name in twin.fitted]
    )
    scale = float(np.linalg.norm(target)) or 1.0

    def distance(logs: Array) -> float:
        changed = _set_parameters(twin, layer, np.exp(logs))
        return float(np.linalg.norm(target - _solve_coefficients(twin, changed, call)) / scale)

    reach = _DECADES / 2 * np.log(10)
    steps = np.linspace(-reach, reach, _GRID)
    offsets = np.array(list(itertools.product(steps, repeat=len(start))))
    grid = np.array([distance(start + offset) for offset in offsets])
    nearest = offsets[grid.argmin()]
    inwards = np.where(nearest > 0, -1, 1) * np.diff(steps)[0] / 2
    found = optimize.minimize(
        distance,
        start + nearest,
        method="Nelder-Mead",
        bounds=[(x - reach, x + reach) for x in start],
        options={
            "initial_simplex": start + np.vstack([nearest, nearest + np.diag(inwards)]),
            "xatol": 1e-7,
            "fatol": 1e-12,
        },
    )
    ends = [grid[np.abs(of_one) > reach * (1 - _NOTHING)].min() for of_one in offsets.T]
    undetermined = [
        name for name, end in zip(twin.fitted, ends, strict=True) if end <= found.fun + _NOTHING
    ]
    return tuple(np.exp(found.x).tolist()), float(found.fun), distance(start), undetermined


def _operator_matrix(
    layer: nn.Module, subject: Any, data: Tensor, inputs: Tensors, context: Context | None
) -> Array:
    """Coefficients of an operator without a family of its own, by head."""
    if context is not None:
        context = map_tensors(context, lambda name, x: x.detach().cpu().double())
        if isinstance(layer, Attention):
            context = layer.fill(context, data, project_tokens(layer, data)[2])
    with torch.no_grad():
        return as_array(subject.matrix(*inputs, context=context))


def _layer_matrix(twin: Twin, layer: Any, inputs: Tensors) -> Array:
    """Coefficients; of a layer that is not linear in its values by `matrix`."""
    if isinstance(layer, Operator) and not layer.linear_in_values:
        with torch.no_grad():
            return as_array(layer.matrix(*inputs))
    return layer_matrix(twin, layer, *inputs)


def _find_owner(layer: Any, name: str) -> tuple[Any, str]:
    """The module that holds a parameter of a dotted name, and its last part."""
    *path, last = name.split(".")
    for part in path:
        layer = getattr(layer, part)
    return layer, last


def _initial_value(twin: Twin, layer: nn.Module, name: str, head: int, head_dim: int) -> float:
    owner, last = _find_owner(layer, name)
    parameter = getattr(owner, last)
    default = twin.fitted[name]
    if parameter is None and default is not None:
        return default(head_dim)
    if isinstance(parameter, float):
        return parameter
    if not isinstance(parameter, Positive | nn.ModuleList):
        raise ValueError(f"{name}: must be given to {type(owner).__name__} to be fitted")
    return head_value(parameter, head)


def _set_parameters(twin: Twin, layer: nn.Module, values: Array) -> nn.Module:
    changed = copy.deepcopy(layer)
    for name, value in zip(twin.fitted, values, strict=True):
        owner, last = _find_owner(changed, name)
        made: Any = Positive(float(value), name=name)
        if isinstance(getattr(owner, last), nn.ModuleList):
            made = nn.ModuleList([made])
        elif isinstance(owner, Softmax):  # whose scale is a number
            made = float(value)
        setattr(owner, last, made)
    return changed


def _solve_coefficients(twin: Twin, layer: nn.Module, call: HeadCall) -> Array:
    problem = twin.relation.problem
    return twin.solve(layer, call) if problem is None else problem(layer, call).coef
