"""The style of all figures."""

from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import NullFormatter, NullLocator

from ..datasets.files import whole_file


def panels(
    n_panels: int, size: tuple[float, float], *, columns: int = 0, margin: float = 0, **options: Any
) -> tuple[Figure, np.ndarray]:
    """A figure of panels of some size in inches, in rows of so many columns, and their axes.

    `margin` is what the figure is wider for a legend; places that are left over stay empty.
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
    """No frame above and at the right, and a faint grid."""
    axes.grid(axis=grid, alpha=0.3)  # type: ignore[arg-type]
    axes.spines[["top", "right"]].set_visible(False)


def log_ticks(axes: Axes, which: str, ticks: Any = None) -> None:
    """A logarithmic axis with plain numbers, at these ticks alone if some are given."""
    getattr(axes, f"set_{which}scale")("log")
    axis = getattr(axes, f"{which}axis")
    if ticks is not None:
        axis.set_ticks(ticks, [f"{tick:,.12g}" for tick in ticks])
        axis.set_minor_locator(NullLocator())
    else:
        axis.set_major_formatter("{x:,g}")
    axis.set_minor_formatter(NullFormatter())


def legend(figure: Figure, place: str, **options: Any) -> None:
    """One legend for all axes, outside of these: each label once."""
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
    """Write the figure to `path`, a ``.png``, and beside it as ``.pdf``."""
    for end in (".png", ".pdf"):
        with whole_file(path.with_suffix(end)) as file:
            figure.savefig(file, dpi=150, format=end[1:])
