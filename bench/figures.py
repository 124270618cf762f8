"""Style of all figures, and figures of `twinsolve cluster` and `twinsolve speed`."""

from pathlib import Path
from textwrap import wrap
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import NullFormatter, NullLocator, SymmetricalLogLocator
from numpy.typing import ArrayLike
from scipy.sparse import issparse

from ..datasets.files import whole_file
from ..solvers.sparse_coding.row_blocks import MOST_STORED
from .clustering.problems import DATA
from .clustering.steps import without_cut
from .names import split_settings
from .speed.contest import OURS


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
    """Write the figure to `path`, a ``.png``, and beside it as ``.pdf``."""
    for end in (".png", ".pdf"):
        with whole_file(path.with_suffix(end)) as file:
            figure.savefig(file, dpi=150, format=end[1:])
        figure.set_layout_engine("none")  # the second file keeps the layout of the first


_QUANTILE = 0.99  # of the sizes, as the end of the colour scale
_WIDTH = 44  # characters in a line of a panel's title
# By the first step of a chain; chains with the same first step get different markers.
_COLOURS = {
    "symmetrize": "tab:blue",
    "keep-mass": "tab:orange",
    "unit-rows": "tab:green",
    "low-rank": "tab:red",
    "svd-power": "tab:purple",
    "softmax-rows": "tab:brown",
    "keep-largest": "tab:pink",
    "nearest-rows": "tab:cyan",
    "scale-rows": "tab:olive",
    "low-rank-transposed": "darkred",
    "softmax-signed-rows": "goldenrod",
    "own affinity": "black",
    "none": "0.5",
}
_MARKERS = "osD^vP"
_NO_CHAIN = {"own affinity": "affinity of the method itself", "none": "clusters without affinity"}
_OF_FILES = ("data_key", "target_key", "transpose", "n_clusters")
_SETTINGS = {
    "n_points": "{:,} points",
    "n_samples": "{} points each",
    "n_subspaces": "{} subspaces",
    "n_manifolds": "{} manifolds",
    "n_features": "{} features",
    "affine": "affine",
}


def describe_data(data: str, width: int = _WIDTH) -> str:
    """A data set in words, in lines of at most `width` characters.

    Examples
    --------
    >>> from twinsolve.bench.figures import describe_data
    >>> describe_data("mine.mat:transpose=True"), describe_data("digits:n_points=500")
    ('mine.mat', 'Digits of scikit-learn, 500 points')
    """
    base, settings = split_settings(data, "data")
    name = Path(base).name
    if base in DATA:
        name = DATA[base].about.partition(",")[0]
        name = name[0].upper() + name[1:]
    words = [
        _SETTINGS.get(key, key.replace("_", " ") + " {}").format(value)
        for key, value in settings.items()
        if key not in _OF_FILES and value is not False
    ]
    return "\n".join(wrap(", ".join([name, *words]), width))


def describe_features(name: str) -> str:
    """Features in words."""
    rest = name.removeprefix("unit").removeprefix("-") or "raw"
    kind, _, size = rest.rpartition("-") if "-" in rest else (rest, "", "")
    words = {
        "raw": "",
        "2F": "",
        "2F+1": "a constant 1 appended",
        "4n": "four coordinates a cluster",
        "pca": "principal coordinates",
        "fourier": "Fourier coordinates",
        "scattering": "scattering coordinates",
        "relative-scattering": "coordinates of scattering maps relative to their maxima",
    }
    parts = [f"{size} {words.get(kind, kind)}".strip(), "unit norm" * name.startswith("unit")]
    return ", ".join(filter(None, parts)) or "points as they are"


def plot_matrix(axes: Axes, matrix: Any, labels: ArrayLike | None = None) -> None:
    """Draw absolute coefficients or an affinity, with points sorted by their labels.

    Lines separate the labels. White is the smallest value; the colours end at the 99 % quantile of
    larger values.

    Parameters
    ----------
    axes : matplotlib.axes.Axes
    matrix : array-like or sparse array of shape (n_samples, n_samples)
    labels : array-like of shape (n_samples,), optional
        None keeps the order of the points.

    Examples
    --------
    >>> import numpy as np
    >>> from matplotlib.figure import Figure
    >>> from twinsolve.bench.figures import plot_matrix
    >>> axes = Figure().subplots()
    >>> plot_matrix(axes, np.eye(4), [0, 1, 0, 1])
    >>> len(axes.images)
    1
    """
    size = np.abs(matrix.toarray() if issparse(matrix) else np.asarray(matrix))
    if labels is not None:
        order = np.argsort(labels, kind="stable")
        size = size[np.ix_(order, order)]
        for edge in np.flatnonzero(np.diff(np.asarray(labels)[order])) + 0.5:
            axes.axhline(edge, color="tab:blue", linewidth=0.5, alpha=0.6)
            axes.axvline(edge, color="tab:blue", linewidth=0.5, alpha=0.6)
    size = size - size.min()
    on = size[size > 0]
    scale = np.quantile(on, _QUANTILE) if len(on) else 1.0
    axes.imshow(size / scale, vmin=0, vmax=1, cmap="bone_r", interpolation="nearest")
    axes.set_xticks([])
    axes.set_yticks([])


