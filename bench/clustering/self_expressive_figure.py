"""Picture of the self-expressive network's study: accuracy by method and affinity step."""

from pathlib import Path

import pandas as pd
from matplotlib.figure import Figure

from .splits import shown

_COLOURS = {"SENet": "tab:orange", "EnSC, solved": "black", "3-NN of raw points": "tab:blue"}


def draw_networks(table: pd.DataFrame, path: Path) -> None:
    """Draw a dot a split: trained on filled, held out hollow; a panel a data set."""
    sets = list(table.groupby("data", sort=False))
    figure = Figure(figsize=(4.2 * len(sets) + 1.6, 3.7), layout="constrained")
    panels = figure.subplots(1, len(sets), sharey=True, squeeze=False)[0]
    for axes, (data, rows) in zip(panels, sets, strict=True):
        names = []
        for place, ((method, step), runs) in enumerate(
            rows.groupby(["method", "step"], sort=False)
        ):
            names.append(", ".join(filter(None, (str(method), str(step)))))
            colour = _COLOURS[str(method)]
            for name, shift, fill in (("fit", 0.13, colour), ("new", -0.13, "none")):
                values = runs[f"accuracy_{name}"]
                axes.scatter(
                    values, [place - shift] * len(values), s=26, facecolors=fill, edgecolors=colour
                )
                axes.plot([values.mean()] * 2, [place - shift - 0.1, place - shift + 0.1], "k")
        axes.set_yticks(range(len(names)), names)
        axes.set_ylim(len(names) - 0.5, -0.5)
        network = rows[rows.method == "SENet"]
        ratio = f"SENet's objective: {network.objective_fit.mean():.2f} x the optimum"
        axes.set_title(f"{shown(str(data))}\n{ratio}", loc="left", fontsize=10)
        axes.set_xlabel("accuracy, %")
        axes.grid(axis="x", alpha=0.3)
        axes.spines[["top", "right"]].set_visible(False)
    note = "Filled: points trained on. Hollow: held-out points. Bars: means over splits."
    figure.supxlabel(note, fontsize=8, color="0.3")
    figure.savefig(path, dpi=150)
