"""Checks of whole models: each layer is judged on the tokens that reach it."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ...unrolled.attention import Attention, Operator, Positive, check_count
from ...unrolled.attention.inputs import of_common_batch
from ..heads import Array, Tensors
from ..laws import Measurement, largest_difference, worst
from ..laws.measurement import dtype_name
from ..laws.subject import as_array
from ..registry import Twin, is_exact, judging_twin
from ..relations import ROUNDING_ADVICE, Identity, compare_outputs, measure_difference
from .calls import (
    Judgement,
    NotJudgedError,
    batch_shape,
    draw_elements,
    draw_indices,
    judge_call,
    judge_dtypes,
    record_element,
)
from .subjects import advise_on_laws, broken_laws, settings_of

if TYPE_CHECKING:
    import pandas

_ELEMENTS = 2
_PIXELS = 32
_TOKENS = 64
_MASKS = ("key_padding_mask", "attn_mask", "is_causal")
_COLUMNS = (
    "name", "class", "twin", "equation", "evidence", "relation", "dtype", "rows", "deviation",
    "tolerance", "verdict", "why",
)  # fmt: skip


@dataclass(frozen=True)
class ModelReport:
    """The result of `check` for a model.

    Attributes
    ----------
    rows : tuple of dict
        One for each module: its ``name`` and ``class``; the ``twin`` that judged it with the
        ``equation``, ``evidence`` and ``relation`` of the twin; the judged ``dtype`` and number of
        ``rows`` (queries or tokens, in every head); ``deviation`` and ``tolerance``; the
        ``verdict`` ("correct", "NOT CORRECT" or "not judged"); and ``why`` the module was not
        judged, or why it may deviate.
    """

    rows: tuple[dict[str, Any], ...]

    @property
    def judged(self) -> tuple[dict[str, Any], ...]:
        """The rows of modules that were judged."""
        return tuple(row for row in self.rows if row["verdict"] != "not judged")

    @property
    def correct(self) -> bool:
        """Whether at least one module was judged and all judged modules are correct."""
        return {row["verdict"] for row in self.judged} == {"correct"}

    def __bool__(self) -> bool:
        return self.correct

    @property
    def table(self) -> pandas.DataFrame:
        """The rows as a `pandas.DataFrame`, which needs pandas."""
        import pandas

        return pandas.DataFrame(list(self.rows), columns=list(_COLUMNS))

    def __str__(self) -> str:
        judged = self.judged
        wrong = sum(row["verdict"] != "correct" for row in judged)
        lines = [f"{len(judged)} modules judged, {wrong or 'none'} not correct"]
        lines += [
            f"  {row['name'] or '(model)'}: {row['class']} = {_name_twin(row)}, "
            f"{row['verdict']} in {row['dtype']}, deviation {row['deviation']:.2e}, "
            f"tolerance {row['tolerance']:.1e}"
            for row in judged
        ]
        lines += dict.fromkeys(row["why"] for row in judged if row["why"] is not None)
        counts: dict[tuple[str, str], int] = {}
        for row in self.rows:
            if row["verdict"] == "not judged":
                key = row["why"], row["class"]
                counts[key] = counts.get(key, 0) + 1
        if counts:
            lines.append("not judged:")
        for why in dict.fromkeys(why for why, _ in counts):
            kinds = [f"{n} {kind}" for (reason, kind), n in counts.items() if reason == why]
            lines.append(f"  {', '.join(kinds)}: {why}")
        return "\n".join(lines)


def _name_twin(row: dict[str, Any]) -> str:
    return f"{row['twin']} [{row['equation']}]" if row["equation"] else str(row["twin"])


def check_model(
    model: nn.Module, batch: Any, *, n_rows: int = 8, random_state: int = 0
) -> ModelReport:
    """Run a model once in evaluation mode and judge every module with a twin; see `check`."""
    recorder = _Recorder(model, check_count(n_rows, "n_rows", 1), random_state)
    if not recorder.judges:
        raise LookupError(
            f"no twin is registered for {type(model).__name__} or any module in it; first put in "
            'an operator by replace_attention(model, "softmax"), or by attach_huggingface for a '
            "model of Hugging Face"
        )
    arguments = batch if isinstance(batch, tuple) else (batch,)
    if not isinstance(batch, tuple | Mapping | Tensor):
        dtype = next((p.dtype for p in model.parameters()), torch.float64)
        arguments = (torch.as_tensor(np.asarray(batch)).to(dtype),)
    with recorder.attached(), _evaluation_mode(model), torch.no_grad():
        if isinstance(batch, Mapping):
            model(**batch)
        else:
            model(*arguments)
    return ModelReport(tuple(recorder.rows()))


@contextmanager
def _evaluation_mode(model: nn.Module) -> Iterator[None]:
    """Set evaluation mode, and restore the modes of all modules at the end."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, training in modes:
            module.training = training


