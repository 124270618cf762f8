"""`twinsolve inspect`: the table against definitions, the command, and what it refuses."""

import json
import re
import sys
from itertools import pairwise, product

import numpy as np
import pandas as pd
import pytest
import torch
from matplotlib.figure import Figure
from PIL import Image
from safetensors.torch import save_file

from twinsolve.bench.recipe import Recipe
from twinsolve.bench.run_folder import WEIGHTS, begin_run, run_settings, save_tensors
from twinsolve.bench.vision.inspection import figures
from twinsolve.bench.vision.inspection.measures import (
    Problems,
    compared_columns,
    condition_columns,
    condition_numbers,
    jacobian_columns,
    observe,
    solutions,
)
from twinsolve.bench.vision.inspection.report import verdicts
from twinsolve.bench.vision.inspection.sources import (
    OPERATORS,
    DigitsTransformer,
    Source,
    accuracy,
    at_start,
    digits,
    find_source,
    shipped,
)
from twinsolve.bench.vision.inspection.study import measure
from twinsolve.solvers import least_squares_self_expression, smoother_matrix
from twinsolve.unrolled import ClassAttentionTransformer, VisionTransformer, WindowedTransformer
from twinsolve.unrolled.diagnostics import jacobian_spectrum
from twinsolve.unrolled.models.denoisers import FilterDiffusionDenoiser

from ..command import run

OPERATORS_USED = ["bilateral", "attn_scale", "sparse_coding", "ridge"]
LAYER_COLUMNS = {
    "deviation", "tolerance", "verdict", "token_cosine", "hc_share", "hc_attention",
    "hc_attention_bound", "J", "J_sum", "E", "log10_condition_before", "log10_condition_branch",
    "log10_condition_after", "singular_value_2", "eigenvalue_2", "jacobian_attention",
    "jacobian_block", "nonzero_share", "origin", "origin_distance", "fitted_scale",
}  # fmt: skip
HEAD_COLUMNS = {
    "singular_value_2", "eigenvalue_2", "nonzero_share", "nearest", "nearest_distance",
    "nearest_baseline", "gaussian_cosine", "least_squares_distance", "low_rank_residual",
    "sparse_support_f1", "fitted_scale", "permuted_nearest_fits", "permuted_sparse_cosine",
    "random_nearest_fits", "random_nearest_parameter", "random_gaussian_cosine",
}  # fmt: skip


def small(operator="softmax", **options):
    """A transformer of a few tokens, with parameters off their start."""
    torch.manual_seed(1)
    options = {"dim": 16, "depth": 2, "num_heads": 2} | options
    model = DigitsTransformer(operator, **options)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.1 * torch.randn_like(parameter)
    return model.double().eval()


def table_of(model, n_images=3):
    images = digits()[1][0][:n_images].double()
    source = Source(model, images, "trained", "digits")
    return measure(source, observe(model, images)), images


def write_run(folder, model, start=None, data="digits"):
    """The folder of a training run, without the training."""
    settings = run_settings(model, Recipe(minutes=1), {"data": data})  # n_steps is found later
    begin_run(folder, settings, 1, start or model)
    save_tensors(folder / WEIGHTS, model.state_dict())
    return str(folder)


@pytest.fixture(scope="module")
def softmax():
    model = small()
    return model, *table_of(model)


@pytest.fixture(scope="module")
def mixed():
    model = small(OPERATORS_USED, depth=4)
    return model, *table_of(model)


@pytest.fixture(scope="module")
def command(tmp_path_factory):
    """Rows and folder of the command on the shipped model."""
    output = tmp_path_factory.mktemp("inspect")
    return inspect("digits", output=output)[1], output


def test_each_layer_of_the_shipped_model_agrees_with_its_solver(command):
    rows, _ = command
    by_kind = {kind: [r for r in rows if r["kind"] == kind] for kind in ("layer", "head", "module")}
    assert [len(by_kind[kind]) for kind in by_kind] == [6, 24, 18]
    for row in by_kind["layer"] + by_kind["module"]:
        assert row["verdict"] == "holds"
        assert row["dtype"] == "float64"
        assert 0 <= row["deviation"] <= row["tolerance"] <= 1e-8
    for kind, columns in (("layer", LAYER_COLUMNS), ("head", HEAD_COLUMNS)):
        for row in by_kind[kind]:
            assert not {column for column in columns if row[column] is None}


