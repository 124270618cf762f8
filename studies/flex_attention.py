"""Fused attention on a GPU: forms of the layers, FlexAttention and scaled_dot_product_attention.

``python studies/flex_attention.py`` times layers that FlexAttention can express.
"""

import argparse
from collections.abc import Callable
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn.attention.flex_attention import BlockMask, create_block_mask, flex_attention

from twinsolve.bench.devices import find_device
from twinsolve.bench.speed.attention import DTYPES, REFERENCE, Setting, TimedAttention
from twinsolve.bench.speed.contest import Entrant, compete
from twinsolve.bench.tables import Lines, Report, number, write_table
from twinsolve.bench.terminal import progress
from twinsolve.bench.timing import seconds_of

SHAPES = ((16, 8, 1024, 64), (4, 8, 4096, 64), (2, 8, 8192, 64))
NAMES = ("softmax", "gaussian", "alibi", "local", "criss_cross", "neutreno", "twicing")
CAUSAL = ("softmax", "alibi")
_FORMS = (REFERENCE, "ours", "flex")
_SECONDS = 0.02  # least duration of a measurement
NOTE = (
    "Forward and backward, and forward alone: multiples of the time of "
    "scaled_dot_product_attention, without the layer's bias or window, in the same round; medians "
    "over the rounds, in turns. Ours: the layer as it is, not compiled. Flex: the same output by "
    "FlexAttention, compiled for each shape; compilation and the block mask are made before and "
    "not timed. Ours / flex: above 1, FlexAttention is faster. Difference: the largest of the "
    "outputs of ours and flex, over the largest output."
)


class Way(TimedAttention):
    """A layer in its own form, by FlexAttention, or the reference."""

    def __init__(self, name: str, form: str, setting: Setting, causal: bool) -> None:
        super().__init__(REFERENCE if form == REFERENCE else name, form, setting)
        self.causal = causal

    def attend(self) -> Tensor:
        q, k, v = self.inputs
        if self.operator is None:
            return F.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        if self.form == "flex":
            return attend_by_flex(self)
        return self.operator(q, k, v, is_causal=self.causal, context=self.context)


def attend_by_flex(way: Way) -> Tensor:
    """The output of the layer by FlexAttention; not compiled on the CPU."""
    q, k, v = way.inputs
    attend = _compiled() if q.is_cuda else flex_attention
    given = {"score_mod": _find_score(way, k), "block_mask": _find_block_mask(way)}
    out: Tensor = attend(q, k, v, **given)
    operator: Any = way.operator
    if way.name == "neutreno":
        return torch.addcmul(out, way.context.first_values - v, operator.lam().to(v.dtype))
    return out + attend(q, k, v - out, **given) if way.name == "twicing" else out


@cache
def _compiled() -> Callable[..., Any]:
    # Past torch's limit of programs FlexAttention would silently run uncompiled.
    torch._dynamo.config.recompile_limit = 256
    torch._dynamo.config.fail_on_recompile_limit_hit = True
    return torch.compile(flex_attention, dynamic=False)


def _find_score(way: Way, k: Tensor) -> Callable[..., Tensor] | None:
    if way.name == "alibi":
        slopes = way.operator.slopes_for(k).flatten()
        return lambda score, b, h, i, j: score - slopes[h] * (i - j).abs()
    if way.name == "gaussian":
        bias = k.float().square().sum(-1) / 2 * k.shape[-1] ** -0.5
        return lambda score, b, h, i, j: score - bias[b, h, j]
    return None


def _find_block_mask(way: Way) -> BlockMask | None:
    """The pairs that see each other; made once."""
    known = vars(way)
    if "block_mask" not in known:
        seen, n = _find_pairs(way), way.inputs[0].shape[2]
        device = way.setting.device
        known["block_mask"] = seen and create_block_mask(seen, None, None, n, n, device=device)
    return known["block_mask"]


