"""Figures of `twinsolve speed`."""

from pathlib import Path

import numpy as np
import pandas as pd

from ...solvers.sparse_coding.row_blocks import MOST_STORED
from ..figures import legend, log_ticks, panels, plain, save
from .contest import OURS

_BOLD = {"color": "black", "linewidth": 2.5, "zorder": 3}


def draw_scaling(table: pd.DataFrame, path: Path) -> None:
    """Draw medians and ranges, if synthetic cases were timed."""
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
    save(figure, path)


def draw_scale(table: pd.DataFrame, path: Path) -> None:
    """Draw time, share skipped, memory and worst gap, if there are times."""
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
    save(figure, path)


def draw_quality(table: pd.DataFrame, path: Path) -> None:
    """Draw PSNR against time of the case set12, if it was timed."""
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
    save(figure, path)


def draw_attention(table: pd.DataFrame, path: Path) -> None:
    """Draw training times beside the reference and memory growth, if timed.

    Each operator and case has a dot, hollow for the explicit form.
    """
    from .attention import FORMS, REFERENCE  # imported here, as they load torch

    others = table[table.operator != REFERENCE]
    timed, grown = (others[others[c].notna()] for c in ("training_ratio", "memory_exponent"))
    if timed.empty:
        return
    last = timed[timed.form == "fused"].drop_duplicates("operator", keep="last")
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
    save(figure, path)


def _name_case(case: str) -> str:
    """A case, such as tokens-1024, in words."""
    kind, _, size = case.rpartition("-")
    return f"{int(size):,} tokens" + " of images" * (kind == "images") if size.isdigit() else case
