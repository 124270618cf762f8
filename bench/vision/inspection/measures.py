"""Observe the layers of a model, measure them, and compare heads with classical problems."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from copy import deepcopy
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from scipy.spatial.distance import pdist
from torch import Tensor, nn

from ....solvers import (
    least_squares_self_expression,
    low_rank_self_expression,
    smoother_matrix,
    sparse_self_expression,
)
from ....solvers.inputs import Array
from ....solvers.self_expression import lam_from_gamma
from ....twins import Origin, compare, fit_origin
from ....twins.laws.subject import map_tensors
from ....unrolled import Gaussian, Kernel, LowRank, Ridge
from ....unrolled.attention import Attention, Positive
from ....unrolled.diagnostics import (
    Observation,
    condition_number,
    high_frequency_bounds,
    jacobian_spectrum,
    lipschitz_constant,
    logit_parts,
    nonzero_share,
    record,
)
from ....unrolled.models import Block
from ....unrolled.spectral_filtering import FeatScale
from .observed import OF_LAYERS, hides_keys


@dataclass
class Layer:
    """An attention layer: its modules, their inputs and outputs, and means over the batch.

    Attributes
    ----------
    name : str
        Name of the attention shell in the model.
    shell : nn.Module
    block : Block or None
        Block that holds the shell.
    seen : Observation
        Observation of the operator.
    measures : dict of str to float
    calls : dict of str to tuple
        Positional and keyword arguments of "shell" and "block".
    branch : tuple of Tensor
        Tokens before attention, what attention adds to them, and the tokens after it.
    """

    name: str
    shell: Any
    block: Block | None
    seen: Observation
    measures: dict[str, float]
    calls: dict[str, tuple[Any, Any]]
    branch: tuple[Tensor, Tensor, Tensor] | None

    @property
    def masked(self) -> bool:
        """Whether some keys are hidden from some queries."""
        return hides_keys(self.seen)


@torch.no_grad()
def observe(model: nn.Module, images: Tensor) -> list[Layer]:
    """Run a model once and return its attention layers in the order of computation.

    Raises
    ------
    ValueError
        If the model has no attention of this package.
    """
    kept: list[Observation] = []
    calls: dict[nn.Module, tuple[Any, Any]] = {}
    branches: dict[nn.Module, tuple[Tensor, Tensor, Tensor]] = {}

    def keep_call(module: nn.Module, inputs: Any, keywords: Any) -> None:
        calls[module] = inputs, keywords

    def keep_branch(module: nn.Module, inputs: Any, output: Tensor) -> None:
        branches[module] = inputs[0].detach(), inputs[1].detach(), output.detach()

    with ExitStack() as stack:
        for part in model.modules():
            if isinstance(part, Attention | Block):
                hook = part.register_forward_pre_hook(keep_call, with_kwargs=True)
                stack.callback(hook.remove)
            if isinstance(part, Block):
                hook = part.attention_residual.register_forward_hook(keep_branch)
                stack.callback(hook.remove)
        rows = stack.enter_context(record(model, OF_LAYERS | {"": kept.append}))
        model(images)
    layers = []
    for number, seen in enumerate(kept):
        own = [row for row in rows if row["layer"] == number]
        name = own[0]["name"]
        shell, holder = (model.get_submodule(n) for n in (name, name.rpartition(".")[0]))
        layer = Layer(
            name, shell, None, seen, {row["measure"]: row["value"] for row in own},
            {"shell": calls.get(shell, ((), {}))}, None,
        )  # fmt: skip
        if isinstance(holder, Block):
            layer.block, layer.calls["block"] = holder, calls[holder]
            layer.branch = branches[holder.attention_residual]
        layers.append(layer)
    layers[0].measures.update(logit_columns(layers[0]))
    return layers


def parts_of_logits(layer: Layer) -> dict[str, Tensor]:
    """Parts of the first layer's logits by name, (batch, heads, queries, keys).

    Tokens and added positions are scaled as the layer norm scales their sum, without biases. The
    result is empty if positions are not added to the tokens, or there is no layer norm.
    """
    context, operator = layer.seen.arguments.get("context"), layer.seen.operator
    norm = getattr(layer.block, "attention_norm", None)
    inputs, keywords = layer.calls.get("block", ((), {}))
    if (
        not isinstance(norm, nn.LayerNorm)
        or context is None
        or context.positions is None
        or operator.positions_apart
        or keywords.get("add_positions")
        or not {"q", "k"} <= set(operator.reads)
    ):
        return {}
    size = (inputs[0].var(dim=-1, correction=0, keepdim=True) + norm.eps).sqrt()
    tokens, positions = (
        ((x - x.mean(dim=-1, keepdim=True)) / size * norm.weight)[:, None]
        for x in (inputs[0] - context.positions, context.positions)
    )
    rows = layer.shell.in_proj_weight.chunk(len(layer.shell.projected))
    by_name = dict(zip(layer.shell.projected, rows, strict=True))
    heads = (by_name[name].unflatten(0, (layer.seen.q.shape[1], -1)).mT for name in "qk")
    return logit_parts(tokens, positions, *heads)._asdict()


def logit_columns(layer: Layer) -> dict[str, float]:
    """Standard deviation over keys of each part of the first layer's logits."""
    return {
        f"logits_{name}": float(part.std(dim=-1, correction=0).mean())
        for name, part in parts_of_logits(layer).items()
    }


