"""Commands of `twinsolve speed`, and the tables that they print."""

from collections.abc import Callable
from importlib import import_module
from inspect import getdoc
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import pandas as pd
import typer
from rich.box import SIMPLE_HEAD
from rich.table import Table

from ..tables import Lines, markdown, number, write_summary, write_table
from ..terminal import Load, Output, console, load_modules, progress

_NAMES = ("solver", "method", "operator", "kernel")
_Reader = str | Callable[[Any], str]  # "column:format", or a function of a row


class Report(NamedTuple):
    """How a command's table is printed: an explanation, and readers of cells by heading.

    Rows without a number in the column `timed` are left out.
    """

    explanation: tuple[str, ...]
    timed: str
    cells: dict[str, _Reader]

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


SOLVERS = Report(
    (
        "Milliseconds a row, and multiples of our time in the same round: median over the rounds,",
        "with the lowest and highest. Gap: the worst certified one on the rows timed. Non-zeros",
        "and passes (products with all atoms) are means over rows. MiB: our peak memory beyond the",
        "input.",
    ),
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
)
SCALE = Report(
    (
        "Rows of unit norm, each from the others, at a penalty of 0.1 and a gap of at most 1e-4.",
        "s: wall time on the threads; processor s: of all threads. Growth: the exponent of N by",
        "which the latter grew from the number of rows above. Passes: searches for what violates",
        "optimality, or products with all rows, means over rows; none where the Gram matrix is",
        "stored. Skipped: share of the products of these passes that was not made, as a bound on",
        "their size ruled them out. Gap: the worst of all rows. MiB: peak memory beyond the input,",
        "and of the whole process.",
    ),
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
)
METHODS = Report(
    (
        "Milliseconds, and multiples of the first method's time in the same round: medians over",
        "the rounds, the latter with the lowest and highest. Images: PSNR in dB and SSIM, means",
        "over the images. Difference: the largest from the first method's result, in grey levels",
        "of [0, 1] away from the border or, for points, relative to the largest entry. Cost:",
        "`|Y - C Y|_F^2` of the embedding's orthonormal coordinates. log kappa: median natural",
        "logarithm of the condition numbers. MiB: our peak memory beyond the input. The fast mode",
        "of scikit-image at `patch_size=p` compares patches of p - 1 pixels: ours on these stand",
        "beside it.",
    ),
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
)
OPERATORS = Report(
    (
        "Multiples of the time of scaled_dot_product_attention in the same round: medians over the",
        "rounds, with the lowest and highest. Inference: forward without gradients; training:",
        "forward and backward. Explicit: the N x N matrix times the values; stored: the logits of",
        "positions as a constant mask. MiB: peak memory of forward and backward (stored: of",
        "forward), gradients included, inputs not; it grows as N to the power of the exponent from",
        "256 to 4096 tokens. Gflop: of matrix products and fused attention in training. Kernel:",
        "implementations of fused attention that were reached.",
    ),
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
)


def _list_notes(table: pd.DataFrame) -> list[str]:
    """Lines that say why solvers and cases are missing or miss the gap, one per reason."""
    noted = table[table.note != ""]
    name = noted[next(c for c in _NAMES if c in noted)]
    cases = [f"{row.case}: {row.note}" for row in noted[name.isna()].itertuples()]
    return cases + [
        f"{', '.join(name[rows.index].unique())}: {note} ({', '.join(rows.case.unique())})"
        for note, rows in noted[name.notna()].groupby("note", sort=False)
    ]


def _format_table(headings: tuple[str, ...], lines: list[tuple[str, ...]]) -> Table:
    """A table of the lines by case; its caption has the dtype and threads if all share them."""
    table = pd.DataFrame(lines, columns=list(headings))
    shared = [h for h in ("dtype", "threads") if table[h].nunique() == 1]
    shown = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    if shared:
        shown.caption = ", ".join(f"{heading}: {table[heading][0]}" for heading in shared)
    cells = table.drop(columns=["case", *shared])
    for heading in cells:
        name = heading in _NAMES  # wraps where the screen is narrow
        justify: Literal["left", "right"] = "left" if name else "right"
        shown.add_column(heading, justify=justify, no_wrap=not name, overflow="fold")
    for case, rows in cells.groupby(table.case, sort=False):
        shown.add_section()
        shown.add_row(case, style="italic")
        for solver, *others in rows.itertuples(index=False):
            bold = "bold" if solver.startswith("twinsolve") else None
            shown.add_row(f"  {solver}", *others, style=bold)
    return shown


