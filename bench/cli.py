"""The command line `twinsolve`."""

import importlib
import sys
from pathlib import Path
from typing import Annotated, Any

import pandas as pd
import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from .speed.cli import app as speed
from .terminal import console, markdown, progress

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    help="Attention layers beside the classical solvers that they unroll.",
)
app.add_typer(speed, name="speed")


@app.command()
def check(
    seed: Annotated[
        int, typer.Option(min=0, help="Seed of data, noise and random projections.")
    ] = 0,
    output: Annotated[
        Path, typer.Option(metavar="DIR", help="Folder for the table, summary and figure.")
    ] = Path("results/check"),
    load: Annotated[
        list[str] | None,
        typer.Option(metavar="MODULE", help="Import a module that registers twins of your own."),
    ] = None,
) -> None:
    """Hold every layer against its solver, on clustering and on vision data.

    A twin is a learnable attention layer and the classical solver that it unrolls. Each is run on
    the same data in float64 and float32. The deviation between their outputs must stay under the
    tolerance of their relation: the same numbers (identity), the same iterates after up to 50 steps
    (iterate), or the same limit at the proved rate (limit). Solver and layer must also reach the
    same task number: the adjusted Rand index of the clusters, or the PSNR of the image in dB.

    Takes a minute or two on packaged data; where the environment variable TWINSOLVE_DATA names a
    folder with Extended Yale B or Set12, on those too. Writes table.json, settings.json, summary.md
    and deviations.png to DIR, below the present folder unless absolute. Exits with status 1 if any
    row fails.
    """
    from .check_figure import draw_deviations
    from .checks import check_twins
    from .results import provenance, write_summary, write_table

    screen = console()
    _load(load or [])
    table = check_twins(seed=seed, progress=progress("Checking"))
    screen.print(_pretty(table))
    _print_errors(table, screen)
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


@app.command()
def hopkins(
    seed: Annotated[int, typer.Option(min=0, help="First seed of k-means.")] = 0,
    n_seeds: Annotated[int, typer.Option(min=1, help="Number of seeds to average over.")] = 10,
    recipe: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Run this recipe only; may be given again."),
    ] = None,
    output: Annotated[
        Path, typer.Option(metavar="DIR", help="Folder for the table, summary and finished runs.")
    ] = Path("results/hopkins"),
) -> None:
    """Segment the motions of Hopkins 155 by the recipes of the literature.

    A recipe is a self-expression model on the trajectories, the steps that make an affinity of its
    coefficients, and spectral clustering with k-means, averaged over seeds. Prints the mean error
    in % over the sequences with 2 motions, with 3 motions and over all, the median, and the range
    of the mean over the seeds.

    Reads the original files from the folder hopkins155 below the one that the environment variable
    TWINSOLVE_DATA names. Writes table.json, settings.json and summary.md to DIR; what is finished
    is kept in DIR/runs and not run again while seeds and source are the same.
    """
    from .hopkins import segment_motion, summarize_motion
    from .results import provenance, write_summary, write_table

    settings = {"seed": seed, "n_seeds": n_seeds, "recipes": recipe}
    try:
        runs = segment_motion(
            seed=seed,
            n_seeds=n_seeds,
            recipes=recipe,
            directory=output / "runs",
            progress=progress("Segmenting"),
        )
    except (FileNotFoundError, ValueError) as error:
        raise typer.BadParameter(str(error)) from error
    table = summarize_motion(runs)
    lines = _motion_lines(table)
    pretty = Table(title="Clustering error in % on Hopkins 155", box=SIMPLE_HEAD)
    for heading in _MOTION_HEADINGS:
        pretty.add_column(heading)
    for line in lines:
        pretty.add_row(*line)
    screen = console()
    screen.print(pretty)
    screen.print(f"Written to {output}/")
    write_table(table, output)
    write_summary(
        "twinsolve hopkins",
        ["Clustering error in %.", "", *markdown(_MOTION_HEADINGS, lines)],
        provenance(settings),
        output,
    )


_MOTION_HEADINGS = ("recipe", "steps", "sequences", "mean", "median", "over seeds")


def _motion_lines(table: pd.DataFrame) -> list[tuple[str, ...]]:
    return [
        (
            *(row.recipe, row.steps, row.sequences),
            *(f"{row.mean:.2f}", f"{row.median:.2f}", f"{row.lowest:.2f} to {row.highest:.2f}"),
        )
        for row in table.itertuples()
    ]


def _load(modules: list[str]) -> None:
    sys.path.insert(0, str(Path.cwd()))
    try:
        for module in modules:
            importlib.import_module(module)
    except ImportError as error:
        raise typer.BadParameter(str(error), param_hint="--load") from error
    finally:
        sys.path.pop(0)


_DIGITS = {"clustering": 3, "vision": 2}
_HEADINGS = (
    "twin", "relation", "equation", "data", "task", "solver", "layer",
    "float64", "tol.", "float32", "tol.", "passed",
)  # fmt: skip
_NUMBERS = ("solver", "layer", "float64", "tol.", "float32")


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


def _pretty(table: pd.DataFrame) -> Table:
    pretty = Table(
        title="Task number of solver and layer (ARI, or PSNR in dB), and the layer's deviation",
        box=SIMPLE_HEAD,
        padding=0,
    )
    for heading in _HEADINGS:
        justify: Any = "right" if heading in _NUMBERS else "left"
        pretty.add_column(heading, justify=justify, no_wrap=True)
    previous = ""
    for line in _by_data(table):
        if previous not in ("", line[0]):
            pretty.add_section()
        first = ("",) * 3 if line[0] == previous else line[:3]
        pretty.add_row(*first, *line[3:], style=None if line[-1] == "yes" else "bold red")
        previous = line[0]
    return pretty


def _print_errors(table: pd.DataFrame, screen: Console) -> None:
    if "error" in table:
        for row in table[table.error.notna()].itertuples():
            screen.print(f"{row.twin} on {row.data} ({row.dtype}): {row.error}", style="red")


def main() -> None:
    """Entry point of the console script."""
    app()
