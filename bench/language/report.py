"""What `twinsolve language` says of its table."""

from functools import partial
from typing import Any

import numpy as np
import pandas as pd

from ..comparison import DEPTH, RECIPE, SIZE, Column, baselines_of, compared_lines, rows_study
from ..paired import Paired, judge, note_on_verdicts, paired_difference
from ..study import Study
from ..tables import Lines, number
from .data import UNKNOWN, Text, load_text
from .study import SWAPPED, train_language_models

_AFTER: dict[str, Column] = {
    "swapped": lambda _, mean: number(mean.swapped, ".2f"),
    **{name: RECIPE[name] for name in ("rate", "steps")}, **SIZE,
    "token cosine": DEPTH["token cosine"],
}  # fmt: skip
_BEFORE: dict[str, Column] = {"perplexity": lambda _, mean: number(mean.clean, ".2f")}
_UNIT = "% of perplexity"
_SWAPPED = {"perplexity": _AFTER["swapped"]}


def text_study(data: str, data_home: str | None, **options: Any) -> Study:
    """The study of language models, with options of `train_language_models`."""
    train = partial(train_language_models, data, **options)
    return rows_study(
        data, train, lines_of, differences, score="100 x log perplexity, below",
        more={"With swapped words": swapped_lines},
        notes=lambda table: notes(table, load_text(data, data_home)),
    )  # fmt: skip


def lines_of(table: pd.DataFrame) -> Lines:
    """A line for each row: mean perplexity over seeds, and the difference to its baseline."""
    return compared_lines(_perplexities(table), judge(differences(table)), _BEFORE, _AFTER, _UNIT)


def swapped_lines(table: pd.DataFrame) -> Lines:
    """The same of the text with swapped words."""
    plain = _perplexities(table).drop(columns=["token_cosine"])
    return compared_lines(plain, judge(differences(table, "swapped")), _SWAPPED, {}, _UNIT)


def _perplexities(table: pd.DataFrame) -> pd.DataFrame:
    return table.assign(**{name: np.exp(table[name].map(np.mean)) for name in ("clean", "swapped")})


def differences(table: pd.DataFrame, measure: str = "clean") -> dict[str, Paired]:
    """By how much a row's losses are below its baseline's, times 100: % of the perplexity."""
    found = {
        row: pd.DataFrame(np.stack(list(own[measure])), index=own.seed)
        for row, own in table.groupby("row", sort=False)
    }
    return {
        row: paired_difference(100 * found[baseline], 100 * found[row])
        for row, baseline in baselines_of(table).items()
    }


def notes(table: pd.DataFrame, text: Text) -> list[str]:
    """How to read the tables."""
    parts = ", ".join(f"{len(getattr(text, x)):,}" for x in ("train", "validation", "test"))
    split = (
        "These are the parts that the text comes in."
        if text.standard
        else "This is no standard split: nine tenths of the validation file train, a tenth "
        "validates, and the test file tests, so that perplexities stand beside no published ones."
    )
    return [
        "Perplexities are means over seeds, on the test part, which chose no setting; "
        f"{parts} words train, validate and test, in a vocabulary of {len(text.words):,} with "
        f"<unk> for all others. {split} A window begins without what was before it.",
        f"In swapped text each word that is shown becomes <unk> with probability {SWAPPED}, drawn "
        "once for all rows; those to be told stay as they are. Of the words of the test part "
        f"{float((text.test == UNKNOWN).double().mean()):.1%} are <unk> before any is swapped.",
        "Differences are 100 times those of the mean log losses, about % of the perplexity, above "
        "0 where a row predicts better than the row under against. "
        + note_on_verdicts(differences(table), of="seeds and stretches of the test text"),
        "Inference and training are ratios of throughput to the plain row, in processor time of "
        "one run, so above 1 is faster.",
    ]
