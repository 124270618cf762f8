"""References and Triton kernels of flash-linear-attention, held to the vectors.

Without a GPU the kernels run in Triton's interpreter, on the CPU. It multiplies no bfloat16:
kernels that need it, of Mesa and of the delta rule in chunks, are left out.
"""

import importlib
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pandas as pd
import torch
from torch import Tensor

from ..tables import Lines, number
from .cases import Arrays, Tensors
from .holding import hold

_Make = Callable[[Tensors], Tensor]


def _log_gate(x: Tensors) -> Tensor:
    """Return the log of one gate a token, which some cases have of a gate for each key."""
    gate = x["forget"] if x["forget"].ndim < x["k"].ndim else x["forget"][..., 0]
    if x["forget"].ndim == x["k"].ndim and not x["forget"].eq(gate[..., None]).all():
        raise NotImplementedError
    return gate.log()


_MAKE: dict[str, _Make] = {
    "log a": _log_gate,
    "log a of keys": lambda x: x["forget"].log(),
    "a k": lambda x: x["forget"] * x["k"],
    "beta k": lambda x: x["beta"][..., None] * x["k"],
    "-beta k": lambda x: -x["beta"][..., None] * x["k"],
}
_QKV = {"q": "q", "k": "k", "v": "v"}
_GATED = _QKV | {"beta": "beta", "g": "log a"}
_MESA = {"h_kk_init": "H", "h_kv_init": "G"}
_LAST = {"output_final_state": True}


@dataclass(frozen=True)
class _Peer:
    """How to call a function of ``fla.ops``.

    `takes` are its arguments of tokens, by names of inputs or of what `_MAKE` makes of them;
    `states` those of initial states. `square` values are as wide as keys.
    """

    place: str
    subject: str
    takes: dict[str, str]
    dtype: str = "float64"
    given: dict[str, Any] = field(default_factory=dict)
    states: dict[str, str] = field(default_factory=lambda: {"initial_state": "S"})
    heads_first: bool = False
    scale: str = "scale"  # argument; without one the function scales by d ** -0.5, or "never"
    square: bool = False
    note: str = ""

    def call(self, x: Tensors, settings: dict[str, Any]) -> Tensors:
        """Return the outputs of a case."""
        n_before = 0
        if "initial_K" in x:
            n_before = x["initial_K"].shape[-2]
            zeros = torch.zeros_like(x["initial_K"])
            ahead = {"q": zeros, "probe": zeros, "k": x["initial_K"], "v": x["initial_V"]}
            x = x | {name: torch.cat([y, x[name]], dim=-2) for name, y in ahead.items()}
        width, d = x["v"].shape[-1], x["k"].shape[-1]
        if self.square:
            wide = [name for name in ("v", "initial_G") if name in x]
            x = x | {name: torch.nn.functional.pad(x[name], (0, d - width)) for name in wide}
        scale = settings.get("scale", 1.0)
        given = dict(self.given)
        if self.scale == "scale":
            given["scale"] = scale
        elif not self.scale:
            x = x | {"q": x["q"] * scale * d**0.5}
        for argument, name in self.takes.items():
            made = _MAKE[name](x) if name in _MAKE else x[name]
            given[argument] = (made if self.heads_first else made.transpose(1, 2)).contiguous()
        given |= {argument: x[f"initial_{name}"].clone() for argument, name in self.states.items()}
        if "lam" in x:
            if not x["lam"].eq(x["lam"][:1]).all():
                raise NotImplementedError  # one penalty for the batch
            given["lamb"] = x["lam"][0]
        before = {name: y.clone() for name, y in given.items() if isinstance(y, Tensor)}
        found = _function(self.place)(**given)
        touched = [name for name, y in before.items() if not torch.equal(y, given[name])]
        if touched:
            raise RuntimeError(f"changes its arguments {', '.join(touched)}")
        out, *last = found if isinstance(found, tuple) else (found,)
        out = out if self.heads_first else out.transpose(1, 2)
        names = [f"last_{name}" for name in self.states.values()]
        arrays = {"out": out[..., n_before:, :]} | dict(zip(names, last, strict=bool(names)))
        return {
            name: y[..., :width] if self.square and name != "last_H" else y
            for name, y in arrays.items()
        }


