"""Routers beside clusterings of the same tokens: numbers against definitions, and the command."""

import json
import re

import numpy as np
import pandas as pd
import pytest
import routers
import torch
from routers import (
    DIMENSION,
    ROWS,
    agreement,
    agreements,
    attained,
    clusterings,
    partition_numbers,
    router_parts,
)
from shared.script import command_of
from torch import nn
from typer.testing import CliRunner

from twinsolve.bench.parts import BALANCE, tokens_of_experts
from twinsolve.bench.vision.classification.data import cross_entropy, load_splits
from twinsolve.bench.vision.classification.study import build, settings_of
from twinsolve.unrolled import SparseMixtureOfExperts

ROW = "mixture of experts"
OPTIONS = ROWS | {"softmax": {}}


@pytest.fixture(scope="module")
def digits():
    return load_splits("digits")


def network(digits, row=ROW, **options):
    return build(digits, settings_of("digits"), OPTIONS[row] | options, seed=0)


def rows_of(model, start, images, monkeypatch, n_tokens=160):
    monkeypatch.setattr(routers, "_N_TOKENS", n_tokens)
    layers = routers.routed(model, start, images, 0)
    return pd.DataFrame(
        [
            {"row": ROW, "seed": 0, "layer": number, **row}
            for number, rows in enumerate(layers, 1)
            for row in rows
        ]
    )


def around_directions(n_clusters=4, n_each=40, dim=12, noise=0.02):
    """Points near orthogonal directions, of unit norm, and their directions' numbers."""
    rng = np.random.default_rng(0)
    labels = np.repeat(np.arange(n_clusters), n_each)
    X = np.eye(dim)[labels] + noise * rng.standard_normal((len(labels), dim))
    return X / np.linalg.norm(X, axis=1, keepdims=True), labels


def test_experts_are_as_wide_as_the_part_whose_place_they_take(digits):
    model, plain = network(digits).network, network(digits, "softmax").network
    for block, other in zip(model.blocks, plain.blocks, strict=True):
        layer = block.feed_forward
        assert layer.n_experts == ROWS[ROW]["experts"]
        assert layer.top_k * layer.expert_width == other.feed_forward.fc1.out_features


@pytest.mark.parametrize("row", ["softmax", ROW])
def test_the_loss_balances_experts_and_leaves_others_alone(digits, row):
    levels, target = digits.train.levels[:16], digits.train.target[:16]
    model = network(digits, row, depth=2)
    inputs = []
    for block in model.network.blocks:
        block.feed_forward_norm.register_forward_hook(lambda _, x, y: inputs.append(y))
    with torch.no_grad():
        entropy = nn.functional.cross_entropy(model(levels), target, label_smoothing=0.1)
        parts = [block.feed_forward for block in model.network.blocks]
        balance = 0.0
        if row == ROW:
            balance = sum(part.balance_loss(x) for part, x in zip(parts, inputs, strict=True))
            assert balance > 2
        found = cross_entropy(0.1)(model, (levels, target))
    assert float(found) == pytest.approx(float(entropy + BALANCE * balance), rel=1e-6)
    assert not any(part._forward_pre_hooks for part in parts)


def test_clusterings_find_planted_clusters_and_a_router_with_their_centres_too():
    X, labels = around_directions()
    found = clusterings(X, 4, seed=0)
    layer = SparseMixtureOfExperts(12, 4, 3).double()
    with torch.no_grad():
        layer.router.copy_(torch.eye(12, dtype=torch.float64)[:4])
    found = {"router": routers._choices(layer, torch.from_numpy(3 * X)), "truth": labels, **found}
    del found["k-subspaces"]  # four dimensions are more than one direction needs
    for row in agreements(found):
        assert row["nmi"] == pytest.approx(1)
        assert row["ari"] == row["accuracy"] == 1


def test_residuals_and_evenness_are_those_of_their_definitions():
    X, labels = around_directions(n_clusters=3, noise=0.3)
    labels = np.where(np.arange(len(labels)) < 90, labels, 1)
    centre = subspace = 0.0
    for label in range(3):
        own = X[labels == label]
        values, vectors = np.linalg.eigh(own.T @ own)
        B = vectors[:, np.argsort(values)[-DIMENSION:]].T
        for x in own:
            centre += ((x - own.mean(axis=0)) ** 2).sum()
            subspace += ((x - x @ B.T @ B) ** 2).sum()
    found = partition_numbers(X, labels, np.arange(len(X)))
    assert found["centre_residual"] == pytest.approx(centre / (len(X) * X.var(axis=0).sum()))
    assert found["subspace_residual"] == pytest.approx(subspace / len(X))
    assert found["largest"] == pytest.approx(70 / 120)
    shares = np.array([40, 70, 10]) / 120
    assert found["used"] == pytest.approx(np.prod(shares**-shares))


