"""What the commands of `twinsolve speed` say of their tables."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd

from ..jobs import Options
from ..study import Study
from ..tables import Lines, number
from .figures import draw_attention, draw_quality, draw_scale, draw_scaling

_NAMES = ("solver", "method", "operator", "kernel")
_Reader = str | Callable[[Any], str]  # "column:format", or a function of a row


class Layout(NamedTuple):
    """How a command's table is told: an explanation, readers of cells by heading, and figures.

    Rows without a number in the column `timed` are left out.
    """

    explanation: str
    timed: str
    cells: dict[str, _Reader]
    figures: dict[str, Callable[[pd.DataFrame, Path], None]]

    def lines(self, table: pd.DataFrame) -> Lines:
        rows = table[table[self.timed].notna()].itertuples()
        return tuple(self.cells), [
            tuple(_read_cell(cell, row) for cell in self.cells.values()) for row in rows
        ]


def _read_cell(cell: _Reader, row: Any) -> str:
    if callable(cell):
        return cell(row)
    column, _, form = cell.partition(":")
    return number(getattr(row, column), form, missing="")


def _with_range(name: str, median: str | None = None) -> Callable[[Any], str]:
    """A reader that gives a median with the lowest and highest value."""

    def read(row: Any) -> str:
        value, *ends = (
            getattr(row, c) for c in (median or name, f"{name}_lowest", f"{name}_highest")
        )
        spread = pd.notna(ends[0]) and ends[0] != ends[1]
        return _round(value) + (f" ({_round(ends[0])} - {_round(ends[1])})" if spread else "")

    return read


def _round(value: float) -> str:
    return number(value, ".3g" if value < 1000 else ".0f", missing="")


def _describe_result(row: Any) -> str:
    if pd.notna(row.psnr):
        return f"{row.psnr:.2f} dB, {row.ssim:.3f}"
    if pd.notna(row.cost):
        return f"cost {row.cost:.9e}"
    return f"log kappa {row.log_kappa:.2f}" if pd.notna(row.log_kappa) else ""


_SOLVERS = Layout(
    "Milliseconds a row, and multiples of our time in the same round: median over the rounds, "
    "with the lowest and highest. Gap: the worst certified one on the rows timed. Non-zeros "
    "and passes (products with all atoms) are means over rows. MiB: our peak memory beyond the "
    "input.",
    "ms_per_row",
    {
        "case": "case",
        "solver": "solver",
        "dtype": "dtype",
        "threads": "n_jobs:.0f",
        "rows": "rows_timed:.0f",
        "tol.": "tol:.0e",
        "ms a row": _with_range("ms", "ms_per_row"),
        "x ours": _with_range("ratio"),
        "gap": "gap:.0e",
        "non-zeros": "nonzeros:.1f",
        "passes": "passes:.1f",
        "MiB": "memory_mib:.0f",
    },
    {"scaling.png": draw_scaling},
)
_SCALE = Layout(
    "Rows of unit norm, each from the others, at a penalty of 0.1 and a gap of at most 1e-4. "
    "s: wall time on the threads; processor s: of all threads. Growth: the exponent of N by "
    "which the latter grew from the number of rows above. Passes: searches for what violates "
    "optimality, or products with all rows, means over rows; none where the Gram matrix is "
    "stored. Skipped: share of the products of these passes that was not made, as a bound on "
    "their size ruled them out. Gap: the worst of all rows. MiB: peak memory beyond the input, "
    "and of the whole process.",
    "seconds",
    {
        "case": "points",
        "rows": "n_rows:,.0f",
        "dimensions": "n_features:.0f",
        "dtype": "dtype",
        "threads": "n_jobs:.0f",
        "s": lambda row: _round(row.seconds),
        "processor s": lambda row: _round(row.processor_seconds),
        "growth": "growth:.2f",
        "passes": "passes:.2f",
        "skipped": "skipped:.2%",
        "non-zeros": "nonzeros:.1f",
        "gap": "gap:.1e",
        "certified": "certified:.0%",
        "MiB": "memory_mib:.0f",
        "MiB in all": "peak_mib:.0f",
    },
    {"scale.png": draw_scale},
)
_METHODS = Layout(
    "Milliseconds, and multiples of the first method's time in the same round: medians over "
    "the rounds, the latter with the lowest and highest. Images: PSNR in dB and SSIM, means "
    "over the images. Difference: the largest from the first method's result, in grey levels "
    "of [0, 1] away from the border or, for points, relative to the largest entry. Cost: "
    "`|Y - C Y|_F^2` of the embedding's orthonormal coordinates. log kappa: median natural "
    "logarithm of the condition numbers. MiB: our peak memory beyond the input. The fast mode "
    "of scikit-image at `patch_size=p` compares patches of p - 1 pixels: ours on these stand "
    "beside it.",
    "ms",
    {
        "case": "case",
        "method": "method",
        "dtype": "dtype",
        "threads": "n_jobs:.0f",
        "ms": lambda row: _round(row.ms),
        "x ours": _with_range("ratio"),
        "result": _describe_result,
        "difference": "difference:.0e",
        "MiB": "memory_mib:.1f",
    },
    {"quality.png": draw_quality},
)
_OPERATORS = Layout(
    "Multiples of the time of scaled_dot_product_attention in the same round: medians over the "
    "rounds, with the lowest and highest. Inference: forward without gradients; training: "
    "forward and backward. Explicit: the N x N matrix times the values; stored: the logits of "
    "positions as a constant mask. MiB: peak memory of forward and backward (stored: of "
    "forward), gradients included, inputs not; it grows as N to the power of the exponent from "
    "256 to 4096 tokens. Gflop: of matrix products and fused attention in training. Kernel: "
    "implementations of fused attention that were reached.",
    "memory_mib",
    {
        "case": "case",
        "operator": "operator",
        "form": "form",
        "dtype": "dtype",
        "threads": "n_jobs:.0f",
        "inference": _with_range("inference_ratio"),
        "training": _with_range("training_ratio"),
        "ms": "training_ms:.3g",
        "MiB": "memory_mib:.1f",
        "exponent": "memory_exponent:.2f",
        "Gflop": "gflop_training:.3g",
        "parameters": "parameters:.0f",
        "kernel": "kernel",
    },
    {"times.png": draw_attention},
)
_LAYERS = Layout(
    "Milliseconds a signal, forward and backward in float64, and multiples of our time in the "
    "same round: medians over the rounds, the latter with the lowest and highest. A peer codes "
    "the first signals alone. Gap: the worst relative one. Gradient error: the largest, "
    "relative, of derivatives along random directions of signals, atoms and lam, by central "
    "differences of codes solved to rounding. MiB: peak memory beyond the input, for all "
    "signals, of a second run in a process of its own. The autograd loop and unrolled ISTA "
    "make 2,000 iterations; a warm start has the codes of a dictionary that differs by 1 %. "
    "At a tolerance, jaxopt gets the step `1 / |A|_2^2` and solves the implicit system by "
    "BiCGSTAB to that tolerance, cvxpylayers as a dense one.",
    "ms",
    {
        "case": "case",
        "method": "method",
        "signals": "n_signals:,.0f",
        "dtype": "dtype",
        "threads": "n_jobs:.0f",
        "ms": lambda row: _round(row.ms),
        "x ours": _with_range("ratio"),
        "gap": "gap:.0e",
        "gradient error": "gradient_error:.0e",
        "MiB": "memory_mib:.1f",
    },
    {},
)
_STEPS = Layout(
    "Milliseconds, and multiples of our time in the same round: medians over the rounds, the "
    "latter with the lowest and highest. Difference: the largest from our result; of labels, 1 "
    "less the adjusted Rand index. MiB: our peak memory beyond the input.",
    "ms",
    {
        "case": "case",
        "method": "method",
        "dtype": "dtype",
        "threads": "n_jobs:.0f",
        "ms": lambda row: _round(row.ms),
        "x ours": _with_range("ratio"),
        "difference": "difference:.0e",
        "MiB": "memory_mib:.1f",
    },
    {},
)
LAYOUTS = {
    "steps": _STEPS,
    "lasso-layer": _LAYERS,
    "self-expression": _SOLVERS,
    "sparse-coding": _SOLVERS,
    "filters": _METHODS,
    "scale": _SCALE,
    "attention": _OPERATORS,
}


def speed_study(name: str, time: Callable[..., pd.DataFrame]) -> tuple[Study, str]:
    """The study of a command, whose table `time` returns, and what explains its columns."""
    layout = LAYOUTS[name]

    def run(options: Options) -> pd.DataFrame:
        return time(directory=options.directory, progress=options.progress)

    title = f"twinsolve speed {name}"
    study = Study("", title, run, layout.lines, layout.figures, notes=_list_notes)
    return study, layout.explanation


def _list_notes(table: pd.DataFrame) -> list[str]:
    """Lines that say why solvers and cases are missing or miss the gap, one per reason."""
    noted = table[table.note != ""]
    name = noted[next(c for c in _NAMES if c in noted)]
    cases = [f"{row.case}: {row.note}" for row in noted[name.isna()].itertuples()]
    return cases + [
        f"{', '.join(name[rows.index].unique())}: {note} ({', '.join(rows.case.unique())})"
        for note, rows in noted[name.notna()].groupby("note", sort=False)
    ]
