"""Checks of a user's own layer, and comparisons of coefficients from any two sources."""

import copy
import warnings
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike
from scipy.sparse import issparse
from torch import Tensor, nn

from ...solvers import Solution
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
from ..heads import Array, Tensors, heads
from ..laws import Measurement, worst
from ..laws.measurement import dtype_name
from ..laws.subject import as_array, identity_values, map_tensors
from ..pairs import calls_of_heads, layer_matrix, layer_output, solver_output
from ..registry import Twin, add_base_contexts, is_exact, judging_twin, twins_of
from ..relations import ROUNDING_ADVICE, Problem
from .model_check import ModelReport, check_model, measure
from .subjects import advise_on_laws, broken_laws

Shell = Attention | FusedProjectionAttention
_RECONSTRUCTING = ("self_expression", "sparse_coding", "locally_linear")
_ADVICE = (
    "; instead of a whole model pass one of its attention modules, or for a model of Hugging Face "
    "the weights of one head: model(..., output_attentions=True).attentions[layer][0, head]"
)
_Coder = LISTA | UnrolledADMM | UnrolledSelfExpression | DeepSelfExpression | SelfExpressiveNetwork


@dataclass(frozen=True)
class Report:
    """The result of `check` for one layer.

    Attributes
    ----------
    twin, equation, relation : str
        The twin that judged the layer, its equation id, and what was compared: the solver's output
        ("identity", "init" or "iterate"), or for a layer without such a twin the "limit" of many
        iterations or a "bound".
    dtype : str
        The dtype in which the layer was judged.
    deviation, tolerance : float
        Deviation of the layer from the solver at the layer's present parameters, and its limit.
    correct : bool
        ``deviation <= tolerance``: the layer computes what it claims to. The truth value of the
        report is the same, so that ``assert twinsolve.check(...)`` works.
    origin : dict of str to float
        How far the layer is from the solved problem at its initial parameters, the mean over heads.
        An operator with a matrix C has ``distance``, ``cosine``, ``support_precision``,
        ``support_recall`` and ``support_f1`` of C against the solution C*. If C is to reconstruct
        the queries (self-expression, sparse coding, locally linear weights), it also has the
        relative residuals ``|q - C k| / |q|`` of C and C*, ``residual`` and ``residual_solved``.
        If the layer has an objective F, it also has ``gap = (F(C) - F*) / |q|_F^2``. Other layers
        have the ``distance`` of the outputs. NaN if the layer's coefficients are not finite.
    rounding : bool
        Whether a layer that is not correct in float32 is correct in float64.
    laws : tuple of str
        Names of the laws that the layer breaks on drawn tokens; see `twinsolve.twins.laws`.
    """

    twin: str
    equation: str
    relation: str
    dtype: str
    deviation: float
    tolerance: float
    correct: bool
    origin: dict[str, float]
    rounding: bool = False
    laws: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return self.correct

    def as_dict(self) -> dict[str, Any]:
        """Return all fields in one flat dictionary, as a row of a table."""
        row = asdict(self)
        return row | {f"origin_{key}": value for key, value in row.pop("origin").items()}

    def __str__(self) -> str:
        verdict = "correct" if self.correct else "NOT CORRECT"
        about = f"{self.equation}, {self.relation}" if self.equation else self.relation
        lines = [
            f"{self.twin} [{about}]: {verdict} in {self.dtype}, "
            f"deviation {self.deviation:.2e}, tolerance {self.tolerance:.1e}",
            *([ROUNDING_ADVICE] if self.rounding else []),
            *([advise_on_laws(self.laws)] if self.laws else []),
            "from the solved problem at its initial parameters:",
            *(f"  {key:17s} {value:.4g}" for key, value in self.origin.items()),
        ]
        return "\n".join(lines)