def test_the_command_leaves_figures_and_a_summary(command):
    _, output = command
    with Image.open(output / "inspect.png") as page:
        assert min(page.size) > 1000
        assert len(np.unique(np.asarray(page.convert("L")))) > 100
    assert (output / "inspect.pdf").is_file()
    summary = (output / "summary.md").read_text()
    assert "All 24 parts that have a solver agree with it" in summary
    assert re.search(r"explains \d+ of 24 heads. By chance: .* of 24; .* of 24\.", summary)
    assert "| 6 | Softmax | softmax-attention | SE-7 |" in summary
    settings = json.loads((output / "settings.json").read_text())["settings"]
    assert settings == {"model": "digits", "weights": "trained", "images": None}


@pytest.mark.parametrize("name", OPERATORS)
def test_shipped_models_classify_digits_that_they_were_not_trained_on(name):
    (train, _), (test, _) = digits()
    known, asked = ({image.numpy().tobytes() for image in part} for part in (train, test))
    assert not known & asked
    model = shipped(name)
    assert model.operator == OPERATORS[name]
    assert accuracy(model)["accuracy"] >= 0.96
    assert accuracy(at_start(name).eval())["accuracy"] < 0.3


def row_of(table, layer, head=None):
    rows = table[(table.layer == layer) & (table["kind"] == ("layer" if head is None else "head"))]
    return rows.iloc[head or 0]


def share_of_high_frequencies(x):
    high = x - x.mean(axis=1, keepdims=True)
    return (np.linalg.norm(high, axis=(1, 2)) / np.linalg.norm(x, axis=(1, 2))).mean()


def test_measures_of_tokens_follow_their_definitions(softmax):
    model, table, images = softmax
    with torch.no_grad():
        states = [x.numpy() for x in model.intermediates(images)]
    for number, (before, after) in enumerate(pairwise(states), start=1):
        row = row_of(table, number)
        unit = after / np.linalg.norm(after, axis=-1, keepdims=True)
        cosines = np.array([(u @ u.T)[~np.eye(len(u), dtype=bool)].mean() for u in unit])
        np.testing.assert_allclose(row.token_cosine, cosines.mean(), rtol=1e-6)
        np.testing.assert_allclose(row.hc_share, share_of_high_frequencies(after), rtol=1e-10)
        kappa = np.log10([np.linalg.cond(x) for x in before])
        np.testing.assert_allclose(row.log10_condition_before, np.median(kappa), rtol=1e-8)


def attention_by_hand(model, images, number):
    """Queries, keys, values, matrices and output of a layer, and what is added to the tokens."""
    block, H = model.blocks[number], model.num_heads
    with torch.no_grad():
        x = block.attention_norm(model.intermediates(images)[number]).numpy()
        W, b = (p.numpy() for p in (block.attention.in_proj_weight, block.attention.in_proj_bias))
        out, bias = (p.numpy() for p in block.attention.out_proj.parameters())
    parts = np.split(x @ W.T + b, 3, axis=-1)
    q, k, v = (p.reshape(*p.shape[:2], H, -1).transpose(0, 2, 1, 3) for p in parts)
    logits = np.exp(q @ k.transpose(0, 1, 3, 2) / np.sqrt(q.shape[-1]))
    A = logits / logits.sum(axis=-1, keepdims=True)
    u = A @ v
    return k, v, A, u, u.transpose(0, 2, 1, 3).reshape(x.shape) @ out.T + bias