def draw_matrices(
    matrices: dict[str, tuple[Any, Any]], labels: ArrayLike, path: Path, title: str
) -> None:
    """Draw the coefficients of each method above the affinity of its steps."""
    n = len(matrices)
    figure, axes = panels(2 * n, (3.2, 3.4), columns=n)
    for i, (name, pair) in enumerate(matrices.items()):
        for ax, matrix in zip(axes[[i, n + i]], pair, strict=True):
            plot_matrix(ax, matrix, labels)
        axes[i].set_title(name, fontsize=9)
    axes[0].set_ylabel("sizes of coefficients")
    axes[n].set_ylabel("affinity")
    figure.suptitle(title, fontsize=10)
    save(figure, path)


def draw_errors(table: pd.DataFrame, path: Path) -> None:
    """Draw errors of methods with deviations over seeds, one panel per data set and features."""
    chosen = table[(table.selection == "label-free") & table.accuracy.notna()]
    if chosen.empty:  # without labels, or if all methods failed
        return
    cases = ["data", "features", "method", "steps", "fit_seed", "seed"]
    means = chosen.groupby(cases, sort=False).accuracy.mean().reset_index()
    titles = means.data.map(describe_data) + "\n" + means.features.map(describe_features)
    means = means.assign(panel=titles, error=100 * (1 - means.accuracy))
    words = "clustering error in %: mean and deviation over seeds"
    draw_dots(means, path, value="error", words=words, title="affinity steps")


def draw_dots(
    table: pd.DataFrame,
    path: Path,
    *,
    value: str,
    words: str,
    row: str = "method",
    series: str = "steps",
    scale: str = "linear",
    title: str | None = None,
    note: str = "",
) -> None:
    """Draw means and deviations of a value by row, with colours by series, in panels."""
    cases = list(table.groupby("panel", sort=False))
    rows, every = list(dict.fromkeys(table[row])), list(dict.fromkeys(table[series]))
    apart = min(0.08, 0.8 / len(every))
    figure, axes = panels(len(cases), (5, 0.3 * len(rows) + 2), margin=2, sharey=True)
    for ax, (heading, case) in zip(axes, cases, strict=True):
        for name, group in case.groupby(series, sort=False):
            values = group.groupby(row)[value]
            shift = 0 if name in _NO_CHAIN else apart * (every.index(name) - len(every) / 2)
            ax.errorbar(
                values.mean(),
                np.array([rows.index(found) for found in values.groups]) + shift,
                xerr=values.std(ddof=0),
                markersize=3,
                label=_NO_CHAIN.get(str(name), name),
                **_choose_look(str(name), every),
            )
        ax.set_title(heading, fontsize=9)
        ax.set_xlabel(words)
        ax.set_xscale(scale)
        if scale == "symlog":
            ax.xaxis.set_major_locator(SymmetricalLogLocator(base=10, linthresh=1, subs=(1, 2, 5)))
        ax.xaxis.set_major_formatter("{x:g}")
        plain(ax)
    axes[0].set_yticks(range(len(rows)), rows)
    axes[0].set_ylim(len(rows) - 0.5, -0.5)
    legend(figure, "right upper", fontsize=8, title=title)
    figure.supxlabel(note, fontsize=8, color="0.3")
    save(figure, path)


def _choose_look(name: str, every: list[str]) -> dict[str, str]:
    """Colour by the first step of a chain, and marker among chains with that first step."""
    if _first_step(name) not in _COLOURS:
        return {"fmt": "o", "color": f"C{every.index(name) % 10}"}
    alike = [other for other in every if _first_step(other) == _first_step(name)]
    return {
        "fmt": _MARKERS[alike.index(name) % len(_MARKERS)],
        "color": _COLOURS[_first_step(name)],
    }


def _first_step(chain: str) -> str:
    steps = without_cut(chain)
    return steps if steps in _NO_CHAIN else steps.partition(",")[0].split()[0]


_BOLD = {"color": "black", "linewidth": 2.5, "zorder": 3}


def draw_scaling(table: pd.DataFrame, directory: Path) -> None:
    """Draw scaling.png with medians and ranges, if synthetic cases were timed."""
    rows = table[table.case.str.startswith("synthetic") & table.ms_per_row.notna()]
    rows = rows[rows.note == ""]  # a note says that the gap was missed
    if rows.empty:
        return
    figure, (left, right) = panels(2, (5, 4.8), margin=2)
    for solver, group in rows.groupby("solver", sort=False):
        ms = group.ms_per_row
        style = _BOLD if str(solver).startswith(OURS) else {}
        errors = [ms - group.ms_lowest, group.ms_highest - ms]
        left.errorbar(group.n_rows, ms, errors, fmt="o-", capsize=3, label=solver, **style)
    left.set_title("Time at a certified gap of 1e-6", loc="left", fontsize=11)
    left.set_ylabel("milliseconds a row: median and range over rounds")
    n = np.unique(rows.n_rows)
    right.plot(n, 8 * n**2 / 2**20, "--", color="grey", label="an N x N matrix")
    known = rows[rows.memory_mib.notna()]
    right.plot(known.n_rows, known.memory_mib, "o-", **_BOLD)
    right.set_title("Peak memory beyond the input", loc="left", fontsize=11)
    right.set_ylabel(f"MiB; the Gram matrix is stored up to N = {MOST_STORED:,}")
    for axes in (left, right):
        log_ticks(axes, "x", n)
        log_ticks(axes, "y")
        axes.set_xlabel("rows N, in 200 dimensions")
        plain(axes)
    legend(figure, "right upper")
    save(figure, directory / "scaling.png")


