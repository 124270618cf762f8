"""When a row is closed, and what is said of it."""

import numpy as np
import pandas as pd
import pytest
import sequential
from scipy.stats import t
from sequential import half_interval, is_open, rows_lines, run_looks, say

from twinsolve.bench.jobs import Options
from twinsolve.bench.paired import Paired
from twinsolve.bench.vision.classification.measures import CLEAN

FACTOR = t.ppf(1 - 0.05 / 2 / 27, 7)  # nine rows, three looks, eight seeds


@pytest.mark.parametrize(
    ("mean", "half", "words", "open_"),
    [
        (0.0, 0.39, "equal within 1", False),
        (0.0, 0.41, "equal within 1", True),
        (0.7, 0.41, "ahead", False),
        (-0.7, 0.69, "behind", False),
        (0.7, 0.71, "inconclusive at ± 0.71", True),
        (-0.2, 0.9, "inconclusive at ± 0.90", True),
        (0.1, np.nan, "not determined", True),
    ],
)
def test_a_row_closes_at_a_narrow_or_a_clear_interval(mean, half, words, open_):
    apart = Paired(mean, half / FACTOR, 8)
    assert np.isclose(half_interval(apart), half, equal_nan=True)
    assert (say(apart), is_open(apart)) == (words, open_)


def test_intervals_of_all_rows_and_looks_hold_together():
    """Under no difference, hardly more than one study in twenty has a clear row at any look."""
    rng, wrong, n_trials = np.random.default_rng(0), 0, 400
    for _ in range(n_trials):
        d = rng.standard_normal((len(sequential.ROWS), sequential.LOOKS[-1]))
        wrong += any(
            say(Paired(own[:n].mean(), own[:n].std(ddof=1) / n**0.5, n)) in ("ahead", "behind")
            for own in d
            for n in sequential.LOOKS
        )
    assert 0 < wrong <= 0.05 * n_trials + 3 * (0.05 * 0.95 * n_trials) ** 0.5


def test_closed_rows_get_no_more_seeds(monkeypatch):
    asked = []

    def classify(rows, seeds, **_):
        asked.append((list(rows), seeds))
        lines = []
        for place, row in enumerate(("softmax", *rows)):
            for seed in range(seeds):
                n_wrong = 100 if row == "NeuTRENO" else 500 + (seed + place) % 3
                lines.append(
                    {
                        "row": row, "against": None if row == "softmax" else "softmax",
                        "seed": seed, "n_test": 1000, "wrong": {CLEAN: list(range(n_wrong))},
                        "top1": 100 - n_wrong / 10, "top5": 90.0, "learning_rate": 1e-3,
                        "token_cosine": 0.5,
                    }
                )  # fmt: skip
        return pd.DataFrame(lines)

    monkeypatch.setattr(sequential, "classify", classify)
    table = run_looks((4, 8), Options())
    assert [n for _, n in asked] == [4, 8]
    assert asked[1][0] == [row for row in asked[0][0] if row != "NeuTRENO"]
    assert table.row.unique().tolist() == ["softmax", *sequential.ROWS]
    assert table.groupby("row").size().loc[["softmax", "NeuTRENO", "GRC"]].tolist() == [8, 4, 8]
    cells = {line[0]: line for line in rows_lines(table)[1]}
    assert (*cells["NeuTRENO"][1:3], cells["NeuTRENO"][5]) == ("4", "90.00", "ahead")