def test_energies_and_spectra_follow_their_definitions(softmax):
    model, table, images = softmax
    first = attention_by_hand(model, images, 0)[1]
    for number in range(model.depth):
        k, _, A, u, _ = attention_by_hand(model, images, number)
        K = np.exp(k @ k.transpose(0, 1, 3, 2) / np.sqrt(k.shape[-1]))
        apart = np.square(u[..., :, None, :] - u[..., None, :, :]).sum(axis=-1)
        J = (K * apart).sum(axis=(-2, -1)) / 4
        pull = 0.3 * (K.sum(axis=-1) * np.square(u - first).sum(axis=-1)).sum(axis=-1)
        total = K.sum(axis=(-2, -1))
        row = row_of(table, number + 1)
        np.testing.assert_allclose(row.J, (J / total).mean(), rtol=1e-9)
        np.testing.assert_allclose(row.J_sum, J.mean(), rtol=1e-9)
        np.testing.assert_allclose(row.E, ((J + pull) / total).mean(), rtol=1e-9)
        cosine = (A[:, 0] * A[:, 1]).sum((-2, -1)) / np.prod(np.linalg.norm(A, axis=(-2, -1)), 1)
        np.testing.assert_allclose(row.head_redundancy, cosine.mean(), rtol=1e-6)
        heads = table[(table.layer == number + 1) & (table["kind"] == "head")]
        singular = np.linalg.svd(A, compute_uv=False)[..., 1].mean(axis=0)
        np.testing.assert_allclose(heads.singular_value_2, singular, rtol=1e-9)
        sizes = np.sort(np.abs(np.linalg.eigvals(A)), axis=-1)[..., -2].mean(axis=0)
        np.testing.assert_allclose(heads.eigenvalue_2, sizes, rtol=1e-7)


def test_logits_of_the_first_layer_come_apart(softmax, mixed):
    model, table, images = softmax
    block, norm = model.blocks[0], model.blocks[0].attention_norm
    with torch.no_grad():
        x, added = model.intermediates(images)[0].numpy(), model.positions().numpy()
        weight, W = norm.weight.numpy(), block.attention.in_proj_weight.numpy()
    size = np.sqrt(x.var(axis=-1, keepdims=True) + norm.eps)
    scaled = {"token": x - added, "position": np.broadcast_to(added, x.shape)}
    scaled = {k: (y - y.mean(axis=-1, keepdims=True)) / size * weight for k, y in scaled.items()}
    W_q, W_k = (part.reshape(model.num_heads, -1, model.dim) for part in np.split(W, 3)[:2])
    for query, key in product(scaled, scaled):
        q, k = (
            np.einsum("bnd,hed->bhne", scaled[name], part)
            for name, part in ((query, W_q), (key, W_k))
        )
        logits = q @ k.swapaxes(-1, -2) / np.sqrt(q.shape[-1])
        found = row_of(table, 1)[f"logits_{query}_{key}"]
        np.testing.assert_allclose(found, logits.std(axis=-1).mean(), rtol=1e-9)
    assert np.isnan(row_of(table, 2).logits_token_token)
    assert "logits_token_token" not in mixed[1]  # bilateral: positions apart


def test_conditions_and_high_frequencies_behind_attention(softmax):
    model, table, images = softmax
    with torch.no_grad():
        states = [x.numpy() for x in model.intermediates(images)]
    for number in range(model.depth):
        branch = attention_by_hand(model, images, number)[-1]
        after = states[number] + branch
        row = row_of(table, number + 1)
        for x, found in ((branch, row.log10_condition_branch), (after, row.log10_condition_after)):
            np.testing.assert_allclose(
                found, np.median(np.log10([np.linalg.cond(one) for one in x])), rtol=1e-6
            )
        np.testing.assert_allclose(row.hc_attention, share_of_high_frequencies(after), rtol=1e-9)
        assert row.hc_attention <= row.hc_attention_sharp <= row.hc_attention_bound


def test_jacobians_are_singular_values(softmax, monkeypatch):
    model, table, images = softmax
    with torch.no_grad():
        states = model.intermediates(images[:1])
    row = row_of(table, 1)
    exact = jacobian_spectrum(model.blocks[0], states[0]).numpy()
    shown = row[["jacobian_block", "jacobian_block_smallest"]].astype(float)
    np.testing.assert_allclose(shown, [exact[0], exact[-1]], rtol=1e-9)
    assert exact[-1] < row.jacobian_block_median < exact[0]
    monkeypatch.setattr("twinsolve.bench.vision.inspection.measures._N_ENTRIES", 100)
    large = jacobian_columns(observe(model, images)[0])
    assert set(large) == {"jacobian_attention", "jacobian_block"}
    assert 0.9 * exact[0] < large["jacobian_block"] <= exact[0] * (1 + 1e-9)


