"""Measures of every attention layer of a model while it runs."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ..attention import Correction, Operator, causal_mask, combine_masks, hidden_by
from ..nonlocal_energy import Neutreno
from .energies import gradient_cosine, kernel_energy
from .measures import (
    attention_spectrum,
    condition_number,
    high_frequency_share,
    map_similarity,
    method_noise_share,
    nonzero_share,
    token_similarity,
)


@dataclass
class Observation:
    """What passed through one attention layer, without gradients.

    Attributes
    ----------
    operator : Operator
    q, k, v, output : Tensor of shape (..., heads, tokens, head_dim)
        Inputs and output of the operator.
    arguments : dict
        Mask, ``is_causal`` and context that the operator was called with.
    tokens : Tensor of shape (..., tokens, dim)
        Output of the block around the layer.
    previous : Observation or None
        Observation of the layer before.
    first_values : Tensor
        Values of the first layer observed in this pass.
    """

    operator: Operator
    q: Tensor
    k: Tensor
    v: Tensor
    output: Tensor
    arguments: dict[str, Any]
    tokens: Tensor
    previous: "Observation | None"
    first_values: Tensor

    @cached_property
    def matrix(self) -> Tensor:
        """The mixing matrix of the operator, of shape (..., heads, n_queries, n_keys).

        It is what the output does with the values: ``A - lam I`` for `Neutreno`, at fixed first
        values.
        """
        return self._build_matrix(self.operator)

    @cached_property
    def attention_matrix(self) -> Tensor:
        """The attention matrix A, of the same shape.

        It is `matrix` itself, but for a `Neutreno`: there it is the matrix of the smoother, without
        the pull to the first values.
        """
        operator = self.operator
        while (neutreno := find_neutreno(operator)) is not None:
            operator = neutreno.base
        return self.matrix if operator is self.operator else self._build_matrix(operator)

    def _build_matrix(self, operator: Operator) -> Tensor:
        with torch.no_grad():
            return operator.matrix(self.q, self.k, **self.arguments)

    @property
    def masks(self) -> dict[str, Any]:
        """The arguments that hide keys: ``mask`` and ``is_causal``."""
        return {key: self.arguments[key] for key in ("mask", "is_causal") if key in self.arguments}

    @property
    def previous_attention_matrix(self) -> Tensor | None:
        """The attention matrix of the layer before, or None if there is none of this shape."""
        before = None if self.previous is None else self.previous.attention_matrix
        return (
            before if before is not None and before.shape == self.attention_matrix.shape else None
        )


def find_neutreno(operator: Operator) -> Neutreno | None:
    """Return the first `Neutreno` in a chain of corrections from this operator on, or None."""
    while isinstance(operator, Correction) and not isinstance(operator, Neutreno):
        operator = operator.base
    return operator if isinstance(operator, Neutreno) else None


Measure = Callable[[Observation], Tensor | None]


def _measure_similarity_to_previous(seen: Observation) -> Tensor | None:
    before = seen.previous_attention_matrix
    return None if before is None else map_similarity(seen.attention_matrix, before)


def _measure_similarity(seen: Observation, *, absolute: bool) -> Tensor | None:
    if seen.tokens.shape[-2] < 2:
        return None
    return token_similarity(seen.tokens, absolute=absolute)


def _has_square_matrix(seen: Observation) -> bool:
    return seen.q.shape[-2] == seen.k.shape[-2]


def _measure_gradient_cosine(seen: Observation) -> Tensor | None:
    if not _has_square_matrix(seen) or "q" not in seen.operator.reads:
        return None
    return gradient_cosine(seen.q, seen.k, seen.v, **seen.masks)


def _measure_bands(seen: Observation) -> Tensor | None:
    return attention_spectrum(seen.attention_matrix)[1] if _has_square_matrix(seen) else None


def _measure_high_bands(seen: Observation) -> Tensor | None:
    """Return the mean intensity of the bands but the first, over that of the first."""
    intensity = _measure_bands(seen)
    if intensity is None or intensity.shape[-1] < 2:
        return None
    return intensity[..., 1:].mean(dim=-1) / intensity[..., 0]


def _measure_nonzero_share(seen: Observation) -> Tensor:
    mask = seen.arguments.get("mask")
    visible = None if mask is None else ~hidden_by(mask)
    if seen.arguments.get("is_causal"):
        visible = combine_masks(visible, causal_mask(seen.q, seen.k))
    return nonzero_share(seen.attention_matrix, visible)


def _measure_smoothness(seen: Observation) -> Tensor | None:
    if not _has_square_matrix(seen) or "k" not in seen.operator.reads:
        return None
    return kernel_energy(seen.output, seen.k, **seen.masks)


def _measure_energy(seen: Observation) -> Tensor | None:
    """Return the energy with the layer's own penalty, or None if it has none."""
    neutreno = find_neutreno(seen.operator)
    if neutreno is None or seen.first_values.shape != seen.output.shape:
        return None
    lam = neutreno.lam()
    return kernel_energy(seen.output, seen.k, f=seen.first_values, lam=lam, **seen.masks)