@dataclass
class _Recorder:
    """Judges modules while the model runs, so that their inputs need not be stored."""

    model: nn.Module
    n_rows: int
    random_state: int
    judgements: dict[str, list[Judgement]] = field(default_factory=dict)
    reasons: dict[str, str] = field(default_factory=dict)
    ran: set[str] = field(default_factory=set)
    operated: dict[int, tuple[dict[str, Any], Tensor]] = field(default_factory=dict)
    tried: list[tuple[Any, dict[str, Measurement]]] = field(default_factory=list)
    judging: bool = False

    def __post_init__(self) -> None:
        self.judges: dict[str, tuple[nn.Module, Callable[..., list[Judgement]]]] = {}
        for name, module in self._modules():
            judge = self._judge_of(module)
            if judge is not None:
                self.judges[name] = module, judge

    def _modules(self) -> Iterator[tuple[str, nn.Module]]:
        """Yield all modules except the parts of operators, which are judged with the operator."""
        inner = {
            id(part)
            for module in self.model.modules()
            if isinstance(module, Operator)
            for part in module.modules()
            if part is not module
        }
        for name, module in self.model.named_modules():
            if id(module) not in inner and not isinstance(module, Positive):
                yield name, module

    def _judge_of(self, module: nn.Module) -> Callable[..., list[Judgement]] | None:
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

    @contextmanager
    def attached(self) -> Iterator[None]:
        """Attach a hook to every module, and remove the hooks at the end."""
        with ExitStack() as stack:
            for name, module in self._modules():
                handle = module.register_forward_hook(self._hook(name), with_kwargs=True)
                stack.callback(handle.remove)
            yield

    def _hook(self, name: str) -> Callable[..., None]:
        def hook(module: nn.Module, inputs: Any, keywords: Any, output: Any) -> None:
            if self.judging:  # this call is that of a judged copy
                return
            self.ran.add(name)
            if name not in self.judges:
                return
            _, judge = self.judges[name]
            self.judging = True
            try:
                with torch.no_grad():
                    arguments = _bind_arguments(module, inputs, keywords)
                    self.judgements.setdefault(name, []).extend(judge(module, arguments, output))
            except NotJudgedError as error:
                self.reasons.setdefault(name, str(error))
            except LookupError as error:
                if type(error) is not LookupError:  # an IndexError or KeyError is a bug
                    raise
                self.reasons.setdefault(name, str(error))
            finally:
                self.judging = False

        return hook

    def _generator(self) -> np.random.Generator:
        return np.random.default_rng(self.random_state)

    def _try_laws(self, twin: Twin, layer: nn.Module, inputs: Tensors) -> list[Judgement]:
        """Judge the laws that a layer breaks; layers with the same settings are tried once."""
        settings = settings_of(layer)
        broken = next((laws for tried, laws in self.tried if tried == settings), None)
        if broken is None:
            broken = broken_laws(layer, inputs)
            self.tried.append((settings, broken))
        return [Judgement(twin, x, "float64", 0, law=law) for law, x in broken.items()]

    def _judge_operator(
        self, operator: nn.Module, arguments: dict[str, Any], output: Tensor
    ) -> list[Judgement]:
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
        return judgements + self._try_laws(twin, operator, call.inputs)

    def _judge_projections(
        self, shell: Any, arguments: dict[str, Any], output: Any
    ) -> list[Judgement]:
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
            judgements.append(_judge_projections(shell, pairs, of_heads, output[0][b], rows))
        return judgements

    def _judge_coefficients(
        self, layer: nn.Module, arguments: dict[str, Any], output: Any
    ) -> list[Judgement]:
        queries, keys = (*arguments.values(), None)[:2]
        twin = judging_twin(layer, same_points=keys is None)
        if (twin.inputs.pairing == "self") != (keys is None):
            raise NotJudgedError(f"the twin {twin.name} takes other keys")
        q, k = (
            _take_first_set(x)[:_TOKENS][None] for x in (queries, queries if keys is None else keys)
        )
        judged = _judge_relation(twin, layer, (q, k, k), queries.dtype)
        return [judged, *self._try_laws(twin, layer, (q, k, k))]

    def _judge_features(
        self, layer: nn.Module, arguments: dict[str, Any], output: Any
    ) -> list[Judgement]:
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
        return [judged, *self._try_laws(twin, layer, (X,))]

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
        rows, own = draw_indices(len(X), self.n_rows, generator), copy.deepcopy(layer).cpu()
        rows = rows[visible[rows, rows]]
        places = [int(visible[i, :i].sum()) for i in rows]
        expected = [
            twin.solve(own, as_array(X)[visible[i]])[place]
            for i, place in zip(rows, places, strict=True)
        ]
        tolerance = _tolerance_of(X.dtype, twin.relation.tolerance)
        deviation = largest_difference(
            as_array(output)[rows], np.reshape(expected, (-1, output.shape[-1]))
        )
        return Judgement(twin, Measurement(deviation, tolerance), dtype_name(X.dtype), len(rows))

    def _judge_image(
        self, layer: nn.Module, arguments: dict[str, Any], output: Any
    ) -> list[Judgement]:
        """Judge a part of an image, since the whole may take a solver hours."""
        images = next(iter(arguments.values()))
        images = images[(None,) * (4 - images.ndim)]
        part = images[:1, :, :_PIXELS, :_PIXELS].detach().cpu()
        twin = judging_twin(layer, same_points=True)
        judged = _judge_relation(twin, layer, (part,), images.dtype)
        judged = judged._replace(n_rows=part.shape[-1] * part.shape[-2])
        return [judged, *self._try_laws(twin, layer, (part,))]

    def rows(self) -> Iterator[dict[str, Any]]:
        """Yield the row of each module, in the order of the model."""
        for name, module in self._modules():
            row = {"name": name, "class": type(module).__name__}
            if self.judgements.get(name):
                yield row | _summarize_judgements(self.judgements[name])
            elif (why := self._explain_omission(name, module)) is not None:
                yield dict.fromkeys(_COLUMNS) | row | {"verdict": "not judged", "why": why}

    def _explain_omission(self, name: str, module: nn.Module) -> str | None:
        """Say why a module is not judged; None for modules that only call others."""
        if name in self.reasons:
            return self.reasons[name]
        if name in self.judges and name not in self.ran:
            return "did not run on this batch"
        holder = self.model.get_submodule(name.rpartition(".")[0]) if name else None
        if isinstance(holder, Attention):
            return None  # projections, judged with the shell
        leaf = next(module.children(), None) is None
        own = next(module.parameters(recurse=False), None) is not None
        if not (leaf or own) or isinstance(module, nn.Identity | nn.ModuleList):
            return None
        if name not in self.ran:
            return "did not run on this batch"
        if isinstance(module, nn.modules.dropout._DropoutNd):
            return "does nothing in evaluation mode"
        return "has no twin"


