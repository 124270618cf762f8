"""Hidden patches, solved and learned."""

import numpy as np
import pytest
import torch
from masked_patches import (
    N_MASKS,
    PatchFiller,
    fill_by_network,
    filling_loss,
    hidden_patches,
    solvers,
)
from sklearn.kernel_ridge import KernelRidge

from twinsolve.bench.run_folder import load_model
from twinsolve.bench.vision.classification.data import load_splits
from twinsolve.bench.vision.classification.measures import accuracies
from twinsolve.bench.vision.classification.study import build, settings_of


@pytest.fixture(scope="module")
def filler():
    splits = load_splits("digits")
    start = build(splits, settings_of("digits"), {}, 0)
    return splits, PatchFiller(start.options, start.mean, start.std).eval()


def test_what_is_hidden_does_not_enter_and_what_is_seen_costs_nothing(filler):
    splits, model = filler
    levels, hidden = splits.test.levels[:N_MASKS], hidden_patches(16)
    assert hidden.sum(dim=1).tolist() == [8] * N_MASKS
    pixels = hidden.view(-1, 1, 4, 4).repeat_interleave(2, 2).repeat_interleave(2, 3)
    other = torch.where(pixels, torch.rand_like(levels), levels)
    with torch.no_grad():
        torch.testing.assert_close(model(other, hidden), model(levels, hidden))
        apart = (model(levels, hidden) - model.patches(levels)).square()
        assert filling_loss(model, (levels, hidden)) == pytest.approx(float(apart[hidden].mean()))


def test_solvers_fill_by_weights_on_known_images():
    rng = np.random.default_rng(0)
    X, Y, queries = rng.standard_normal((30, 6)), rng.standard_normal((30, 4)), np.eye(6)
    made = {name: solve(queries, values[0]) for name, (solve, values) in solvers(X, Y).items()}
    assert all(filled.shape == (6, 4) for filled in made.values())
    alpha = 0.01 * np.median(np.square(X - X.mean(axis=0)).sum(axis=1))
    ridge = KernelRidge(alpha=alpha).fit(X - X.mean(axis=0), Y - Y.mean(axis=0))
    weighed = ridge.predict(queries - X.mean(axis=0)) + Y.mean(axis=0)
    np.testing.assert_allclose(made["ridge"], weighed)


def test_the_best_and_the_five_best_classes_are_those_of_the_tuned_networks(tmp_path):
    settings = settings_of("digits", {"depth": 1})
    settings["candidates"] = [settings["candidates"][-1] | {"n_steps": 4}]
    [found] = fill_by_network(
        data="digits", data_home=None, directory=str(tmp_path), settings=settings, row="softmax",
        seed=0,
    )  # fmt: skip
    test = load_splits("digits").test
    kept = [accuracies(load_model(x).eval(), test) for x in tmp_path.glob("networks/ViT-4-*")]
    told = [
        {"top1": found[name], "top5": found[f"{name}, top-5"]}
        for name in ("pretrained", "from scratch")
    ]
    assert sorted(kept, key=str) == sorted(told, key=str)
