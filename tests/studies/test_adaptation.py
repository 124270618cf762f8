"""What a trained network becomes, which learning rate is taken, and resumption."""

import json

import adaptation
import numpy as np
import pandas as pd
import pytest
import torch
from adaptation import adapted_lines, best_rates
from shared.script import command_of
from typer.testing import CliRunner

from twinsolve.bench.parts import with_weights_of
from twinsolve.bench.run_folder import load_model
from twinsolve.bench.task import row_options
from twinsolve.bench.vision.classification import study
from twinsolve.bench.vision.classification.data import load_splits
from twinsolve.bench.vision.classification.measures import CLEAN, depth_measures, scores
from twinsolve.bench.vision.classification.study import IMAGES, build, settings_of


@pytest.fixture(scope="module")
def digits():
    return load_splits("digits")


@pytest.fixture(scope="module")
def plain(digits):
    """The plain network with all its weights moved, as training would."""
    model = build(digits, settings_of("digits"), {}, seed=0).eval()
    torch.manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.1 * torch.randn_like(parameter)
    return model


def adapted(digits, plain, row):
    model = build(digits, settings_of("digits"), row_options(IMAGES, row), seed=1)
    return with_weights_of(model, plain).eval()


@torch.no_grad()
def gap(digits, plain, model):
    levels = digits.test.levels[:64]
    return float((model(levels) - plain(levels)).abs().max())


@pytest.mark.parametrize("row", ["AttnScale", "FeatScale"])
def test_scales_of_zero_start_as_the_trained_network_itself(digits, plain, row):
    assert gap(digits, plain, adapted(digits, plain, row)) == 0


@pytest.mark.parametrize("row", ["NeuTRENO", "twicing", "sparse coding"])
def test_other_rows_start_elsewhere_with_all_its_weights(digits, plain, row):
    model = adapted(digits, plain, row)
    own, given = model.state_dict(), plain.state_dict()
    assert all(torch.equal(own[name], given[name]) for name in given)
    assert gap(digits, plain, model) > 0.01


def test_rates_are_chosen_on_validation_images_over_all_seeds():
    rates, seeds = [0.1, 0.2, 0.4], [0, 1]
    validation = {"softmax": [90, 96, 97, 93, 80, 99], "NeuTRENO": [90, 90, 97, 91, 95, 93]}
    table = pd.DataFrame(
        [
            {
                "row": row, "learning_rate": rate, "seed": seed, "validation": values[2 * i + seed],
                "top1": 99 - 10 * i,
            }
            for row, values in validation.items()
            for i, rate in enumerate(rates)
            for seed in seeds
        ]
    )  # fmt: skip
    kept = best_rates(table)
    assert [(x.row, x.seed, x.learning_rate) for x in kept.itertuples()] == [
        ("softmax", 0, 0.2), ("softmax", 1, 0.2), ("NeuTRENO", 0, 0.2), ("NeuTRENO", 1, 0.2),
    ]  # fmt: skip


def test_rates_tie_that_hit_as_often_over_all_seeds():
    hits = {0.1: [355, 355, 352, 354, 353], 1.0: [355, 353, 353, 355, 353]}
    table = pd.DataFrame(
        [
            {"row": "softmax", "learning_rate": rate, "seed": seed, "validation": 100 * (n / 359)}
            for rate, own in hits.items()
            for seed, n in enumerate(own)
        ]
    )
    assert set(best_rates(table).learning_rate) == {0.1}


def test_lines_compare_with_the_plain_row_trained_on():
    """Of 100 images each row finds the first."""
    top1 = [91, 93, 91, 94, 98, 95]
    table = pd.DataFrame(
        {
            "row": ["softmax"] * 3 + ["twicing"] * 3, "seed": [0, 1, 2] * 2, "plain": [90.0] * 6,
            "start": [90.0] * 3 + [50.0] * 3, "top1": [float(x) for x in top1],
            "top5": [98.0] * 3 + [99.0] * 3, "start_token_cosine": [0.5] * 3 + [0.25] * 3,
            "learning_rate": [0.1] * 6, "n_test": [100] * 6,
            "wrong": [{CLEAN: list(range(x, 100))} for x in top1],
        }
    )  # fmt: skip
    plain, line = adapted_lines(table)[1]
    assert plain[5:] == ("-", "-", "-", "-", "98.00", "0.5000", "0.1")
    assert line[:5] == ("twicing", "3", "90.00", "50.00", "95.67")
    difference, *_, verdict, _, top5, cosine, rate = line[5:]
    assert (top5, cosine) == ("99.00", "0.2500")
    assert difference.startswith("+4.00 ± ")
    assert float(difference.split()[-1]) > 2.48  # over seeds alone
    assert (verdict.split()[0], rate) == ("inconclusive", "0.1")