def _find_pairs(way: Way) -> Callable[..., Tensor] | None:
    if way.name in ("local", "criss_cross"):
        operator: Any = way.operator
        width, n_class = operator.grid.on(way.inputs[1], way.context)

        def near(b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
            i, j = i - n_class, j - n_class
            beside = operator.near(i // width - j // width, i % width - j % width)
            return beside | (i < 0) | (j < 0)

        return near
    return (lambda b, h, i, j: i >= j) if way.causal else None


class _Mode(Entrant):
    """Forward alone, or forward and backward, so often that it can be timed."""

    def __init__(self, way: Way, mode: str) -> None:
        self.way, self.once = way, way.modes()[mode]

    def prepare(self) -> None:
        self.run()
        self.count = max(1, round(_SECONDS / seconds_of(self.run)))

    def run(self) -> None:
        self.way.setting.synchronize()
        for _ in range(self.count):
            self.once()
        self.way.setting.synchronize()


def measure(
    name: str, causal: bool, shape: tuple[int, int, int, int], dtype: str, device: str, rounds: int
) -> dict[str, Any]:
    """Times of a layer by both forms beside the reference, and how far their outputs differ."""
    ways = [Way(name, form, Setting(shape, dtype, device), causal) for form in _FORMS]
    row = {"layer": name, "causal": causal, "tokens": shape[2], "shape": shape, "dtype": dtype}
    row["device"] = torch.cuda.get_device_name() if device == "cuda" else device
    with torch.no_grad():
        ours, flex = (way.attend().double() for way in ways[1:])
    row["difference"] = float((ours - flex).abs().max() / ours.abs().max())
    for mode in ("training", "inference"):
        times = compete([_Mode(way, mode) for way in ways], rounds)
        row[f"{mode}_reference_ms"] = times[0]["ms"]
        for form, found in zip(_FORMS[1:], times[1:], strict=True):
            row |= {f"{mode}_{form}{end}": found[f"ratio{end}"] for end in _ENDS}
    return row


_ENDS = ("", "_lowest", "_highest")


def lines_of(table: pd.DataFrame) -> Lines:
    """Headings and cells, a line for each layer, number of tokens and dtype."""
    lines = [
        (
            run["layer"] + (", causal" if run["causal"] else ""), f"{run['tokens']:,}",
            run["dtype"], number(run["training_reference_ms"], ".3g"),
            *(number(run[f"{mode}_{form}"], ".2f") for mode, form in _TIMED),
            number(run["training_ours"] / run["training_flex"], ".2f"),
            number(run["difference"], ".0e"),
        )
        for run in table.to_dict("records")
    ]  # fmt: skip
    head = ("layer", "tokens", "dtype", "reference, ms", "ours", "flex", "ours, forward")
    return (*head, "flex, forward", "ours / flex", "difference"), lines


_TIMED = tuple(product(("training", "inference"), ("ours", "flex")))


def main() -> None:
    parser = argparse.ArgumentParser(description="Fused attention on a GPU.")
    parser.add_argument("--layer", action="append", choices=NAMES, help="[all]")
    parser.add_argument("--dtype", action="append", choices=DTYPES, help="[bfloat16, float32]")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--output", type=Path, default=Path("results/attention-flex"))
    given = parser.parse_args()
    find_device(given.device)
    dtypes = given.dtype or ["bfloat16", "float32"]
    layers = [(name, causal) for causal in (False, True) for name in (CAUSAL if causal else NAMES)]
    asked = [pair for pair in layers if pair[0] in (given.layer or NAMES)]
    jobs = [(*pair, shape, dtype) for dtype in dtypes for pair in asked for shape in SHAPES]
    timing = progress("Timing")(jobs, len(jobs))
    table = pd.DataFrame([measure(*job, given.device, given.rounds) for job in timing])
    settings = {name: getattr(given, name) for name in ("layer", "dtype", "rounds", "device")}
    write_report(table, settings, given.output)


def write_report(table: pd.DataFrame, settings: dict[str, Any], directory: Path) -> None:
    """Print and write the table."""
    report = Report("python studies/flex_attention.py", settings, directory)
    write_table(table, directory)
    report.add_table("16,384 tokens, eight heads of width 64", lines_of(table), heading="")
    report.add_sentences([NOTE])
    report.write()


if __name__ == "__main__":
    main()
