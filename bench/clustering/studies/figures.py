"""Pictures of the studies."""

from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator

from ...figures import legend, log_ticks, panels, plain, save
from ..figures import plot_matrix, shown
from .coders import LEARNED, ONE_CALL, REFERENCE
from .splits import CERTIFIED

_HIGHEST = 80.0  # % of error at the end of the colour scale
_GAPS = (1e-9, 1.0)  # those outside stand at the edges
_WORDS = {
    "angle": "angle between subspaces, degrees",
    "density": "points per dimension",
    "dimension": "dimension of each subspace",
    "n_subspaces": "number of subspaces",
    "noise": "noise-to-signal ratio",
}
_COLOURS = {
    "ISTA": "0.55",
    "FISTA": "0.3",
    "support-adaptive ISTA": "tab:blue",
    "learned steps": "tab:red",
    "learned steps, on D alone": "tab:pink",
    "learned W (coupled)": "tab:orange",
    "learned U, V (adaptive)": "tab:green",
    "learned B, M (LISTA)": "tab:purple",
    REFERENCE: "black",
    ONE_CALL: "black",
    CERTIFIED: "black",
    "OMP, 5 non-zeros": "tab:blue",
    "LSR, closed form": "tab:cyan",
    "5-NN graph": "tab:green",
    "spectral step": "0.5",
    "SSC": "black",
    "EnSC": "0.45",
    "EnSC, solved": "0.45",
    "3-NN of raw points": "tab:green",
    "OMP": "tab:blue",
    "LSR": "tab:cyan",
    "LRSC": "tab:olive",
    "TSC": "tab:brown",
    "unrolled, K = 10": "tab:red",
    "SENet": "tab:orange",
}
_TRAJECTORIES = (
    "2F: trajectories over F frames as they are. 4n: their leading coordinates, four a motion.\n"
    "+ 1: with a constant 1."
)
_MOTIONS = ("tab:blue", "tab:orange", "tab:green", "tab:purple", "tab:brown")
_LEARNED = {*LEARNED, "unrolled, K = 10", "SENet"}


def _marker(method: str) -> str:
    """Squares are learned."""
    return "s" if method in _LEARNED else "o"


def draw_coefficients(table: pd.DataFrame, path: Path) -> None:
    """Draw the sizes of the coefficients, a row a data set, a column a method."""
    sets, methods = list(dict.fromkeys(table.data)), list(dict.fromkeys(table.method))
    figure, every = panels(len(sets) * len(methods), (3.1, 3.15), columns=len(methods), margin=0.5)
    grid = every.reshape(len(sets), len(methods))
    for data, row in zip(sets, grid, strict=True):
        for method, axes in zip(methods, row, strict=True):
            _draw_matrix(axes, table[(table.data == data) & (table.method == method)])
            if data == sets[0]:
                axes.set_title(f"{method}\n{axes.get_title()}", fontsize=10)
        row[0].set_ylabel(f"{shown(data)}\npoints, sorted by class", fontsize=10)
    for axes in grid[-1]:
        axes.set_xlabel("points, sorted by class", fontsize=9)
    bar = figure.colorbar(every[0].images[0], ax=grid, shrink=0.8, pad=0.02, ticks=[0, 1])
    bar.set_label("|c| / the panel's 99 % quantile", fontsize=9)
    save(figure, path)


def _draw_matrix(axes: Axes, rows: pd.DataFrame) -> None:
    plot_matrix(axes, rows.coefficients.tolist(), rows.label)
    first = rows.iloc[0]
    axes.set_title(
        f"{first.nonzeros:.0f} a row, {first.preserving_error:.0f} % on other classes", fontsize=9
    )


def draw_heat_maps(table: pd.DataFrame, path: Path, *, grid: str) -> None:
    """Draw the mean error over draws, a panel a method; its number stands in each cell."""
    rows = table[table.grid == grid]
    methods = list(dict.fromkeys(rows.method))
    figure, every = panels(len(methods), (3, 3.2), columns=3, margin=1.1, sharex=True, sharey=True)
    for axes, method in zip(every, methods, strict=True):
        errors = rows[rows.method == method].pivot_table(
            index="down", columns="right", values="error", aggfunc="mean"
        )
        image = axes.imshow(errors, vmin=0, vmax=_HIGHEST, cmap="viridis", origin="lower")
        for (i, j), value in np.ndenumerate(errors.to_numpy()):
            colour = "white" if value < _HIGHEST / 2 else "black"
            axes.text(j, i, f"{value:.0f}", ha="center", va="center", fontsize=8, color=colour)
        axes.set_title(method, fontsize=10)
        axes.set_xticks(range(errors.shape[1]), [f"{value:g}" for value in errors.columns])
        axes.set_yticks(range(errors.shape[0]), [f"{value:g}" for value in errors.index])
    figure.supylabel(_WORDS[rows.down_name.iloc[0]], fontsize=10)
    figure.supxlabel(_WORDS[rows.right_name.iloc[0]], fontsize=10)
    figure.colorbar(image, ax=every, label="clustering error, %", extend="max", shrink=0.7)
    save(figure, path)


