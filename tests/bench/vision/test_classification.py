"""The command, what seeds pair, resumption, and attacks."""

import json
import os
import re
import runpy
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn
from typer.testing import CliRunner

from twinsolve.bench import paired_training
from twinsolve.bench.cli import app
from twinsolve.bench.comparison import depth_differences
from twinsolve.bench.costs import size_measures
from twinsolve.bench.paired_training import placed, recipe_of, train_kept
from twinsolve.bench.parts import DropPath
from twinsolve.bench.task import add_baselines, row_options, rows_with_plain
from twinsolve.bench.vision.classification.augmentation import augment
from twinsolve.bench.vision.classification.data import (
    ClassBatches,
    Images,
    batch_order,
    load_splits,
)
from twinsolve.bench.vision.classification.measures import (
    ATTACKS,
    CLEAN,
    CORRUPTIONS,
    accuracy,
    corrupt,
    depth_measures,
    fgsm,
    matched_difference,
    pgd,
)
from twinsolve.bench.vision.classification.report import differences, lines_of
from twinsolve.bench.vision.classification.study import IMAGES, build, settings_of
from twinsolve.unrolled import named_operators
from twinsolve.unrolled.boosting import Residual

from ..command import run


@pytest.fixture(scope="module")
def digits():
    return load_splits("digits")


def network(digits, row="softmax", seed=0):
    return build(digits, settings_of("digits"), row_options(IMAGES, row), seed)


def test_the_command_trains_measures_and_takes_what_is_finished(tmp_path, monkeypatch):
    words = "classify digits --seeds 2 --steps 2 --attack --corruptions --row ConvMixer:skip=False"
    for _ in range(2):
        run(words, "--recipe", "depth=1", "--output", tmp_path)
    monkeypatch.setenv("RANK", "1")
    said = run(words, "--recipe", "depth=1", "--output", tmp_path)
    assert said == ""  # of two processes the first reports
    rows = json.loads((tmp_path / "table.json").read_text())
    assert [(x["row"], x["seed"]) for x in rows] == [
        (row, seed) for row in ("softmax", "ConvMixer", "ConvMixer:skip=False") for seed in (0, 1)
    ]
    for x in rows:
        assert x["wrong"].keys() == {CLEAN, *ATTACKS, *CORRUPTIONS}
        assert accuracy(x, CLEAN) == pytest.approx(x["top1"])
    assert len(list((tmp_path / "runs/networks").iterdir())) == 3 * (3 + 1)  # candidates, seeds
    summary = (tmp_path / "summary.md").read_text()
    assert "by Holm for all comparisons of the table, here 2:" in summary
    assert re.search(r"for the \d+ comparisons of that table", summary)
    assert all((tmp_path / f"{name}.png").is_file() for name in ("curves", "differences"))


@pytest.mark.parametrize(
    "words",
    [
        "--row NeuTREN0", "--row ViT:operator=nothing", "--row ViT:token_graying=dct:power=1",
        "cifar10:n=3", "digits:n_train=99", "nowhere", "--recipe mix=0.5",
        "--recipe mixup=0.6,cutmix=0.5", "--recipe erasing=-1", "--recipe dim=wide",
        "--recipe candidates=1", "--recipe precision=float16",
    ],
)  # fmt: skip
def test_what_is_unknown_is_refused(words, tmp_path):
    run(f"classify {words}", "--output", tmp_path, code=2)


@pytest.mark.parametrize(
    ("row", "shown"),
    [
        ("ViT:token_graying=dct:eps=0.9", "eps=0.9"),
        ("ViT:correction=neutreno:lam=0.4,operator=Local:radius=1", "Positive(0.4)"),
        ("ViT:correction=neutreno:lam=0.4,operator=Local:radius=1", "Local(radius=1"),
        ("ViT:residual=boosting:source=0", "source=0"),
        ("ViT:feed_forward_residual=boosting", "(feed_forward_residual): GeneralizedResidual"),
        ("CaiT:scale=LayerScale:initial=0.2", "LayerScale(32, initial=0.2)"),
    ],
)
def test_a_part_of_a_row_takes_settings(digits, row, shown):
    assert shown in str(network(digits, row))


