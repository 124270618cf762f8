"""The problem that a trained layer effectively solves."""

import copy
import itertools
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike
from scipy import optimize
from sklearn.exceptions import ConvergenceWarning
from torch import Tensor, nn

from ...solvers.notebook import html_cell, html_table, in_words
from ...unrolled.attention import Attention, Context, Operator, Positive
from ...unrolled.generators import kept_generators
from ...unrolled.kernel_smoothing import Gaussian, Kernel, Softmax
from ...unrolled.self_expression import LowRank, Ridge, UnrolledADMM, UnrolledSelfExpression
from ...unrolled.sparse_coding import SparseCoding
from ..heads import Array, HeadCall, Tensors, head_value, heads
from ..laws.subject import as_array, map_tensors
from ..pairs import layer_matrix
from ..registry import Twin, sort_general_first, twins_of
from .comparison import coefficients_of, replace_with_operator
from .layer_check import reset_parameters
from .tokens import Shell, as_tensor, check_tokens, count_heads, project_tokens

# A grid over six decades finds the region of the minimum, and the simplex method the minimum.
_DECADES, _GRID = 6.0, 13
_NEGLIGIBLE = 1e-6  # of a relative distance

_Layer = Operator | Shell | UnrolledADMM | UnrolledSelfExpression
_Family = tuple[Twin, nn.Module]


@dataclass(frozen=True)
class Origin:
    """The solved problem of a family that is nearest to given coefficients.

    Attributes
    ----------
    family, twin : str
        Names of the family and of the twin whose problem was solved.
    parameters : dict of str to tuple of float
        The fitted parameters, one value for each head.
    distance : float
        ``|C - C*|_F / |C|_F`` at these parameters, the mean over heads. No other parameters explain
        this remainder.
    initial_distance : float
        The distance at the initial parameters of the layer.
    baseline : float
        The distance of the nearest matrix that does not depend on the tokens, ``a I + b 1 1^T``.
    at_edge : tuple of str
        Parameters that are not determined in some head: an end of the search, three decades from
        the initial value, is as near as the best value found.
    others : tuple of Origin
        The origins in the other families that were tried, nearest first.
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

        This is so if the distance is at most half the baseline, or at most 1e-6.
        """
        return self.distance <= max(self.baseline / 2, _NEGLIGIBLE)

    def __str__(self) -> str:
        fitted = ", ".join(
            f"{name} = {', '.join(f'{value:.4g}' for value in values)}"
            for name, values in self.parameters.items()
        )
        verdict = "" if self.fits else "NO problem of this family fits: "
        line = (
            f"{self.twin}: {verdict}nearest at {fitted}, distance {self.distance:.3g} "
            f"(at the initial parameters {self.initial_distance:.3g}, without any problem "
            f"{self.baseline:.3g})"
        )
        for name in self.at_edge:
            line += f"; {name} is NOT DETERMINED: an end of the search is as near as any value"
        return "\n".join([line, *(str(other) for other in self.others)])

    def _repr_html_(self) -> str:
        headings = ("problem", "fits", "distance", "initially", "without any problem",
                    "parameters", "not determined")  # fmt: skip
        rows = [
            (
                each.twin,
                "yes" if each.fits else "no",
                each.distance,
                each.initial_distance,
                each.baseline,
                in_words({n: ", ".join(map(html_cell, v)) for n, v in each.parameters.items()}),
                ", ".join(each.at_edge),
            )
            for each in (self, *self.others)
        ]
        return html_table(headings, rows)