@kept_generators()
def check(
    layer: nn.Module,
    X: ArrayLike | Tensor | tuple[Any, ...] | Mapping[str, Any],
    *,
    context: Context | None = None,
    n_rows: int = 8,
    random_state: int = 0,
) -> Report | ModelReport:
    """Compare a layer, or every layer of a model, trained or not, with its solver on given data.

    For a layer it answers two questions. *Is it correct?* At the layer's present parameters its
    output must agree with the solver's to the twin's tolerance: 1e-10 or 1e-8 in float64, and
    ``32 eps * passes * logit range`` in float32. The values are X, and then the identity, which
    makes the coefficients the output. If the float32 tolerance is above 1e-3, and for bfloat16 and
    float16, a float64 copy of the layer is judged instead. If no twin gives the layer's output
    itself, its limit or a bound is compared. If the terms of an output cancel, the rounding of the
    terms is the tolerance. Among equal logits any choice is correct.

    If a twin gives the output itself, the layer must also satisfy every law of
    `twinsolve.twins.laws` that it declares (masks, leaks, fewer queries, batches, `matrix`,
    gradients, dtypes, refusals), at its present parameters and on drawn tokens.

    *How far is it from its origin?* The layer's coefficients are compared with the solution of the
    problem at the layer's initial parameters (those at construction), on the same queries and
    keys. This is reported and not judged.

    A *model* runs once on the batch in evaluation mode. Every module with a twin is judged at its
    present parameters on the queries, keys, values, masks and context that reach it:

    - an operator in every head, for random queries and all keys of two random sequences; if its
      queries are coupled (boosting, balanced kernels), for all queries of one sequence, or under
      causal masks for its first 64 tokens
    - the projections of an `Attention`, by NumPy
    - scales, residual connections, mixtures of experts and learned solvers, on one sequence
    - image layers, on 32 x 32 pixels

    If rounding in the module's dtype would excuse more than 1e-3, a float64 copy is judged too.
    Modules with the same settings are tried on the laws once. The parts of an operator are judged
    with the operator. All other modules are listed with the reason why they are not judged.

    Parameters
    ----------
    layer : nn.Module
        It is not changed. An `Operator` gets ``q = k = v = X`` in each head. The operator of an
        `Attention` shell, or of a module that `replace_attention` put in, gets the projections of
        X. Any other layer that has a twin, such as `NonLocalMeansAttention`, gets X. Any other
        module is a model: one of this package, one with replaced attention, or one of another
        library with operators attached.
    X : array-like or Tensor of shape (n_tokens, dim), tuple or mapping
        Tokens; for an image layer an image of shape (height, width), (channels, height, width) or
        (batch, channels, height, width). It is cast to the dtype of the layer's parameters; without
        parameters it stays in float32 or float64. For a model it is the batch that the model takes:
        a Tensor, or a tuple or mapping of arguments. With a tuple or mapping a shell is a model.
    context : Context, optional
        What the layer needs beside its tokens, in the shape of its own queries and keys. For a
        shell, positions and first tokens have the shape (n_tokens, dim) and values the shape
        (heads, n_tokens, head_dim). By default the context of the twin in `twinsolve check`. A
        model makes its own.
    n_rows : int, default=8
        Number of queries judged in each operator of a model, for each of two sequences.
    random_state : int, default=0
        Seed of the sequences and queries of a model that are judged.

    Returns
    -------
    Report or ModelReport
        Its truth value is False if the check fails, as in ``assert twinsolve.check(layer, X)``.

    Raises
    ------
    LookupError
        If no twin is registered for the layer or anything in the model, or if the twin of a shell's
        operator takes no separate queries and keys.
    ValueError
        If `layer` is no module, X has the wrong shape or holds NaN or infinity, or a model is given
        a context.

    Examples
    --------
    >>> import numpy as np
    >>> import torch
    >>> import twinsolve
    >>> from twinsolve.unrolled import SparseCoding, VisionTransformer
    >>> X = np.random.default_rng(0).standard_normal((20, 5))
    >>> report = twinsolve.check(SparseCoding(0.5, n_iter=10, zero_diagonal=True), X)
    >>> report.correct
    True

    >>> model = VisionTransformer(8, 2, 1, 10, 16, 2, 2, operator="twicing")
    >>> report = twinsolve.check(model, torch.randn(4, 1, 8, 8))
    >>> bool(report)
    True
    >>> [row["name"] for row in report.judged][:2]
    ['blocks.0.attention', 'blocks.0.attention.operator']
    """
    if not isinstance(layer, nn.Module):
        raise ValueError(f"layer: must be a module, got {type(layer).__name__}")
    batch = isinstance(layer, FusedProjectionAttention) and getattr(X, "ndim", 2) == 3
    if batch or isinstance(X, tuple | Mapping) or _is_model(layer):
        if context is not None:
            raise ValueError("context: must be None for a model, which makes its own context")
        return check_model(layer, X, n_rows=n_rows, random_state=random_state)
    layer = copy.deepcopy(layer).cpu().eval()
    data = as_tensor(layer, X)
    subject, twin, inputs = _find_subject(layer, data)
    if context is not None:
        filled = map_tensors(context, lambda name, x: x.detach().cpu().to(data.dtype))
        if isinstance(layer, Attention):
            filled = layer.fill(filled, data, inputs[-1])
        twin = twin.with_context(lambda *tokens: filled)
    else:
        twin = add_base_contexts(twin, subject)
    measured, rounding = _measure_worst(twin, subject, inputs), False
    if inputs[0].dtype != torch.float64 and (measured.coarse or not measured.passed):
        wide = copy.deepcopy(subject).double(), tuple(x.double() for x in inputs)
        exact = _measure_worst(twin, *wide)
        if measured.coarse:
            (subject, inputs), measured = wide, exact
        else:
            rounding = exact.passed
    laws = broken_laws(subject, inputs)
    if laws and measured.passed:
        measured = worst(list(laws.values()))
    origin = copy.deepcopy(subject)
    reset_parameters(origin)
    return Report(
        twin.name,
        twin.equation,
        twin.relation.name,
        dtype_name(inputs[0].dtype),
        measured.deviation,
        measured.tolerance,
        measured.passed,
        _compare_with_origin(twin, subject, origin, inputs),
        rounding,
        tuple(laws),
    )


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