# Stands in the rows of shells for the twin, which projections do not have.
_PROJECTIONS: Any = SimpleNamespace(
    name="projections", equation="SE-1 to SE-4", evidence="formula", relation=Identity()
)


def _bind_arguments(module: nn.Module, inputs: Any, keywords: Any) -> dict[str, Any]:
    """Return the arguments by name, including those that a ``**rest`` parameter takes."""
    bound = inspect.signature(module.forward).bind(*inputs, **keywords)
    bound.apply_defaults()
    arguments = dict(bound.arguments)
    for parameter in bound.signature.parameters.values():
        if parameter.kind is parameter.VAR_KEYWORD:
            arguments |= arguments.pop(parameter.name)
    return arguments


def _tolerance_of(dtype: torch.dtype, tolerance: float) -> float:
    return tolerance if dtype == torch.float64 else 32 * torch.finfo(dtype).eps


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
        own = None if dtype.itemsize < 4 else measure(twin, copied, inputs)
        return judge_dtypes(twin, dtype, own, measure_in_float64, inputs[0].shape[-2])


def measure(twin: Twin, layer: nn.Module, inputs: tuple[Tensor, ...]) -> Measurement:
    """Compare the layer with its solver as it is, or measure its relation if that is not exact."""
    if is_exact(twin):
        return compare_outputs(twin, layer, inputs, tolerance=twin.relation.tolerance)
    return twin.relation.measure(twin, layer, inputs)