_N_SPECTRA = 4  # images
_N_ENTRIES = 1024  # most entries of the tokens of an image for a whole Jacobian
_N_ITER = 30  # power iterations on larger Jacobians


def bound_columns(model: nn.Module, images: Tensor, layers: list[Layer]) -> list[dict[str, float]]:
    """By layer, the share of high frequencies after attention, and two proved bounds.

    All three are divided by the norm of the tokens: the first is ``|HC x| / |x|``, and a bound
    above 1 says nothing. They are means over the batch; empty if no theorem applies.
    """
    try:
        sides = high_frequency_bounds(model, images)
    except ValueError:  # no block, or residual connections of another kind
        return [{} for _ in layers]
    by_part = {(side.name, side.part): side for side in sides}
    found: list[dict[str, float]] = []
    for layer in layers:
        name = layer.name.rpartition(".")[0]
        side = by_part.get((name, "attention_skip")) or by_part.get((name, "attention"))
        if side is None or layer.branch is None:
            found.append({})
            continue
        size = torch.linalg.matrix_norm(layer.branch[2])
        kept = {"": side.measured, "_sharp": side.sharp, "_bound": side.bound}
        found.append({f"hc_attention{key}": float((x / size).mean()) for key, x in kept.items()})
    return found


def condition_columns(layer: Layer) -> dict[str, float]:
    """Log10 condition numbers of tokens before attention, of its branch, and after the skip.

    They are medians over the batch, as some may be infinite.
    """
    if layer.branch is None:
        return {}
    names = ("before", "branch", "after")
    return {
        f"log10_condition_{name}": float(condition_number(x).log10().median())
        for name, x in zip(names, layer.branch, strict=True)
    }


def condition_numbers(model: nn.Module, images: Tensor) -> dict[str, float]:
    """`condition_columns` of all layers, in float64, by name and number of the layer.

    A training run may validate by this function; `twinsolve inspect` draws what it kept.
    """
    layers = observe(deepcopy(model).double().eval(), images.double())
    return {
        f"{name} {number}": value
        for number, layer in enumerate(layers, start=1)
        for name, value in condition_columns(layer).items()
    }


def jacobian_columns(layer: Layer) -> dict[str, float]:
    """Singular values of the Jacobians of attention and block, for one image.

    Columns have the largest value and, for few tokens, the median, the smallest, and the log10
    condition number, infinite if float64 does not resolve it. Attention has columns if queries,
    keys and values come from the same tokens. With masks, there are none.
    """
    found: dict[str, float] = {}
    if layer.masked:
        return found
    inputs, keywords = layer.calls["shell"]
    if len(inputs) >= 3 and inputs[0] is inputs[1] is inputs[2]:
        attend = _make_function(layer.shell, inputs, keywords, 3)
        found |= _measure_spectrum("jacobian_attention", attend, inputs[0][:1])
    if layer.block is not None:
        inputs, keywords = layer.calls["block"]
        pass_on = _make_function(layer.block, inputs, keywords, 1)
        found |= _measure_spectrum("jacobian_block", pass_on, inputs[0][:1])
    return found


def _make_function(
    module: nn.Module, inputs: Any, keywords: Any, n_tokens: int
) -> Callable[[Tensor], Tensor]:
    """The module as a function of the first image's tokens, passed as `n_tokens` arguments."""
    rest, given = first_image((inputs[n_tokens:], keywords))

    def function(x: Tensor) -> Tensor:
        output = module(*(x,) * n_tokens, *rest, **given)
        return output if isinstance(output, Tensor) else output[0]

    return function


