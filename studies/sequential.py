"""Rows against softmax on CIFAR-10, by a design that was fixed before its first seed.

``python studies/sequential.py`` trains 4 seeds of each row, then 4 more of those that are still
open, and 4 more again. A row is open until half of its interval is at most 0.4 points, or the
interval excludes 0. Each interval has a level of 0.05 over the number of rows and of looks, so that
all of them hold together with a probability of 0.95, whenever a row stops.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd
from scipy.stats import t
from shared.script import run_script

from twinsolve.bench.comparison import CLEAR, OPEN
from twinsolve.bench.figures import panels, plain, save
from twinsolve.bench.jobs import Options
from twinsolve.bench.options import DataHome, Jobs, Output, report_mistakes
from twinsolve.bench.paired import MARGIN, Paired
from twinsolve.bench.study import Study, run_studies, write_studies
from twinsolve.bench.tables import Lines, number
from twinsolve.bench.task import PLAIN
from twinsolve.bench.vision.classification.report import differences
from twinsolve.bench.vision.classification.study import classify

ROWS = (
    "AttnScale", "FeatScale", "NeuTRENO", "twicing", "ViT:token_graying=svd", "token graying",
    "bilateral", "GRC", "sparse coding",
)  # fmt: skip
SETTING: dict[str, Any] = {
    "data": "cifar10:n_train=12000", "steps": 800, "recipe": {"patch_size": 8}
}  # fmt: skip
LOOKS = (4, 8, 12)  # seeds of each open row
NARROW = 0.4  # points: half of an interval that closes a row
_LEVEL = 0.05


def half_interval(apart: Paired) -> float:
    """Half of an interval that holds together with those of all rows and looks (Bonferroni)."""
    n_intervals = len(ROWS) * len(LOOKS)
    return float(t.ppf(1 - _LEVEL / 2 / n_intervals, apart.n - 1) * apart.error)


def say(apart: Paired) -> str:
    """The verdict on a row by its corrected interval."""
    half = half_interval(apart)
    if not apart.determined:
        return "not determined"
    if abs(apart.mean) > half:
        return "ahead" if apart.mean > 0 else "behind"
    if abs(apart.mean) + half <= MARGIN:
        return f"equal within {MARGIN:g}"
    return f"inconclusive at ± {half:.2f}"


def is_open(apart: Paired) -> bool:
    """Whether a row gets more seeds."""
    return not half_interval(apart) <= NARROW and say(apart) not in ("ahead", "behind")


def run_looks(looks: Sequence[int], options: Options) -> pd.DataFrame:
    """Train the rows that are open at each look; return a line for each row and seed."""
    parts: dict[str, pd.DataFrame] = {}
    still = list(ROWS)
    for seeds in looks:
        if still:
            seen = classify(rows=still, seeds=seeds, **SETTING, **options.shared)
            parts |= {str(row): own for row, own in seen.groupby("row")}
            apart = differences(seen)
            still = [row for row in still if is_open(apart[row])]
    return pd.concat([parts[row] for row in (PLAIN, *ROWS)], ignore_index=True)


def rows_lines(table: pd.DataFrame) -> Lines:
    """A line for each row: means over its seeds, the paired difference, and its verdict."""
    head = (
        "row", "seeds", "top-1 %", "difference, points", "half, corrected", "verdict", "top-5 %",
        "rate", "token cosine",
    )  # fmt: skip
    apart = differences(table)
    cells: list[tuple[str, ...]] = []
    for name, own in table.groupby("row", sort=False):
        mean, found = own.mean(numeric_only=True), apart.get(str(name))
        compared = (str(found), number(half_interval(found), ".2f"), say(found)) if found else ()
        cells.append(
            (
                str(name), str(len(own)), number(mean.top1, ".2f"), *(compared or ("-",) * 3),
                number(mean.top5, ".2f"), f"{mean.learning_rate:g}", f"{mean.token_cosine:.4f}",
            )
        )  # fmt: skip
    return head, cells


def draw_rows(table: pd.DataFrame, path: Path) -> None:
    """Draw the difference of each row with its corrected interval."""
    apart = differences(table)
    order = sorted(apart, key=lambda row: apart[row].mean)
    figure, (axes,) = panels(1, (4.5, 1.2 + 0.24 * len(order)))
    for place, row in enumerate(order):
        colour = CLEAR if say(apart[row]) in ("ahead", "behind") else OPEN
        half = half_interval(apart[row])
        axes.errorbar(apart[row].mean, place, xerr=half, fmt="o", color=colour, capsize=2)
    axes.axvline(0, color="black", linewidth=0.8)
    axes.set_yticks(range(len(order)), order, fontsize=8)
    axes.set_xlabel(f"top-1 on test images, points to {PLAIN}\n(corrected interval; grey: with 0)")
    plain(axes)
    save(figure, path)


def rows_notes(table: pd.DataFrame) -> list[str]:
    """How to read the table."""
    return [
        "Means over seeds, on 10,000 test images that chose no setting. The learning rate of each "
        "row is the better of the same two on validation images, with the first seed.",
        "Differences are means over paired seeds. Their 95 % intervals cover seeds and test images "
        f"and are not corrected. The corrected ones, for {len(ROWS)} rows and {len(LOOKS)} looks, "
        "all hold together with a probability of 0.95. They close a row and give its verdict.",
        f"Looks are after {', '.join(map(str, LOOKS))} seeds. A row is closed when half of its "
        f"corrected interval is at most {NARROW:g} points, or the interval excludes 0.",
    ]


def study_of(looks: Sequence[int]) -> Study:
    """The study up to the last of these looks."""
    return Study(
        "rows", "Top-1 of networks that differ from the plain one in one part.",
        lambda options: run_looks(looks, options), rows_lines, {"rows.png": draw_rows},
        notes=rows_notes,
    )  # fmt: skip


def main(
    n_jobs: Jobs = 1, data_home: DataHome = None, output: Output = Path("results/sequential")
) -> None:
    options = Options(0, LOOKS[-1], n_jobs, data_home, output / "runs")
    for n_looks in range(1, len(LOOKS) + 1):  # each look is written before the next begins
        studies = [study_of(LOOKS[:n_looks])]
        with report_mistakes():
            tables = run_studies(studies, options)
        about = (__doc__ or "").partition("\n")[0]
        settings = {**SETTING, "looks": LOOKS[:n_looks]}
        write_studies("python studies/sequential.py", studies, tables, settings, output, about)


if __name__ == "__main__":
    run_script(__file__)
