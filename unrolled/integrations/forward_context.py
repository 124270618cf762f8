"""A context for each forward pass of a model that knows nothing of contexts."""

import threading
import weakref
from collections.abc import Callable
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import Any

import torch
from torch import Tensor, nn

from ..attention import Context, Operator

SERVED = (
    "first_tokens",
    "first_values",
    "positions",
    "previous_values",
    "projected_positions",
    "values",
)
Projection = Callable[[Tensor], tuple[Tensor, Tensor]]


class ForwardContext(threading.local):
    """Opens a `Context` when the model's forward pass begins and drops it when that ends.

    Passes may be nested, and threads have their own. ``nn.TransformerEncoder`` and
    ``nn.TransformerDecoder`` inside the model are chains of layers of their own and open another.

    Parameters
    ----------
    positions : str, optional
        Dotted name of the position features in the model.
    """

    def __init__(self, positions: str | None = None) -> None:
        self.positions = positions
        self.running: list[tuple[int, Context]] = []

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.positions,)

    def watch(self, model: nn.Module) -> None:
        """Open a context whenever `model` is called."""
        stacks = (nn.TransformerEncoder, nn.TransformerDecoder)
        for module in model.modules():
            if module is model or isinstance(module, stacks):
                module.register_forward_pre_hook(self._open, prepend=True)
                module.register_forward_hook(self._close, always_call=True)

    def current(self) -> Context | None:
        """The context of the pass under way; None outside, and in a backward pass within it."""
        if self.running and self.running[-1][0] == _backward_pass():
            return self.running[-1][1]
        return None

    def _open(self, module: nn.Module, inputs: Any) -> None:
        outer = self.current()
        positions = self._positions_in(module) if outer is None else outer.positions
        self.running.append((_backward_pass(), Context(positions=positions)))

    def _close(self, module: nn.Module, inputs: Any, output: Any) -> None:
        if self.running:
            self.running.pop()

    def _positions_in(self, module: nn.Module) -> Tensor | None:
        try:
            return None if self.positions is None else attrgetter(self.positions)(module)
        except AttributeError:
            return None


def _backward_pass() -> int:
    """Number of the backward pass that this thread is in, -1 outside."""
    return torch._C._current_graph_task_id()


@dataclass(eq=False)
class _Snapshot:
    """The context that a layer met in one forward pass, and what it is known by."""

    key: Tensor
    context: Context


class LayerContext:
    """One layer's view of the forward pass around it.

    Gradient checkpointing calls a layer again in the backward pass, when the forward pass and its
    context are over, maybe after other forward passes. So each graph keeps the contexts that its
    layers met, cut off from the graph (a recomputation only yields values), and dies with them; a
    recomputation finds its own by the values of the layer.

    Parameters
    ----------
    passes : ForwardContext, optional
        None: no layer of the model needs a context.
    """

    def __init__(self, passes: ForwardContext | None) -> None:
        self.passes = passes
        self._met: weakref.WeakSet[_Snapshot] = weakref.WeakSet()

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.passes,)

    def attend(
        self,
        operator: Operator,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        *,
        mask: Tensor | None,
        is_causal: bool,
        tokens: Tensor | None = None,
        project: Projection | None = None,
        context: Context | None = None,
    ) -> tuple[Tensor, Context | None]:
        """The operator's output, and the context in which it was computed.

        A `context` given is that of a model which makes its own.

        Raises
        ------
        ValueError
            If the operator needs a context and no forward pass of the model is under way.
        """
        running = context
        if running is None and self.passes is None:
            return operator(q, k, v, mask=mask, is_causal=is_causal), None
        if running is None and self.passes is not None:
            running = self.passes.current()
        shared = self._recall(operator, v) if running is None else replace(running)
        view = _view(operator, shared, v, tokens, project)
        output = operator(q, k, v, mask=mask, is_causal=is_causal, context=view)
        if running is not None:
            running.first_values = v if running.first_values is None else running.first_values
            running.first_tokens = tokens if running.first_tokens is None else running.first_tokens
            running.previous_values = v
            if operator.needs:
                self._remember(shared, operator, v, output)
        return output, view

    def _remember(self, shared: Context, operator: Operator, v: Tensor, output: Tensor) -> None:
        if torch.compiler.is_compiling() or output.grad_fn is None:
            return
        first_values, first_tokens, previous_values = (
            _cut_off(getattr(shared, name)) if name in operator.needs else None
            for name in ("first_values", "first_tokens", "previous_values")
        )
        kept = Context(
            positions=_cut_off(shared.positions),
            first_values=first_values,
            first_tokens=first_tokens,
            previous_values=previous_values,
        )
        snapshot = _Snapshot(_key(v), kept)
        kept_by_graph: Any = output.grad_fn.metadata
        kept_by_graph["twinsolve"] = snapshot
        self._met.add(snapshot)

    def _recall(self, operator: Operator, v: Tensor) -> Context:
        """The context that this layer met when it was given these values."""
        if not operator.needs:
            return Context()
        met = list(self._met) if _backward_pass() != -1 else []
        if len(met) > 1:
            key = _key(v)
            met = [snapshot for snapshot in met if torch.equal(snapshot.key, key)]
        if not met:
            raise ValueError(
                f"context: {type(operator).__name__} needs {', '.join(operator.needs)}, but no "
                "forward pass of the model whose attention was replaced is under way; call that "
                "model, not a part of it, and checkpoint with use_reentrant=False"
            )
        return replace(met[0].context)


def _view(
    operator: Operator,
    shared: Context,
    v: Tensor,
    tokens: Tensor | None,
    project: Projection | None,
) -> Context:
    """What the operator needs of the shared context and of its own layer."""
    known: dict[str, Any] = {
        "first_tokens": tokens if shared.first_tokens is None else shared.first_tokens,
        "first_values": v if shared.first_values is None else shared.first_values,
        "positions": shared.positions,
        "previous_values": shared.previous_values,
        "values": v,
    }
    for name in ("first_values", "previous_values"):
        other = known[name]
        if name in operator.needs and other is not None and other.shape != v.shape:
            raise ValueError(
                f"{name}: shape {tuple(other.shape)}, but the values of this layer have "
                f"{tuple(v.shape)}; replace the attention of each stage of a model by itself"
            )
    if "projected_positions" in operator.needs and shared.positions is not None:
        assert project is not None
        known["projected_positions"] = project(shared.positions)
    context = Context()
    for name in operator.needs:
        setattr(context, name, known.get(name))
    return context


def _cut_off(x: Tensor | None) -> Tensor | None:
    """The values of x without its graph; operations on them save the same tensors."""
    return None if x is None else x.detach().requires_grad_(x.requires_grad)


def _key(v: Tensor) -> Tensor:
    """A number by which recomputed values are recognised."""
    key = v.detach().to(torch.promote_types(v.dtype, torch.float32))
    while key.ndim:
        weights = torch.arange(1, key.shape[-1] + 1, device=v.device).to(key.dtype)
        key = key @ weights.sin()
    return key