def _is_model(layer: nn.Module) -> bool:
    """Whether the parts of a module are judged instead of the module itself.

    A module with a twin and without attention is judged itself.
    """
    if isinstance(layer, Operator | Shell):
        return False
    if any(isinstance(module, Operator | Attention) for module in layer.modules()):
        return True
    try:
        twins_of(layer)
    except LookupError:
        return True
    return False


def _measure_worst(twin: Twin, layer: nn.Module, inputs: Tensors) -> Measurement:
    """Return the worse measurement on the values and, if there is a matrix, on the identity."""
    measured = [measure(twin, layer, inputs)]
    if is_exact(twin) and twin.inputs.kind == "tokens" and getattr(layer, "linear_in_values", True):
        q, k, _ = inputs
        measured.append(measure(twin, layer, (q, k, identity_values(k))))
    return worst(measured)._replace(relief=max(found.relief for found in measured))


def reset_parameters(layer: nn.Module) -> None:
    """Set the initial parameters again, but leave projections, whose initial values are random."""
    for module in layer.modules():
        if not isinstance(module, Attention | nn.Linear) and hasattr(module, "reset_parameters"):
            module.reset_parameters()  # type: ignore[operator]


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


def _to_array(X: ArrayLike | Tensor) -> Array:
    return np.asarray(X.detach().cpu() if isinstance(X, Tensor) else X).astype(np.float64)


def as_tensor(layer: nn.Module, X: ArrayLike | Tensor) -> Tensor:
    data = X.detach().cpu() if isinstance(X, Tensor) else torch.as_tensor(np.array(X))
    if not data.is_floating_point() or data.dtype not in (torch.float32, torch.float64):
        data = data.double()
    if not bool(data.isfinite().all()):
        raise ValueError("X: must not hold NaN or infinity")
    dtypes = [x.dtype for x in (*layer.parameters(), *layer.buffers()) if x.is_floating_point()]
    if dtypes and dtypes[0] not in (torch.float32, torch.float64):
        layer.double()
        return data.double()
    return data.to(dtypes[0]) if dtypes else data


def _find_subject(layer: nn.Module, data: Tensor) -> tuple[nn.Module, Twin, Tensors]:
    """Return the module that has a twin, this twin, and the module's inputs."""
    try:
        twin = judging_twin(layer, same_points=True)
    except LookupError:
        if not isinstance(layer, Shell):
            raise
        inputs = project_tokens(layer, data)
        twin = judging_twin(layer.operator)
        if twin.inputs.kind != "tokens":
            raise LookupError(
                f"the twin of {type(layer.operator).__name__} takes no separate queries and keys; "
                "pass the operator without its shell"
            ) from None
        return layer.operator, twin, inputs
    if twin.inputs.kind == "image":
        if not 2 <= data.ndim <= 4:
            raise ValueError(
                f"X: must be an image or a batch of images, got shape {tuple(data.shape)}"
            )
        return layer, twin, (data[(None,) * (4 - data.ndim)],)
    check_tokens(data, layer)
    if twin.inputs.kind == "features":
        return layer, twin, (data,)
    tokens = data.expand(count_heads(layer), -1, -1)
    return layer, twin, (tokens, tokens, tokens)


def project_tokens(shell: Shell, data: Tensor) -> Tensors:
    """Return the queries, keys and values that the operator of a shell gets, for each head."""
    check_tokens(data, shell)
    fused = isinstance(shell, FusedProjectionAttention)
    with torch.no_grad():
        q, k, v = shell.project(*(data[None],) * (1 if fused else 3))
    return q[0], k[0], v[0]


