"""Statements of the papers: each number against a closed form or an independent loop."""

import math
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from costs import SIZES, build
from numpy.testing import assert_allclose
from scipy.integrate import quad
from scipy.stats import norm
from statements import (
    LAWS,
    PARTS,
    STATEMENTS,
    Found,
    compare_jacobians,
    count_bands,
    count_products,
    gray_by_dct,
    gray_by_svd,
    kept_shares,
    lines_of,
    local_constant,
    mean_change,
    measure_conditions,
    measure_high_frequencies,
    measure_memory,
    measure_rounding,
    replace_by_neutreno,
    share_of_places,
)

from twinsolve.bench.tables import read_table
from twinsolve.bench.vision.inspection.sources import DigitsTransformer
from twinsolve.unrolled import Softmax, TokenGraying
from twinsolve.unrolled.diagnostics import token_similarity

RESULTS = Path(__file__).parents[2] / "docs" / "results"


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(0)
    return DigitsTransformer(dim=8, depth=2, num_heads=2, patch_size=2).double().eval()


@pytest.fixture(scope="module")
def images():
    return torch.rand(3, 1, 8, 8, generator=torch.Generator().manual_seed(0)).double()


@torch.no_grad()
def pass_through(model, images, feeds=True, skips=True):
    """Tokens in front of the first layer, and what each part of each layer leaves, by a loop."""
    first = []
    handle = model.blocks[0].register_forward_pre_hook(lambda _, given: first.append(given[0]))
    model(images)
    handle.remove()
    tokens, behind = first[0], []
    for block in model.blocks:
        y = block.attention_norm(tokens)
        branches = [block.attention(y, y, y)[0]]
        tokens = tokens + branches[0] if skips else branches[0]
        states = [tokens]
        if feeds:
            branches.append(block.feed_forward(block.feed_forward_norm(tokens)))
            tokens = tokens + branches[1] if skips else branches[1]
            states.append(tokens)
        behind.append((branches, states))
    return first[0], behind


def test_high_frequencies_are_those_of_a_loop_and_below_their_bounds(model, images):
    found = pd.DataFrame(measure_high_frequencies(model, images))
    assert (found.value <= found.bound).all()
    for part, kept in PARTS.items():
        start, behind = pass_through(model, images, *kept)
        sizes = [
            np.linalg.norm((x - x.mean(1, keepdim=True)).numpy(), axis=(1, 2))
            for x in (start, *(states[-1] for _, states in behind))
        ]
        expected = [np.log(size / sizes[0]).mean() for size in sizes[1:]]
        assert_allclose(found.value[found.part == part], expected, rtol=1e-9)


def test_condition_numbers_are_those_of_a_loop(model, images):
    found = {(part, at): value for part, at, value, _ in measure_conditions(model, images)}
    _, behind = pass_through(model, images)
    for layer, (branches, states) in enumerate(behind, 1):
        for name, branch, state in zip(
            ("attention", "feed-forward"), branches, states, strict=True
        ):
            for part, tokens in ((name, branch), (f"{name} with skip", state)):
                kappa = np.median(np.log(np.linalg.cond(tokens.numpy())))
                assert found[part, layer] == pytest.approx(kappa, rel=1e-6)


def test_neutreno_takes_the_place_of_softmax_in_a_copy_of_the_network(model, images):
    """As does a network that is built with it and takes the weights."""
    rows = pd.DataFrame(replace_by_neutreno(model, images))
    assert all(type(block.attention.operator) is Softmax for block in model.blocks)
    other = DigitsTransformer(
        dim=8, depth=2, num_heads=2, patch_size=2, operator="neutreno"
    ).double()
    other.load_state_dict(model.state_dict())
    for name, network in (("value", other), ("bound", model)):
        states = network.intermediates(images)[-2:]
        expected = [token_similarity(x).mean().item() for x in states]
        assert_allclose(rows[rows.part == "0.6"][name], expected, rtol=1e-6)


def test_jacobian_of_all_blocks_is_at_most_the_product_of_those_of_its_sub_blocks(model, images):
    (found, alone) = compare_jacobians(model, images[:1])
    assert found.value == alone.value
    assert found.value <= 4 * found.bound  # logarithms of two blocks with two sub-blocks each
    x = pass_through(model, images[:1])[0]
    jacobian = torch.autograd.functional.jacobian(model.blocks[1], model.blocks[0](x).detach())
    first = torch.autograd.functional.jacobian(model.blocks[0], x)
    product = np.linalg.cond(
        (jacobian.flatten(3).flatten(end_dim=2) @ first.reshape(136, 136)).numpy()
    )
    assert found.value == pytest.approx(math.log(product), rel=1e-6)


def test_maps_whose_strongest_band_is_not_the_mean_are_counted():
    mean = torch.full((5, 5), 0.2, dtype=torch.float64)
    high_pass = mean + 2 * (torch.eye(5) - mean)
    found = [each.value for each in count_bands("", torch.stack([mean, high_pass, mean])[None])]
    assert found == pytest.approx([3, 1, 2])