def test_a_linear_classifier_tells_half_spaces_but_not_lines():
    rng = np.random.default_rng(0)
    X = rng.standard_normal((400, 2))
    images = np.repeat(np.arange(20), 20)
    half = partition_numbers(np.c_[X, X], (X[:, 0] > 0).astype(int), images)
    lines = partition_numbers(np.c_[X, X], (np.abs(X[:, 0]) > np.abs(X[:, 1])).astype(int), images)
    assert half["linear_nmi"] > 0.8
    assert lines["linear_nmi"] < 0.05


def test_a_router_that_uses_one_expert_tells_nothing():
    X, labels = around_directions()
    found = partition_numbers(X, np.zeros(len(X), int), labels)
    assert found["used"] == found["largest"] == found["centre_residual"] == 1
    assert np.isnan(found["linear_nmi"])


def test_routers_of_a_network_beside_its_start(digits, monkeypatch):
    start, model = network(digits, depth=2), network(digits, depth=2)
    torch.manual_seed(0)
    with torch.no_grad():
        model.network.blocks[0].feed_forward.router.mul_(5)  # no choice changes
        model.network.blocks[1].feed_forward.router.normal_()
    table = rows_of(model, start, digits.test, monkeypatch)
    alike = agreement(table, "router", "router at start")[0]
    assert list(alike.index) == [1, 2]
    assert alike[1] == pytest.approx(100)
    assert alike[2] < 80
    shuffled = agreement(table, "router", "router, shuffled", "ari")
    assert shuffled.abs().max(axis=None) < 10
    for problem, solver in (("centre", "k-means"), ("subspace", "k-subspaces")):
        assert attained(table, solver, problem).to_numpy() == pytest.approx(100)
        assert attained(table, "router, shuffled", problem).to_numpy() == pytest.approx(0)
        for name in ("router", "router at start"):
            gain = attained(table, name, problem)
            assert float(gain.min(axis=None)) > 0
            assert float(gain.max(axis=None)) < 100
    with tokens_of_experts(model) as seen:
        model(digits.test.levels[:1])
    assert [layer for layer, _ in seen] == [b.feed_forward for b in model.network.blocks]


@pytest.mark.filterwarnings("ignore:no candidate has a score above 0")
def test_positions_and_classes_are_those_of_the_tokens(digits, monkeypatch):
    """Positions that outweigh the patches: tokens of a place are alike, and k-means finds it."""
    model = network(digits, depth=1)
    with torch.no_grad():
        positions = model.network.positions
        for parameter in positions.parameters():
            parameter.mul_(1e3)
    table = rows_of(model, network(digits, depth=1), digits.test, monkeypatch)
    by_place = agreement(table, "k-means", "position", "accuracy")[0]
    assert by_place[1] == pytest.approx(50)  # 8 clusters of 16 places


def test_the_script_writes_a_table_of_routers(tmp_path, monkeypatch):
    monkeypatch.setattr(routers, "_N_TOKENS", 64)
    monkeypatch.setattr(routers, "_N_INIT", 2)
    row = "ViT:experts=4,depth=2"
    words = ["digits", "--row", row, "--seeds", "2", "--steps", "1", "--output", str(tmp_path)]
    words += ["--recipe", "dim=16"]
    CliRunner().invoke(command_of(routers), words, catch_exceptions=False)
    table = pd.DataFrame(json.loads((tmp_path / "routers.json").read_text()))
    assert set(table.row) == {row}
    assert sorted(set(table.seed)) == [0, 1]
    summary = (tmp_path / "summary.md").read_text()
    for title, (_, lines) in router_parts(table).items():
        assert title in summary
        assert all("| " + " | ".join(line) + " |" in summary for line in lines)
    assert (tmp_path / "routers.png").is_file()


def test_routers_without_experts_are_refused_before_training(tmp_path):
    words = ["--row", "NeuTRENO", "--output", str(tmp_path)]
    result = CliRunner().invoke(command_of(routers), words)
    assert result.exit_code == 2
    assert "add a row that is a ViT with experts" in re.sub(r"[\s│]+", " ", result.output)
    assert not (tmp_path / "runs").exists()