def test_a_head_that_solves_a_classical_problem_is_recognised_and_by_chance_it_is_not():
    X = np.random.default_rng(0).standard_normal((20, 5))
    solved = {
        "gaussian-attention": (smoother_matrix(X, X, bandwidth=0.8), "bandwidth = 0.8"),
        "ridge-self-expression": (least_squares_self_expression(X, lam=3.0), "lam = 3"),
    }
    problems = Problems(X, solutions(X))
    for name, (A, parameter) in solved.items():
        found = compared_columns(A, problems)
        assert (found["nearest"], found["nearest_parameter"]) == (name, parameter)
        assert found["nearest_distance"] < 1e-6
        assert found["nearest_fits"]
        assert not compared_columns(A, problems.permuted())["nearest_fits"]
    noise = compared_columns(np.random.default_rng(1).standard_normal((20, 20)), problems)
    assert not noise["nearest_fits"]


def test_problems_on_permuted_tokens_are_solved_by_what_is_permuted():
    problems = Problems(X := np.random.default_rng(0).standard_normal((12, 5)), solutions(X))
    moved = problems.permuted()
    assert sorted(map(tuple, moved.X)) == sorted(map(tuple, X))
    for name, C in solutions(moved.X).items():
        np.testing.assert_allclose(moved.solved[name], C, atol=1e-7)


def test_every_count_of_explained_heads_stands_beside_what_chance_explains(softmax):
    """Random weights: the same columns as of that network itself."""
    model, _, images = softmax
    torch.manual_seed(5)
    start = DigitsTransformer(dim=16, depth=2, num_heads=2).double().eval()
    source = Source(model, images, "trained", "digits")
    table = measure(source, observe(model, images), observe(start, images))
    heads, own = (t[t["kind"] == "head"] for t in (table, table_of(start)[0]))
    for key in ("nearest_distance", "nearest_fits", "nearest_parameter", "sparse_cosine"):
        assert list(heads[f"random_{key}"]) == list(own[key])
    table.loc[heads[heads.layer == 2].index, "random_nearest_fits"] = True
    said = " ".join(verdicts(table))
    assert "explains 0 of 4 heads. By chance: on permuted tokens, 0 of 4; " in said
    assert "with random weights, 2 of 4." in said


def test_solutions_stand_beside_the_matrix_of_each_head(softmax):
    model, table, images = softmax
    A = attention_by_hand(model, images, 1)[2][0, 1]
    with torch.no_grad():
        tokens = model.intermediates(images[:1])[1][0]
        X = model.blocks[1].attention_norm(tokens).numpy()
    row = row_of(table, 2, head=1)
    for name, C in solutions(X).items():
        cosine = (A * C).sum() / np.linalg.norm(A) / np.linalg.norm(C)
        np.testing.assert_allclose(row[f"{name}_cosine"], cosine, rtol=1e-8, atol=1e-12)
        distance = np.linalg.norm(A - C) / np.linalg.norm(C)
        np.testing.assert_allclose(row[f"{name}_distance"], distance, rtol=1e-8)
        left = np.linalg.norm(X - C @ X) / np.linalg.norm(X)
        np.testing.assert_allclose(row[f"{name}_residual"], left, rtol=1e-8)
    np.testing.assert_allclose(row.residual, np.linalg.norm(X - A @ X) / np.linalg.norm(X))