@kept_generators()
def fit_origin(
    source: Any,
    X: ArrayLike | Tensor,
    *,
    problem: nn.Module | Sequence[nn.Module] | None = None,
    context: Context | None = None,
) -> Origin:
    """Find the parameters of the problem that a layer effectively solves.

    ::

        min_theta  |C - C*(theta)|_F / |C|_F        head by head, over the logarithm of theta

    C are the layer's coefficients on its own queries and keys. C* are those of the solver of its
    twin at the bandwidth or penalty theta. For an iterative layer C* is the optimum, which does not
    depend on step lengths or the number of iterations.

    Parameters
    ----------
    source : layer or coefficients
        One of these:

        - an `Operator`, trained or not; it gets ``q = k = X`` in each head
        - an `Attention` shell, ``nn.MultiheadAttention`` or another module that `replace_attention`
          puts in or can replace; its operator gets the projections of X
        - an `UnrolledADMM` or `UnrolledSelfExpression`
        - anything else that `compare` takes, with coefficients of shape (n_tokens, n_tokens)
    X : array-like or Tensor of shape (n_tokens, dim)
    problem : Operator or sequence of Operator, optional
        The family to fit, such as ``SparseCoding(0.1, zero_diagonal=True)``: a layer at its initial
        parameters, with the settings that are not fitted. Its queries and keys are X. The nearest
        of several is returned, with the rest as its `others`. The default is the layer itself. If
        its problem is not known, as for coefficients and layers such as `Twicing`, the families
        `Gaussian`, `Softmax`, the Laplacian `Kernel`, `Ridge`, `LowRank` and `SparseCoding` are
        ranked; where the queries are the keys, `Ridge` and `SparseCoding` also with a zero
        diagonal.
    context : Context, optional
        What `source` needs beside its tokens if it is not fitted itself; as in `check`.

    Notes
    -----
    These parameters are fitted: bandwidths of `Gaussian`, `Kernel`, `SpatialGaussian` and
    `Bilateral` without positions; the scale of `Softmax`; slopes of `ALiBi`; penalties of `Ridge`,
    `LowRank`, `SparseCoding` (also inside `Solved`), `UnrolledADMM` and `UnrolledSelfExpression`.
    Steps and thresholds are not fitted, as they do not change the optimum. Bandwidths of positions
    and pulls to first values would need positions and first values. Networks, codes in a dictionary
    and image layers have no coefficients between their tokens.

    Returns
    -------
    Origin
        Some parameters are always the nearest: `fits` says whether they explain the coefficients.
        `at_edge` names parameters that may have any value beyond an end of the search, such as the
        bandwidth of constant coefficients.

    Raises
    ------
    LookupError
        If no twin of `problem` has fitted parameters.
    ValueError
        If X has the wrong shape or holds NaN or infinity, or the coefficients do.

    Warns
    -----
    sklearn.exceptions.ConvergenceWarning
        If the problem at the fitted or the initial parameters is not solved to its tolerance. What
        the search tries on its way does not count.

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
        origins = _origins_of_layer(source, X, context)
    else:
        origins = _origins_of_coefficients(source, X, problem, context)
    nearest, *others = sorted(origins, key=lambda origin: origin.distance)
    return replace(nearest, others=tuple(others))


def _origins_of_layer(source: Any, X: Any, context: Context | None) -> Iterator[Origin]:
    """Fit the layer's own family, or rank all families, on the layer's own queries and keys."""
    layer = copy.deepcopy(source).cpu().double().eval()
    data = as_tensor(layer, X).double()
    subject, inputs = _queries_and_keys(layer, data)
    fitted = _fitted_twin(subject, same_points=subject is layer)
    if fitted is not None:
        yield _fit_heads(fitted, subject, inputs, _layer_matrix(fitted, subject, inputs))
        return
    targets = _operator_matrix(layer, subject, data, inputs, context)
    for twin, problem in _list_families(inputs):
        yield _fit_heads(twin, problem, inputs, targets)


def _origins_of_coefficients(
    source: Any, X: Any, problem: Any, context: Context | None
) -> Iterator[Origin]:
    """Fit coefficients to the given problems, or to those of all families."""
    data = as_tensor(nn.Identity(), X).double()
    check_tokens(data, nn.Identity())
    target = coefficients_of(source, data.numpy(), context)
    if problem is None:
        for twin, layer in _list_families((data[None], data[None])):
            yield _fit_heads(twin, layer, (data[None], data[None]), target[None])
        return
    problems = problem if isinstance(problem, Sequence) else [problem]
    if not problems:
        raise ValueError("problem: must hold at least one layer")
    for posed in problems:
        if not isinstance(posed, _Layer):
            raise ValueError(
                "problem: must be a layer such as SparseCoding(0.1), or a sequence of layers, got "
                f"{type(posed).__name__}"
            )
        layer = copy.deepcopy(posed).cpu().double().eval()
        subject, inputs = _queries_and_keys(layer, data)
        family = _fitted_twin(subject, same_points=subject is layer)
        if family is None:
            raise LookupError(f"no twin of {type(subject).__name__} has parameters to fit")
        yield _fit_heads(
            family, subject, inputs, np.broadcast_to(target, (len(inputs[0]), *target.shape))
        )


def _list_families(inputs: Tensors) -> Iterator[_Family]:
    """Yield the families that are ranked, with initial parameters on the scale of the tokens."""
    q, k = inputs
    square = float((q.square().sum(dim=-1).mean() + k.square().sum(dim=-1).mean()) / 2) or 1.0
    same_points = q.shape == k.shape and bool((q == k).all())
    problems: list[Operator] = [
        Gaussian(square**0.5),
        Softmax(1 / square),
        Kernel("laplace", square**0.5),
        Ridge(square),
        LowRank(square),
        SparseCoding(0.1 * square),
    ]
    if same_points:
        problems += [
            Ridge(square, zero_diagonal=True),
            SparseCoding(0.1 * square, zero_diagonal=True),
        ]
    for problem in problems:
        twin = _fitted_twin(problem, same_points=same_points)
        assert twin is not None
        yield twin, problem.double()


def _fit_heads(twin: Twin, subject: nn.Module, inputs: Tensors, targets: Array) -> Origin:
    """Fit the parameters of all heads; return the origin."""
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
        tuple(name for name in twin.fitted if any(name in at_edge for at_edge in edges)),
    )


def _queries_and_keys(layer: nn.Module, data: Tensor) -> tuple[nn.Module, Tensors]:
    """Return the operator of a layer, and its queries and keys."""
    if isinstance(layer, Shell):
        return layer.operator, project_tokens(layer, data)[:2]
    check_tokens(data, layer)
    tokens = data.expand(count_heads(layer), -1, -1)
    return layer, (tokens, tokens)


def _baseline_distance(target: Array) -> float:
    """Return the relative distance of the nearest ``a I + b 1 1^T``."""
    scale = float(np.linalg.norm(target))
    if scale == 0:
        return 0.0
    parts = np.stack([np.eye(*target.shape).ravel(), np.ones(target.size)], axis=1)
    nearest = parts @ np.linalg.lstsq(parts, target.ravel(), rcond=None)[0]
    return float(np.linalg.norm(target.ravel() - nearest)) / scale


def _fitted_twin(layer: nn.Module, same_points: bool) -> Twin | None:
    """Return the layer's twin whose parameters can be fitted, or None."""
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
    """Fit one head.

    Returns the fitted parameters, the distance at them and at the initial ones, and the names of
    parameters that are at an edge: an end of the search is as near as the nearest point.
    """
    start = np.log(
        [_initial_value(twin, layer, name, call.head, call.q.shape[-1]) for name in twin.fitted]
    )
    scale = float(np.linalg.norm(target)) or 1.0
    changed = copy.deepcopy(layer)

    def distance(logs: Array) -> float:
        _set_parameters(twin, changed, np.exp(logs))
        return float(np.linalg.norm(target - _solve_coefficients(twin, changed, call)) / scale)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        nearest, ends = _search(distance, start)
    least = distance(nearest)
    at_edge = [
        name for name, end in zip(twin.fitted, ends, strict=True) if end <= least + _NEGLIGIBLE
    ]
    return tuple(np.exp(nearest).tolist()), least, distance(start), at_edge


