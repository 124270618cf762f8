"""The command line `twinsolve`."""

import typer

from .check.cli import check
from .clustering.cli import cluster
from .speed.cli import app as speed
from .vision.classification.cli import classify
from .vision.denoising.cli import denoise
from .vision.denoising.train_cli import train_denoiser
from .vision.inspection.cli import inspect
from .vision.segmentation.cli import segment

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    help="Attention layers beside the classical solvers that they unroll.",
)
app.add_typer(speed, name="speed")
app.command()(cluster)
app.command()(check)
app.command()(classify)
app.command()(denoise)
app.command()(train_denoiser)
app.command()(inspect)
app.command()(segment)


def main() -> None:
    """Entry point of the console script."""
    app()
