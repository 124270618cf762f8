"""What `twinsolve longrange` says of its table, and its pictures."""

import pandas as pd

from ..comparison import (
    CURVES,
    DEPTH,
    RECIPE,
    SIZE,
    Column,
    compared_lines,
    draw_curves,
    draw_differences,
)
from ..paired import judge, note_on_verdicts
from ..tables import Lines, Results, number, write_table
from ..vision.classification.report import differences

_BEFORE: dict[str, Column] = {"accuracy %": lambda _, mean: number(mean.accuracy, ".2f")}
_AFTER: dict[str, Column] = {**RECIPE, **SIZE, "token cosine": DEPTH["token cosine"]}


def write_report(table: pd.DataFrame, results: Results) -> None:
    """Print and write what was found."""
    write_table(table, results.directory)
    results.add_table(str(results.settings["data"]), lines_of(table), heading="", file="means")
    results.add_sentences(notes(table))
    draw_differences(table, differences(table), results.directory, "accuracy, points to")
    floor = {"most frequent class": table.most_frequent.iloc[0]}
    draw_curves(table, results.directory, "accuracy, %", floor)
    results.write(["differences", "curves"])


def lines_of(table: pd.DataFrame) -> Lines:
    """A line for each row: means over seeds, and differences to its baseline, seed by seed."""
    return compared_lines(table, judge(differences(table)), _BEFORE, _AFTER)


def notes(table: pd.DataFrame) -> list[str]:
    """What is right without looking, and how to read the table."""
    first = table.iloc[0]
    return [
        f"The most frequent class has {first.most_frequent:.2f} % of the {first.n_test:,} test "
        f"sequences; chance is {first.chance:g} %. A row that stays there says nothing of its "
        "method: it may need more steps, a wider network or another recipe.",
        "Means over seeds, on test sequences that chose nothing; the learning rate of each row is "
        "the better of the same few on the validation sequences. Inference and training are ratios "
        "of throughput to the plain row, in processor time of one run, so above 1 is faster. The "
        "token cosine is of pairs of tokens behind the last block, without padding. Differences "
        "are to the row under against; those of the cosine are over seeds and not corrected.",
        note_on_verdicts(differences(table), of="seeds and test sequences"),
        CURVES.format("sequences"),
    ]