def draw_scale(table: pd.DataFrame, directory: Path) -> None:
    """Draw scale.png with time, share skipped, memory and worst gap, if there are times."""
    rows = table[table.seconds.notna()]
    if rows.empty:
        return
    figure, axes = panels(4, (5, 4), columns=2, margin=2)
    shown = {
        "processor_seconds": "processor time in seconds",
        "skipped": "share of products skipped",
        "peak_mib": "peak memory of the process in MiB",
        "gap": "worst certified gap of all rows",
    }
    n = np.unique(rows.n_rows)
    for own, (column, label) in zip(axes, shown.items(), strict=True):
        for case, group in rows.groupby("points", sort=False):
            own.plot(group.n_rows, group[column], "o-", label=case)
        log_ticks(own, "x", n)
        own.set_xlabel("rows N")
        own.set_ylabel(label)
        plain(own)
    least = rows.processor_seconds[rows.n_rows == n[0]].min()
    for power, style in ((1.6, "--"), (2, ":")):
        axes[0].plot(n, least * (n / n[0]) ** power, style, color="grey", label=f"N^{power}")
    log_ticks(axes[0], "y")
    axes[1].set_ylim(0, 1.02)
    axes[2].set_ylim(bottom=0)
    axes[3].set_yscale("log")
    axes[3].set_ylim(rows.gap.min() / 10, rows.gap.max() * 10)
    legend(figure, "right upper")
    save(figure, directory / "scale.png")


def draw_quality(table: pd.DataFrame, directory: Path) -> None:
    """Draw quality.png with PSNR against time of the case set12, if it was timed."""
    rows = table[(table.case == "set12") & table.ms.notna()]
    if rows.empty:
        return
    figure, (axes,) = panels(1, (7, 5), margin=3)
    for package, group in rows.groupby("package", sort=False):
        for row, marker in zip(group.itertuples(), "osDv^<>P", strict=False):
            colour = {OURS: "black", "opencv": "tab:blue"}.get(str(package), "tab:red")
            axes.plot(row.ms / row.inputs, row.psnr, marker, color=colour, label=row.method)
    log_ticks(axes, "x")
    axes.set_xlabel("milliseconds an image")
    axes.set_ylabel("mean PSNR over Set12 with noise of 25 grey levels, dB")
    plain(axes)
    legend(figure, "right upper")
    save(figure, directory / "quality.png")


def draw_attention(table: pd.DataFrame, directory: Path) -> None:
    """Draw times.png with training times beside the reference and memory growth, if timed.

    Each operator and case has a dot, hollow for the explicit form.
    """
    from .speed.attention import FORMS, REFERENCE  # imported here, as they load torch

    others = table[table.operator != REFERENCE]
    timed, grown = (others[others[c].notna()] for c in ("training_ratio", "memory_exponent"))
    if timed.empty:
        return
    last = timed[(timed.form == "fused") & (timed.case == timed.case.iloc[-1])]
    names = list(last.sort_values("training_ratio", ascending=False).operator)
    places = {name: place for place, name in enumerate(names)}
    figure, (left, right) = panels(
        2, (5.5, 1.8 + 0.3 * len(names)), sharey=True, width_ratios=(2, 1)
    )
    colours = {case: f"C{i}" for i, case in enumerate(timed.case.unique())}
    for form in FORMS:
        for case, rows in timed[timed.form == form].groupby("case", sort=False):
            filled = colours[case] if form == "fused" else "none"
            left.scatter(
                rows.training_ratio,
                rows.operator.map(places),
                30,
                label=f"{_name_case(str(case))}, {form}",
                facecolors=filled,
                edgecolors=colours[case],
            )
    right.scatter(grown.memory_exponent, grown.operator.map(places), 30, color="black")
    log_ticks(left, "x")
    left.set_xlabel("time, forward and backward, as a multiple of scaled_dot_product_attention")
    right.set_xlabel("peak memory grows as N to the power of")
    left.set_yticks(range(len(names)), [name.replace("_", " ") for name in names])
    for axes in (left, right):
        axes.axvline(1, color="black", linewidth=1)
        plain(axes)
    legend(figure, "upper left", ncols=len(colours))
    save(figure, directory / "times.png")


def _name_case(case: str) -> str:
    """A case, such as tokens-1024, in words."""
    kind, _, size = case.rpartition("-")
    return f"{int(size):,} tokens" + " of images" * (kind == "images") if size.isdigit() else case