def test_products_of_a_deit_are_those_of_its_sizes():
    found = count_products(build(SIZES["DeiT-Ti"], {}), torch.rand(1, 3, 224, 224))
    weights = 12 * 197 * (4 * 192**2 + 2 * 192 * 768) + 196 * 768 * 192 + 192 * 1000
    products = 2 * 12 * 197**2 * 192
    assert list(found.values()) == pytest.approx([weights / 1e9, (weights + products) / 1e9])


def test_scales_add_a_number_a_head_or_two_a_feature_to_the_counted_networks():
    table = read_table(RESULTS / "statements" / "table.json")
    counts = table[table["at"] == "parameters"].set_index("part").value
    for size, n_heads, n_features in (
        ("DeiT-S, 24 layers", 24 * 6, 24 * 384),
        ("CaiT-S", 24 * 8, 24 * 384),
        ("Swin-S", 2 * 3 + 2 * 6 + 18 * 12 + 2 * 24, 2 * 96 + 2 * 192 + 18 * 384 + 2 * 768),
    ):
        plain = counts[f"{size}, softmax"]
        assert counts[f"{size}, AttnScale"] - plain == n_heads
        assert counts[f"{size}, FeatScale"] - plain == 2 * n_features


def test_graying_is_that_of_the_layers_but_for_rounding():
    X = torch.rand(2, 9, 4, generator=torch.Generator().manual_seed(0)).double()
    assert_allclose(gray_by_dct(X), TokenGraying("dct", eps=0.95)(X))
    assert_allclose(gray_by_svd(X), TokenGraying("svd", eps=0.95)(X))
    found = {(part, at): value for part, at, value, _ in measure_rounding(X)}
    assert 0 < found["DCT", "float32"] < 1e-4 < found["DCT", "bfloat16"] < 0.1
    assert found["none", "bfloat16"] < 2**-8  # half of the distance to the next number


def test_local_constants_of_softmax():
    n = 50
    assert local_constant(np.zeros(n)) == pytest.approx(1 / n)
    assert local_constant(LAWS["two large"](None, n)) == pytest.approx(0.5)
    scores = np.random.default_rng(0).standard_normal(n)
    p = np.exp(scores) / np.exp(scores).sum()
    assert local_constant(scores) == pytest.approx(np.linalg.norm(np.diag(p) - np.outer(p, p), 2))


def test_mean_changes_of_equal_and_of_two_large_scores():
    # The variance of exp(eta) over the square of its mean is e - 1.
    assert mean_change("equal", 10_000, 50) == pytest.approx(
        math.sqrt((math.e - 1) / 1e4), rel=0.05
    )
    # Two weights move by |tanh(x / 2)| / 2 each, where x is of N(0, 2).
    moved = quad(
        lambda x: abs(math.tanh(x / 2)) / math.sqrt(2) * norm.pdf(x, 0, math.sqrt(2)), -9, 9
    )
    # 4,000 draws of deviation 0.2 leave 0.003.
    assert mean_change("two large", 100, 4000) == pytest.approx(moved[0], abs=0.01)


def test_what_is_the_same_in_all_images_is_a_function_of_places(model, images):
    shares = {found.part: found.value for found in share_of_places(model, images)}
    assert list(shares) == ["token-token", "token-position", "position-token", "position-position"]
    assert all(100 / len(images) <= share <= 100 for share in shares.values())
    alike = {f.part: f.value for f in share_of_places(model, images[:1].expand_as(images))}
    assert list(alike.values()) == pytest.approx([100] * 4)


def test_memory_is_that_of_the_weights_and_of_what_is_kept_beside_them():
    found = {(each.part, each.at): each.value for each in measure_memory()}
    weights = 4 * 5_717_416 / 2**20  # of a DeiT-Ti in float32
    assert 1.02 * weights < found["softmax", "MiB"] < 2 * weights
    assert found["NeuTRENO", "of softmax"] == (found["NeuTRENO", "MiB"] / found["softmax", "MiB"])
    assert 1 <= found["NeuTRENO", "of softmax"] < 1.01  # first values: 0.14 MiB


def test_shares_that_are_kept_of_signal_and_noise():
    u, n = torch.randn(2, 3, 6, 4, generator=torch.Generator().manual_seed(0)).double()
    y = u + n
    of_equal_norm = y / y.norm(dim=2, keepdim=True) - u
    assert_allclose(kept_shares(u, of_equal_norm, 1e-3), 1)  # each patch attends to itself
    mean = [x.mean(1).norm(dim=1) * math.sqrt(6) / x.norm(dim=(1, 2)) for x in (u, n)]
    assert_allclose(kept_shares(u, n, 1e6), [mean[0], mean[0], mean[1]], rtol=1e-6)


def test_bounds_stand_in_brackets_and_missing_cells_are_dashes():
    table = pd.DataFrame([Found("a", 1, 2.0, 3.0), Found("", 2, 4.0)])
    head, lines = lines_of(table, STATEMENTS["AO Figure 1"])
    assert head[1:] == ("1", "2")
    assert lines == [("a", "2.00 (3.00)", "-"), ("all", "-", "4.00")]
