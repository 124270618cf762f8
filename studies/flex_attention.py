"""FlexAttention on a GPU: layers that are it when compiled, as they are and compiled.

``python studies/flex_attention.py`` times them beside scaled_dot_product_attention.
"""

from functools import cached_property
from itertools import product
from pathlib import Path
from typing import Annotated, Any

import pandas as pd
import torch
import typer
from shared.script import chosen, run_script, write_found
from torch import Tensor
from torch.nn import functional as F

from twinsolve.bench.devices import find_device
from twinsolve.bench.jobs import Options
from twinsolve.bench.options import DTYPE, Device, Output, Rounds
from twinsolve.bench.speed.attention import (
    DTYPES,
    REFERENCE,
    Setting,
    TimedAttention,
    TimedMode,
)
from twinsolve.bench.speed.contest import compete
from twinsolve.bench.study import Study
from twinsolve.bench.tables import Lines, number, write_table

SHAPES = ((16, 8, 1024, 64), (4, 8, 4096, 64), (2, 8, 8192, 64))
NAMES = ("alibi", "local", "criss_cross")
CAUSAL = ("alibi",)
_FORMS = (REFERENCE, "ours", "compiled")
NOTE = (
    "Forward and backward, and forward alone: multiples of the time of "
    "scaled_dot_product_attention, without the layer's bias or window, in the same round; medians "
    "over the rounds, in turns. Ours: the layer as it is. Compiled: by torch.compile, for each "
    "shape; compilation is not timed. Difference: the largest of the two outputs, over the largest "
    "output."
)


class TimedForm(TimedAttention):
    """A layer as it is or compiled, or the reference."""

    def __init__(self, name: str, form: str, setting: Setting, causal: bool) -> None:
        super().__init__(REFERENCE if form == REFERENCE else name, form, setting)
        self.causal = causal

    @cached_property
    def call(self) -> Any:
        # Past torch's limit of programs a layer would silently run as it is.
        torch._dynamo.config.recompile_limit = 256
        torch._dynamo.config.fail_on_recompile_limit_hit = True
        compiled = self.form == "compiled"
        return torch.compile(self.operator, dynamic=False) if compiled else self.operator

    def attend(self) -> Tensor:
        q, k, v = self.inputs
        if self.operator is None:
            return F.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        out: Tensor = self.call(q, k, v, is_causal=self.causal, context=self.context)
        return out


def measure(
    name: str, causal: bool, shape: tuple[int, int, int, int], dtype: str, device: str, rounds: int
) -> dict[str, Any]:
    """Times of a layer in both forms beside the reference, and how far their outputs differ."""
    ways = [TimedForm(name, form, Setting(shape, dtype, device), causal) for form in _FORMS]
    row = {"layer": name, "causal": causal, "tokens": shape[2], "shape": shape, "dtype": dtype}
    row["device"] = torch.cuda.get_device_name() if device == "cuda" else device
    with torch.no_grad():
        ours, compiled = (way.attend().double() for way in ways[1:])
    row["difference"] = float((ours - compiled).abs().max() / ours.abs().max())
    for mode in ("training", "inference"):
        times = compete([TimedMode(way, mode) for way in ways], rounds)
        row[f"{mode}_reference_ms"] = times[0]["ms"]
        for form, found in zip(_FORMS[1:], times[1:], strict=True):
            row |= {f"{mode}_{form}{end}": found[f"ratio{end}"] for end in _ENDS}
    return row


_ENDS = ("", "_lowest", "_highest")


def time_lines(table: pd.DataFrame) -> Lines:
    """Headings and cells, a line for each layer, number of tokens and dtype."""
    lines = [
        (
            run["layer"] + (", causal" if run["causal"] else ""), f"{run['tokens']:,}",
            run["dtype"], number(run["training_reference_ms"], ".3g"),
            *(number(run[f"{mode}_{form}"], ".2f") for mode, form in _TIMED),
            number(run["difference"], ".0e"),
        )
        for run in table.to_dict("records")
    ]  # fmt: skip
    head = ("layer", "tokens", "dtype", "reference, ms", "ours", "compiled", "ours, forward")
    return (*head, "compiled, forward", "difference"), lines


_TIMED = tuple(product(("training", "inference"), ("ours", "compiled")))


def main(
    layer: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Run this layer only; may be given again."),
    ] = None,
    dtype: Annotated[list[str] | None, typer.Option(help=DTYPE)] = None,
    rounds: Rounds = 3,
    device: Device = "cuda",
    output: Output = Path("results/attention-flex"),
) -> None:
    """Time the layers, and write the table after each."""
    dtypes = chosen(dtype or ["bfloat16", "float32"], DTYPES, "--dtype")
    layers = [(name, causal) for causal in (False, True) for name in (CAUSAL if causal else NAMES)]
    asked = [pair for pair in layers if pair[0] in chosen(layer, NAMES, "--layer")]
    jobs = [(*pair, shape, each) for each in dtypes for pair in asked for shape in SHAPES]

    def run(options: Options) -> pd.DataFrame:
        find_device(device)
        assert options.progress
        rows: list[dict[str, Any]] = []
        for name, causal, shape, each in options.progress(jobs, len(jobs)):
            rows.append(measure(name, causal, shape, each, device, rounds))
            write_table(pd.DataFrame(rows), output)
        return pd.DataFrame(rows)

    title = "16,384 tokens, eight heads of width 64"
    study = Study("", title, run, time_lines, notes=lambda table: [NOTE])
    settings = {"layer": layer, "dtype": dtype, "rounds": rounds, "device": device}
    write_found(__file__, [study], settings, output)


if __name__ == "__main__":
    run_script(__file__)