def test_learned_parameters_are_those_of_each_head_and_are_fitted_from_the_matrix(mixed):
    model, table, _ = mixed
    assert set(table.verdict.dropna()) == {"holds"}
    heads = table[table["kind"] == "head"]
    operators = [block.attention.operator for block in model.blocks]
    expected = {
        (1, "token_bandwidth"): operators[0].token_bandwidth(),
        (2, "omega"): operators[1].omega,
        (3, "lam"): operators[2].lam(),
        (4, "lam"): operators[3].lam(),
    }
    for (layer, name), values in expected.items():
        found = heads[heads.layer == layer][f"learned_{name}"]
        np.testing.assert_allclose(found, values.detach().flatten(), rtol=1e-10)
        assert np.ptp(found) > 1e-4
    ridge = heads[heads.layer == 4]
    np.testing.assert_allclose(ridge.fitted_lam, ridge.learned_lam, rtol=1e-4)
    shares = table[table["kind"] == "layer"].nonzero_share.to_numpy()
    assert shares[2] < 0.9
    assert (shares[[0, 1, 3]] == 1).all()


@pytest.mark.parametrize(
    ("model", "n_layers", "size"),
    [
        (WindowedTransformer(16, 2, 1, 10, 16, window_size=4, depths=(1, 2)), 3, 16),
        (ClassAttentionTransformer(8, 2, 1, 10, 16, 1, 2), 3, 8),
    ],
    ids=["windows", "class attention"],
)
def test_windows_and_class_attention_are_measured_and_drawn(model, n_layers, size, tmp_path):
    model = model.double().eval()
    images = torch.rand(1, 1, size, size, dtype=torch.float64)
    source = Source(model, images, "at the start", "noise")
    layers = observe(model, images)
    table = measure(source, layers)
    assert (table["kind"] == "layer").sum() == n_layers
    assert set(table.verdict.dropna()) == {"holds"}
    figures.draw_page(table, layers, source, "noise", tmp_path)
    assert (tmp_path / "inspect.png").is_file()


def test_lines_of_the_nearest_problem_do_not_hide_each_other():
    names = ("nearest_distance", "nearest_baseline", "permuted_nearest_distance")
    about = {"kind": "head", "layer": [1, 2], "nearest": "gaussian"}
    table = pd.DataFrame(about | dict.fromkeys(names, 0.8))
    (own,) = Figure().subplots(1, squeeze=False)[0]
    figures._draw_nearest(own, table.assign(nearest_parameter="1"))
    shown = {x.get_label().split(",")[0]: x for x in own.lines}
    under, above = shown["permuted tokens"], shown["a I + b 11'"]
    assert own.lines.index(under) < own.lines.index(above)
    assert under.get_linewidth() > 2 * above.get_linewidth()
    assert under.get_color() != above.get_color()


BROKEN = """
from twinsolve.bench.vision.inspection.sources import DigitsTransformer
from twinsolve.unrolled import Softmax

class Sharper(Softmax):
    def logits(self, call):
        return 1.001 * super().logits(call)

    def attend(self, call):
        return call.matrix_of(self) @ call.v

class Tampered(DigitsTransformer):
    def __init__(self, operator="softmax", dim=16, depth=2, num_heads=1, patch_size=2):
        super().__init__(operator, dim, depth, num_heads, patch_size)
        self.blocks[1].attention.operator = Sharper()
"""


def inspect(*words, output, code=0):
    """What the command prints, in one line; and the rows that it writes."""
    said, path = run("inspect", *words, "--output", output, code=code), output / "table.json"
    return said, json.loads(path.read_text()) if path.is_file() else []


@pytest.fixture
def no_page(monkeypatch):
    """For runs whose figures nobody looks at."""
    monkeypatch.setattr(figures, "draw_page", lambda *given: None)


@pytest.mark.usefixtures("no_page")
def test_a_layer_that_is_not_its_solver_makes_the_command_fail(tmp_path, monkeypatch):
    (tmp_path / "tampered_model.py").write_text(BROKEN)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    import tampered_model

    torch.manual_seed(0)
    folder = write_run(tmp_path / "run", tampered_model.Tampered())
    _, rows = inspect(folder, output=tmp_path / "out", code=1)
    del sys.modules["tampered_model"]
    wrong = [row for row in rows if row["verdict"] == "broken"]
    assert [row["name"] for row in wrong] == ["blocks.1.attention"]
    assert 1e-10 < wrong[0]["deviation"] < 1e-2
    assert "NOT as their solvers: blocks.1.attention" in (tmp_path / "out/summary.md").read_text()