def test_a_row_is_compared_with_its_own_backbone():
    asked = ["CaiT:scale=FeatScale", "symmetric + NeuTRENO", "ViT:depth=2,correction=twicing"]
    asked += [
        "bilateral + GRC",
        "ConvMixer, no skip",
        "ViT:operator=Local:radius=1,correction=twicing",
    ]
    _, baselines = add_baselines(IMAGES, rows_with_plain(IMAGES, asked))
    expected = ["CaiT", "symmetric", "ViT:depth=2", "softmax", "ConvMixer", "local"]
    assert [baselines[row] for row in asked] == expected
    assert baselines["softmax"] is None
    assert all(baselines[row] == "softmax" for row in set(expected) - {"softmax"})
    rows, baselines = add_baselines(IMAGES, rows_with_plain(IMAGES, asked), "NeuTRENO")
    assert baselines == {row: None if row == "NeuTRENO" else "NeuTRENO" for row in rows}
    with pytest.raises(ValueError, match="row: must be ARCHITECTURE"):
        add_baselines(IMAGES, rows_with_plain(IMAGES, asked), "NeuTREN0")


def test_lists_print_rows_as_they_may_be_typed():
    done = CliRunner().invoke(app, ["classify", "--list"])
    for line in done.output.splitlines():
        name, _, typed = line.rpartition(" ")
        assert row_options(IMAGES, typed) == IMAGES.rows[name.strip()]


def test_differences_are_to_the_baseline_and_of_depth_too():
    table = pd.DataFrame(
        {
            "row": ["softmax", "CaiT", "CaiT:scale=FeatScale"] * 2, "seed": [0] * 3 + [1] * 3,
            "against": [None, "softmax", "CaiT"] * 2, "n_test": 100,
            "learning_rate": 0.01, "n_steps": 300,
            "token_cosine": [0.9, 0.5, 0.3, 0.9, 0.5, 0.2], "log10_condition": [1.0] * 6,
            "wrong": [{CLEAN: list(range(n))} for n in (50, 20, 10, 50, 20, 12)],
        }
    )  # fmt: skip
    found = differences(table)
    assert {row: round(x.mean) for row, x in found.items()} == {
        "CaiT": 30,
        "CaiT:scale=FeatScale": 9,
    }
    cosine = depth_differences(table, "token_cosine")["CaiT:scale=FeatScale"]
    assert cosine.mean == pytest.approx(-0.25)
    assert cosine.n == 2


@pytest.mark.parametrize("name", ["learning_rate", "n_steps", "position_scale"])
def test_tokens_of_rows_that_were_trained_otherwise_are_not_compared(name):
    table = pd.DataFrame(
        {
            "row": ["softmax", "NeuTRENO", "twicing"], "seed": 0,
            "against": [None, "softmax", "softmax"],
            "token_cosine": [0.9, 0.5, 0.3], "learning_rate": 0.01, "n_steps": 300,
            "position_scale": 0.1,
        }
    )  # fmt: skip
    table.loc[1, name] = 600
    assert list(depth_differences(table, "token_cosine")) == ["twicing"]


def test_a_recipe_may_give_all_rows_one_rate():
    known = settings_of("digits")["candidates"]
    found = settings_of("digits", {"learning_rate": 0.001})["candidates"]
    assert {each["learning_rate"] for each in found} == {0.001}
    assert [each for i, each in enumerate(found) if each in found[:i]] == []
    assert {each["n_steps"] for each in found} == {each["n_steps"] for each in known}
    with pytest.raises(ValueError, match="learning_rate must be of the type of its default"):
        settings_of("digits", {"learning_rate": "fast"})


