"""Functions of other packages: how each is called, and the recurrence that it claims."""

import importlib
import os
import sys
from collections.abc import Callable, Iterator
from typing import Any

import torch

from .construction import Call, Name

_S, _HG = "initial_state=S", "h_kk_init=H, h_kv_init=G"
_DELTA, _GATED = "q, k, v, beta", "q, k, v, beta, g=log forget"
_COMBA, _MESA = f"{_GATED}, p", f"{_GATED}, lamb=lam"
_LOW_RANK = "alpha=k, beta=-beta k, q, k=beta k, v"
_SCALE = {"scale": 8**-0.5}
_KEPT = {"states": _S, "output_final_state": True, **_SCALE}
_OLD = {"states": _S, "heads_first": True, **_SCALE}
_KEYS = {"per_key": True, **_KEPT}
# Equation, arguments, options of `Adapter`.
_REFERENCES: dict[str, tuple[str, str, dict[str, Any]]] = {
    "linear_attn.naive:naive_recurrent_linear_attn": ("TR-1", "q, k, v", _KEPT),
    "simple_gla.naive:naive_recurrent_simple_gla": ("TR-1", "q, k, v, g=log forget", _KEPT),
    "simple_gla.naive:naive_chunk_simple_gla": ("TR-1", "q, k, v, g=log forget", _KEPT),
    "simple_gla.naive:naive_parallel_simple_gla": ("TR-1", "q, k, v, g=log forget", _SCALE),
    "gla.naive:naive_recurrent_gla": ("TR-1", "q, k, v, gk=log forget", _KEYS),
    "delta_rule.naive:delta_rule_recurrence": ("TR-2", _DELTA, _OLD),
    "generalized_delta_rule.iplr.naive:iplr_recurrence": ("TR-2", _LOW_RANK, _OLD),
    "generalized_delta_rule.dplr.naive:dplr_recurrence": (
        "TR-3",
        "alpha=forget k, beta=-beta k, q, k=beta k, v, gk=log forget",
        {"per_key": True, **_OLD},
    ),
    "gated_delta_rule.naive:naive_recurrent_gated_delta_rule": ("TR-3", _GATED, _KEPT),
    "gated_delta_rule.naive:naive_chunk_gated_delta_rule": ("TR-3", _GATED, _KEPT),
    "kda.naive:naive_recurrent_kda": ("TR-3", _GATED, _KEYS),
    "comba.naive:naive_recurrent_comba": ("Comba", _COMBA, _KEPT),
    "comba.naive:naive_chunk_comba": ("Comba", _COMBA, _KEPT),
    "mesa_net.naive:naive_mesa_net_exact": ("TR-5", _MESA, {"states": _HG}),
    "mesa_net.naive:naive_mesa_net_CG": ("TR-5", _MESA, {"states": _HG, "chunk_size": 1}),
    "parallax.naive:naive_parallax": ("TR-9", "q, k, v, r=probe", _SCALE),
    "retention.naive:naive_retention": ("", "q, k, v", {"heads_first": True}),
    "forgetting_attn.naive:naive_forgetting_attn": ("", "q, k, v, g=log forget", {}),
    "ttt.naive:chunk_ttt_linear_ref": (
        "",
        "q, k, v",
        {
            "w": Name("torch:ones")(4, 8),
            "b": Name("torch:zeros")(4, 8),
            "eta": 0.1,
            "mini_batch_size": 7,
        },
    ),
}
_KERNELS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "delta_rule:fused_recurrent_delta_rule": ("TR-2", _DELTA, _KEPT),
    "gated_delta_rule:fused_recurrent_gated_delta_rule": ("TR-3", _GATED, _KEPT),
    "gated_delta_rule:chunk_gated_delta_rule": ("TR-3", _GATED, _KEPT),
    "kda:fused_recurrent_kda": ("TR-3", _GATED, _KEYS),
    "kda:chunk_kda": ("TR-3", _GATED, _KEYS),
    "simple_gla:fused_recurrent_simple_gla": ("TR-1", "q, k, v, g=log forget", _KEPT),
    "simple_gla:chunk_simple_gla": ("TR-1", "q, k, v, g=log forget", _KEPT),
    "gla:fused_recurrent_gla": ("TR-1", "q, k, v, gk=log forget", _KEYS),
    "gla:chunk_gla": ("TR-1", "q, k, v, g=log forget", _KEYS),
    "comba:fused_recurrent_comba": ("Comba", _COMBA, _KEPT),
    "comba:chunk_comba": ("Comba", _COMBA, _KEPT),
}
# In transformers other models have copies of these.
_FALLBACKS: dict[str, dict[str, Any]] = {
    "qwen3_next:torch_chunk_gated_delta_rule": {},
    "qwen3_next:torch_recurrent_gated_delta_rule": {},
    "kimi_linear:chunk_kimi_delta_attention": {"per_key": True},
}
KERNEL_LAWS = (
    "arguments", "prefill in pieces", "equation", "gradients of equation",
    "gradients of equation under strong decay", "closed gates",
)  # fmt: skip
_RECURRENCES = {
    "TR-1": "sum_outer_products", "TR-2": "step_delta", "TR-3": "step_delta",
    "TR-5": "solve_ridge", "TR-9": "attend_with_probe", "Comba": "step_comba",
}  # fmt: skip


