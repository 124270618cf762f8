"""Records what reaches the modules of a model while it runs."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ...unrolled.attention import (
    Attention,
    Context,
    Operator,
    Positive,
    causal_mask,
    hidden_by,
    read_mask,
)
from ..heads import Array, Tensors
from ..laws.subject import as_array, map_tensors
from .tokens import as_dense

# Number of axes after those of the batch; tensors of other names have three, one of them heads.
_OWN_AXES = {"positions": 2, "first_tokens": 2}
_TOKEN_NAMES: dict[type, tuple[str, ...]] = {
    Operator: ("q", "k", "v"),
    Attention: ("query", "key", "value"),
}

Watch = Callable[[str, nn.Module, tuple[Any, ...], dict[str, Any], Any], None]


def run_watched(model: nn.Module, batch: Any, watch: Watch) -> None:
    """Run a model once in evaluation mode; ``watch(name, module, inputs, keywords, output)``.

    It is called after each module, except the parts of operators. What it runs is not watched.
    """
    arguments = batch if isinstance(batch, tuple) else (batch,)
    if not isinstance(batch, tuple | Mapping | Tensor):
        dtype = next((p.dtype for p in model.parameters()), torch.float64)
        arguments = (as_dense(batch, "X").to(dtype),)
    with _attached(model, watch), _evaluation_mode(model), torch.no_grad():
        if isinstance(batch, Mapping):
            model(**batch)
        else:
            model(*arguments)


def modules_of(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Yield all modules except the parts of operators, which are judged with the operator."""
    inner = {
        id(part)
        for module in model.modules()
        if isinstance(module, Operator)
        for part in module.modules()
        if part is not module
    }
    for name, module in model.named_modules():
        if id(module) not in inner and not isinstance(module, Positive):
            yield name, module


@contextmanager
def _attached(model: nn.Module, watch: Watch) -> Iterator[None]:
    """Attach a hook to every module, and remove the hooks at the end."""
    watching = False

    def hook_of(name: str) -> Callable[..., None]:
        """Return a hook that watches a module, but not the copies that are judged meanwhile."""

        def hook(module: nn.Module, inputs: Any, keywords: Any, output: Any) -> None:
            nonlocal watching
            if watching:  # this call is that of a judged copy
                return
            watching = True
            try:
                with torch.no_grad():
                    watch(name, module, inputs, keywords, output)
            finally:
                watching = False

        return hook

    with ExitStack() as stack:
        for name, module in modules_of(model):
            handle = module.register_forward_hook(hook_of(name), with_kwargs=True)
            stack.callback(handle.remove)
        yield


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


def bind_arguments(module: nn.Module, inputs: Any, keywords: Any) -> dict[str, Any]:
    """Return the arguments by name, including those that a ``**rest`` parameter takes.

    Where a subclass takes ``*args``, or has names of its own for the tokens, they have the names of
    its base.
    """
    signature = _signature_with_names(module)
    variable = any(x.kind is x.VAR_KEYWORD for x in signature.parameters.values())
    known = {k: x for k, x in keywords.items() if variable or k in signature.parameters}
    bound = signature.bind(*inputs, **known)
    bound.apply_defaults()
    arguments = dict(bound.arguments)
    for parameter in signature.parameters.values():
        if parameter.kind is parameter.VAR_KEYWORD:
            arguments |= arguments.pop(parameter.name)
    names = next((x for base, x in _TOKEN_NAMES.items() if isinstance(module, base)), ())
    return dict(zip(names, inputs, strict=False)) | arguments


def _signature_with_names(module: nn.Module) -> inspect.Signature:
    """Return the signature of `forward`, or of the nearest base that takes no ``*args``."""
    bases = [vars(x)["forward"] for x in type(module).__mro__ if "forward" in vars(x)]
    signatures = [
        inspect.signature(forward)
        for forward in (module.forward, *(x.__get__(module) for x in bases))
    ]
    return next((x for x in signatures if not _takes_any(x)), signatures[0])


def _takes_any(signature: inspect.Signature) -> bool:
    return any(x.kind is x.VAR_POSITIONAL for x in signature.parameters.values())