@pytest.mark.parametrize("architecture", ["Swin", "CaiT"])
def test_last_tokens_of_every_backbone_are_measured(digits, architecture):
    found = depth_measures(network(digits, architecture).eval(), digits.test)
    assert -1 <= found["token_cosine"] <= 1
    assert np.isfinite(found["log10_condition"])


def test_bilateral_attention_counts_what_softmax_does(digits):
    flops = {
        row: size_measures(network(digits, row), digits.test.levels)["flops"]
        for row in ("softmax", "bilateral")
    }
    assert flops["bilateral"] == flops["softmax"]


def test_drop_path_is_of_both_branches_whatever_is_boosted(digits):
    model = build(digits, settings_of("digits", {"drop_path": 0.1}), row_options(IMAGES, "GRC"), 0)
    branches = [m for m in model.modules() if isinstance(m, DropPath)]
    assert len(branches) == 2 * len(model.network.blocks)


def test_images_are_shifted_into_zeros_and_mirrored_one_by_one():
    levels = torch.rand(40, 3, 5, 6, generator=torch.Generator().manual_seed(0)) + 1
    images = Images(levels, torch.arange(40))
    batches = ClassBatches(images, batch_size=40, shift=2, flip=True)
    whole, target = batches(0, 3, range(40))
    rng = np.random.default_rng((0, 3))
    shifts, flips = rng.integers(-2, 3, size=(40, 2)), rng.integers(2, size=40)
    for found, number, (down, right), flip in zip(whole, target, shifts, flips, strict=True):
        expected = torch.zeros(3, 9, 10)
        expected[:, 2:7, 2:8] = levels[number]
        expected = expected[:, 2 + down : 7 + down, 2 + right : 8 + right]
        assert torch.equal(found, expected.flip(2) if flip else expected)


def test_paired_seeds_draw_the_same_batches_and_first_weights(digits):
    one, other = (ClassBatches(digits.train, batch_size=8, shift=1, flip=False) for _ in range(2))
    for step in (0, 200):
        whole, target = one(1, step, range(8))
        half, own = other(1, step, range(4, 8))
        assert torch.equal(whole[4:], half)
        assert torch.equal(target[4:], own)
    assert not torch.equal(one(1, 0, range(8))[1], one(2, 0, range(8))[1])
    plain = network(digits, seed=1).state_dict()
    for row in ("TUPE", "FeatScale", "bilateral + GRC"):
        own = network(digits, row, seed=1).state_dict()
        shared = [n for n in own if n in plain and own[n].shape == plain[n].shape]
        assert len(shared) > 40
        assert all(torch.equal(own[n], plain[n]) for n in shared)
    for row in IMAGES.rows:
        assert network(digits, row)(digits.test.levels[:2]).shape == (2, 10)


@pytest.mark.parametrize("row", ["TUPE", "SelfExpression:"])
def test_positions_start_at_the_scale_of_the_candidate(digits, row):
    for scale in (0.1, 0.5):
        options = placed(row_options(IMAGES, row), {"position_scale": scale})
        start = build(digits, settings_of("digits"), options, 0).network
        assert float(start.positions.weight.detach().std()) == pytest.approx(scale, rel=0.2)


def test_a_recipe_takes_the_place_of_settings_by_name():
    settings = settings_of("digits", {"dim": 16, "precision": "bfloat16", "weight_decay": 0})
    assert (settings["dim"], settings["depth"]) == (16, 6)
    assert recipe_of(settings, settings["candidates"][0], 0).precision == "bfloat16"


def mix(batches, n_classes=10, **shares):
    given = {"erasing": 0.0, "mixup": 0.0, "cutmix": 0.0} | shares
    return augment(batches, n_classes=n_classes, **given)


def erased_rectangles(height, width, n):
    """Sides in pixels that algorithm 1 of Zhong et al. (2020) draws on an image, in NumPy."""
    rng = np.random.default_rng(0)
    area, ratio = height * width * rng.uniform(0.02, 0.4, n), rng.uniform(0.3, 1 / 0.3, n)
    sides = np.sqrt([area * ratio, area / ratio])
    corner = rng.uniform(size=(2, n)) * [[height], [width]]
    return sides[:, (corner + sides <= [[height], [width]]).all(axis=0)]


