"""`python -m twinsolve.bench.faults`: what the check catches."""

from pathlib import Path
from typing import Annotated, Any

import pandas as pd
import typer

from ..tables import markdown, write_summary, write_table
from ..terminal import Output, console
from .catalogue import catalogue
from .planted import check_faults, is_caught_by_tests


def faults(
    kind: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="Only this kind; may be repeated.")
    ] = None,
    fault: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="Only this fault; may be repeated.")
    ] = None,
    tests: Annotated[
        bool, typer.Option("--tests", help="Run the tests of each fault's layers as well: hours.")
    ] = False,
    n_jobs: Annotated[int, typer.Option(min=1, help="Faults at a time.")] = 2,
    output: Output = Path("results/faults"),
) -> None:
    """Plant faults in the layers, one at a time, and see whether `twinsolve check` catches them.

    Each is planted in a copy of the package. The check is held to the twins of the layers that it
    changes: the laws and, where these say nothing, a data set of each task. Prints a line for each
    fault: the case that deviates most, or NOT caught. Exits with status 1 if a fault survives of
    which that is not expected.
    """
    chosen = [
        f for f in catalogue() if (not kind or f.kind in kind) and (not fault or f.name in fault)
    ]
    if not chosen:
        raise typer.BadParameter("there is no fault of this name and kind")
    screen, rows = console(), []
    for found, row in zip(chosen, check_faults(chosen, n_jobs), strict=True):
        if tests:
            row["caught_by_tests"] = is_caught_by_tests(found)
        rows.append(row)
        screen.print(_line(row), style=None if row["caught"] or row["survives"] else "red")
    table = pd.DataFrame(rows)
    lines = _by_kind(table)
    screen.print(*lines, sep="\n")
    write_table(table, output)
    survivors = table[~table.caught]
    summary = [*lines, ""]
    if len(survivors) > 0:
        reasons = survivors.survives.replace("", "unexpected")
        summary += ["Not caught:", "", *("- " + survivors.fault + ": " + reasons), ""]
    summary += markdown(("kind", "fault", "caught by"), ((r["kind"], *_cells(r)) for r in rows))
    settings = {"kind": kind, "fault": fault, "tests": tests}
    write_summary("Planted faults", summary, settings, output)
    raise typer.Exit(code=int((survivors.survives == "").any()))


def _by_kind(table: pd.DataFrame) -> list[str]:
    caught = table.assign(faults=1).filter(["kind", "faults", "caught", "caught_by_tests"])
    counts = caught.groupby("kind", sort=False).sum()
    counts.loc["all"] = counts.sum()
    headings = ["kind", *counts.columns.str.replace("_", " ")]
    return markdown(headings, counts.reset_index().astype(str).to_numpy().tolist())


def _line(row: dict[str, Any]) -> str:
    return "{:<48} {}".format(*_cells(row))


def _cells(row: dict[str, Any]) -> tuple[str, str]:
    """Name, and the row of the check that says most."""
    if not row["caught"]:
        return row["fault"], "NOT caught"
    place = f"{row['twin']}: {row['case']}"
    if row["data"] != "drawn":
        place += f" on {row['data']}"
    if isinstance(row["error"], str):
        return row["fault"], f"{place}, {row['error'].splitlines()[0]}"
    return row["fault"], f"{place}, {row['deviation']:.1e} against {row['tolerance']:.1e}"


if __name__ == "__main__":
    typer.run(faults)
