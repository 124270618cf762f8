"""The style of all figures, and how they are written."""

import io
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import NullFormatter, NullLocator
from PIL import Image

from ..datasets.files import whole_file


def panels(
    n_panels: int, size: tuple[float, float], *, columns: int = 0, margin: float = 0, **options: Any
) -> tuple[Figure, np.ndarray]:
    """A figure of panels, each of a size in inches, in rows of `columns` panels, and its axes.

    `margin` is added to the width of the figure for a legend.
    """
    columns = min(columns or n_panels, n_panels)
    rows = -(-n_panels // columns)
    width, height = size
    figure = Figure(figsize=(width * columns + margin, height * rows), layout="constrained")
    axes = figure.subplots(rows, columns, squeeze=False, **options).ravel()
    for empty in axes[n_panels:]:
        empty.set_visible(False)
    return figure, axes[:n_panels]


def plain(axes: Axes, grid: str = "both") -> None:
    """Remove the frame above and at the right, and draw a faint grid."""
    axes.grid(axis=grid, alpha=0.3)  # type: ignore[arg-type]
    axes.spines[["top", "right"]].set_visible(False)


def log_ticks(axes: Axes, which: str, ticks: Any = None) -> None:
    """Make an axis logarithmic with plain numbers, only at `ticks` if given."""
    getattr(axes, f"set_{which}scale")("log")
    axis = getattr(axes, f"{which}axis")
    if ticks is not None:
        axis.set_ticks(ticks, [f"{tick:,.12g}" for tick in ticks])
        axis.set_minor_locator(NullLocator())
    else:
        axis.set_major_formatter("{x:,g}")
    axis.set_minor_formatter(NullFormatter())


def legend(figure: Figure, place: str, **options: Any) -> None:
    """Draw one legend for all axes, outside of the axes, with each label once."""
    handles = {
        label: handle
        for axes in figure.axes
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True)
    }
    options = {"fontsize": 9, "frameon": False} | options
    figure.legend(list(handles.values()), list(handles), loc=f"outside {place}", **options)  # type: ignore[call-overload]


def forget(path: Path) -> None:
    """Remove what `save` wrote in an earlier run."""
    for end in (".png", ".pdf"):
        path.with_suffix(end).unlink(missing_ok=True)


def save(figure: Figure, path: Path) -> None:
    """Write the figure to `path`, a ``.png`` of at most 256 colours, and beside it as ``.pdf``."""
    figure.set_dpi(150)
    if layout := figure.get_layout_engine():
        layout.execute(figure)
    figure.set_layout_engine(None)  # or each file would be drawn twice, to find the layout again
    write_png(figure, path, dpi=150)
    with whole_file(path.with_suffix(".pdf")) as file:
        figure.savefig(file, format="pdf", dpi=100)


def write_png(figure: Figure, path: Path, *, dpi: int) -> None:
    """Write the figure as PNG of at most 256 colours."""
    drawn = io.BytesIO()
    figure.savefig(drawn, dpi=dpi)
    with whole_file(path) as file:
        few_colours = Image.open(drawn).convert("RGB").quantize(256, dither=Image.Dither.NONE)
        few_colours.save(file, format="png", optimize=True)