def test_all_rows_go_on_from_the_same_network_on_the_batches_that_come_next(tmp_path, monkeypatch):
    drawn = []

    class Batches(study.ClassBatches):
        def __call__(self, seed, step, samples):
            drawn.append((seed, step))
            return super().__call__(seed, step, samples)

    monkeypatch.setattr(study, "ClassBatches", Batches)
    found = []
    for row in ("softmax", "FeatScale"):
        found += adaptation._run(
            data="digits", data_home=None, directory=str(tmp_path),
            settings=settings_of("digits"), row=row,
            options=row_options(IMAGES, row), base={}, against=None, seed=1, rate=1e-3,
            candidate={"learning_rate": 3e-3, "position_scale": 0.7, "n_steps": 6},
        )  # fmt: skip
    assert drawn == [(1, step) for step in (*range(8), 6, 7)]  # the plain one was kept
    assert len({x["plain"] for x in found} | {x["start"] for x in found}) == 1
    assert len({x["start_token_cosine"] for x in found}) == 1  # scales of zero


def test_tokens_are_those_before_any_step_and_the_five_best_classes_those_after_all(tmp_path):
    settings, row = settings_of("digits", {"depth": 2}), row_options(IMAGES, "NeuTRENO")
    [found] = adaptation._run(
        data="digits", data_home=None, directory=str(tmp_path), settings=settings, row="NeuTRENO",
        options=row, base={}, against="softmax", seed=0, rate=1e-3,
        candidate={"learning_rate": 3e-3, "position_scale": 0.7, "n_steps": 4},
    )  # fmt: skip
    splits = load_splits("digits")
    for name, own in (("ViT-4", True), ("ViT-correction=neutreno-1", False)):
        trained = load_model(next(tmp_path.glob(f"networks/{name}-steps-seed-0-*"))).eval()
        cosine = depth_measures(
            with_weights_of(build(splits, settings, row, 0), trained), splits.test
        )
        assert (found["start_token_cosine"] == pytest.approx(cosine["token_cosine"])) is own
    best = np.argsort(-scores(trained, splits.test.levels).numpy())[:, :5]
    hits = [target in five for five, target in zip(best, splits.test.target, strict=True)]
    assert found["top5"] == pytest.approx(100 * np.mean(hits))


def test_the_script_adapts_and_says_what_it_compares(tmp_path):
    words = ["digits", "--row", "twicing", "--seeds", "2", "--steps", "3", "--recipe", "depth=1"]
    words += ["--output", str(tmp_path)]
    CliRunner().invoke(command_of(adaptation), words, catch_exceptions=False)
    rows = json.loads((tmp_path / "table.json").read_text())
    assert [(x["row"], x["seed"]) for x in rows] == [
        (row, seed) for row in ("softmax", "twicing") for seed in (0, 1)
    ]
    assert all(x["extra_steps"] == 1 and x["start"] == x["plain"] for x in rows[:2])
    assert np.allclose([x["plain"] for x in rows[:2]], [x["plain"] for x in rows[2:]], atol=0)
    for x in rows:
        assert x["top1"] == pytest.approx(100 * (1 - len(x["wrong"][CLEAN]) / x["n_test"]))
    assert "after 3 steps" in (tmp_path / "summary.md").read_text()
    assert (tmp_path / "adaptation.png").is_file()


def test_a_row_of_another_architecture_goes_on_from_its_own_backbone(tmp_path):
    rows = ["CaiT:scale=FeatScale", "FeatScale"]
    table = adaptation.adapt(rows=rows, seeds=1, steps=2, recipe={"depth": 1}, directory=tmp_path)
    found = table.set_index("row")
    assert found.against.to_dict() == {
        "softmax": None, "CaiT": None, "CaiT:scale=FeatScale": "CaiT", "FeatScale": "softmax",
    }  # fmt: skip
    for row in rows:  # scales of zero
        assert found.start[row] == found.plain[row] == found.plain[found.against[row]]


def test_what_cannot_be_adapted_is_refused(tmp_path):
    with pytest.raises(ValueError, match="has no weights in common"):
        adaptation.adapt(rows=["ConvMixer"], directory=tmp_path)
    assert not list(tmp_path.iterdir())