@pytest.mark.usefixtures("no_page")
def test_a_run_is_shown_as_it_was_at_the_start(tmp_path):
    trained, start = small(), DigitsTransformer(dim=16, depth=2, num_heads=2)
    folder = write_run(tmp_path / "run", trained.float(), start)
    for untrained, expected in ((False, trained), (True, start)):
        source = find_source(folder, untrained=untrained)
        weights = expected.double().state_dict()
        assert all(torch.equal(weights[n], w) for n, w in source.model.state_dict().items())
        told = "trained (steps: 1, rate: 0.001)"
        assert source.weights == ("at the start" if untrained else told)
        assert torch.equal(source.images, digits()[1][0][:16].double())
    _, rows = inspect(folder, "--untrained", output=tmp_path / "out")
    expected, _ = table_of(start, 16)
    assert rows[0]["token_cosine"] == pytest.approx(expected.token_cosine[0])


def write_pictures(folder, shapes, colour=False):
    folder.mkdir()
    rng = np.random.default_rng(0)
    for number, shape in enumerate(shapes):
        levels = rng.integers(256, size=(*shape, 3) if colour else shape, dtype=np.uint8)
        Image.fromarray(levels).save(folder / f"{number}.png")
    return str(folder)


def test_pictures_of_a_folder_are_cut_and_scaled(tmp_path):
    folder = write_pictures(tmp_path / "pictures", [(8, 8), (20, 12), (12, 24)])
    source = find_source("digits", images=folder)
    assert source.images.shape == (3, 1, 8, 8)
    with Image.open(tmp_path / "pictures/0.png") as picture:
        np.testing.assert_allclose(source.images[0, 0], np.asarray(picture) / 255, atol=1e-6)
    assert 0 <= source.images.min() < source.images.max() <= 1


@pytest.mark.usefixtures("no_page")
def test_a_transformer_of_hugging_face_is_read_and_inspected(tmp_path):
    transformers = pytest.importorskip("transformers")
    config = transformers.ViTConfig(
        hidden_size=24, num_hidden_layers=2, num_attention_heads=3, intermediate_size=40,
        image_size=16, patch_size=4, num_labels=5, initializer_range=0.3,
    )  # fmt: skip
    torch.manual_seed(0)
    theirs = transformers.ViTForImageClassification(config).eval()
    theirs.save_pretrained(tmp_path / "vit")
    (tmp_path / "vit/preprocessor_config.json").write_text(
        json.dumps({"image_mean": [0.1, 0.2, 0.3], "image_std": [0.5, 0.4, 0.3]})
    )
    pictures = write_pictures(tmp_path / "pictures", [(16, 16)] * 3, colour=True)
    source = find_source(str(tmp_path / "vit"), images=pictures)
    with Image.open(tmp_path / "pictures/0.png") as picture:
        pixels = (np.asarray(picture) / 255 - [0.1, 0.2, 0.3]) / [0.5, 0.4, 0.3]
    np.testing.assert_allclose(source.images[0], pixels.transpose(2, 0, 1), atol=1e-6)
    with torch.no_grad():
        expected = theirs.double()(source.images).logits
        assert torch.allclose(source.model(source.images), expected, atol=1e-10)
        drawn_anew = find_source(str(tmp_path / "vit"), untrained=True).model(source.images)
    assert not torch.allclose(drawn_anew, expected, atol=1e-2)
    _, rows = inspect(str(tmp_path / "vit"), output=tmp_path / "out")
    assert sum(row["kind"] == "layer" and row["verdict"] == "holds" for row in rows) == 2