def _search(distance: Callable[[Array], float], start: Array) -> tuple[Array, list[float]]:
    """Return the logarithms of the nearest parameters, and the distance at the ends of each."""
    reach = _DECADES / 2 * np.log(10)
    steps = np.linspace(-reach, reach, _GRID)
    offsets = np.array(list(itertools.product(steps, repeat=len(start))))
    grid = np.array([distance(start + offset) for offset in offsets])
    nearest = offsets[grid.argmin()]
    inwards = np.where(nearest > 0, -1, 1) * np.diff(steps)[0] / 2
    minimum = optimize.minimize(
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
    ends = [grid[np.abs(offset) > reach * (1 - _NEGLIGIBLE)].min() for offset in offsets.T]
    return minimum.x, ends


def _operator_matrix(
    layer: nn.Module, subject: Any, data: Tensor, inputs: Tensors, context: Context | None
) -> Array:
    """Return the coefficients of an operator without a family of its own, for each head."""
    if context is not None:
        context = map_tensors(context, lambda name, x: x.detach().cpu().double())
        if isinstance(layer, Attention):
            context = layer.fill(context, data, project_tokens(layer, data)[2])
    with torch.no_grad():
        return as_array(subject.matrix(*inputs, context=context))


def _layer_matrix(twin: Twin, layer: Any, inputs: Tensors) -> Array:
    """Return the coefficients: by `matrix` if the layer is not linear in its values."""
    if isinstance(layer, Operator) and not layer.linear_in_values:
        with torch.no_grad():
            return as_array(layer.matrix(*inputs))
    return layer_matrix(twin, layer, *inputs)


def _find_owner(layer: Any, name: str) -> tuple[Any, str]:
    """Return the module that holds the parameter with a dotted name, and the last part of it."""
    *path, last = name.split(".")
    for part in path:
        layer = getattr(layer, part)
    return layer, last


def _initial_value(twin: Twin, layer: nn.Module, name: str, head: int, head_dim: int) -> float:
    """Return the initial value of a parameter for a head."""
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


def _set_parameters(twin: Twin, layer: nn.Module, values: Array) -> None:
    """Set the fitted parameters of a layer to these values."""
    for name, value in zip(twin.fitted, values, strict=True):
        owner, last = _find_owner(layer, name)
        parameter: Any = Positive(float(value), name=name)
        if isinstance(getattr(owner, last), nn.ModuleList):
            parameter = nn.ModuleList([parameter])
        elif isinstance(owner, Softmax):  # whose scale is a number
            parameter = float(value)
        setattr(owner, last, parameter)


def _solve_coefficients(twin: Twin, layer: nn.Module, call: HeadCall) -> Array:
    problem = twin.relation.problem
    return twin.solve(layer, call) if problem is None else problem(layer, call).coef