MEASURES: dict[str, Measure] = {
    "token_similarity": lambda seen: _measure_similarity(seen, absolute=False),
    "absolute_token_similarity": lambda seen: _measure_similarity(seen, absolute=True),
    "high_frequency_share": lambda seen: high_frequency_share(seen.tokens),
    "log_condition_number": lambda seen: condition_number(seen.tokens).log(),
    "map_similarity": lambda seen: map_similarity(seen.attention_matrix),
    "map_similarity_to_previous": _measure_similarity_to_previous,
    "high_band_intensity": _measure_high_bands,
    "nonzero_share": _measure_nonzero_share,
    "smoothness": _measure_smoothness,
    "regularized_energy": _measure_energy,
    "gradient_cosine": _measure_gradient_cosine,
    "method_noise_share": lambda seen: (
        method_noise_share(seen.v, seen.output) if _has_square_matrix(seen) else None
    ),
}

ARRAYS: dict[str, Measure] = {
    "attention_map": lambda seen: seen.attention_matrix,
    "map_singular_values": lambda seen: torch.linalg.svdvals(_widen(seen.attention_matrix)),
    "band_intensity": _measure_bands,
    "token_singular_values": lambda seen: torch.linalg.svdvals(_widen(seen.tokens)),
}


def _widen(x: Tensor) -> Tensor:
    return x.to(torch.promote_types(x.dtype, torch.float32))


@contextmanager
def record(
    model: nn.Module,
    measures: Mapping[str, Measure] | None = None,
    *,
    arrays: Mapping[str, Measure] | None = None,
) -> Iterator[list[dict[str, Any]]]:
    """Measure every attention layer of a model in the forward passes inside the ``with`` block.

    A layer is an attention shell with an `Operator`. The block around it is the module that
    contains the shell (the shell itself where it is the model or in a list). Some measures build
    the explicit matrices: use short sequences. Padding tokens count like all others.

    Parameters
    ----------
    model : nn.Module
        Contains shells such as `Attention`, its own or put in by `replace_attention`.
    measures : mapping of str to callable, optional
        Each returns, for an `Observation`, a Tensor whose mean over batch and heads is recorded, or
        None where it has no meaning. By default `MEASURES`: signed and absolute cosines of tokens
        (NT-E3, AO-76), share of high frequencies (AO-HF) and natural logarithm of the condition
        number (SK-4) of the block's output; of the attention matrices the similarity inside the
        layer (AO-75) and to the layer before, the mean intensity of higher bands over the first's
        (AO-SPEC) and the share of visible entries that are not zero; of the operator's output the
        smoothness J under the kernel of the keys and, where the operator is a `Neutreno`, the
        energy E with its own lam towards the first values, both relative to the sum of the kernel
        (`kernel_energy`); cosine of gradients (NT-T4), and method noise ``|v - A v| / |v|``. For
        the mixing matrices of `Neutreno`, give a measure of ``Observation.matrix``.
    arrays : mapping of str to callable, optional
        Such as `ARRAYS` or a part of it: results are recorded whole, to be drawn. `ARRAYS` holds
        "attention_map" (batch, heads, n_queries, n_keys), "map_singular_values" of it, largest
        first, "band_intensity" (batch, heads, n_tokens) of AO-SPEC and, of the block's output,
        "token_singular_values" (batch, min(n_tokens, dim)). Each is a NumPy array in float32, or
        float64 where it is computed in that, and stays in memory as long as its row: a map costs
        ``4 batch heads n_queries n_keys`` bytes for every layer and call.

    Yields
    ------
    list of dict
        Rows ``{"call", "layer", "name", "measure", "value"}`` as they come: number of the forward
        pass and of the layer in it, name of the layer in the model. A `pandas.DataFrame` takes it.
        Values are numbers, or arrays for what `arrays` asked for.

    Raises
    ------
    ValueError
        If the model contains no operator.

    Examples
    --------
    >>> import torch
    >>> from twinsolve.unrolled import Attention, Softmax
    >>> from twinsolve.unrolled.diagnostics import record
    >>> layer = Attention(8, 2, operator=Softmax())
    >>> x = torch.randn(1, 6, 8)
    >>> with record(layer) as rows:
    ...     _ = layer(x, x, x, need_weights=False)
    >>> sorted({row["measure"] for row in rows})[:2]
    ['absolute_token_similarity', 'gradient_cosine']
    """
    recorder = _Recorder(MEASURES if measures is None else measures, arrays or {})
    layers = list(_find_layers(model))
    if not layers:
        raise ValueError(f"model: must be or contain an Operator, got {type(model).__name__}")
    with ExitStack() as stack:
        for handle in recorder.attach(model, layers):
            stack.callback(handle.remove)
        yield recorder.rows