def _measure_spectrum(
    name: str, function: Callable[[Tensor], Tensor], x: Tensor
) -> dict[str, float]:
    if x.numel() > _N_ENTRIES:
        return {name: float(lipschitz_constant(function, x.detach(), n_iter=_N_ITER))}
    values = jacobian_spectrum(function, x)
    resolved = values[-1] > len(values) * torch.finfo(values.dtype).eps * values[0]
    picked = {
        "": values[0], "_median": values.median(), "_smallest": values[-1],
        "_condition": (values[0] / values[-1]).log10() if resolved else torch.inf,
    }  # fmt: skip
    return {f"{name}{which}": float(value) for which, value in picked.items()}


def first_image(value: Any) -> Any:
    """Arguments of a call for the first image; positions and pair masks have no batch."""
    if isinstance(value, Tensor):
        return value[:1] if value.ndim > 2 else value
    if isinstance(value, dict):
        return {key: first_image(part) for key, part in value.items()}
    if hasattr(value, "_replace"):  # a context
        return value._replace(**{key: first_image(x) for key, x in value._asdict().items()})
    return tuple(first_image(part) for part in value) if isinstance(value, tuple) else value


def head_columns(layer: Layer) -> Iterator[dict[str, Any]]:
    """Yield for each head singular values, second eigenvalue and share of non-zeros of its matrix.

    Columns with ``mixing_`` are of the mixing matrix, where it is not the attention matrix. Values
    are absolute and means over some images; only square matrices have eigenvalues. If rows sum to
    1, the first eigenvalue is 1, and a smaller second one means faster oversmoothing.
    """
    matrices = {"": layer.seen.attention_matrix}
    if layer.seen.matrix is not layer.seen.attention_matrix:
        matrices["mixing_"] = layer.seen.matrix
    for head in range(layer.seen.matrix.shape[1]):
        row: dict[str, Any] = {"head": head}
        for which, A in matrices.items():
            own = _matrix_columns(A[:_N_SPECTRA, head])
            row |= {f"{which}{name}": value for name, value in own.items()}
        yield row


def _matrix_columns(A: Tensor) -> dict[str, float]:
    found = {"nonzero_share": float(nonzero_share(A).mean())}
    for number, values in enumerate(torch.linalg.svdvals(A).T[:2], start=1):
        found[f"singular_value_{number}"] = float(values.mean())
    if A.shape[-1] == A.shape[-2] > 1:
        found["eigenvalue_2"] = float(np.mean([sizes[1] for sizes in eigenvalue_sizes(A)]))
    return found


def eigenvalue_sizes(matrices: Tensor) -> Array:
    """Absolute eigenvalues of matrices, in decreasing order."""
    sizes = torch.linalg.eigvals(matrices).abs()
    return sizes.sort(dim=-1, descending=True).values.numpy()


def learned(layer: Layer) -> dict[str, Tensor]:
    """Small parameters that the operator and the scales of its block learn, by name.

    These are bandwidths, penalties, steps, omega, s, t and the like; logarithms are exponentiated.
    """
    parts: list[nn.Module] = [layer.seen.operator]
    if layer.block is not None:
        parts += [layer.block.attention_scale, layer.block.attention_residual]
    found = {}
    for part in parts:
        for name, module in part.named_modules():
            if isinstance(module, Positive) and module.log is not None:
                found[name.rpartition(".")[2]] = module().detach().double()
        for name, parameter in part.named_parameters():
            word = name.rpartition(".")[2]
            if word != "log" and parameter.numel() == max(parameter.shape, default=1):
                found[word] = parameter.detach().double()
        if isinstance(part, FeatScale):
            found["t_minus_s"] = (part.t - part.s).detach().double()
    return found


def learned_columns(layer: Layer, head: int | None = None) -> dict[str, float]:
    """Medians of learned parameters, or the values of one head."""
    found = {}
    for name, values in learned(layer).items():
        own = values.ndim == 3 and len(values) == layer.seen.q.shape[1]
        if head is None:
            found[f"learned_{name}"] = float(values.median())
        elif own:
            found[f"learned_{name}"] = float(values[head].median())
    return found


_GAMMA = 10.0  # penalties are a tenth of the smallest for which a row is zero
_SHARE = 0.1  # of the largest eigenvalue of the Gram matrix
_COMPARED = ("distance", "cosine", "support_f1")
UNDETERMINED = "not determined"


def tokens_of(layer: Layer) -> Array | None:
    """Tokens (n_tokens, dim) of the first image; None unless queries and keys share them."""
    inputs, _ = layer.calls["shell"]
    if len(inputs) < 2 or inputs[0] is not inputs[1]:
        return None
    return inputs[0].detach().reshape(-1, *inputs[0].shape[-2:])[0].numpy()