def draw_gaps(table: pd.DataFrame, path: Path) -> None:
    """Draw the mean gap against the number of layers, a panel a data set."""
    figure, cases = _gap_panels(table)
    for axes, case in cases:
        for method, runs in case[case.n_iter.notna()].groupby("method", sort=False):
            _line(axes, runs.n_iter, runs, str(method))
        log_ticks(axes, "x", sorted(case.n_iter.dropna().unique()))
        axes.set_xlabel("layers K")
    _finish_gaps(figure, path)


def draw_times(table: pd.DataFrame, path: Path) -> None:
    """Draw the mean gap against the time per point in batches, the certified solver among them."""
    figure, cases = _gap_panels(table)
    for axes, case in cases:
        for method, runs in case.groupby("method", sort=False):
            if method != ONE_CALL:
                _line(axes, runs.ratio_batch, runs, str(method))
        log_ticks(axes, "x")
        axes.set_xlabel("time a point in batches / certified at 1e-6")
    _finish_gaps(figure, path)


def _gap_panels(table: pd.DataFrame) -> tuple[Figure, list[tuple[Axes, pd.DataFrame]]]:
    cases = list(table.groupby(["data", "gamma"], sort=False))
    figure, every = panels(len(cases), (4.1, 3.4), columns=3)
    for i, (axes, ((data, gamma), _)) in enumerate(zip(every, cases, strict=True)):
        axes.set_title(f"{shown(str(data), 34)}, gamma {gamma:g}", loc="left", fontsize=10)
        axes.set_yscale("log")
        plain(axes)
        if i % 3 == 0:
            axes.set_ylabel("mean gap (F - F*) / |x|²")
    return figure, [(axes, case) for axes, (_, case) in zip(every, cases, strict=True)]


def _line(axes: Axes, x: pd.Series, runs: pd.DataFrame, method: str) -> None:
    axes.plot(
        x,
        runs.gap.clip(*_GAPS),
        color=_COLOURS[method],
        marker=_marker(method),
        linestyle="-" if method in LEARNED or method == REFERENCE else "--",
        markersize=4,
        linewidth=2.2 if method == REFERENCE else 1.4,
        label=method,
    )


def _finish_gaps(figure: Figure, path: Path) -> None:
    low, high = _GAPS
    note = f"Squares: learned. Gaps outside {low:g} to {high:g} are drawn there."
    figure.supxlabel(note, fontsize=8, color="0.3")
    legend(figure, "upper center", ncols=4)
    save(figure, path)


def draw_motions(table: pd.DataFrame, path: Path) -> None:
    """Points of the first frame, coloured by true and by found motion; wrong ones are circled.

    Image coordinates, y downwards; a column for each sequence, the truth above.
    """
    sequences = list(table.groupby("sequence", sort=False))
    height = max(rows.height.iloc[0] / rows.width.iloc[0] for _, rows in sequences) * 3.4
    n = len(sequences)
    figure, every = panels(2 * n, (3.4, height + 0.45), columns=n)
    axes = every.reshape(2, n)
    for (above, below), (name, points) in zip(axes.T, sequences, strict=True):
        wrong = points[points.true != points.found]
        _draw_points(above, points, "true")
        _draw_points(below, points, "found")
        below.scatter(wrong.x, wrong.y, s=40, facecolors="none", edgecolors="black", linewidths=0.7)
        above.set_title(
            f"{name}\n{points.true.nunique()} motions, {len(points)} points", fontsize=9
        )
        share = 100 * len(wrong) / len(points)
        below.set_title(f"{len(wrong)} wrong ({share:.1f} %)", fontsize=9)
    axes[0, 0].set_ylabel("true")
    axes[1, 0].set_ylabel("found (wrong ones circled)")
    save(figure, path)


def _draw_points(axes: Axes, points: pd.DataFrame, labels: str) -> None:
    for motion, group in points.groupby(labels):
        colour = _MOTIONS[int(motion) % len(_MOTIONS)]
        axes.scatter(group.x, group.y, s=9, color=colour, linewidths=0)
    axes.set_xlim(0, points.width.iloc[0])
    axes.set_ylim(points.height.iloc[0], 0)
    axes.set_aspect("equal")
    axes.set_xticks([])
    axes.set_yticks([])
    axes.set_facecolor("0.96")


