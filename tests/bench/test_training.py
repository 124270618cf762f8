"""The loop, its folder, and what becomes of a run that is killed or shared."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from twinsolve.bench import training
from twinsolve.bench.recipe import Recipe
from twinsolve.bench.run_folder import load_model, read_metrics, read_notes, read_settings
from twinsolve.bench.training import train

HERE = Path(__file__).parent
N_STEPS = 23


@pytest.fixture
def small(monkeypatch):
    monkeypatch.syspath_prepend(str(HERE))
    import small_training

    return small_training


def run(small, folder, n_steps=N_STEPS, model=None, **options):
    names = {"on_step", "on_validation", "progress"} & set(options)
    asked = {name: options.pop(name) for name in names}
    model = small.network() if model is None else model
    recipe = small.recipe(n_steps, **options)
    return train(
        model, small.batches, small.loss, recipe, directory=folder, validate=small.validate, **asked
    )


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The folder of a run that came to its end, and its network."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(HERE))
        import small_training

        folder = tmp_path_factory.mktemp("whole")
        return folder, run(small_training, folder)


@pytest.fixture
def ran(small, whole, tmp_path):
    """A copy of that folder."""
    return Path(shutil.copytree(whole[0], tmp_path / "ran"))


def in_a_process(folder, *deaths, launcher=()):
    command = [sys.executable, *launcher, HERE / "small_training.py", folder, str(N_STEPS), *deaths]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def equal(first, second):
    one, other = load_file(first), load_file(second)
    return one.keys() == other.keys() and all(torch.equal(one[k], other[k]) for k in one)


def rows(folder):
    return [{k: v for k, v in row.items() if k != "seconds"} for row in read_metrics(folder)]


def test_a_run_killed_at_random_steps_and_in_mid_writing_ends_in_the_same_bits(
    small, ran, tmp_path
):
    early, late = np.sort(np.random.default_rng().choice(np.arange(1, N_STEPS), 2, replace=False))
    # First the settings are half written, at last metrics or a checkpoint.
    in_a_process(tmp_path / "killed", "write=2", f"step={early}", f"step={late}", "write=3")
    for name in ("checkpoint.safetensors", "weights.safetensors", "start.safetensors"):
        assert equal(ran / name, tmp_path / "killed" / name), (early, late, name)
    assert rows(ran) == rows(tmp_path / "killed")


def test_two_processes_end_with_the_weights_of_one_that_has_the_whole_batch(small, tmp_path):
    train(
        small.network(dropout=False), small.batches, small.loss, small.recipe(N_STEPS),
        directory=tmp_path / "one", validate=small.validate,
    )  # fmt: skip
    launcher = ("-m", "torch.distributed.run", "--nproc-per-node", "2", "--standalone")
    in_a_process(tmp_path / "two", launcher=launcher)
    of = [load_file(tmp_path / "two" / f"of-process-{rank}.safetensors") for rank in (0, 1)]
    assert all(torch.equal(of[0][name], of[1][name]) for name in of[0])
    one, two = (load_file(tmp_path / f / "weights.safetensors") for f in ("one", "two"))
    start = load_file(tmp_path / "one" / "start.safetensors")
    for name in one:
        assert torch.allclose(one[name], two[name], rtol=1e-5, atol=1e-6)
    assert not torch.allclose(one["lam"], start["lam"], atol=1e-3)


def test_the_model_comes_back_from_its_folder_with_averaged_weights(small, whole):
    folder, averaged = whole
    again = load_model(folder)
    assert not again.training
    for name, value in averaged.state_dict().items():
        assert torch.equal(again.state_dict()[name], value)
    start = load_model(folder, "start.safetensors")
    assert torch.equal(start.layers[0].weight, small.network().layers[0].weight)


def test_no_file_of_a_run_is_a_pickle_and_settings_say_what_was_run(whole):
    folder, _ = whole
    assert {path.name for path in folder.iterdir()} == {
        "settings.json", "metrics.jsonl", "start.safetensors", "weights.safetensors",
        "checkpoint.safetensors",
    }  # fmt: skip
    known = read_settings(folder)
    assert known["n_steps"] == N_STEPS
    assert known["settings"]["model"] == {
        "class": "small_training:Small", "arguments": {"width": 8, "start": 1.0}
    }  # fmt: skip
    assert known["settings"]["recipe"]["seed"] == 0
    assert "torch" in known["versions"]


def test_metrics_start_at_the_start_and_end_at_the_end(small, tmp_path):
    seen = []
    run(small, tmp_path, on_validation=seen.append, learning_rate=0.03)
    found = rows(tmp_path)
    assert [row["step"] for row in found] == [0, 4, 8, 12, 16, 20, 23]
    assert found[0]["loss"] is None
    assert found[0]["error"] == pytest.approx(small.validate(small.network().eval())["error"])
    assert found[-1]["error"] < 0.8 * found[0]["error"]
    assert [row["step"] for row in seen] == [row["step"] for row in found]


@pytest.mark.parametrize(("step_seconds", "n_kept"), [(0.01, 0), (4, 15), (15, 18), (300, 18)])
def test_what_is_lost_is_less_than_half_a_minute_or_a_step(
    small, tmp_path, monkeypatch, step_seconds, n_kept
):
    """However rarely the recipe keeps a checkpoint, and the next call ends with the same bits."""
    now = [0.0]

    def read():
        now[0] += 1e-6
        return now[0]

    monkeypatch.setattr(training, "time", SimpleNamespace(perf_counter=read))

    def stop_late(row):
        now[0] += step_seconds
        if row["step"] == 19:
            raise KeyboardInterrupt

    rare = {"checkpoint_every": 1000, "validate_every": 1000}
    with pytest.raises(KeyboardInterrupt) as stop:
        run(small, tmp_path / "stopped", on_step=stop_late, **rare)
    kept = int(re.search(r"keeps step (\d+) of 23", stop.value.__notes__[0])[1])
    assert kept == n_kept
    assert (18 - kept) * step_seconds < 20
    again, whole = (run(small, tmp_path / name, **rare) for name in ("stopped", "whole"))
    for name, tensor in whole.state_dict().items():
        assert torch.equal(again.state_dict()[name], tensor)


def test_each_step_is_told_also_after_an_interruption(small, tmp_path):
    told = []

    def stop_at_ten(row):
        told.append(row)
        if row["step"] == 10:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt) as stop:
        run(small, tmp_path, on_step=stop_at_ten)
    kept = read_notes(tmp_path / "checkpoint.safetensors")["done"]
    n_kept = json.loads(kept)["step"]
    assert stop.value.__notes__ == [f"{tmp_path} keeps step {n_kept} of 23; the same call goes on."]
    run(small, tmp_path, on_step=told.append)
    assert [row["step"] for row in told] == [*range(1, 11), *range(n_kept + 1, 24)]
    assert {row["n_steps"] for row in told} == {23}
    assert all(row["samples_per_second"] > 0 for row in told)
    metrics = rows(tmp_path)
    losses = [row["loss"] for row in told[-3:]]  # of steps 21 to 23
    assert metrics[-1]["loss"] == pytest.approx(sum(losses) / 3)
    assert metrics[-1]["rate"] == told[-1]["rate"]


def test_progress_wraps_the_steps_that_are_left(small, tmp_path):
    counts = []

    def progress(steps, total):
        counts.append(total)
        return steps

    run(small, tmp_path, progress=progress)
    run(small, tmp_path, progress=progress)
    assert counts == [N_STEPS, 0]


def test_a_loss_that_is_not_finite_stops_and_the_last_checkpoint_stays(small, ran, tmp_path):
    def failing(model, batch):
        return small.loss(model, batch) * (float("nan") if model.n_calls > 12 else 1.0)

    with pytest.raises(FloatingPointError, match=r"step 12: loss is nan"):
        train(small.network(), small.batches, failing, small.recipe(N_STEPS), directory=tmp_path)
    assert all(
        torch.isfinite(v).all() for v in load_file(tmp_path / "weights.safetensors").values()
    )
    train(small.network(), small.batches, small.loss, small.recipe(N_STEPS), directory=tmp_path)
    assert equal(tmp_path / "weights.safetensors", ran / "weights.safetensors")


def test_a_gradient_that_is_not_finite_stops_before_the_weights_move(small, tmp_path):
    def failing(model, batch):
        return small.loss(model, batch) + (model.lam - model.lam.detach()).abs().sqrt()

    model = small.network()
    with pytest.raises(FloatingPointError, match="norm of its gradient"):
        train(model, small.batches, failing, small.recipe(3), directory=tmp_path)
    assert torch.equal(model.layers[0].weight, small.network().layers[0].weight)


def test_what_does_not_fit_the_run_of_a_folder_is_named(small, ran):
    with pytest.raises(ValueError, match="the recipe of its run is"):
        run(small, ran, seed=1)
    with pytest.raises(ValueError, match="the model of its run is"):
        run(small, ran, model=small.Small(width=9))
    path = ran / "settings.json"
    known = json.loads(path.read_text())
    known["torch_threads"] += 1
    path.write_text(json.dumps(known))
    with pytest.warns(UserWarning, match="rounding may differ"):
        run(small, ran)
    path.write_text('{"settings": {"images": "set12"}, "versions": {}}')
    with pytest.raises(
        ValueError, match="is not the folder of a training run, but of another command"
    ):
        run(small, ran)


class Forgetful(nn.Linear):
    def __init__(self, size):
        super().__init__(size, size)


class Shadowing(nn.Linear):
    """`bias` is a flag when it is made, and a parameter then."""


def test_a_model_that_could_not_be_built_again_is_refused_at_once(small, tmp_path):
    class Local(nn.Linear):
        pass

    odd = small.network()
    odd.width = {1: 2}  # JSON makes words of these keys
    for model, words in (
        (Forgetful(4), "must keep its argument 'size'"),
        (Shadowing(4, 4), "must keep its argument 'bias'"),
        (Local(4, 4), "must be a class of a module"),
        (odd, "must keep its argument 'width'"),
        (small.network().requires_grad_(False), "has no parameter to train"),
    ):
        with pytest.raises(ValueError, match=words):
            run(small, tmp_path, model=model)
    assert not list(tmp_path.iterdir())


def test_a_budget_of_minutes_becomes_steps_once(small, tmp_path, monkeypatch):
    first = run(small, tmp_path, n_steps=None, minutes=0.004, checkpoint_every=1000)
    n_steps = read_settings(tmp_path)["n_steps"]
    assert n_steps > 10
    assert rows(tmp_path)[-1]["step"] == n_steps
    assert read_metrics(tmp_path)[-1]["rate"] < 1e-4  # the cosine has come down
    again = run(small, tmp_path / "again", n_steps=n_steps)
    assert torch.equal(first.layers[0].weight, again.layers[0].weight)
    run(small, tmp_path / "short", n_steps=3, minutes=1.0)  # the first of two budgets counts
    assert read_settings(tmp_path / "short")["n_steps"] == 3
    monkeypatch.setattr(training, "_count_steps", None)
    run(small, tmp_path, n_steps=None, minutes=0.004, checkpoint_every=1000)


def test_rates_rise_and_fall_as_a_cosine():
    recipe = Recipe(n_steps=1, learning_rate=0.5, warm_up=0.1, final_rate=0.1)
    rates = [recipe.rate(step, 100) for step in range(101)]
    assert rates[:10] == pytest.approx([0.05 * k for k in range(1, 11)])
    assert rates[10] == 0.5
    assert rates[55] == pytest.approx((0.5 + 0.05) / 2)
    assert rates[100] == pytest.approx(0.05)


def test_groups_have_their_factor_and_decay(small):
    model = small.network()
    model.rate_multipliers = {"layers.*": 2.0, "lam": 3.0}
    recipe = small.recipe(1, rate_multipliers={"layers.0.*": 5.0})
    groups = {
        name: (group["multiplier"], group["weight_decay"])
        for group in training._group_parameters(model, recipe)
        for name, parameter in model.named_parameters()
        if any(parameter is own for own in group["params"])
    }
    assert groups == {
        "lam": (3.0, 0.0),
        "layers.0.weight": (5.0, 0.01), "layers.0.bias": (5.0, 0.0),
        "layers.2.weight": (2.0, 0.01), "layers.2.bias": (2.0, 0.0),
    }  # fmt: skip
    with pytest.raises(ValueError, match=r"no parameter is named \['lambda'\]"):
        training._group_parameters(model, small.recipe(1, rate_multipliers={"lambda": 2.0}))


def test_the_first_steps_are_those_of_adamw_with_clipping(small, tmp_path):
    """Against the same three steps written out with torch, dropout aside."""
    model, mine = small.network(dropout=False), small.network(dropout=False)
    recipe = small.recipe(3, learning_rate=0.1, clip_norm=0.05, weight_decay=0.0, warm_up=0.0)
    averaged = train(model, small.batches, small.loss, recipe, directory=tmp_path)
    optimizer = torch.optim.AdamW(mine.parameters(), weight_decay=0.0)
    mean = [p.detach().clone() for p in mine.parameters()]
    for step in range(3):
        optimizer.zero_grad()
        small.loss(mine, small.batches(0, step, range(8))).backward()
        nn.utils.clip_grad_norm_(mine.parameters(), 0.05)
        optimizer.param_groups[0]["lr"] = recipe.rate(step, 3)
        optimizer.step()
        keep = (1 + step) / (10 + step)
        mean = [keep * m + (1 - keep) * p.detach() for m, p in zip(mean, mine.parameters())]  # noqa: B905
    for own, other in zip(model.parameters(), mine.parameters(), strict=True):
        assert torch.allclose(own, other, rtol=1e-6, atol=1e-8)
    for own, other in zip(averaged.parameters(), mean, strict=True):
        assert torch.allclose(own, other, rtol=1e-5, atol=1e-7)


def test_bfloat16_runs_the_forward_pass_in_it_and_keeps_weights_in_float32(small, tmp_path):
    seen = set()

    def watching(model, batch):
        seen.add(model.layers(batch[0]).dtype)
        return small.loss(model, batch)

    recipe = small.recipe(3, precision="bfloat16")
    model = train(small.network(), small.batches, watching, recipe, directory=tmp_path)
    assert seen == {torch.bfloat16}
    assert model.layers[0].weight.dtype == torch.float32


def test_the_callers_random_numbers_are_left_alone(small, tmp_path):
    model = small.network()
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    run(small, tmp_path, model=model)
    assert torch.equal(torch.rand(3), expected)


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({}, "needs n_steps or minutes"),
        ({"n_steps": 0}, "n_steps: must be a whole number >= 1"),
        ({"n_steps": 2.5}, "n_steps: must be a whole number"),
        ({"minutes": float("nan")}, "minutes: must be"),
        ({"minutes": -1.0}, "minutes: must be"),
        ({"n_steps": 5, "learning_rate": float("inf")}, "learning_rate: must be"),
        ({"n_steps": 5, "clip_norm": 0.0}, "clip_norm: must be"),
        ({"n_steps": 5, "weight_decay": -1.0}, "weight_decay: must be"),
        ({"n_steps": 5, "warm_up": 1.5}, "warm_up: must be in"),
        ({"n_steps": 5, "final_rate": float("nan")}, "final_rate: must be in"),
        ({"n_steps": 5, "ema_decay": 1.0}, "ema_decay: must be in"),
        ({"n_steps": 5, "betas": (0.9, 1.0)}, "betas: must be in"),
        ({"n_steps": 5, "precision": "float16"}, "precision: must be one of"),
        ({"n_steps": 5, "batch_size": 0}, "batch_size: must be a whole number >= 1"),
    ],
)
def test_bad_recipes_are_named(options, match):
    with pytest.raises(ValueError, match=match):
        Recipe(**options)


def test_a_folder_without_a_run_and_a_foreign_class_are_named(ran, tmp_path):
    with pytest.raises(FileNotFoundError, match=r"has no settings\.json"):
        load_model(tmp_path / "absent")
    known = json.loads((ran / "settings.json").read_text())
    for name in ("os:system", "small_training:Absent", "nowhere:Net"):
        known["settings"]["model"]["class"] = name
        (ran / "settings.json").write_text(json.dumps(known))
        with pytest.raises(ValueError, match="model: "):
            load_model(ran)


def test_a_run_killed_before_its_last_file_ends_with_the_same_weights(small, ran):
    whole = (ran / "weights.safetensors").read_bytes()
    (ran / "weights.safetensors").write_bytes((ran / "start.safetensors").read_bytes())
    run(small, ran)
    assert (ran / "weights.safetensors").read_bytes() == whole


@pytest.mark.parametrize("name", ["settings.json", "checkpoint.safetensors", "weights.safetensors"])
def test_damaged_files_are_named(small, ran, name):
    path = ran / name
    path.write_bytes(path.read_bytes()[:20])
    with pytest.raises(ValueError, match=f"{name}: is damaged"):
        load_model(ran) if name.startswith("w") else run(small, ran)