@dataclass(frozen=True)
class _Layer:
    """An attention layer of a model: its name, its operator, and the block around it."""

    name: str
    operator: Operator
    block: nn.Module


def _find_layers(model: nn.Module) -> Iterator[_Layer]:
    """Yield the operators that are not inside another one, with the block around their shell.

    Layers may share an operator, or be one and the same module under several names.
    """
    modules = dict(model.named_modules(remove_duplicate=False))
    known: set[tuple[int, int]] = set()
    for name, module in modules.items():
        shell = name.rpartition(".")[0]
        if not isinstance(module, Operator) or (name and isinstance(modules[shell], Operator)):
            continue
        block = modules[shell.rpartition(".")[0]]
        if isinstance(block, nn.ModuleList | nn.ModuleDict):  # never called themselves
            block = modules[shell]
        if (id(module), id(block)) not in known:
            known.add((id(module), id(block)))
            yield _Layer(shell, module, block)


class _Recorder:
    """Collects inputs and outputs of operators, and measures them when their block has run."""

    def __init__(self, measures: Mapping[str, Measure], arrays: Mapping[str, Measure]) -> None:
        self.measures: list[tuple[str, Measure, Callable[[Tensor], Any]]]
        self.measures = [(name, take, _take_mean) for name, take in measures.items()]
        self.measures += [(name, take, _to_array) for name, take in arrays.items()]
        self.rows: list[dict[str, Any]] = []
        self.call = -1
        self.running = False
        self.seen: dict[str, dict[str, Any]] = {}
        self.measured: set[str] = set()

    def _start(self) -> None:
        """Start the rows of a new call."""
        self.call += 1
        self.measured = set()
        self.n_layers = 0
        self.previous: Observation | None = None
        self.first_values: Tensor | None = None

    def _enter(self, *_: Any) -> None:
        self.running, self.seen = True, {}
        self._start()

    def _leave(self, *_: Any) -> None:
        self.running = False

    def attach(self, model: nn.Module, layers: list[_Layer]) -> Iterator[Any]:
        yield model.register_forward_pre_hook(self._enter)
        for layer in layers:
            yield layer.operator.register_forward_hook(self._hook_operator(layer), with_kwargs=True)
            yield layer.block.register_forward_hook(self._hook_block(layer))
        yield model.register_forward_hook(self._leave, always_call=True)

    def _hook_operator(self, layer: _Layer) -> Callable[..., None]:
        """Return a hook that keeps the inputs and the output of a layer's operator."""

        def hook(module: Any, inputs: Any, arguments: dict[str, Any], output: Tensor) -> None:
            if not self.running and torch._C._current_graph_task_id() != -1:
                return  # recomputed in a backward pass
            q, k, v = (x.detach() for x in inputs)
            self.seen[layer.name] = {
                "q": q, "k": k, "v": v, "output": output.detach(), "arguments": arguments
            }  # fmt: skip

        return hook

    def _hook_block(self, layer: _Layer) -> Callable[..., None]:
        """Return a hook that measures a layer when the block around it has run."""

        def hook(module: Any, inputs: Any, output: Any) -> None:
            seen = self.seen.pop(layer.name, None)
            if seen is None:
                return
            if not self.running and (self.call < 0 or layer.name in self.measured):
                self._start()  # a method of the model is called, not the model
            tokens = output if isinstance(output, Tensor) else output[0]
            if self.first_values is None:
                self.first_values = seen["v"]
            observation = Observation(
                operator=layer.operator,
                tokens=tokens.detach(),
                previous=self.previous,
                first_values=self.first_values,
                **seen,
            )
            with torch.no_grad():
                self._measure(layer.name, observation)
            self.measured.add(layer.name)
            self.previous, observation.previous = observation, None

        return hook

    def _measure(self, name: str, observation: Observation) -> None:
        """Append a row for each measure that has a value for this observation."""
        for measure, function, convert in self.measures:
            value = function(observation)
            if value is not None:
                self.rows.append(
                    {
                        "call": self.call,
                        "layer": self.n_layers,
                        "name": name,
                        "measure": measure,
                        "value": convert(value),
                    }
                )
        self.n_layers += 1


def _take_mean(x: Tensor) -> float:
    return float(x.double().mean())


def _to_array(x: Tensor) -> np.ndarray:
    return _widen(x).cpu().numpy().copy()