_Help = Callable[[], None]

app = typer.Typer(
    no_args_is_help=True, help="Time a solver beside solvers that a user would pick instead."
)


def _hold_to(name: str | None) -> str | None:
    from .contest import hold_to

    try:
        hold_to(name)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error
    return name


Cases = Annotated[
    list[str] | None,
    typer.Option("--case", metavar="NAME", help="Run this case only; may be given again."),
]
Peers = Annotated[
    list[str] | None,
    typer.Option("--peer", metavar="NAME", help="Run this peer only; may be given again."),
]
Rounds = Annotated[int, typer.Option(min=1, help="How often each solver runs; solvers take turns.")]
Jobs = Annotated[
    int,
    typer.Option(min=1, help="Threads; above 1, sparse solvers that only use one are left out."),
]
Seed = Annotated[int, typer.Option(min=0, help="Seed of generated data and of the rows timed.")]
Instructions = Annotated[
    str | None,
    typer.Option(callback=_hold_to, help="avx2: no wider instructions, as without AVX-512."),
]


def _beside_peers(
    name: str, module: str, report: Report, draw: str = ""
) -> Callable[[_Help], _Help]:
    """Decorator that adds a command with the common options; its help is the docstring."""

    def register(about: _Help) -> _Help:
        def run(
            case: Cases = None,
            peer: Peers = None,
            rounds: Rounds = 3,
            n_jobs: Jobs = 1,
            seed: Seed = 0,
            instructions: Instructions = None,
            output: Output = Path(f"results/speed-{name}"),
        ) -> None:
            _run_command(
                name, module, report, draw, output,
                cases=case, peers=peer, rounds=rounds, n_jobs=n_jobs, seed=seed,
            )  # fmt: skip

        app.command(name, help=getdoc(about))(run)
        return about

    return register


@_beside_peers("self-expression", "sparse", SOLVERS, "draw_scaling")
def self_expression() -> None:
    """Express each row of a data set by few others, at a certified relative gap of 1e-6.

    Our solver solves all rows; its time includes the Gram matrix and the certificate. A peer solves
    a random sample of the rows, at its loosest tolerance whose worst certified gap on the sample is
    at most 1e-6. The time of a Gram matrix that peers share is not counted. In each round all
    solvers run once, one after another, and a ratio compares times of the same round. Memory is the
    peak of our solver beyond the input, measured on Linux in a separate process.

    Cases: synthetic-500, -1000, -2000, -5000, -10000 and -20000; yale-b, coil-20, coil-20-dense and
    mnist-5000, if the environment variable TWINSOLVE_DATA names a folder with their files. Two
    cases run only on request, once and without peers: synthetic-40000, and large (70,000 rows in
    500 dimensions to a gap of 1e-4).

    Peers: scikit-learn (Lasso row by row), scikit-learn-gram (coordinate descent on the shared Gram
    matrix), celer, skglm, spams-active-support (LARS on growing supports), spams-gram (LARS on the
    shared Gram matrix).

    Writes table.json, settings.json, summary.md and, for synthetic cases, scaling.png to DIR.
    DIR/runs keeps finished cases, which are read while settings and source stay the same.
    """


@_beside_peers("sparse-coding", "sparse", SOLVERS)
def sparse_coding() -> None:
    """Code 1,000 signals in a random dictionary of 1,024 atoms, at a certified gap of 1e-6.

    Timed as by the command self-expression. SPAMS, like our solver, computes its own Gram matrix.

    Cases: dictionary-10 and dictionary-50. The penalty is the mean over the signals of the smallest
    penalty whose code is zero, divided by 10 or 50. Peers: scikit-learn-cd and scikit-learn-lars
    (sparse_encode), celer, skglm, spams (LARS).

    Writes table.json, settings.json and summary.md to DIR. DIR/runs keeps finished cases, which are
    read while settings and source stay the same.
    """


@_beside_peers("filters", "filters", METHODS, "draw_quality")
def filters() -> None:
    """Time image filters, smoothers and embeddings of points, and token graying.

    In each round all methods of a case run once, one after another, on the same input, and a ratio
    compares times of the same round. Denoisers also get PSNR and SSIM. Memory is the peak of our
    method beyond the input, measured on Linux in a separate process.

    Cases: nlm-7-21, nlm-5-13 and nlm-gaussian-7-21 (non-local means: sides of patch and window),
    bilateral-square-11 and regression (Nadaraya-Watson), each followed by -float64 or -float32;
    bilateral-disk-11-float32; set12, if the environment variable TWINSOLVE_DATA names a folder with
    its files; lle-weights, lle-3 and lle-50 (locally linear embedding: number of features);
    graying-svd-224, graying-dct-224, graying-svd-64 and graying-dct-64 (token graying: width of the
    images). Peers: numpy, opencv, scikit-image, scikit-learn, scipy, torch.

    Writes table.json, settings.json, summary.md and, for set12, quality.png to DIR. DIR/runs keeps
    finished cases, which are read while settings and source stay the same.
    """


