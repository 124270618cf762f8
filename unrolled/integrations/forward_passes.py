"""A context for each forward pass of a model that knows nothing of contexts."""

import threading
from collections.abc import Callable
from operator import attrgetter
from typing import Any

import torch
from torch import Tensor, nn

from ..attention import Call, Context, Operator
from ..attention.inputs import check_context

SERVED = set(Context._fields) - {"grid", "history", "n_class_tokens"}
Projection = Callable[[Tensor], tuple[Tensor, Tensor]]


class ForwardPasses:
    """Passes the context from layer to layer in each forward pass of a model.

    Hooks open a `Context` when the model is called and drop it when the call ends. Calls may be
    nested, and each thread has its own. ``nn.TransformerEncoder`` and ``nn.TransformerDecoder``
    inside the model are separate chains of layers, and open another context.

    Gradient checkpointing calls a layer again in a backward pass, when the forward pass is over.
    The layer then gets, without graph, the context that it had for the same values in the model's
    latest forward pass with gradients. Without such a pass it raises an error.

    Parameters
    ----------
    positions : str, optional
        Dotted name of the position features in the model.
    """

    def __init__(self, positions: str | None = None) -> None:
        self.positions = positions
        self.threads = threading.local()
        self.met: list[tuple[Operator, Tensor, Context]] = []

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.positions,)

    def watch(self, model: nn.Module) -> None:
        """Open a context whenever `model` is called."""
        model.register_forward_pre_hook(self._open_model, prepend=True)
        model.register_forward_hook(self._close, always_call=True)
        for module in model.modules():
            chain = isinstance(module, nn.TransformerEncoder | nn.TransformerDecoder)
            if chain and module is not model:
                module.register_forward_pre_hook(self._open_chain, prepend=True)
                module.register_forward_hook(self._close, always_call=True)

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
        first_positions: bool = False,
        kept: list[Tensor] | None = None,
    ) -> tuple[Tensor, Context]:
        """Run an operator in the context of the running pass; return its output and the context.

        A model that makes contexts itself passes `context`. With `first_positions`, the model's
        positions are those of its longest sequence: the first are taken, as many as there are keys,
        except in layers with fewer tokens than the first one. `kept` is as in `Operator.forward`.

        Raises
        ------
        ValueError
            If the operator needs a context and there is none, or one that does not fit.
        """
        running = self._passes_under_way()
        is_tracked = context is None and bool(running)
        entering = running[-1][1] if is_tracked else context
        if entering is None:
            entering = self._recall(operator, v) if operator.needs else Context()
        seen = entering.enter(tokens, v)
        leaving = seen.leave()
        n_keys, first_values, positions = k.shape[-2], seen.first_values, seen.positions
        if first_positions and positions is not None and first_values is not None:
            n_positions = n_keys if n_keys >= first_values.shape[-2] else positions.shape[-2]
            seen = seen._replace(positions=positions[..., :n_positions, :])
        _check_shapes(operator, seen, v)
        if "projected_positions" in operator.needs and seen.positions is not None:
            assert project is not None
            projected = project(seen.positions)
            check_context(seen, ("positions",), k, type(operator).__name__)
            seen = seen._replace(projected_positions=projected)
        call = Call(q, k, v, mask, is_causal, seen)
        if kept is not None:
            rows = {
                n: getattr(seen, n)[..., k.shape[-2] - q.shape[-2] :, :] for n in operator.row_needs
            }
            call = call._replace(context=seen._replace(**rows))
        output = call.output_of(operator, kept)
        if is_tracked:
            running[-1] = running[-1][0], leaving
            if operator.needs and output.requires_grad and not torch.compiler.is_compiling():
                self.met.append((operator, v.detach(), _drop_graph(entering)))
        return output, seen

    def _passes_under_way(self) -> list[tuple[int, Context]]:
        """Return this thread's running passes, outermost first; in a backward pass, its own."""
        stack = self.threads.__dict__.setdefault("stack", [])
        return stack if stack and stack[-1][0] == _number_of_backward_pass() else []

    def _recall(self, operator: Operator, v: Tensor) -> Context:
        """Return the context that this operator had for these values in the latest forward pass."""
        kind = type(operator).__name__
        if _number_of_backward_pass() == -1:
            raise ValueError(
                f"context: {kind} needs {', '.join(operator.needs)}, but no forward pass of the "
                "model whose attention was replaced is under way; call that model, not a part of it"
            )
        contexts = [c for o, values, c in self.met if o is operator and torch.equal(values, v)]
        if len(contexts) != 1:
            raise ValueError(
                f"context: {kind} is computed anew in a backward pass (gradient checkpointing), "
                "but its values are not those of one call in the model's latest forward pass; "
                "call backward before the next forward pass, checkpoint with use_reentrant=False, "
                "or checkpoint the whole model"
            )
        return contexts[0]

    def _open_model(self, model: nn.Module, inputs: Any) -> None:
        if torch.is_grad_enabled():
            self.met = []
        self._open(Context(None if self.positions is None else attrgetter(self.positions)(model)))

    def _open_chain(self, module: nn.Module, inputs: Any) -> None:
        running = self._passes_under_way()
        self._open(Context(running[-1][1].positions if running else None))

    def _open(self, context: Context) -> None:
        self._passes_under_way()
        self.threads.stack.append((_number_of_backward_pass(), context))

    def _close(self, module: nn.Module, inputs: Any, output: Any) -> None:
        if self._passes_under_way():
            self.threads.stack.pop()


def _number_of_backward_pass() -> int:
    """Return the number of the backward pass that this thread is in, or -1."""
    return torch._C._current_graph_task_id()


def _drop_graph(context: Context) -> Context:
    """Return the context without its graph; operations on it save the same tensors as before."""

    def cut(x: Any) -> Any:
        return x.detach().requires_grad_(x.requires_grad) if isinstance(x, Tensor) else x

    return Context(*(cut(x) for x in context))


def _check_shapes(operator: Operator, seen: Context, v: Tensor) -> None:
    """Raise a ValueError unless the values of other layers have the shape of this layer's."""
    for name in ("first_values", "previous_values"):
        other = getattr(seen, name)
        if name in operator.needs and other is not None and other.shape != v.shape:
            raise ValueError(
                f"{name}: must have the shape {tuple(v.shape)} of this layer's values, got "
                f"{tuple(other.shape)}; replace the attention of each stage of a model by itself"
            )