def _peers() -> Iterator[_Peer]:
    delta, gated, keys = "delta-rule", "gated-delta-rule", "gated-delta-rule-per-key"
    linear = "recurrent-linear-attention"
    old: dict[str, Any] = {"heads_first": True, "scale": ""}
    low = {"alpha": "k", "beta": "-beta k", "q": "q", "k": "beta k", "v": "v"}
    yield _Peer("delta_rule.naive:delta_rule_recurrence", delta, _QKV | {"beta": "beta"}, **old)
    iplr = "generalized_delta_rule.iplr.naive:iplr_recurrence"
    yield _Peer(iplr, delta, low, **old)
    dplr = "generalized_delta_rule.dplr.naive:dplr_recurrence"
    yield _Peer(dplr, keys, low | {"alpha": "a k", "gk": "log a of keys"}, **old)
    simple, gla = _QKV | {"g": "log a"}, _QKV | {"gk": "log a of keys"}
    yield _Peer("simple_gla.naive:naive_recurrent_simple_gla", linear, simple)
    yield _Peer("gla.naive:naive_recurrent_gla", linear, gla, given=_LAST, scale="")
    kda = _QKV | {"beta": "beta", "g": "log a of keys"}
    yield _Peer(
        "gated_delta_rule.naive:naive_recurrent_gated_delta_rule", gated, _GATED, given=_LAST
    )
    yield _Peer("gated_delta_rule.naive:naive_chunk_gated_delta_rule", gated, _GATED, given=_LAST)
    yield _Peer("kda.naive:naive_recurrent_kda", keys, kda, given=_LAST)
    for p in ("k", "a k"):
        for name in ("recurrent", "chunk"):
            place = f"comba.naive:naive_{name}_comba"
            yield _Peer(place, gated, _GATED | {"p": p}, given=_LAST, note=f"p = {p}")
    mesa: dict[str, Any] = {"states": _MESA, "scale": "never", "square": True}
    yield _Peer("mesa_net.naive:naive_mesa_net_exact", "mesa", _GATED, **mesa)
    yield _Peer(
        "mesa_net.naive:naive_mesa_net_CG", "mesa", _GATED,
        given={"chunk_size": 1, "max_CG_iteration": 30}, **mesa,
    )  # fmt: skip
    probe = _QKV | {"r": "probe"}
    yield _Peer("parallax.naive:naive_parallax", "parallax", probe, states={}, square=True)
    kernels = {
        "delta_rule:fused_recurrent_delta_rule": (delta, _QKV | {"beta": "beta"}),
        "gated_delta_rule:fused_recurrent_gated_delta_rule": (gated, _GATED),
        "gated_delta_rule:chunk_gated_delta_rule": (gated, _GATED),
        "kda:fused_recurrent_kda": (keys, kda),
        "kda:chunk_kda": (keys, kda),
        "simple_gla:fused_recurrent_simple_gla": (linear, simple),
        "simple_gla:chunk_simple_gla": (linear, simple),
        "gla:fused_recurrent_gla": (linear, gla),
        "gla:chunk_gla": (linear, _QKV | {"g": "log a of keys"}),
        "comba:chunk_comba": (gated, _GATED | {"p": "a k"}),
    }
    for place, (subject, takes) in kernels.items():
        yield _Peer(place, subject, takes, dtype="float32", given=_LAST)