def check_tokens(data: Tensor, layer: nn.Module) -> None:
    if data.ndim != 2:
        hint = "; pass one sequence of a batch, such as X[0]" if data.ndim > 2 else ""
        raise ValueError(f"X: must have shape (n_tokens, dim), got shape {tuple(data.shape)}{hint}")
    if not isinstance(layer, Shell):
        return
    width = layer.embed_dim if isinstance(layer, Attention) else layer.qkv.in_features
    if data.shape[1] != width:
        raise ValueError(f"X: must have {width} columns, got {data.shape[1]}")


def count_heads(layer: nn.Module) -> int:
    return max((getattr(m, "num_heads", None) or 1 for m in layer.modules()), default=1)


def _compare_with_origin(
    twin: Twin, layer: nn.Module, origin: nn.Module, inputs: Tensors
) -> dict[str, float]:
    if twin.inputs.kind != "tokens" or not getattr(layer, "linear_in_values", True):
        expected = solver_output(twin, origin, inputs)
        difference = float(np.linalg.norm(layer_output(twin, layer, inputs) - expected))
        scale = float(np.linalg.norm(expected))
        return {"distance": difference / scale if scale > 0 else difference}
    present = layer_matrix(twin, layer, *inputs[:2])
    problem = twin.relation.problem
    if problem is None:
        q, k = inputs[:2]
        solved = list(solver_output(twin, origin, (q, k, identity_values(k))))
        problems: list[Problem | None] = [None] * len(solved)
    else:
        posed = [problem(origin, call) for call in calls_of_heads(twin, inputs)]
        problems, solved = list(posed), [x.coef for x in posed]
    rows = [
        _compare_head(q, k, *coefficients, reconstructs=twin.family in _RECONSTRUCTING)
        for (_, (q, k)), *coefficients in zip(
            heads(inputs[:2]), present, solved, problems, strict=True
        )
    ]
    return {key: float(np.mean([row.get(key, np.nan) for row in rows])) for key in rows[0]}


def _compare_head(
    q: Array,
    k: Array,
    present: Array,
    solved: Array,
    problem: Problem | None,
    *,
    reconstructs: bool,
) -> dict[str, float]:
    if not np.isfinite(present).all():
        return {"distance": float("nan")}
    row = coefficient_distance(present, solved)
    if reconstructs:
        row["residual"] = relative_residual(present, k, q)
        row["residual_solved"] = relative_residual(solved, k, q)
    if problem is not None:
        energy = float((q**2).sum())
        excess = problem.objective(present) - problem.objective(solved)
        row["gap"] = excess / energy if energy > 0 else 0.0
    return row


def coefficients_of(
    source: Any,
    tokens: Array,
    context: Context | None = None,
    *,
    keys: Array | None = None,
    n_keys: int | None = None,
) -> Array:
    source = replace_with_operator(source)
    if isinstance(source, Operator | Shell | _Coder):
        layer: Any = copy.deepcopy(source).cpu().double().eval()
        source = _evaluate_layer(layer, tokens, keys, context)
    elif callable(source) and not isinstance(source, nn.Module):
        source = source(tokens) if keys is None else source(tokens, keys)
    if isinstance(source, Solution):
        source = source.coef
    if isinstance(source, Tensor):
        source = source.detach().cpu().numpy()
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
    data = torch.from_numpy(tokens)
    others = None if keys is None else torch.from_numpy(keys)
    if context is not None:
        context = map_tensors(context, lambda name, x: x.double())
    with torch.no_grad():
        if isinstance(layer, LISTA):
            if keys is not None and not np.array_equal(keys, as_array(layer.dictionary)):
                raise ValueError("keys: must be None for a LISTA, whose keys are its dictionary")
            return layer(data)
        if isinstance(layer, SelfExpressiveNetwork):
            return layer.coefficients(data, others)
        if isinstance(layer, _Coder):
            return layer(data, others)
        points = data if others is None else others
        if isinstance(layer, FusedProjectionAttention):
            q, k = project_tokens(layer, data)[0], project_tokens(layer, points)[1]
            return layer.operator.matrix(q, k, context=context).mean(dim=0).numpy()
        if isinstance(layer, Attention):
            q, k = data[None], points[None]
            k, layer.batch_first = q if others is None else k, True
            return layer(q, k, k, context=context)[1][0].numpy()
        q, k = (x.expand(count_heads(layer), -1, -1) for x in (data, points))
        return layer.matrix(q, k, context=context).mean(dim=0).numpy()
