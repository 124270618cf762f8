"""Loss and condition numbers by step, of a short run and of a table that is known."""

import numpy as np
import pandas as pd
import pytest
from training_course import course_lines, follow_training, mean_conditions, shown_steps

from twinsolve.bench.vision.classification.data import load_splits
from twinsolve.bench.vision.classification.study import build, settings_of
from twinsolve.bench.vision.inspection.measures import condition_numbers


def test_conditions_are_means_over_layers_of_what_inspect_measures():
    splits = load_splits("digits")
    model = build(splits, settings_of("digits", {"depth": 2}), {}, 0)
    images = splits.validation.levels[:4]
    found, by_layer = mean_conditions(model, images), condition_numbers(model, images)
    for part in ("branch", "after"):
        own = [by_layer[f"log10_condition_{part} {layer}"] for layer in (1, 2)]
        assert found[part] == pytest.approx(np.mean(own))


def test_a_short_run_tells_the_start_and_every_twelfth(tmp_path):
    settings = settings_of("digits", {"depth": 1})
    settings["candidates"] = [settings["candidates"][0] | {"n_steps": 24}]
    lines = follow_training("digits", None, str(tmp_path), settings, "no attention skip", 0)
    assert [line["step"] for line in lines] == list(range(0, 25, 2))
    assert lines[0]["loss"] is None
    assert all(line["loss"] > 0 for line in lines[1:])
    assert all(0 < line["branch"] < 16 for line in lines)


def test_lines_show_a_twelfth_a_quarter_the_half_and_the_end():
    steps = range(0, 120, 10)
    table = pd.DataFrame(
        {"row": row, "seed": seed, "step": step, "loss": 10.0 - step / 100 + seed + worse}
        for row, worse in (("softmax", 0.0), ("other", -1.0))
        for seed in (0, 1)
        for step in (*steps, 120)
    )
    assert shown_steps(table) == [10, 30, 60, 120]
    _, (plain, other) = course_lines(table, "loss")
    assert plain == ("softmax", "10.40", "10.20", "9.90", "9.30", "-", "-")
    assert other[1:] == ("9.40", "9.20", "8.90", "8.30", "-1.00 ± not determined", "12 of 12")