def saved_by_timm(folder, **config):
    """A small ViT in the form in which timm saves its own; with one head of 64."""
    torch.manual_seed(0)
    model = VisionTransformer(8, 4, 3, 5, 64, 2, 1, mlp_ratio=2.0)
    renamed = {"attention.in_proj_": "attn.qkv.", "attention.out_proj": "attn.proj"}
    renamed |= {"attention_norm": "norm1", "feed_forward_norm": "norm2", "feed_forward": "mlp"}
    renamed |= {"class_token": "cls_token", "positions.weight": "pos_embed"}
    state = {}
    for name, value in model.state_dict().items():
        for own, theirs in renamed.items():
            name = name.replace(own, theirs)
        name = name.replace("patch_embedding.projection", "patch_embed.proj")
        state[name] = value[None] if name == "pos_embed" else value
    state["patch_embed.proj.weight"] = state["patch_embed.proj.weight"].view(64, 3, 4, 4)
    folder.mkdir()
    whole = {name: value.contiguous() for name, value in state.items()}
    save_file(whole, folder / "model.safetensors")
    said = {"architecture": "vit_tiny_patch16_224", "pretrained_cfg": {"mean": [0.1, 0.2, 0.3]}}
    (folder / "config.json").write_text(json.dumps(said | config))
    return model.double().eval()


def test_a_transformer_of_timm_is_read(tmp_path):
    model = saved_by_timm(tmp_path / "timm")
    pictures = write_pictures(tmp_path / "pictures", [(8, 8)] * 2, colour=True)
    source = find_source(str(tmp_path / "timm"), images=pictures)
    with Image.open(tmp_path / "pictures/0.png") as picture:
        pixels = (np.asarray(picture) / 255 - [0.1, 0.2, 0.3]) / 0.5
    np.testing.assert_allclose(source.images[0], pixels.transpose(2, 0, 1), atol=1e-6)
    with torch.no_grad():
        assert torch.equal(source.model(source.images), model(source.images))
    saved_by_timm(tmp_path / "mean", model_args={"global_pool": "avg"})
    with pytest.raises(ValueError, match="plain ViT or DeiT of timm"):
        find_source(str(tmp_path / "mean"), images=pictures)


def test_condition_numbers_over_training_are_drawn_where_a_run_kept_them(tmp_path):
    source = find_source("digits")
    found = condition_numbers(source.model, source.images)
    layers = observe(source.model, source.images)
    name = "log10_condition_branch"
    assert found[f"{name} 6"] == condition_columns(layers[5])[name]
    assert len(found) == 3 * 6
    last = source.metrics[-1]
    assert all(abs(last[key] - value) < 0.02 for key, value in found.items())  # float16 weights
    assert figures.draw_training(source.metrics, tmp_path)
    assert (tmp_path / "training.png").is_file()
    assert not figures.draw_training([{"step": 1, "loss": 0.1}], tmp_path / "none")


REFUSED = [
    (None, "nowhere", "MODEL: must be digits, digits-mixed, the folder of a training run"),
    (None, "digits digits", "MODEL: must be different models"),
    (None, "digit", "close ones are digits"),
    (None, "empty", "got 'empty'"),
    (None, "digits --images nowhere", "images: name a folder of pictures"),
    (None, "digits --images empty", "no picture"),
    ("unknown data", "run", "none are known for data 'mine'"),
    ({"model_type": "swin"}, "hf", "with model_type 'vit', got 'swin'"),
    ({"model_type": "vit", "hidden_act": "relu"}, "hf", "with hidden_act 'gelu', got 'relu'"),
    ({"model_type": "vit"}, "hf", "has no model.safetensors"),
    ("denoiser", "run", "inspected by twinsolve denoise"),
    ("unfit", "run", "does not fit"),
]


@pytest.mark.parametrize(("make", "arguments", "message"), REFUSED)
def test_what_cannot_be_inspected_is_refused_in_words(
    make, arguments, message, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    if isinstance(make, dict):
        (tmp_path / "hf").mkdir()
        (tmp_path / "hf/config.json").write_text(json.dumps(make))
    elif make == "denoiser":
        write_run(tmp_path / "run", FilterDiffusionDenoiser(sigma=0.1, n_layers=1))
    elif make is not None:
        write_run(tmp_path / "run", small(), data="mine")
        if make == "unfit":
            save_tensors(tmp_path / "run" / WEIGHTS, small(dim=8).state_dict())
    assert message in inspect(*arguments.split(), output=tmp_path / "out", code=2)[0]
    assert not (tmp_path / "out").exists()
