"""Command `twinsolve check`."""

import os
from pathlib import Path
from typing import Annotated, Any

import typer

from ..options import DATA, Jobs, Load, Output, Quick, Seed, load_modules
from ..terminal import console


def check(
    twin: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="Only this twin; may be given again.")
    ] = None,
    family: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="Only this family; may be given again.")
    ] = None,
    data: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help=DATA),
    ] = None,
    quick: Quick = False,
    seed: Seed = 0,
    n_jobs: Jobs = -1,
    output: Output = Path("results/check"),
    load: Load = None,
) -> None:
    """Compare every layer with its solver on data, and test the laws that layers declare.

    A twin is a learnable attention layer and the classical solver that it unrolls. Both run on
    clustering and on vision data. Their outputs may differ by at most a tolerance. It depends on
    what relates them: the same numbers (identity, or init at the initial parameters alone), the
    same iterates (iterate), the same limit or its proved rate (limit), or a proved inequality
    (bound). Both must also reach the same quality: the adjusted Rand index of the clusters, or the
    PSNR of the image in dB. The laws are tested on small random inputs with heads that differ. They
    cover causal, padding and pair masks, fewer queries than keys, the explicit matrix, gradients,
    other options, sizes and dtypes. Inputs that a layer must refuse have to raise an error. --quick
    tests the laws, and one data set of each task in float64. Repeat --data for several data sets;
    "drawn" stands for the random inputs of the laws.

    With packaged data and two idle cores the check takes more than a minute. It also uses
    Extended Yale B and Set12, if the environment variable TWINSOLVE_DATA names a folder that holds
    them. It prints a line for each twin that is done, with the row closest to its tolerance, and
    at the end the coverage and the processor time. It writes table.json with every row, summary.md,
    settings.json and deviations.png to DIR, relative to the current folder unless absolute. It
    exits with status 1 if any row fails.
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
    seconds = sum(os.times()[:4])  # this process and its finished children
    covered = [*coverage(table), f"Processor time: {seconds:.0f} s."]
    screen.print("", *covered, sep="\n")
    write_table(table, output)
    settings = {"seed": seed, "twin": twin, "family": family, "data": data, "quick": quick}
    summary = [*covered, "", *summary_lines(table)]
    write_summary("twinsolve check", summary, settings | {"load": load}, output)
    draw_deviations(table, output / "deviations.png")
    screen.print(f"Written to {output}/")
    raise typer.Exit(code=int(not table.passed.all()))
