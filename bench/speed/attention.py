"""Timings of `twinsolve speed attention`."""

import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import accumulate
from pathlib import Path
from typing import Any, Literal, NamedTuple

import pandas as pd
import torch
from torch import Tensor
from torch.nn import functional as F

from ...unrolled import Call, Context, Operator, make_operator, operator_names
from ...validation import check_folder
from ..devices import find_device
from ..sources import file_hash
from ..timing import Progress, seconds_of, threads
from .contest import OURS, Entrant, Rounds, chosen, compete, installed, run_cases

os.environ.setdefault("KINETO_LOG_LEVEL", "9")  # read at import; the profiler logs every start

from torch.profiler import ProfilerActivity, profile
from torch.utils.flop_counter import FlopCounterMode, sdpa_backward_flop_count, sdpa_flop_count

_PREFIX = "_scaled_dot_product_"
_FLOPS = {  # kernels that torch does not count on the CPU
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu: lambda q, k, v, *_, **__: (
        sdpa_flop_count(q, k, v)
    ),
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward: (
        lambda gradient, q, k, v, *_, **__: sdpa_backward_flop_count(gradient, q, k, v)
    ),
}


class Profile(NamedTuple):
    """Peak memory in bytes beyond that before the run, and the attention kernels reached."""

    peak_memory: int
    kernels: set[str]


def profile_run(run: Callable[[], Any], device: str) -> Profile:
    """Run once under the profiler.

    Memory on the CPU is summed from events of the allocator, and repeats exactly.
    """
    if device == "cuda":
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        run()
    events = profiler.profiler.kineto_results.events()  # `key_averages` would sort them
    names = {event.name().removeprefix("aten::") for event in events}
    kernels = {
        name.removeprefix(_PREFIX)
        for name in names
        if name.startswith(_PREFIX) and not name.endswith("backward")
    } | ({"blocked_attention"} if "_BlockedAttention" in names else set())
    if device == "cuda":
        return Profile(torch.cuda.max_memory_allocated() - before, kernels)
    sizes = sorted((e.start_ns(), e.nbytes()) for e in events if e.name() == "[memory]")
    return Profile(max(accumulate((size for _, size in sizes), initial=0)), kernels)


def floating_point_operations(run: Callable[[], Any]) -> int:
    """Operations of matrix products, convolutions and attention kernels."""
    with FlopCounterMode(display=False, custom_mapping=_FLOPS) as counter:
        run()
    return counter.get_total_flops()


REFERENCE = "scaled_dot_product_attention"
PEER = "gated_delta_rule of transformers"
_SECONDS = 0.02  # least duration of a measurement
_TIMES = ("ms", "ms_lowest", "ms_highest", "ratio", "ratio_lowest", "ratio_highest")
COLUMNS = [
    "case", "operator", "form", "dtype", "device", "n_jobs",
    *(f"{mode}_{time}" for mode in ("inference", "training") for time in _TIMES),
    "memory_mib", "memory_exponent", "gflop_inference", "gflop_training", "parameters", "kernel",
    "note",
]  # fmt: skip
FORMS = ("fused", "explicit")
DTYPES = ("float32", "float64", "bfloat16")
_MEMORY_TOKENS = (256, 4096)
_MOST_EXPLICIT = 1024  # tokens


@dataclass(frozen=True)
class Setting:
    """What is compared, on tensors of shape (batch, heads, tokens, head_dim)."""

    shape: tuple[int, int, int, int]
    dtype: str = "float32"
    device: str = "cpu"
    seed: int = 0
    n_jobs: int = 1
    is_causal: bool = False

    def randn(self, *shape: int, requires_grad: bool = False) -> Tensor:
        generator = torch.Generator().manual_seed(self.seed + sum(shape))
        x = torch.randn(shape, generator=generator).to(self.device, getattr(torch, self.dtype))
        return x.requires_grad_(requires_grad)

    def synchronize(self) -> None:
        if self.device == "cuda":
            torch.cuda.synchronize()


