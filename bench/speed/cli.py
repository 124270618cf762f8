"""The commands below `twinsolve speed`."""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Annotated, Any

import pandas as pd
import typer
from rich.box import SIMPLE_HEAD
from rich.table import Table

from ..terminal import console, markdown, progress

app = typer.Typer(
    no_args_is_help=True, help="Time a solver beside those that a user would pick instead."
)

Cases = Annotated[
    list[str] | None,
    typer.Option("--case", metavar="NAME", help="Run this case only; may be given again."),
]
Peers = Annotated[
    list[str] | None,
    typer.Option("--peer", metavar="NAME", help="Run this peer only; may be given again."),
]
Rounds = Annotated[int, typer.Option(min=1, help="How often each solver runs, in turns.")]
Jobs = Annotated[
    int,
    typer.Option(
        min=1, help="Threads. Peers on one thread only are left out if not 1; ours on one joins."
    ),
]
Seed = Annotated[int, typer.Option(min=0, help="Seed of generated data and of the rows timed.")]
Output = Annotated[
    Path, typer.Option(metavar="DIR", help="Folder for the results and the finished cases.")
]


@app.command("self-expression")
def self_expression(
    case: Cases = None,
    peer: Peers = None,
    rounds: Rounds = 3,
    n_jobs: Jobs = 1,
    seed: Seed = 0,
    output: Output = Path("results/speed-self-expression"),
) -> None:
    """Each row of a data set from few others, at a certified relative gap of 1e-6.

    Ours solves all rows, its Gram matrix and its certificate included. A peer solves a random
    sample of the rows, at the loosest of its tolerances whose worst certified gap on them is at
    most 1e-6; a Gram matrix that peers share is not counted. In each round all run once, one after
    another, and a ratio compares times of the same round. Memory is the peak of ours beyond the
    input, measured on Linux in a process of its own.

    Cases: synthetic-500, -1000, -2000, -5000, -10000 and -20000; with their files in the folder
    that the environment variable TWINSOLVE_DATA names, yale-b, coil-20 and coil-20-dense. Only on
    request, ours alone and once: synthetic-40000, and large, that is 70,000 rows in 500 dimensions
    to a gap of 1e-4.

    Peers: scikit-learn (Lasso row by row), scikit-learn-gram (coordinate descent on the shared Gram
    matrix), celer, skglm, spams-active-support (LARS on growing supports), spams-gram (LARS on the
    shared Gram matrix).

    Writes table.json, settings.json, summary.md and, of the synthetic cases, scaling.png to DIR.
    What is finished is kept in DIR/runs and not run again while settings and source are the same.
    """
    from .figure import draw_scaling
    from .sparse import time_self_expression

    settings = {"rounds": rounds, "n_jobs": n_jobs, "seed": seed}
    table = _run("self-expression", time_self_expression, case, peer, settings, output)
    draw_scaling(table, output / "scaling.png")


@app.command("sparse-coding")
def sparse_coding(
    case: Cases = None,
    peer: Peers = None,
    rounds: Rounds = 3,
    n_jobs: Jobs = 1,
    seed: Seed = 0,
    output: Output = Path("results/speed-sparse-coding"),
) -> None:
    """1,000 signals in a random dictionary of 1,024 atoms, at a certified relative gap of 1e-6.

    Timed as by the command self-expression; SPAMS, like ours, makes its own Gram matrix.

    Cases: dictionary-10 and dictionary-50; the penalty is the mean over the signals of the smallest
    one with no atoms, divided by that number. Peers: scikit-learn-cd and scikit-learn-lars
    (sparse_encode), celer, skglm, spams (LARS).

    Writes table.json, settings.json and summary.md to DIR. What is finished is kept in DIR/runs and
    not run again while settings and source are the same.
    """
    from .sparse import time_sparse_coding

    settings = {"rounds": rounds, "n_jobs": n_jobs, "seed": seed}
    _run("sparse-coding", time_sparse_coding, case, peer, settings, output)


def _run(
    command: str,
    timing: Callable[..., pd.DataFrame],
    cases: list[str] | None,
    peers: list[str] | None,
    settings: dict[str, Any],
    output: Path,
) -> pd.DataFrame:
    from ..results import provenance, write_summary, write_table

    settings = {"cases": cases, "peers": peers} | settings
    try:
        table = timing(**settings, directory=output / "runs", progress=progress("Timing"))
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error
    lines, remarks = _lines(table), _remarks(table)
    screen = console()
    screen.print(_pretty(lines))
    for remark in remarks:
        screen.print(remark)
    screen.print(f"Written to {output}/")
    write_table(table, output)
    text = [*_EXPLANATION, "", *markdown(_HEADINGS, lines), *(f"\n{line}" for line in remarks)]
    write_summary(f"twinsolve speed {command}", text, provenance(settings), output)
    return table


_EXPLANATION = (
    "Milliseconds a row, and multiples of our time in the same round: median over the rounds, with",
    "the lowest and highest. Gap: the worst certified one on the rows timed. Non-zeros and passes",
    "(products with all atoms) are means over rows. MiB: our peak memory beyond the input.",
)
_HEADINGS = (
    "case", "solver", "rows", "tol.", "ms a row", "x ours", "gap", "non-zeros", "passes", "MiB",
)  # fmt: skip


def _lines(table: pd.DataFrame) -> list[tuple[str, ...]]:
    return [
        (
            row.case,
            row.solver,
            str(int(row.rows_timed)),
            _number(row.tol, ".0e"),
            _range(row.ms_per_row, row.ms_lowest, row.ms_highest),
            _range(row.ratio, row.ratio_lowest, row.ratio_highest),
            _number(row.gap, ".0e"),
            _number(row.nonzeros, ".1f"),
            _number(row.passes, ".1f"),
            _number(row.memory_mib, ".0f"),
        )
        for row in table[table.ms_per_row.notna()].itertuples()
    ]


def _remarks(table: pd.DataFrame) -> list[str]:
    """Why solvers and cases are not in the table, or not at the gap: a line for each reason."""
    noted = table[table.note != ""]
    cases = [f"{row.case}: {row.note}" for row in noted[noted.solver.isna()].itertuples()]
    solvers = [
        f"{', '.join(rows.solver.unique())}: {note} ({', '.join(rows.case.unique())})"
        for note, rows in noted[noted.solver.notna()].groupby("note", sort=False)
    ]
    return cases + solvers


def _number(value: float, form: str) -> str:
    return "" if pd.isna(value) else format(value, form)


def _range(median: float, lowest: float, highest: float) -> str:
    if pd.isna(median):
        return ""
    if pd.isna(lowest) or lowest == highest:
        return _short(median)
    return f"{_short(median)} ({_short(lowest)} - {_short(highest)})"


def _short(value: float) -> str:
    return format(value, ".3g" if value < 1000 else ".0f")


def _pretty(lines: Iterable[tuple[str, ...]]) -> Table:
    pretty = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for heading in _HEADINGS[1:]:
        justify: Any = "left" if heading == "solver" else "right"
        pretty.add_column(heading, justify=justify, no_wrap=True)
    previous = ""
    for case, *cells in lines:
        if case != previous:
            pretty.add_section()
            pretty.add_row(case, style="italic")
        ours = cells[0].startswith("twinsolve")
        pretty.add_row("  " + cells[0], *cells[1:], style="bold" if ours else None)
        previous = case
    return pretty
