"""Command line `twinsolve`."""

from typing import Annotated

import typer

from .. import __version__
from .audit.cli import audit
from .check.cli import check
from .clustering.cli import cluster
from .language.cli import language
from .longrange.cli import longrange
from .report.cli import report
from .speed.cli import app as speed
from .terminal import Commands
from .vectors.cli import vectors
from .vision.classification.cli import classify
from .vision.denoising.cli import denoise, train_denoiser
from .vision.inspection.cli import inspect
from .vision.segmentation.cli import segment

app = typer.Typer(
    cls=Commands,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    help="Compare attention layers with the classical solvers that they unroll. To begin, type "
    "twinsolve check --quick.",
)
app.add_typer(speed, name="speed")
app.command()(cluster)
app.command()(check)
app.command()(audit)
app.command()(classify)
app.command()(denoise)
app.command()(train_denoiser)
app.command()(inspect)
app.command()(segment)
app.command()(language)
app.command()(longrange)
app.command()(vectors)
app.command()(report)


def _print_version(asked: bool) -> None:
    if asked:
        typer.echo(f"twinsolve {__version__}")
        raise typer.Exit


_Version = Annotated[
    bool,
    typer.Option(
        "--version", help="Print the version and exit.", is_eager=True, callback=_print_version
    ),
]


@app.callback()
def _twinsolve(version: _Version = False) -> None:
    """Options of the command itself."""


def main() -> None:
    """Entry point of the console script."""
    app()