class TimedAttention:
    """An operator in one form, with its inputs; runs forward alone, or forward and backward."""

    def __init__(self, name: str, form: str, setting: Setting) -> None:
        self.name, self.form, self.setting = name, form, setting
        _, heads, _, width = setting.shape
        self.inputs = [setting.randn(*setting.shape, requires_grad=True) for _ in range(3)]
        if name == REFERENCE:
            self.operator: Operator | None = None
        else:
            operator = _make(name, heads, width)
            self.operator = operator.to(setting.device, getattr(torch, setting.dtype))
            if form == "stored":
                self.operator = getattr(operator, "precompute")(self.context)  # noqa: B009

    @cached_property
    def context(self) -> Context:
        """Context with everything that an operator may read; projected positions have gradients."""
        setting = self.setting
        _, heads, tokens, width = setting.shape
        rows = math.isqrt(tokens)
        projected = setting.randn(*setting.shape, requires_grad=True)
        n_gates = 0 if self.operator is None else sum(self.operator.gate_widths(width).values())
        gates = setting.randn(heads, tokens, n_gates, requires_grad=True) if n_gates else None
        return Context(
            positions=setting.randn(tokens, heads * width),
            grid=(rows, tokens // rows),
            n_class_tokens=tokens % rows,
            projected_positions=(projected, projected.detach().clone().requires_grad_()),
            values=self.inputs[2],
            first_values=setting.randn(*setting.shape),
            previous_values=setting.randn(*setting.shape) + 1,
            gates=gates,
        )

    def attend(self) -> Tensor:
        (q, k, v), is_causal = self.inputs, self.setting.is_causal
        if self.operator is None:
            return F.scaled_dot_product_attention(q, k, v, is_causal=is_causal)
        if self.form == "explicit":
            return self.operator.matrix(q, k, context=self.context) @ v
        return self.operator(q, k, v, is_causal=is_causal, context=self.context)

    def infer(self) -> None:
        with torch.no_grad():
            self.attend()

    def train(self) -> None:
        self._forget()
        self.attend().sum().backward()

    @property
    def parameters(self) -> list[Tensor]:
        return [] if self.operator is None else list(self.operator.parameters())

    def _forget(self) -> None:
        context = self.context
        given = (
            *(context.projected_positions or ()),
            *([] if context.gates is None else [context.gates]),
        )
        for x in (*self.inputs, *given, *self.parameters):
            x.grad = None

    def modes(self) -> dict[str, Callable[[], None]]:
        """Runs by mode: inference, and training unless the form is stored."""
        trained = {} if self.form == "stored" else {"training": self.train}
        return {"inference": self.infer} | trained

    def facts(self) -> dict[str, Any]:
        """Operations, parameters, and memory and kernel of a forward and backward pass."""
        gflop = {
            f"gflop_{mode}": floating_point_operations(run) / 1e9
            for mode, run in self.modes().items()
        }
        self._forget()
        memory, kernels = profile_run(self.train, self.setting.device)
        return gflop | {
            "parameters": sum(x.numel() for x in self.parameters),
            "memory_mib": memory / 2**20,
            "kernel": ", ".join(sorted(kernels)),
        }


class _Peer(Operator):
    """The gated delta rule of transformers in plain torch, with the gates of ours."""

    gates: Mapping[str, Literal["token", "feature"]] = {"beta": "token", "log_forget": "token"}

    def attend(self, call: Call) -> Tensor:
        from transformers.models.qwen3_next import modeling_qwen3_next as peer

        assert call.context is not None
        assert call.context.gates is not None
        gates = call.context.gates.expand(*call.k.shape[:-1], 2).transpose(1, 2)
        beta, log_forget = gates.unbind(dim=-1)
        out: Tensor = peer.torch_chunk_gated_delta_rule(
            *(x.transpose(1, 2) for x in call[:3]), log_forget.clamp(max=0), beta.sigmoid(),
            use_qk_l2norm_in_kernel=True,
        )[0]  # fmt: skip
        return out.transpose(1, 2)


def _make(name: str, heads: int, width: int) -> Operator:
    return _Peer() if name == PEER else make_operator(name, num_heads=heads, head_dim=width)


class TimedMode(Entrant):
    """A mode of an operator, repeated so often that it can be timed."""

    def __init__(self, way: TimedAttention, mode: str) -> None:
        self.setting, self.once, self.n_jobs = way.setting, way.modes()[mode], way.setting.n_jobs

    def prepare(self) -> None:
        self.run()
        self.count = max(1, math.ceil(_SECONDS / seconds_of(self.run)))

    def run(self) -> None:
        self.setting.synchronize()
        for _ in range(self.count):
            self.once()
        self.setting.synchronize()


class AttentionCase(NamedTuple):
    """Shape (batch, heads, tokens, head_dim); if the case `grows`, by number of tokens.

    A causal case is for the operators that take gates from the tokens.
    """

    shape: tuple[int, int, int, int]
    grows: bool = False
    is_causal: bool = False


CASES = {
    "images-197": AttentionCase((8, 3, 197, 64)),
    "tokens-1024": AttentionCase((1, 4, 1024, 64)),
    "tokens-4096": AttentionCase((1, 4, 4096, 64)),
    "memory": AttentionCase((1, 2, _MEMORY_TOKENS[1], 64), grows=True),
} | {
    f"causal-{n}": AttentionCase((1, 4, n, 64), is_causal=True)
    for n in (256, 1024, 2048, 4096, 16384)
}


def time_attention(
    *,
    cases: Iterable[str] | None = None,
    operators: Iterable[str] | None = None,
    rounds: int = 5,
    n_jobs: int = 1,
    seed: int = 0,
    dtype: str = "float32",
    device: str = "auto",
    directory: str | Path | None = None,
    progress: Progress | None = None,
) -> pd.DataFrame:
    """Time every operator beside ``scaled_dot_product_attention`` on the same tokens.

    Causal cases are for operators that learn at test time: those that take gates from the tokens.
    The gated delta rule of transformers in plain torch, if installed, is timed there too.

    In each round an operator and the reference run in turns: forward alone without gradients
    (inference), and forward with backward (training). The explicit form, the N x N matrix times the
    values, is timed if the operator is linear in the values and there are at most 1024 tokens. In
    inference, an operator that can store terms of the positions is also timed with stored terms.
    Operators with a grid get an almost square one; remaining tokens are class tokens: 197 tokens
    are a grid of 14 x 14 and one class token.

    Parameters
    ----------
    cases : iterable of str, optional
        Among ``images-197``, ``tokens-1024``, ``tokens-4096``, of shapes (8, 3, 197, 64),
        (1, 4, 1024, 64) and (1, 4, 4096, 64); ``causal-N`` of shape (1, 4, N, 64), for N of 256,
        1024, 2048, 4096 and 16384; and ``memory``, which measures how peak memory grows from 256 to
        4096 tokens. All by default.
    operators : iterable of str, optional
        Names among `twinsolve.unrolled.operator_names`; all by default.
    rounds : int, default=5
    n_jobs : int, default=1
        Threads.
    seed : int, default=0
    dtype : {"float32", "float64", "bfloat16"}, default="float32"
    device : {"auto", "cpu", "cuda"}, default="auto"
        "auto" is a GPU if there is one.
    directory : path, optional
        Folder that keeps finished cases, which are read while settings and source stay the same.
    progress : callable, optional
        ``progress(iterable, total)`` wraps the iteration, as a progress bar does.

    Returns
    -------
    DataFrame
        A row for each case, operator and form. ``inference_*`` and ``training_*`` are milliseconds
        and the ``ratio`` to the reference in the same round: medians over the rounds, with the
        lowest and highest. ``memory_mib`` is the peak of forward and backward, with gradients and
        without inputs; ``memory_exponent`` is ``log(peak ratio) / log(token ratio)``. ``gflop_*``
        counts matrix products and fused attention. ``kernel`` names the implementations of fused
        attention that the forward pass reached. ``note`` says why a row has no numbers.

    Raises
    ------
    ValueError
        If a name is unknown or a number is out of range.

    Examples
    --------
    >>> from twinsolve.bench import time_attention
    >>> table = time_attention(cases=["tokens-1024"], operators=["twicing"])  # doctest: +SKIP
    >>> table[["operator", "form", "training_ratio", "memory_mib"]]  # doctest: +SKIP
    """
    if dtype not in DTYPES:
        raise ValueError(f"dtype: must be one of {', '.join(DTYPES)}, got {dtype!r}")
    device = find_device(device).type
    names = list(chosen(operators, dict.fromkeys(operator_names()), "operators"))

    options = Rounds(rounds, n_jobs, seed, check_folder(directory, "directory"), progress)

    def run(case: AttentionCase) -> list[dict[str, Any]]:
        jobs = list(_jobs(names, case))
        setting = Setting(case.shape, dtype, device, seed, n_jobs, case.is_causal)
        about = {"dtype": dtype, "device": device, "n_jobs": n_jobs}
        with threads(n_jobs):
            return [
                about | _row(case, name, form, setting, rounds)
                for name, form in (progress(jobs, len(jobs)) if progress else jobs)
            ]

    about = {
        "operators": ", ".join(map(_identify_operator, names)),
        "dtype": dtype,
        "device": device,
    }
    listed = chosen(cases, CASES, "cases")
    return run_cases("attention", listed, run, options, peers=about, columns=COLUMNS)


def _identify_operator(name: str) -> str:
    """The name of an operator; outside of the package, also its parameters and file."""
    operator = make_operator(name, num_heads=4, head_dim=64)
    if type(operator).__module__.startswith(OURS):
        return name
    return f"{name}: {operator!r}, {file_hash(type(operator).attend.__code__.co_filename)}"


def _jobs(names: list[str], case: AttentionCase) -> Iterator[tuple[str, str]]:
    """Yield name and form: the reference, then every operator in its forms."""
    yield REFERENCE, "fused"
    if case.is_causal and installed("transformers"):
        yield PEER, "fused"
    for name in names:
        operator = make_operator(name, num_heads=4, head_dim=64)
        if case.is_causal:
            if operator.gates:
                yield name, "fused"
            continue
        yield name, "fused"
        if hasattr(operator, "precompute") and not case.grows:
            yield name, "stored"
        if operator.linear_in_values and not case.grows and case.shape[2] <= _MOST_EXPLICIT:
            yield name, "explicit"


def _row(
    case: AttentionCase, name: str, form: str, setting: Setting, rounds: int
) -> dict[str, Any]:
    row: dict[str, Any] = {"operator": name, "form": form, "note": ""}
    measure = _memory_growth if case.grows else partial(race, rounds=rounds)
    try:
        return row | measure(name, form, setting)
    except (NotImplementedError, RuntimeError) as error:  # a dtype or device without a kernel
        return row | {"note": f"{type(error).__name__}: {str(error).splitlines()[0]}"}


def _memory_growth(name: str, form: str, setting: Setting) -> dict[str, float]:
    batch, heads, _, width = setting.shape
    peaks = []
    for tokens in _MEMORY_TOKENS:
        way = TimedAttention(name, form, replace(setting, shape=(batch, heads, tokens, width)))
        way.infer()
        peaks.append(profile_run(way.train, setting.device).peak_memory)
    exponent = math.log(peaks[1] / peaks[0]) / math.log(_MEMORY_TOKENS[1] / _MEMORY_TOKENS[0])
    return {"memory_mib": peaks[1] / 2**20, "memory_exponent": exponent}


def race(name: str, form: str, setting: Setting, rounds: int) -> dict[str, Any]:
    """Times of an operator in turns with the reference, and its other costs."""
    ours, reference = (
        TimedAttention(name, form, setting),
        TimedAttention(REFERENCE, "fused", setting),
    )
    row = ours.facts()
    reference.train()
    for mode in ours.modes():
        found = compete([TimedMode(reference, mode), TimedMode(ours, mode)], rounds)[1]
        row |= {f"{mode}_{key}": found[key] for key in _TIMES}
    return row