@app.command()
def scale(
    case: Cases = None,
    size: Annotated[
        list[int] | None,
        typer.Option("--size", metavar="N", help="This number of rows; may be given again."),
    ] = None,
    n_jobs: Jobs = 1,
    seed: Seed = 0,
    instructions: Instructions = None,
    output: Output = Path("results/speed-scale"),
) -> None:
    """Self-expression of 10,000 to 1,000,000 rows, each certified at a relative gap of 1e-4.

    Every number of rows is solved once, in a separate process. Measured are time, memory, the share
    of products with all atoms that bounds made needless, and the worst gap of all rows.

    Cases: subspaces-50, subspaces-200 and noisy-50 (20 subspaces of dimension 6 in 50 or 200
    dimensions; noisy-50 has noise of 0.05 per coordinate), and mnist (scattering features on 200
    principal directions), if the environment variable TWINSOLVE_DATA names a folder with its files.
    They run up to 1,000,000, 300,000, 100,000 and 30,000 rows, unless --case names them.

    Writes table.json, settings.json, summary.md and scale.png to DIR. DIR/runs keeps finished
    cases, which are read while settings and source stay the same.
    """
    _run_command(
        "scale", "scale", SCALE, "draw_scale", output,
        cases=case, n_jobs=n_jobs, seed=seed, **({"sizes": size} if size else {}),
    )  # fmt: skip


@app.command()
def attention(
    case: Cases = None,
    operator: Annotated[
        list[str] | None,
        typer.Option("--operator", metavar="NAME", help="This operator only; may be given again."),
    ] = None,
    rounds: Rounds = 5,
    n_jobs: Jobs = 1,
    seed: Seed = 0,
    instructions: Instructions = None,
    dtype: Annotated[str, typer.Option(help="float32, float64 or bfloat16.")] = "float32",
    device: Annotated[
        str, typer.Option(help="cpu, cuda, or auto: a GPU if there is one.")
    ] = "auto",
    load: Load = None,
    output: Output = Path("results/speed-attention"),
) -> None:
    """Time every operator beside scaled dot-product attention, and beside its N x N matrix.

    In each round an operator and scaled_dot_product_attention run in turns on the same tokens, in
    inference and in training, and a ratio compares times of the same round. The explicit matrix is
    timed on up to 1024 tokens, and bilateral attention with stored positions in inference. The
    table also has peak memory, its growth with the number of tokens, operations, parameters and the
    kernel reached.

    Cases, as (batch, heads, tokens, width of a head): images-197 (8, 3, 197, 64), tokens-1024
    (1, 4, 1024, 64), tokens-4096 (1, 4, 4096, 64); and memory, from 256 to 4096 tokens.

    Writes table.json, settings.json, summary.md and times.png to DIR. DIR/runs keeps finished
    cases, which are read while settings and source stay the same.
    """
    load_modules(load)
    _run_command(
        "attention", "attention", OPERATORS, "draw_attention", output,
        cases=case, operators=operator, rounds=rounds, n_jobs=n_jobs, seed=seed, dtype=dtype,
        device=device,
    )  # fmt: skip


def _run_command(
    name: str, module: str, report: Report, draw: str, output: Path, **settings: Any
) -> None:
    """Time the cases, then print, write and draw the table."""
    time = getattr(import_module(f".{module}", __package__), f"time_{name.replace('-', '_')}")
    try:
        table = time(**settings, directory=output / "runs", progress=progress("Timing"))
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error
    lines, noted = report.lines(table), _list_notes(table)
    screen = console()
    screen.print(_format_table(*lines))
    screen.print(*noted, sep="\n")
    write_table(table, output)
    text = [*report.explanation, "", *markdown(*lines), *(f"\n{line}" for line in noted)]
    write_summary(f"twinsolve speed {name}", text, settings, output)
    if draw:
        getattr(import_module("..figures", __package__), draw)(table, output)
    screen.print(f"Written to {output}/")
