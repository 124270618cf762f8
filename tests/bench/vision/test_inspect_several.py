"""`twinsolve inspect A B ...`: runs of `twinsolve classify` in one table and on one figure."""

import json
import math

import pytest
import torch
from PIL import Image
from torch.testing import assert_close
from typer.testing import CliRunner

from twinsolve.bench.cli import app
from twinsolve.bench.recipe import Recipe
from twinsolve.bench.run_folder import WEIGHTS, begin_run, run_settings, save_tensors
from twinsolve.bench.vision.classification.data import load_splits
from twinsolve.bench.vision.classification.networks import Classifier
from twinsolve.bench.vision.inspection.comparison import shorten_names
from twinsolve.bench.vision.inspection.measures import (
    _measure_spectrum,
    condition_columns,
    head_columns,
    jacobian_columns,
    matrices_of,
    observe,
)
from twinsolve.unrolled.diagnostics import map_similarity

DEPTH = {"depth": 2, "num_heads": 2}
ROWS = {  # of `twinsolve classify`
    "ViT": DEPTH,
    "ViT-correction=attn_scale": {"correction": "attn_scale", **DEPTH},
    "ViT-scale=FeatScale": {"scale": "FeatScale", "pool": "mean", **DEPTH},
    "ViT-residual=boosting": {"residual": "boosting", **DEPTH},
    "ViT-operator=TopK": {"operator": "TopK:n_largest=4", **DEPTH},
    "ViT-correction=neutreno": {"correction": "neutreno:lam=0.4", **DEPTH},
    "CaiT": {"architecture": "CaiT", "class_depth": 1, **DEPTH},
    "Swin": {"architecture": "Swin", "depths": [1, 1], "num_heads": [2, 2], "window_size": 2},
}
SIZES = {"in_channels": 1, "num_classes": 10, "patch_size": 2, "dim": 16, "image_size": [8, 8]}


def write_classifiers(folder):
    for name, row in ROWS.items():
        torch.manual_seed(0)
        model = Classifier(SIZES | row, [0.3], [0.4])
        with torch.no_grad():
            for parameter in model.parameters():
                parameter += 0.1 * torch.randn_like(parameter)
        run = folder / f"{name}-9-steps-seed-0-0123abcd"
        begin_run(run, run_settings(model, Recipe(n_steps=9), {"data": "digits"}), 9, model)
        save_tensors(run / WEIGHTS, model.state_dict())
        yield str(run), model.double().eval()


def test_several_models_stand_in_one_table_and_on_one_figure(tmp_path):
    folders, models = zip(*write_classifiers(tmp_path), strict=True)
    run = CliRunner().invoke(app, ["inspect", *folders, "--output", str(tmp_path / "out")])
    assert run.exit_code == 0, run.output
    tables = [line for line in run.stdout.splitlines() if line[:1] in "┏┃┡│└"]
    assert len(tables) > 30
    assert max(map(len, tables)) <= 120
    assert "t minus s" in run.stdout
    assert "…" not in run.stdout
    rows = json.loads((tmp_path / "out/table.json").read_text())
    assert {row["model"] for row in rows} == set(ROWS)
    images = load_splits("digits").test.levels[:16].double()
    for name, model in zip(ROWS, models, strict=True):
        layers = observe(model, images)
        own = [row for row in rows if row["model"] == name]
        assert [row["layer"] for row in own] == list(range(1, len(layers) + 1))
        for row, layer in zip(own, layers, strict=True):
            own_columns = layer.measures | condition_columns(layer) | jacobian_columns(layer)
            for key, value in own_columns.items():
                known = pytest.approx(value, rel=1e-6) if math.isfinite(value) else None
                assert row[key] == known
    scale = models[2].network.blocks[1].attention_scale
    (row,) = (row for row in rows if row["model"] == "ViT-scale=FeatScale" and row["layer"] == 2)
    assert row["learned_t_minus_s"] == pytest.approx((scale.t - scale.s).median().item())
    sparse = {row["model"]: row["nonzero_mean"] for row in rows if row["nonzero_mean"]}
    assert sparse == {"ViT-operator=TopK": pytest.approx(4 / 17)}
    check_matrices_of_neutreno(rows, models[list(ROWS).index("ViT-correction=neutreno")], images)
    with Image.open(tmp_path / "out/compare.png") as page:
        assert min(page.size) > 1000
    assert not (tmp_path / "out/inspect.png").exists()
    settings = json.loads((tmp_path / "out/settings.json").read_text())["settings"]
    assert settings["models"] == list(folders)


def check_matrices_of_neutreno(rows, model, images):
    """Columns of maps are of the attention matrix A; those of A - lam I have another name."""
    layers = observe(model, images)
    first, second = (layer.seen for layer in layers)
    mixing = [each.attention_matrix - 0.4 * torch.eye(17).double() for each in (first, second)]
    own = [row for row in rows if row["model"] == "ViT-correction=neutreno"]
    assert_close(softmax_of(second), second.attention_matrix)
    known = {"": (first.attention_matrix, second.attention_matrix), "mixing_": mixing}
    for name, (before, A) in known.items():
        expected = {
            "map_similarity": map_similarity(A),
            "map_similarity_to_previous": map_similarity(A, before),
            "head_redundancy": map_similarity(A.flatten(-2).mT),
        }
        for column, values in expected.items():
            assert own[1][f"{name}{column}"] == pytest.approx(values.mean().item(), rel=1e-6)
        singular = torch.linalg.svdvals(A[:4, 0])[:, 1].mean().item()
        (head, *_) = head_columns(layers[1])
        assert head[f"{name}singular_value_2"] == pytest.approx(singular)
    assert_close(torch.from_numpy(matrices_of(layers[1])), second.attention_matrix[0])
    others = [row for row in rows if row["model"] != "ViT-correction=neutreno"]
    assert {row["mixing_map_similarity"] for row in others} == {None}


def softmax_of(seen):
    return (seen.q @ seen.k.mT / seen.q.shape[-1] ** 0.5).softmax(dim=-1)


def test_condition_of_a_jacobian_is_infinite_where_it_is_singular():
    x, stretch = torch.ones(1, 2, 2, dtype=torch.float64), torch.tensor([[1.0, 2.0], [4.0, 100.0]])
    found = _measure_spectrum("map", lambda x: x * stretch, x)
    assert found["map_condition"] == pytest.approx(2)
    assert (
        _measure_spectrum("map", lambda x: x - x.mean(dim=1, keepdim=True), x)["map_condition"]
        == torch.inf
    )


def test_names_of_models_are_what_differs():
    runs = ["a/ViT-600-steps-seed-0-0123abcd", "a/ViT-scale=FeatScale-600-steps-seed-0-89abcdef"]
    assert shorten_names(runs) == ["ViT", "ViT-scale=FeatScale"]
    assert shorten_names([runs[0], "a/ViT-600-steps-seed-1-89abcdef"]) == [
        "ViT-seed-0", "ViT-seed-1"
    ]  # fmt: skip
    assert shorten_names([runs[0], "a/ViT-600-steps-seed-0-89abcdef"]) == [
        "ViT-0123abcd", "ViT-89abcdef"
    ]  # fmt: skip
    assert shorten_names(["digits", "digits-mixed"]) == ["digits", "digits-mixed"]