def test_erased_rectangles_are_those_of_the_definition():
    n, height, width = 2000, 48, 64
    torch.manual_seed(0)
    plain = torch.full((n, 2, height, width), 2.0), torch.arange(n)
    levels, target = mix(lambda *_: plain, erasing=0.5)(0, 0, range(n))
    assert torch.equal(target, plain[1])
    assert float(plain[0].min()) == 2
    changed = levels != 2
    assert torch.equal(changed[:, 0], changed[:, 1])
    rows, columns = (changed[:, 0].any(dim=d) for d in (2, 1))
    assert torch.equal(changed[:, 0], rows[:, :, None] & columns[:, None, :])
    found = torch.stack([rows.sum(1), columns.sum(1)]).double()[:, rows.any(dim=1)].numpy()
    assert abs(found.shape[1] / n - 0.5) < 4 * 0.5 / n**0.5
    expected = erased_rectangles(height, width, 100_000)
    sizes = ((*sides, sides.prod(axis=0)) for sides in (found, expected))
    for own, of_definition in zip(*sizes, strict=True):
        error = of_definition.std() / len(own) ** 0.5
        assert abs(own.mean() - of_definition.mean()) < 4 * error
        assert abs(own.std() / of_definition.std() - 1) < 0.1
    shares = found.prod(axis=0) / (height * width)
    assert (shares.min(), shares.max()) == pytest.approx((0.02, 0.4), abs=0.01)
    new = levels[changed]
    assert abs(float(new.mean()) - 0.5) < 0.01
    assert abs(float(new.var()) - 1 / 12) < 0.01


def test_batches_that_nothing_changes_are_passed_on(digits):
    plain = ClassBatches(digits.train, batch_size=64, shift=0, flip=False)
    assert mix(plain) is plain


@pytest.mark.parametrize("name", ["mixup", "cutmix"])
def test_mixed_labels_are_the_shares_of_the_images_and_drawn_by_torch_alone(name):
    """Images of one level each, equal to their class: the mean level is that of the labels."""
    levels = torch.arange(4.0).view(4, 1, 1, 1).expand(4, 1, 16, 16)
    batches = mix(lambda *_: (levels.clone(), torch.arange(4)), 4, **{name: 1.0})
    n_mixed = 0
    for seed in range(5):
        torch.manual_seed(seed)
        mixed, shares = batches(0, 0, range(4))
        torch.testing.assert_close(mixed.mean(dim=(1, 2, 3)), shares @ torch.arange(4.0))
        torch.testing.assert_close(shares.sum(dim=1), torch.ones(4))
        n_mixed += int(((shares > 0).sum(dim=1) == 2).sum())
        torch.manual_seed(seed)
        assert all(map(torch.equal, batches(0, 0, range(4)), (mixed, shares)))
    assert n_mixed > 5


