"""What `twinsolve longrange` says of its table, and its pictures."""

from functools import partial
from typing import Any

import pandas as pd

from ..comparison import (
    CURVES,
    DEPTH,
    RECIPE,
    SIZE,
    Column,
    compared_lines,
    rows_study,
)
from ..paired import judge, note_on_verdicts
from ..study import Study
from ..tables import Lines, number
from ..vision.classification.report import differences
from .study import classify_sequences

_BEFORE: dict[str, Column] = {"accuracy %": lambda _, mean: number(mean.accuracy, ".2f")}
_AFTER: dict[str, Column] = {**RECIPE, **SIZE, "token cosine": DEPTH["token cosine"]}


def sequences_study(data: str, **options: Any) -> Study:
    """The study of classifiers of sequences, with options of `classify_sequences`."""
    train = partial(classify_sequences, data, **options)
    return rows_study(
        data, train, lines_of, differences, score="accuracy, points to", curve="accuracy, %",
        notes=notes,
    )  # fmt: skip


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
        "Means over seeds, on test sequences that chose no setting; the learning rate of each row "
        "is the better of the same few on the validation sequences. Inference and training are "
        "ratios of throughput to the plain row, in processor time of one run, so above 1 is "
        "faster. The token cosine is of pairs of tokens behind the last block, without padding. "
        "Differences are to the row under against; those of the cosine are over seeds, not "
        "corrected, and left out where rate or steps differ.",
        note_on_verdicts(differences(table), of="seeds and test sequences"),
        CURVES.format("sequences"),
    ]
