"""Checks of a user's own layer."""

import copy
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor, nn

from ...solvers.metrics import coefficient_distance, relative_residual
from ...unrolled.attention import Attention, Context, Operator
from ...unrolled.generators import kept_generators
from ...unrolled.integrations.replacements import FusedProjectionAttention
from ..heads import Array, Tensors, heads
from ..laws import Measurement, worst
from ..laws.measurement import dtype_name
from ..laws.subject import identity_values, map_tensors
from ..pairs import calls_of_heads, layer_matrix, layer_output, solver_output
from ..registry import Twin, add_base_contexts, is_exact, judging_twin, twins_of
from ..relations import Problem
from ..report import Report
from .calls import Judgement
from .model_check import check_model
from .modules import measure
from .subjects import try_laws
from .tokens import Shell, as_tensor, check_tokens, count_heads, project_tokens

_RECONSTRUCTING = ("self_expression", "sparse_coding", "locally_linear")


@kept_generators()
def check(
    layer: nn.Module,
    X: ArrayLike | Tensor | tuple[Any, ...] | Mapping[str, Any],
    *,
    context: Context | None = None,
    n_rows: int = 8,
    random_state: int = 0,
) -> Report:
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

    The command `twinsolve check` runs the twins of this package. Given a layer of yours, as in
    ``twinsolve check package.module:Layer``, it does what this function does.

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
        a Tensor, or a tuple or mapping of arguments. With a tuple or mapping a shell is a model. Of
        a list of batched Tensors, such as a DataLoader gives, the first is taken, and the others
        are targets.
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
    Report
        The first finding is that of the twin; it says how many of the tried laws hold. Others name
        the laws that the layer breaks; those of a model also say why a module is not judged. The
        report is false if one is broken, as in ``assert twinsolve.check(layer, X)``.

        Its ``origin`` says how far a layer is from the solved problem at its initial parameters,
        the mean over heads. An operator with a matrix C has ``distance``, ``cosine``,
        ``support_precision``, ``support_recall`` and ``support_f1`` of C against the solution C*.
        If C is to reconstruct the queries (self-expression, sparse coding, locally linear weights),
        it also has the relative residuals ``|q - C k| / |q|`` of C and C*, ``residual`` and
        ``residual_solved``. If the layer has an objective F, it also has ``gap = (F(C) - F(C*)) /
        |q|_F^2``. Other layers have the ``distance`` of the outputs. NaN if the layer's
        coefficients are not finite.

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
    >>> bool(report), report.findings[0].law
    (True, 'self-expression-iterates')

    >>> model = VisionTransformer(8, 2, 1, 10, 16, 2, 2, operator="twicing")
    >>> report = twinsolve.check(model, torch.randn(4, 1, 8, 8))
    >>> bool(report)
    True
    >>> [x.where for x in report.findings if x.verdict == "holds"][:2]
    ['blocks.0.attention', 'blocks.0.attention.operator']
    """
    if not isinstance(layer, nn.Module):
        raise ValueError(f"layer: must be a module, got {type(layer).__name__}")
    X = _first_of_loaded(X)
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
    if inputs[0].dtype != torch.float64 and (measured.coarse or not measured.holds):
        wide = copy.deepcopy(subject).double(), tuple(x.double() for x in inputs)
        exact = _measure_worst(twin, *wide)
        if measured.coarse:
            (subject, inputs), measured = wide, exact
        else:
            rounding = exact.holds
    origin = copy.deepcopy(subject)
    reset_parameters(origin)
    judged = Judgement(twin, measured, dtype_name(inputs[0].dtype), inputs[0].shape[-2], rounding)
    laws = try_laws(subject, inputs)
    return Report(
        type(layer).__name__,
        (judged.finding(subject, laws=laws.share), *laws.findings),
        _compare_with_origin(twin, subject, origin, inputs),
    )


def _first_of_loaded(X: Any) -> Any:
    """Return the first of a list of batched Tensors, as a DataLoader gives it, or else X.

    A list of single tokens is an array.
    """
    loaded = isinstance(X, list) and bool(X) and isinstance(X[0], Tensor) and X[0].ndim > 1
    return X[0] if loaded else X


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


def _measure_worst(twin: Twin, layer: nn.Module, inputs: Tensors) -> Measurement:
    """Return the worse measurement on the values and, if there is a matrix, on the identity."""
    measured = [measure(twin, layer, inputs)]
    if is_exact(twin) and twin.inputs.kind == "tokens" and getattr(layer, "linear_in_values", True):
        q, k, _ = inputs
        measured.append(measure(twin, layer, (q, k, identity_values(k))))
    return worst(measured)._replace(relief=max(measurement.relief for measurement in measured))


def reset_parameters(layer: nn.Module) -> None:
    """Set the initial parameters again, but leave projections, whose initial values are random."""
    for module in layer.modules():
        if not isinstance(module, Attention | nn.Linear) and hasattr(module, "reset_parameters"):
            module.reset_parameters()  # type: ignore[operator]


def _compare_with_origin(
    twin: Twin, layer: nn.Module, origin: nn.Module, inputs: Tensors
) -> dict[str, float]:
    """Return distances between the layer and its problem at the initial parameters."""
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
    """Return the distance of coefficients from the solved ones, residuals and the gap."""
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