def draw_motion_errors(table: pd.DataFrame, path: Path) -> None:
    """Mean error of each recipe over all sequences, on 2 and on 3 motions, the best on top."""
    errors = table.pivot_table(index="recipe", columns="n_motions", values="error", aggfunc="mean")
    order = table.groupby("recipe").error.mean().sort_values().index
    errors, lines = errors.loc[order], np.arange(len(order))
    figure, (axes,) = panels(1, (7, 1.2 + 0.27 * len(order)))
    for number, marker, colour in ((2, "o", "tab:blue"), (3, "s", "tab:orange")):
        if number in errors:
            label = f"{number} motions"
            axes.scatter(errors[number], lines, marker=marker, color=colour, s=24, label=label)
    total = table.groupby("recipe").error.mean()[order]
    axes.scatter(total, lines, marker="|", color="black", s=120, linewidths=2, label="all")
    for line, value in zip(lines, total, strict=True):
        axes.annotate(
            f"{value:.2f}", (1.0, line), xycoords=("axes fraction", "data"), xytext=(4, 0),
            textcoords="offset points", va="center", fontsize=8,
        )  # fmt: skip
    axes.set_yticks(lines, order, fontsize=8)
    axes.invert_yaxis()
    axes.set_xscale("symlog", linthresh=1, linscale=0.5)
    axes.set_xlim(left=0)
    axes.set_xticks([0, 0.5, 1, 2, 5, 10, 20, 40], ["0", "0.5", "1", "2", "5", "10", "20", "40"])
    axes.set_xlabel("mean clustering error in %; at the right over all sequences")
    plain(axes, "x")
    axes.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=3, frameon=False, fontsize=8)
    figure.supxlabel(_TRAJECTORIES, fontsize=8, color="0.3")
    save(figure, path)


def draw_out_of_sample(table: pd.DataFrame, path: Path) -> None:
    """Draw means over splits with their standard deviation; hollow is the accuracy when fitted."""
    sets = list(table.groupby("data", sort=False))
    figure, every = panels(len(sets), (3.4, 3.8), margin=2.2, sharey=True)
    for axes, (data, rows) in zip(every, sets, strict=True):
        for method, runs in rows.groupby("method", sort=False):
            marker, colour = _marker(str(method)), _COLOURS[str(method)]
            x = runs.ratio_batch.median()
            axes.errorbar(
                x, runs.accuracy_new.mean(), yerr=runs.accuracy_new.std(ddof=0), fmt=marker,
                color=colour, capsize=3, markersize=6, linewidth=1.2, label=str(method),
            )  # fmt: skip
            axes.plot(
                x, runs.accuracy_fit.mean(), marker, markerfacecolor="none", color=colour,
                markersize=6, alpha=0.7,
            )  # fmt: skip
        log_ticks(axes, "x")
        axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.set_title(shown(str(data)), loc="left", fontsize=10)
        axes.set_xlabel("time a held-out point / SSC")
        plain(axes)
    every[0].set_ylabel("accuracy, %")
    legend(figure, "right upper")
    note = "In batches. Filled: held out. Hollow: fitted. Squares: learned. Bars: deviation."
    figure.supxlabel(note, fontsize=8, color="0.3")
    save(figure, path)


def draw_scaling(table: pd.DataFrame, path: Path) -> None:
    """Draw medians against the number of points; the spectral step dashed."""
    figure, (axes,) = panels(1, (7.2, 4.4))
    smallest = table.n_points.min()
    unit = table[(table.method == CERTIFIED) & (table.n_points == smallest)].seconds.iloc[0]
    for method, rows in table.groupby("method", sort=False):
        axes.plot(
            rows.n_points,
            rows.seconds / unit,
            color=_COLOURS[str(method)],
            marker=_marker(str(method)),
            linestyle="--" if method == "spectral step" else "-",
            markersize=5,
            label=str(method),
        )
    log_ticks(axes, "x", sorted(table.n_points.unique()))
    log_ticks(axes, "y")
    axes.set_xlabel("points N")
    axes.set_ylabel(f"time of all points, one thread,\nover {CERTIFIED}, at N = {smallest:,}")
    plain(axes)
    legend(figure, "right upper")
    save(figure, path)


def draw_networks(table: pd.DataFrame, path: Path) -> None:
    """Draw a dot a split: trained on filled, held out hollow; a panel a data set."""
    sets = list(table.groupby("data", sort=False))
    figure, every = panels(len(sets), (4.2, 3.7), margin=1.6, sharey=True)
    for axes, (data, rows) in zip(every, sets, strict=True):
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
        plain(axes, "x")
    note = "Filled: points trained on. Hollow: held-out points. Bars: means over splits."
    figure.supxlabel(note, fontsize=8, color="0.3")
    save(figure, path)
