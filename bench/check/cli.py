"""The command `twinsolve check`."""

import os
from pathlib import Path
from typing import Annotated, Any

import typer

from ..terminal import Load, Output, console, load_modules


def check(
    twin: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="Only this twin; may be repeated.")
    ] = None,
    family: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="Only this family; may be repeated.")
    ] = None,
    data: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Only this data set (drawn: the laws); may be repeated."),
    ] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="The laws, and a data set of each task in float64.")
    ] = False,
    seed: Annotated[
        int, typer.Option(min=0, help="Seed of data, noise and random projections.")
    ] = 0,
    n_jobs: Annotated[int, typer.Option(help="Processes; -1 is one for each processor.")] = -1,
    output: Output = Path("results/check"),
    load: Load = None,
) -> None:
    """Hold every layer against its solver: on data, and under the laws that it declares.

    A twin is a learnable attention layer and the classical solver that it unrolls. Both are run on
    clustering and on vision data; the deviation between their outputs must stay under the tolerance
    of their relation: the same numbers (identity, or init at the initial parameters), the same
    iterates (iterate), the same limit or its proved rate (limit), or a proved inequality (bound).
    Solver and layer must also reach the same task number: the adjusted Rand index of the clusters,
    or the PSNR of the image in dB. Then the laws, on small drawn inputs with heads that all differ:
    causal, padding and pair masks, fewer queries than keys, the explicit matrix, gradients, other
    options, other sizes and dtypes; and what a layer refuses must be refused.

    Takes more than a minute on two idle processors and packaged data; where the environment
    variable TWINSOLVE_DATA names a folder with Extended Yale B or Set12, on those too. Prints a
    line for each twin as soon as it is done, with the row that comes closest to its tolerance, and
    at the end what was covered, and the processor time. Writes every row to table.json and
    summary.md, and settings.json and deviations.png, to DIR, below the present folder unless
    absolute. Exits with status 1 if any row fails.
    """
    from ..tables import write_summary, write_table
    from .checks import check_twins
    from .lines import coverage, draw_deviations, heading, lines_of, summary_lines

    screen = console()
    load_modules(load)
    screen.print(heading(), style="bold")

    def show(rows: Any) -> None:
        screen.print("\n".join(lines_of(rows)), style=None if rows.passed.all() else "red")

    try:
        table = check_twins(
            seed=seed,
            twins=twin or (),
            families=family or (),
            data=data or (),
            quick=quick,
            n_jobs=n_jobs,
            progress=show,
        )
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error
    seconds = sum(os.times()[:4])  # of this process and of those that it waited for
    covered = [*coverage(table), f"Processor time: {seconds:.0f} s."]
    screen.print("", *covered, sep="\n")
    write_table(table, output)
    settings = {"seed": seed, "twin": twin, "family": family, "data": data, "quick": quick}
    summary = [*covered, "", *summary_lines(table)]
    write_summary("twinsolve check", summary, settings | {"load": load}, output)
    draw_deviations(table, output / "deviations.png")
    screen.print(f"Written to {output}/")
    raise typer.Exit(code=int(not table.passed.all()))