def references() -> Iterator[tuple[str, Call]]:
    """Yield the reference functions, in torch, with their names."""
    for place, row in _REFERENCES.items():
        yield f"fla-core/{place.replace('.naive', '')}", _adapt(Name(f"fla.ops.{place}"), *row)


def kernels() -> Iterator[tuple[str, Call]]:
    """Yield the Triton kernels, with their names."""
    load = Name(f"{__name__}:load_kernel")
    for place, (equation, arguments, options) in _KERNELS.items():
        dim = 64 if torch.cuda.is_available() else 8
        sizes = {**options, "heads": 2, "dim": dim, "scale": dim**-0.5}
        yield f"fla-core/{place}", _adapt(load(f"fla.ops.{place}"), equation, arguments, sizes)


def fallbacks() -> Iterator[tuple[str, Call]]:
    """Yield the functions in torch that transformers calls without kernels, with their names."""
    arguments = "query=q, key=k, value=v, g=log forget, beta"
    for place, options in _FALLBACKS.items():
        model, _, name = place.partition(":")
        function = Name(f"transformers.models.{model}.modeling_{model}:{name}")
        yield f"transformers/{place}", _adapt(function, "TR-3", arguments, {**_KEPT, **options})


def _adapt(function: Name | Call, equation: str, arguments: str, options: dict[str, Any]) -> Call:
    adapter = Name("twinsolve.twins.audit:Adapter")
    named = {}
    if equation:
        place = f"twinsolve.twins.audit.recurrences:{_RECURRENCES[equation]}"
        named["recurrence"] = Name(place)
    return adapter(function, arguments, **named, **options)


class Index(int):
    """The index of a loop, which kernels cast."""

    def to(self, dtype: Any) -> int:
        return int(self)


def count(*bounds: Any) -> Iterator[Index]:
    """`range`, for loops of kernels."""
    return map(Index, range(*map(int, bounds)))


def choose_backend() -> None:
    """Tell triton, before it is imported, to interpret kernels if there is no GPU, and no TF32."""
    os.environ["TRITON_INTERPRET"] = "0" if torch.cuda.is_available() else "1"
    os.environ.setdefault("TRITON_F32_DEFAULT", "ieee")


def load_kernel(place: str) -> Callable[..., Any]:
    """Load a function of fla.ops; without a GPU its kernels run in Triton's interpreter.

    Each kernel keeps the first of its configurations: the interpreter cannot time them, and on a
    GPU to compile all takes minutes. Loops of the interpreter have plain ints, which kernels cast
    like tensors: they get a `range` of their own.
    """
    choose_backend()
    module, _, name = place.partition(":")
    function: Callable[..., Any] = getattr(importlib.import_module(module), name)
    from triton.runtime.autotuner import Autotuner

    for loaded in [x for key, x in sys.modules.items() if key.startswith("fla.ops")]:
        if not torch.cuda.is_available():
            vars(loaded)["range"] = count
        for kernel in list(vars(loaded).values()):
            while hasattr(kernel, "fn"):
                if isinstance(kernel, Autotuner):
                    del kernel.configs[1:]
                kernel = kernel.fn
    return function