def hold_peers(folder: Path | str) -> pd.DataFrame:
    """Hold what flash-linear-attention offers for the recurrences to vectors that were written.

    References run in float64: what they cast to float32 is kept in float64. Kernels run in float32.

    Returns
    -------
    DataFrame
        A row for each function: its place, subject, note, dtype, the numbers of cases that passed
        and that it does not compute, the names of those that failed, the largest error of a finite
        one and its share of the tolerance, and the first exception.

    Raises
    ------
    ImportError
        Without the packages fla-core and triton.
    """
    return pd.DataFrame([_hold(peer, folder) for peer in _peers()])


def lines_of(table: pd.DataFrame) -> Lines:
    """A line for each function."""
    headings = (
        "function of fla.ops", "held to", "dtype", "passed", "not computed", "failed",
        "largest error", "/ tolerance", "raised",
    )  # fmt: skip
    return headings, [
        (
            row.function, f"{row.subject}, {row.note}" if row.note else row.subject, row.dtype,
            str(row.passed), str(row.not_computed), row.failed or "-", number(row.error, ".1e"),
            number(row.of_tolerance, ".1e"), row.raised or "-",
        )
        for row in table.itertuples()
    ]  # fmt: skip


def _hold(peer: _Peer, folder: Path | str) -> dict[str, Any]:
    errors: list[str] = []

    def run(inputs: Arrays, settings: dict[str, Any]) -> Arrays:
        dtype = getattr(torch, peer.dtype)
        x = {name: torch.tensor(y, dtype=dtype) for name, y in inputs.items()}
        try:
            with torch.no_grad(), _in_float64() if peer.dtype == "float64" else nullcontext():
                found = peer.call(x, settings)
        except NotImplementedError:
            raise
        except Exception as error:  # whatever others' code raises
            errors.append(f"{type(error).__name__}: {error}".partition("\n")[0])
            raise NotImplementedError from error
        return {name: y.double().numpy() for name, y in found.items()}

    rows = hold(run, folder, peer.subject, dtype=peer.dtype)
    failed, absent = rows[rows.passed.eq(False)].case.unique(), rows[rows.array.isna()].case
    finite = rows[rows.error.notna()]
    return {
        "function": peer.place, "subject": peer.subject, "note": peer.note, "dtype": peer.dtype,
        "passed": rows.case.nunique() - len(failed) - len(absent),
        "failed": ", ".join(failed), "not_computed": len(absent),
        "error": finite.error.max(), "of_tolerance": (finite.error / finite.tolerance).max(),
        "raised": errors[0] if errors else "",
    }  # fmt: skip


def _function(place: str) -> Callable[..., Any]:
    module, _, name = place.partition(":")
    if not torch.cuda.is_available():
        os.environ["TRITON_INTERPRET"] = "1"  # read where triton is first imported
        autotuner = importlib.import_module("triton.runtime.autotuner").Autotuner
        with patch.object(autotuner, "__init__", _one_config(autotuner.__init__)):
            function = getattr(importlib.import_module(f"fla.ops.{module}"), name)
        for name_, loaded in list(sys.modules.items()):
            if name_.startswith("fla.ops"):
                vars(loaded)["range"] = _indices
        return function
    return getattr(importlib.import_module(f"fla.ops.{module}"), name)


def _one_config(init: Callable[..., None]) -> Callable[..., None]:
    """Return a constructor that keeps the first configuration: there is no device to time on."""
    return lambda self, fn, names, configs, *more, **options: init(
        self, fn, names, configs[:1], *more, **options
    )


class _Index(int):
    """The index of a loop, which kernels cast; the interpreter has plain ints there."""

    def to(self, dtype: Any) -> int:
        return int(self)


def _indices(*bounds: Any) -> Iterator[_Index]:
    return map(_Index, range(*(int(x) for x in bounds)))


@contextmanager
def _in_float64() -> Iterator[None]:
    """Let code that casts to float32 stay in float64."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        with (
            patch.multiple(torch, float32=torch.float64, float=torch.float64),
            patch.object(Tensor, "float", Tensor.double),
        ):
            yield
    finally:
        torch.set_default_dtype(before)