@pytest.mark.slow
def test_two_processes_share_each_batch_and_write_one_table(tmp_path):
    words = ["classify", "digits", "--row", "twicing", "--seeds", "1", "--steps", "2"]
    launcher = ["-m", "torch.distributed.run", "--nproc-per-node", "2", "--standalone"]

    def output(folder):
        return ["--output", str(tmp_path / folder)]

    main = [sys.executable, "-c", "from twinsolve.bench.cli import main; main()"]
    shared = subprocess.run(
        [sys.executable, *launcher, "--no-python", *main, *words, *output("shared")],
        capture_output=True, text=True, check=False, env=os.environ | {"OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    alone = CliRunner().invoke(app, [*words, *output("alone")])
    assert shared.returncode == alone.exit_code == 0, shared.stderr
    assert shared.stdout.count("Written to") == 1
    one, other = (
        json.loads((tmp_path / folder / "table.json").read_text()) for folder in ("shared", "alone")
    )
    assert [x["validation"] for x in one] == pytest.approx([x["validation"] for x in other], abs=1)


def test_an_epoch_holds_every_image_once(digits):
    n = len(digits.train)
    drawn = np.concatenate([batch_order(n, 64, 0, step) for step in range(2 * n // 64 + 1)])
    assert sorted(drawn[:n]) == sorted(drawn[n : 2 * n]) == list(range(n))


def test_parts_share_no_image_and_hold_all_classes(digits):
    parts = (digits.train, digits.validation, digits.test)
    assert sum(map(len, parts)) == 1797
    for part in parts:
        shares = np.bincount(part.target, minlength=10) / len(part)
        assert shares.min() > 0.09
        assert shares.max() < 0.11


def test_attacks_raise_the_loss_within_their_budget(digits):
    model = network(digits).eval()
    levels, target = digits.test.levels[:32], digits.test.target[:32]
    budget = 8 / 255

    def loss(x):
        with torch.no_grad():
            return float(nn.functional.cross_entropy(model(x), target))

    one, several = (attack(model, levels, target, budget) for attack in (fgsm, pgd))
    for x in (one, several):
        assert float((x - levels).abs().max()) <= budget + 1e-6
        assert float(x.min()) >= 0
        assert float(x.max()) <= 1
    noise = levels + budget * torch.sign(torch.randn(levels.shape, generator=torch.manual_seed(0)))
    assert loss(one) > loss(noise.clamp(0, 1))
    assert loss(one) > loss(levels)
    assert loss(several) >= loss(one)


def test_corruptions_change_images_the_same_way_each_time(digits):
    levels = digits.test.levels[:8]
    for kind in CORRUPTIONS:
        made = corrupt(levels, kind)
        assert torch.equal(made, corrupt(levels, kind))
        assert not torch.equal(made, levels)
        assert torch.equal(made[:3], corrupt(levels[:3], kind))
        assert float(made.min()) >= 0
        assert float(made.max()) <= 1


def test_depth_and_size_of_a_network(digits):
    collapsed = depth_measures(network(digits, "no attention skip"), digits.test)
    kept = depth_measures(network(digits), digits.test)
    assert collapsed["token_cosine"] > 0.999 > kept["token_cosine"]
    assert collapsed["log10_condition"] > 7 > kept["log10_condition"]
    model = network(digits)
    tokens, dim = 16, 32
    of_block = 2 * tokens * (4 + 4) * dim * dim + 4 * tokens * tokens * dim
    flops = 6 * of_block + 2 * tokens * 4 * dim + 2 * dim * 10
    assert size_measures(model, digits.test.levels)["flops"] == flops


def test_drop_path_leaves_out_branches_and_keeps_the_mean():
    layer = DropPath(Residual(), 0.25)
    x, y = torch.zeros(4000, 2, 3), torch.ones(4000, 2, 3)
    torch.manual_seed(0)
    found = layer(x, y)
    assert found.unique().tolist() == pytest.approx([0, 4 / 3])
    assert abs(float(found.mean()) - 1) < 0.05
    assert torch.equal(layer.eval()(x, y), y)


def test_changed_images_and_users_operators_are_trained_on_anew(digits, tmp_path, monkeypatch):
    monkeypatch.setattr(paired_training, "train", lambda *_, directory, **__: directory)
    settings = settings_of("digits")
    candidate = settings["candidates"][0]

    def folder(splits):
        recipe = recipe_of(settings, candidate, 0)
        return train_kept(IMAGES, network(digits), splits, settings, recipe, {}, str(tmp_path))[1]

    levels = digits.test.levels.clone()
    levels[0, 0, 0, 0] += 0.1
    changed = replace(digits, test=Images(levels, digits.test.target))
    found = [folder(digits), folder(digits), folder(changed)]
    for scale in (1, 2):
        path = tmp_path / "mine.py"
        path.write_text(f"def make(heads, dim):\n    return {scale} * heads\n")
        make = runpy.run_path(str(path), run_name="mine")["make"]
        monkeypatch.setitem(named_operators._FACTORIES, "mine", make)
        found.append(folder(digits))
    assert found[0] == found[1]
    assert len(set(found)) == 4


def test_fewer_images_train_and_the_same_choose_and_judge(digits):
    few = load_splits("digits:n_train=300")
    assert torch.equal(few.train.levels, digits.train.levels[:300])
    assert few.train.target.bincount().min() >= 29
    assert torch.equal(few.test.levels, digits.test.levels)
    assert settings_of("digits:n_train=300") == settings_of("digits")


def test_matched_differences_are_of_images_that_both_get_right():
    """Of images 0 to 9, the rows get eight right in seed 0, nine in seed 1."""
    wrong = {
        ("a", 0): {CLEAN: [0], "blur": [0, 2]}, ("b", 0): {CLEAN: [1], "blur": [1, 2, 3]},
        ("a", 1): {CLEAN: [0], "blur": [0, 5, 6, 7]}, ("b", 1): {CLEAN: [], "blur": [0]},
    }  # fmt: skip
    table = pd.DataFrame(
        [{"row": r, "seed": s, "n_test": 10, "wrong": w} for (r, s), w in wrong.items()]
    )
    found = matched_difference(table, "a", "b", "blur")
    assert found.mean == pytest.approx((100 / 8 - 300 / 9) / 2)
    assert found.n == 2
    table.at[0, "wrong"] = {CLEAN: list(range(10)), "blur": []}
    assert matched_difference(table, "a", "b", "blur").n == 1


def test_matched_differences_err_as_a_ratio_does():
    """Over 2 seeds that are alike the error is that of the mean over the images that are kept."""
    rng = np.random.default_rng(0)
    missed, worse = (np.flatnonzero(rng.random(500) < share) for share in (0.3, 0.2))
    wrong = {"a": {CLEAN: missed.tolist(), "blur": worse.tolist()}, "b": {CLEAN: [], "blur": []}}
    rows = [{"row": r, "seed": s, "n_test": 500, "wrong": wrong[r]} for r in "ab" for s in (0, 1)]
    found = matched_difference(pd.DataFrame(rows), "a", "b", "blur")
    kept = np.setdiff1d(np.arange(500), missed)
    lost = -100.0 * np.isin(kept, worse)
    assert found.mean == pytest.approx(lost.mean())
    assert found.error == pytest.approx(lost.std() / np.sqrt(len(kept)), rel=2e-3)


def test_lines_say_what_is_raw_what_is_corrected_and_what_papers_claim():
    """A row that loses 30 of 200 images, one that loses its own single one in every seed."""
    wrong = {"softmax": [], "ALiBi": list(range(30)), "AttnScale": [7]}
    measures = dict.fromkeys(
        ("top5", "learning_rate", "n_steps", "position_scale", "parameters", "flops", "inference",
         "training"), 1.0,
    )  # fmt: skip
    rows = [
        measures
        | {"row": row, "seed": seed, "n_test": 200, "top1": 100 - len(places) / 2}
        | {"wrong": {CLEAN: sorted({*places, *([100 + seed] if places else [])})}}
        for row, places in wrong.items()
        for seed in range(5)
    ]
    head, lines = lines_of(pd.DataFrame(rows))
    cells = {line[0]: dict(zip(head, line, strict=True)) for line in lines}
    assert cells["softmax"]["verdict"] == "-"
    assert cells["ALiBi"]["verdict"] == "behind"
    assert cells["ALiBi"]["difference, points"].startswith("-15.50 ± ")
    assert cells["AttnScale"]["claimed"] == "+0.9"
    assert cells["AttnScale"]["verdict"].startswith("inconclusive at ± ")
    assert float(cells["AttnScale"]["seen with 80 % power"]) > 1.1