def own_origin(layer: Layer, X: Array) -> Origin | None:
    """The problem that the layer solves on its queries and keys, found by `fit_origin`.

    A layer whose family names no problem, such as a correction, is compared with several. None if
    a layer cannot be fitted on tokens alone, for example with masks or bandwidths of positions.
    """
    if layer.masked:
        return None
    context = layer.seen.arguments.get("context")
    if context is not None:
        context = map_tensors(context, lambda name, x: x[0] if x.ndim > 2 else x)
    try:
        return fit_origin(layer.shell, X, context=context)
    except (LookupError, ValueError):
        return None


def own_columns(origin: Origin | None, head: int | None = None) -> dict[str, Any]:
    """Fitted parameters and remaining distance; for a head, only the parameters."""
    if origin is None:
        return {}
    fitted = {
        f"fitted_{name}": float(np.mean(values)) if head is None else values[head]
        for name, values in origin.parameters.items()
        if name not in origin.at_edge
    }
    if head is not None:
        return fitted
    said = {"origin": origin.twin, "origin_distance": origin.distance, "origin_fits": origin.fits}
    return {**said, **fitted}


class Problems(NamedTuple):
    """Tokens X of a layer, and solutions C* of classical problems on them, by name."""

    X: Array
    solved: dict[str, Array]

    @property
    def shape(self) -> tuple[int, int]:
        """Shape of matrices that can be compared."""
        return len(self.X), len(self.X)

    def permuted(self) -> "Problems":
        """The problems of the same tokens in random order; the C* are reordered."""
        order = np.random.default_rng(0).permutation(len(self.X))
        again = {name: C[np.ix_(order, order)] for name, C in self.solved.items()}
        return Problems(self.X[order], again)


def problems_of(layer: Layer) -> Problems | None:
    """The problems on the first image's tokens; None unless queries and keys share them."""
    X = tokens_of(layer)
    return None if X is None else Problems(X, solutions(X))


def compared_columns(A: Array, problems: Problems) -> dict[str, Any]:
    """Compare a head's matrix with classical problems on the tokens.

    Columns have the nearest problem with the remaining distance, the distance of the nearest matrix
    that ignores the tokens, and `compare` for each C*. Residuals are ``|X - C X| / |X|``.
    """
    X = problems.X
    scale = float(np.square(X).sum(axis=1).mean()) or 1.0
    tried = [Gaussian(scale**0.5), Kernel("laplace", scale**0.5), Ridge(scale), LowRank(scale)]
    origin = fit_origin(A, X, problem=tried)
    ((name, values),) = origin.parameters.items()
    found: dict[str, Any] = {
        "nearest": origin.twin,
        "nearest_parameter": UNDETERMINED if origin.at_edge else f"{name} = {values[0]:.4g}",
        "nearest_distance": origin.distance,
        "nearest_baseline": origin.baseline,
        "nearest_fits": origin.fits,
    }
    for problem, C in problems.solved.items():
        numbers = compare(A, C, X)
        found |= {f"{problem}_{key}": numbers[key] for key in _COMPARED}
        found |= {
            "residual": numbers["residual"],
            f"{problem}_residual": numbers["residual_reference"],
        }
    return found


def solutions(X: Array) -> dict[str, Array]:
    """Solutions C* of classical problems on the tokens, (n_tokens, n_tokens) each.

    The problems are smoothing by a Gaussian kernel, whose bandwidth is half the median distance of
    different tokens, and self-expression: by least squares and low rank with ``lam = 0.1 |X|_2^2``,
    and sparse with zero diagonal and a tenth of the smallest penalty for which a row is zero.
    """
    lam = _SHARE * float(np.linalg.norm(X, 2) ** 2)
    apart = pdist(X)
    bandwidth = float(np.median(apart[apart > 0])) / 2 if apart.any() else 1.0
    solved = {
        "gaussian": smoother_matrix(X, X, bandwidth=bandwidth),
        "least_squares": least_squares_self_expression(X, lam=lam),
        "low_rank": low_rank_self_expression(X, lam=lam),
        "sparse": sparse_self_expression(X, lam=lam_from_gamma(X, _GAMMA)).coef.toarray(),
    }
    return {name: np.asarray(C) for name, C in solved.items()}


def matrices_of(layer: Layer) -> Array:
    """The attention matrices of the first image, (heads, n_queries, n_keys)."""
    A = layer.seen.attention_matrix
    return A.reshape(-1, *A.shape[-3:])[0].numpy()
