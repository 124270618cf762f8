from itertools import product

import pandas as pd
import pytest
from matplotlib.colors import to_hex

from twinsolve.bench.clustering import figures
from twinsolve.bench.clustering.clusters import NO_STEPS, OWN
from twinsolve.bench.clustering.figures import describe_data, describe_features, draw_errors
from twinsolve.bench.clustering.steps import STEPS


@pytest.fixture
def drawn(monkeypatch):
    """Look of each chain of steps by the words of the legend, in a figure of these chains."""
    kept = []
    monkeypatch.setattr(figures, "save", lambda figure, path: kept.append(figure))

    def draw(*chains):
        rows = [
            {"method": method, "steps": chain, "seed": seed, "accuracy": 0.9}
            for method, chain, seed in product("AB", chains, range(2))
        ]
        about = {"data": "digits", "features": "unit", "selection": "label-free", "fit_seed": 0}
        draw_errors(pd.DataFrame(rows).assign(**about), None)
        (axes,) = kept.pop().axes
        return {
            label: (to_hex(bar.lines[0].get_color()), bar.lines[0].get_marker())
            for bar, label in zip(*axes.get_legend_handles_labels(), strict=True)
        }

    return draw


def test_a_step_has_its_own_colour_in_every_figure(drawn):
    all_at_once = drawn(*STEPS, NO_STEPS, OWN)
    assert len({colour for colour, _ in all_at_once.values()}) == len(STEPS) + 2
    for chain in reversed(STEPS):
        assert drawn("symmetrize", chain)[chain] == all_at_once[chain]


def test_chains_of_one_step_differ_by_their_markers(drawn):
    looks = drawn("keep-largest 3", "keep-largest 5, unit-rows", "keep-largest 3, cluster-qr")
    assert len({colour for colour, _ in looks.values()}) == 1
    assert len({marker for _, marker in looks.values()}) == 3


@pytest.mark.parametrize(
    ("data", "words"),
    [
        ("coil20", "COIL-20"),
        ("yaleb-10", "Extended Yale B of 10 persons"),
        ("/home/mine.v2.mat:data_key=Z,n_clusters=3,n_points=1000", "mine.v2.mat, 1,000 points"),
        (
            "synthetic:n_samples=50,n_subspaces=5,noise=0.3,affine=True",
            "Points on random subspaces, 50 points each,\n5 subspaces, noise 0.3, affine",
        ),
        ("manifolds:shape='roll',affine=False", "Points on curved manifolds, shape roll"),
    ],
)
def test_data_are_named_in_words(data, words):
    assert describe_data(data) == words


@pytest.mark.parametrize(
    ("features", "words"),
    [
        ("unit", "unit norm"),
        ("raw", "points as they are"),
        ("unit-pca-200", "200 principal coordinates, unit norm"),
        ("pca-5", "5 principal coordinates"),
        ("4n", "four coordinates a cluster"),
        ("unit-fourier-100", "100 Fourier coordinates, unit norm"),
        (
            "unit-relative-scattering-500",
            "500 coordinates of scattering maps relative to their maxima, unit norm",
        ),
    ],
)
def test_features_are_named_in_words(features, words):
    assert describe_features(features) == words