def _judge_projections(
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
        copied = copy.deepcopy(shell).cpu().double()
        tokens = {name: x.detach().cpu().double() for name, (x, _) in pairs.items()}
        anything = next(iter(tokens.values()))  # for tokens that the shell does not project
        projected = copied.project(*(tokens.get(name, anything)[None] for name in "qkv"))
        by_name = dict(zip("qkv", projected, strict=True))
        exact_pairs = {name: (x, by_name[name][0]) for name, x in tokens.items()}
        out = operated.detach().cpu().double()
        exact_output = F.linear(out.transpose(0, 1).flatten(1), *copied.out_proj.parameters())
        return _measure_projections(copied, exact_pairs, out, exact_output, rows)

    own = _measure_projections(shell, pairs, operated, output, rows)
    if not own.passed:
        return Judgement(_PROJECTIONS, own, dtype_name(output.dtype), len(rows["q"]))
    return judge_dtypes(_PROJECTIONS, output.dtype, own, exact, len(rows["q"]))


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
    tolerance = _tolerance_of(dtype, 1e-10)
    return measure_difference(
        y.reshape(len(x), -1),
        x @ W.T + b,
        tolerance=tolerance,
        rounding=32 * torch.finfo(dtype).eps,
        summed=lambda: np.abs(x) @ np.abs(W).T + np.abs(b),
    )


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


def _summarize_judgements(judgements: list[Judgement]) -> dict[str, Any]:
    """Return the row of a module: the worst judgement of all its calls, with their reasons."""
    decisive = [x for x in judgements if not x.law]
    laws = {x.law: x for x in judgements if x.law}
    measured = worst([x.measured for x in decisive])
    why = []
    if laws:
        why.append(advise_on_laws(laws))
        if measured.passed:
            decisive = list(laws.values())
            measured = worst([x.measured for x in decisive])
    judgement = next(x for x in decisive if x.measured is measured)
    if judgement.rounding and not measured.passed:
        why.append(ROUNDING_ADVICE)
    return {
        "twin": judgement.twin.name,
        "equation": judgement.twin.equation,
        "evidence": judgement.twin.evidence,
        "relation": judgement.twin.relation.name,
        "dtype": judgement.dtype,
        "rows": sum(x.n_rows for x in judgements),
        "deviation": measured.deviation,
        "tolerance": measured.tolerance,
        "verdict": "correct" if measured.passed else "NOT CORRECT",
        "why": "; ".join(why) or None,
    }
