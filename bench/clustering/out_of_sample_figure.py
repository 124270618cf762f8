"""Picture of held-out points: accuracy against time a point, a panel a data set."""

from pathlib import Path

import pandas as pd
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullFormatter

from .splits import shown

_COLOURS = {
    "SSC": "black",
    "EnSC": "0.45",
    "OMP": "tab:blue",
    "LSR": "tab:cyan",
    "LRSC": "tab:olive",
    "TSC": "tab:brown",
    "unrolled, K = 10": "tab:red",
    "SENet": "tab:orange",
}
_LEARNED = ("unrolled, K = 10", "SENet")


def draw_out_of_sample(table: pd.DataFrame, path: Path) -> None:
    """Draw means over splits with their standard deviation; hollow is the accuracy when fitted."""
    sets = list(table.groupby("data", sort=False))
    figure = Figure(figsize=(3.4 * len(sets) + 2.2, 3.8), layout="constrained")
    panels = figure.subplots(1, len(sets), sharey=True, squeeze=False)[0]
    for axes, (data, rows) in zip(panels, sets, strict=True):
        for method, runs in rows.groupby("method", sort=False):
            marker = "s" if method in _LEARNED else "o"
            x, colour = runs.ratio_batch.median(), _COLOURS[str(method)]
            axes.errorbar(
                x, runs.accuracy_new.mean(), yerr=runs.accuracy_new.std(ddof=0), fmt=marker,
                color=colour, capsize=3, markersize=6, linewidth=1.2, label=str(method),
            )  # fmt: skip
            axes.plot(
                x, runs.accuracy_fit.mean(), marker, markerfacecolor="none", color=colour,
                markersize=6, alpha=0.7,
            )  # fmt: skip
        axes.set_xscale("log")
        axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.xaxis.set_major_formatter("{x:g}")
        axes.xaxis.set_minor_formatter(NullFormatter())
        axes.set_title(shown(str(data)), loc="left", fontsize=10)
        axes.set_xlabel("time a held-out point / SSC")
        axes.grid(alpha=0.3)
        axes.spines[["top", "right"]].set_visible(False)
    panels[0].set_ylabel("accuracy, %")
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside right upper", fontsize=9, frameon=False)
    note = "In batches. Filled: held out. Hollow: fitted. Squares: learned. Bars: deviation."
    figure.supxlabel(note, fontsize=8, color="0.3")
    figure.savefig(path, dpi=150)
