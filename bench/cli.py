"""The command line `twinsolve`."""

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import pandas as pd
import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from .clustering.cli import cluster
from .speed.cli import app as speed
from .terminal import console, markdown, progress, results_folder

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    help="Attention layers beside the classical solvers that they unroll.",
)
app.add_typer(speed, name="speed")
app.command()(cluster)


@app.command()
def check(
    seed: Annotated[
        int, typer.Option(min=0, help="Seed of data, noise and random projections.")
    ] = 0,
    output: Annotated[
        Path,
        typer.Option(
            metavar="DIR",
            help="Folder for the table, summary and figure.",
            callback=results_folder,
        ),
    ] = Path("results/check"),
    load: Annotated[
        list[str] | None,
        typer.Option(metavar="MODULE", help="Import a module that registers twins of your own."),
    ] = None,
) -> None:
    """Hold every layer against its solver, on clustering and on vision data.

    A twin is a learnable attention layer and the classical solver that it unrolls. Each is run on
    the same data in float64 and float32. The deviation between their outputs must stay under the
    tolerance of their relation: the same numbers (identity, or init at the initial parameters),
    the same iterates after up to 50 steps (iterate), the same limit or its proved rate (limit), or
    a proved inequality (bound). Solver and layer must also reach the same task number: the adjusted
    Rand index of the clusters, or the PSNR of the image in dB.

    Takes about three minutes on packaged data; where the environment variable TWINSOLVE_DATA names
    a folder with Extended Yale B or Set12, on those too. Prints a line for each twin, with the row
    that comes closest to its tolerance. Writes every row to table.json and summary.md,
    and settings.json and deviations.png, to DIR, below the present folder unless absolute. Exits
    with status 1 if any row fails.
    """
    from .check_figure import draw_deviations
    from .checks import check_twins
    from .results import provenance, write_summary, write_table

    screen = console()
    _load(load or [])
    table = check_twins(seed=seed, progress=progress("Checking"))
    screen.print(_pretty(table))
    _print_failures(table, screen)
    failed = int((~table.passed).sum())
    verdict = f"{len(table) - failed} of {len(table)} rows passed"
    screen.print(f"{verdict}; {table.twin.nunique()} twins. Written to {output}/")
    write_table(table, output)
    write_summary(
        "twinsolve check",
        [f"{verdict}.", "", *markdown(_HEADINGS, _by_data(table))],
        provenance({"seed": seed, "load": load or []}),
        output,
    )
    draw_deviations(table, output / "deviations.png")
    raise typer.Exit(code=int(failed > 0))


def _load(modules: list[str]) -> None:
    sys.path.insert(0, str(Path.cwd()))
    try:
        for module in modules:
            if not all(word.isidentifier() for word in module.split(".")):
                raise ImportError("must be the name of a module, such as my_twins of my_twins.py")
            importlib.import_module(module)
    except Exception as error:  # whatever the user's code raises
        reason = f"{module!r}: {type(error).__name__}: {error}"
        raise typer.BadParameter(reason, param_hint="--load") from error
    finally:
        sys.path.pop(0)


_DIGITS = {"clustering": 3, "vision": 2}
_HEADINGS = (
    "twin", "relation", "equation", "data", "task", "solver", "layer",
    "float64", "tol.", "float32", "tol.", "passed",
)  # fmt: skip


def _by_data(table: pd.DataFrame) -> list[tuple[str, ...]]:
    """One line for each twin and data set, the two dtypes side by side."""
    lines = []
    keys = ["twin", "relation", "equation", "data", "task"]
    for key, rows in table.groupby(keys, sort=False):
        dtypes = rows.set_index("dtype")
        exact = dtypes.loc["float64"]
        cells = [
            f"{dtypes.loc[dtype][column]:.1e}"
            for dtype in ("float64", "float32")
            for column in ("deviation", "tolerance")
        ]
        digits = _DIGITS[exact.task]
        numbers = [
            f"{number:.{digits}f}" for number in (exact.task_number_solver, exact.task_number_layer)
        ]
        lines.append((*key, *numbers, *cells, "yes" if rows.passed.all() else "NO"))
    return lines


_SCREEN = ("twin", "equation", "relation", "task", "float64", "tol.", "float32", "tol.", "passed")


def _pretty(table: pd.DataFrame) -> Table:
    """One line for each twin, by families: the row that comes closest to its tolerance."""
    pretty = Table(
        title="Largest deviation of each layer, and difference of the task numbers (ARI, PSNR)",
        box=SIMPLE_HEAD,
        padding=0,
    )
    for heading in _SCREEN:
        justify: Any = "left" if heading in ("twin", "equation", "relation") else "right"
        pretty.add_column(heading, justify=justify, no_wrap=True)
    for family, members in table.groupby("family"):
        pretty.add_section()
        pretty.add_row(str(family).replace("_", " "), style="bold")
        for (twin, equation, relation), rows in members.groupby(
            ["twin", "equation", "relation"], sort=False
        ):
            passed = bool(rows.passed.all())
            line = (f"  {twin}", equation, relation, _task_difference(rows), *_worst(rows))
            pretty.add_row(*line, "yes" if passed else "NO", style=None if passed else "bold red")
    return pretty


def _task_difference(rows: pd.DataFrame) -> str:
    exact = rows[rows.dtype == "float64"]
    return f"{(exact.task_number_solver - exact.task_number_layer).abs().max(skipna=False):.4f}"


def _worst(rows: pd.DataFrame) -> Iterator[str]:
    """Deviation and tolerance in both dtypes, on the data where they are closest."""
    for dtype in ("float64", "float32"):
        of_dtype = rows[rows.dtype == dtype]
        excess = (of_dtype.deviation / of_dtype.tolerance).fillna(np.inf)
        worst = of_dtype.loc[excess.idxmax()]
        yield from (f"{worst.deviation:.1e}", f"{worst.tolerance:.1e}")


def _print_failures(table: pd.DataFrame, screen: Console) -> None:
    errors = table.get("error", pd.Series(None, index=table.index, dtype=object))
    for row, error in zip(table.itertuples(), errors, strict=True):
        if row.passed:
            continue
        reason = (
            error
            if isinstance(error, str)
            else (
                f"deviation {row.deviation:.1e}, tolerance {row.tolerance:.1e}; task number "
                f"{row.task_number_solver:.4f} (solver), {row.task_number_layer:.4f} (layer)"
            )
        )
        screen.print(f"{row.twin} on {row.data} ({row.dtype}): {reason}", style="red")


def main() -> None:
    """Entry point of the console script."""
    app()
