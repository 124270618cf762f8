"""Figures of the study of clusters."""

from pathlib import Path

import numpy as np
import pandas as pd


def draw_errors(table: pd.DataFrame, path: Path) -> None:
    """Error of each method with its spread over seeds, a panel for each data set and features."""
    from matplotlib.figure import Figure

    chosen = table[(table.selection == "label-free") & table.accuracy.notna()]
    panels = list(chosen.groupby(["data", "features"], sort=False))
    methods = list(dict.fromkeys(chosen.method))
    chains = list(dict.fromkeys(chosen.steps))
    figure = Figure(figsize=(5 * len(panels) + 2, 0.3 * len(methods) + 2), layout="constrained")
    axes = figure.subplots(1, len(panels), sharey=True, squeeze=False)[0]
    for ax, ((data, features), rows) in zip(axes, panels, strict=True):
        for steps, group in rows.groupby("steps", sort=False):
            errors = 100 * (1 - group.groupby(["method", "fit_seed", "seed"]).accuracy.mean())
            by_method = errors.groupby("method")
            y = [methods.index(name) for name in by_method.mean().index]
            shift = 0.08 * (chains.index(steps) - len(chains) / 2)
            ax.errorbar(
                by_method.mean(),
                np.array(y) + shift,
                xerr=by_method.std(ddof=0),
                fmt="o",
                markersize=3,
                color=f"C{chains.index(steps) % 10}",
                label=steps,
            )
        ax.set_title(f"{data}\n{features}", fontsize=8)
        ax.set_xlabel("error in %, mean and std over seeds")
        ax.grid(alpha=0.3)
    axes[0].set_yticks(range(len(methods)), methods)
    axes[0].set_ylim(len(methods) - 0.5, -0.5)
    handles = {
        label: handle
        for ax in axes
        for handle, label in zip(*ax.get_legend_handles_labels(), strict=True)
    }
    figure.legend(handles.values(), handles.keys(), loc="outside right upper", fontsize=8)
    figure.savefig(path, dpi=120)