@dataclass(frozen=True)
class RecordedCall:
    """Inputs and output of an operator for one sequence of a batch.

    Attributes
    ----------
    inputs : tuple of Tensor of shape (heads, tokens, width)
        q, k and v.
    output : Tensor of shape (heads, n_queries, width)
    mask : Tensor that broadcasts to (heads, n_queries, n_keys), optional
    is_causal : bool
    context : Context, optional
        Without axes of the batch.
    """

    inputs: Tensors
    output: Tensor
    mask: Tensor | None
    is_causal: bool
    context: Context | None

    @property
    def visible(self) -> Array | None:
        """The keys that each query sees, of shape (heads, n_queries, n_keys); None is all."""
        q, k, _ = self.inputs
        visible: Array | None = causal_mask(q, k).numpy() if self.is_causal else None
        if self.mask is not None:
            seen = ~hidden_by(self.mask).numpy()
            visible = seen if visible is None else seen & visible
        return None if visible is None else np.broadcast_to(visible, self._pairs)

    @property
    def bias(self) -> Array | None:
        """The numbers that the mask adds to visible logits; None if they are all zero."""
        if self.mask is None or self.mask.dtype == torch.bool:
            return None
        bias = as_array(self.mask.masked_fill(hidden_by(self.mask), 0))
        return np.broadcast_to(bias, self._pairs) if bias.any() else None

    @property
    def _pairs(self) -> tuple[int, int, int]:
        q, k, _ = self.inputs
        return len(q), q.shape[-2], k.shape[-2]

    def double(self) -> RecordedCall:
        """Return the call with inputs in float64; the output stays as it was."""
        inputs, context = tuple(x.double() for x in self.inputs), self.context
        mask = None if self.mask is None else read_mask(self.mask, inputs[0])
        if context is not None:
            context = map_tensors(context, lambda name, x: x.double())
        return replace(self, inputs=inputs, mask=mask, context=context)

    def run(self, operator: nn.Module) -> RecordedCall:
        """Return the call with the output of this operator."""
        with torch.no_grad(), torch.autocast("cpu", enabled=False):
            return replace(self, output=operator(*self.inputs, **self._masks))

    def matrix(self, operator: Any) -> Array:
        """Return the operator's coefficients, of shape (heads, n_queries, n_keys)."""
        q, k, _ = self.inputs
        with torch.no_grad(), torch.autocast("cpu", enabled=False):
            return as_array(operator.matrix(q, k, **self._masks))

    @property
    def _masks(self) -> dict[str, Any]:
        return {"mask": self.mask, "is_causal": self.is_causal, "context": self.context}


def batch_shape(q: Tensor, k: Tensor, v: Tensor) -> tuple[int, ...]:
    """Return the shape of the axes before the heads."""
    return tuple(torch.broadcast_shapes(*(x.shape[:-3] for x in (q, k, v))))


def record_element(
    arguments: dict[str, Any], output: Tensor, element: tuple[int, ...]
) -> RecordedCall:
    """Record one element of the batch on the CPU; `arguments` are those of `Operator.forward`."""
    tokens = [arguments[name] for name in "qkv"]
    n_heads = (1, *torch.broadcast_shapes(*(x.shape[:-2] for x in tokens)))[-1]
    batch = batch_shape(*tokens)

    def of_element(x: Tensor, *shape: int) -> Tensor:
        return x.detach().expand(*batch, *shape)[element].cpu()

    def of_context(name: str, x: Tensor) -> Tensor:
        n_axes = _OWN_AXES.get(name, 3)
        return x.detach().cpu() if x.ndim <= n_axes else of_element(x, *x.shape[-n_axes:])

    mask, context = arguments.get("mask"), arguments.get("context")
    if mask is not None:
        pairs = tokens[0].shape[-2], tokens[1].shape[-2]
        mask = of_element(mask, n_heads, *pairs)
    if context is not None:
        context = map_tensors(context._replace(history=()), of_context)
    return RecordedCall(
        tuple(of_element(x, n_heads, *x.shape[-2:]) for x in tokens),
        of_element(output, n_heads, *output.shape[-2:]),
        mask,
        bool(arguments.get("is_causal", False)),
        context,
    )


def take_first_tokens(call: RecordedCall, count: int) -> RecordedCall:
    """Return the call on the first tokens if they see no others, or else the call itself."""
    q, k, _ = call.inputs
    visible = call.visible
    if visible is None or q.shape[-2] != k.shape[-2] or visible[:, :count, count:].any():
        return call
    mask, context = torch.from_numpy(visible[:, :count, :count].copy()), call.context
    if context is not None:
        context = map_tensors(context, lambda name, x: x[..., :count, :])
    inputs, output = tuple(x[:, :count] for x in call.inputs), call.output[:, :count]
    return RecordedCall(inputs, output, mask, False, context)
