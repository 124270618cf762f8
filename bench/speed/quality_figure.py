"""Picture of the denoised images: PSNR against time."""

from pathlib import Path
from typing import Any

import pandas as pd
from matplotlib.figure import Figure
from matplotlib.ticker import NullFormatter

from .contest import OURS

_COLOURS = {OURS: "black", "opencv": "tab:blue", "scikit-image": "tab:red"}


def draw_quality(table: pd.DataFrame, path: Path) -> None:
    """Draw the case set12, times on a logarithmic axis; nothing if it was not timed."""
    rows = table[(table.case == "set12") & table.ms.notna()]
    rows = rows.assign(ms=rows.ms / rows.inputs)
    if rows.empty:
        return
    figure = Figure(figsize=(9, 5), layout="constrained")
    axes = figure.subplots()
    for row in rows.itertuples():
        colour = _COLOURS[str(row.package)]
        axes.plot(row.ms, row.psnr, "o", color=colour)
        axes.annotate(
            str(row.method),
            (row.ms, row.psnr),
            xytext=(6, _nudge(row, rows)),
            textcoords="offset points",
            color=colour,
            fontsize=8,
            verticalalignment="center",
        )
    axes.set_xscale("log")
    lowest, highest = rows.ms.min(), rows.ms.max()
    axes.set_xlim(lowest / 1.5, highest * (highest / lowest) ** 0.35)
    ticks = [10.0**k for k in range(-1, 6) if lowest / 1.5 < 10.0**k < highest * 3]
    axes.set_xticks(ticks, [f"{t:g}" for t in ticks])
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.set_xlabel("milliseconds an image")
    axes.set_ylabel("mean PSNR, dB")
    axes.set_title("Set12, noise of 25 grey levels", loc="left", fontsize=11)
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=150)


def _nudge(row: Any, rows: pd.DataFrame) -> float:
    """Points up or down by which a label keeps clear of close neighbours'."""
    near = rows[(rows.psnr - row.psnr).abs().lt(0.05) & (rows.ms / row.ms).between(0.2, 5)]
    return 10.0 * (near.psnr.lt(row.psnr).sum() - (len(near) - 1) / 2)
