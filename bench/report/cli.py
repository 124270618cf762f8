"""Command `twinsolve report`."""

from pathlib import Path
from typing import Annotated

import typer

from ..options import Output, report_mistakes
from ..terminal import console


def report(
    folders: Annotated[
        list[Path] | None,
        typer.Argument(metavar="[FOLDER]...", help="Folders with results [results]."),
    ] = None,
    output: Output = Path("results"),
) -> None:
    """Show all results of yours in one page for the browser.

    ```
    twinsolve report
    twinsolve report results/cluster results/classify --output shared
    ```

    The command looks for results of twinsolve in each FOLDER and below it, but not in runs/. It
    writes DIR/report.html, a single file that needs no network and no other file. It has

    - all runs, with the command line to run each again, its settings, versions and machine
    - the tables, which sort by a click on a heading, and filter by words
    - the figures, which a click enlarges
    - measures against settings, such as errors against penalties, as charts
    - coefficients and affinities that twinsolve cluster has drawn; the two points of an entry
      appear as the mouse is over it

    It needs Bokeh: pip install "twinsolve[report]".
    """
    with report_mistakes():
        try:
            from .page import write_page
        except ModuleNotFoundError as error:
            raise ImportError(
                f"charts need {error.name}: pip install 'twinsolve[report]'"
            ) from error
        from .folders import read_runs

        runs = read_runs(folders or [Path("results")])
    write_page(runs, output / "report.html")
    console().print(f"{len(runs)} folders in {output / 'report.html'}", soft_wrap=True)
