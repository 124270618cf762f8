"""The study of motion segmentation on a few written sequences, and its numbers on the real ones."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from hopkins import (
    RECIPES,
    frames_study,
    motion_lines,
    motion_study,
    segmented_points,
)
from scipy.io import savemat
from scipy.sparse import csr_array

from twinsolve.bench.clustering.data import find_data
from twinsolve.bench.clustering.features import features_of
from twinsolve.bench.clustering.fitting import fit
from twinsolve.bench.jobs import Options
from twinsolve.datasets import make_union_of_subspaces

BASELINES = {"k-means 2F", "kNN 2F", "LLE weights 2F", "TSC 2F + 1", "OMP 2F + 1"}


def write(folder, name, X, labels):
    x = np.ones((3, len(X), X.shape[1] // 2))
    x[:2] = X.reshape(len(X), -1, 2).transpose(2, 0, 1)
    path = folder / "hopkins155" / name
    path.mkdir(parents=True)
    content = {"x": x, "s": labels[:, None] + 1, "width": 640, "height": 480}
    savemat(path / f"{name}_truth.mat", content)


@pytest.fixture
def options(tmp_path):
    """Four sequences in Hopkins' format, the last of them too noisy to be segmented."""
    for number, (n_motions, noise) in enumerate([(2, 0.0), (3, 0.0), (2, 0.0), (2, 3.0)]):
        X, y = make_union_of_subspaces(
            15, n_subspaces=n_motions, n_features=20, dimension=3, noise=noise, random_state=number
        )
        write(tmp_path / "data", f"s{number}", X, y)
    return Options(seed=3, seeds=2, data_home=str(tmp_path / "data"))


def test_every_recipe_segments_clean_sequences(options):
    table = motion_study().run(options)
    assert list(dict.fromkeys(table.recipe)) == list(RECIPES)
    assert len(table) == len(RECIPES) * 4 * 2
    assert set(table.seed) == {3, 4}
    # Points that are sums of others with weights >= 0 are few on these linear subspaces.
    limited = {*BASELINES, "SSC nonnegative optimum 2F"}
    clean = table[(table.sequence != "s3") & ~table.recipe.isin(limited)]
    assert (clean.error < 5).all()
    assert (table[table.sequence == "s3"].error > 10).all()
    assert table.error.between(0, 100).all()
    assert (table.seconds > 0).all()
    certified = table[table.steps.str.contains("to a gap of 1e-4")]
    assert len(certified) == 6 * 4 * 2
    assert (certified.gap.astype(float) <= 1e-4).all()


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_labels_decide_nothing_but_the_error(options, tmp_path):
    """Shuffled labels leave the clusters as they are: the affinity does not change in a bit."""
    X, y = make_union_of_subspaces(
        15, n_subspaces=2, n_features=20, dimension=3, noise=0.05, random_state=0
    )
    write(tmp_path / "true", "a", X, y)
    write(tmp_path / "shuffled", "a", X, np.random.default_rng(0).permutation(y))
    errors, coefs = [], []
    for name in ("true", "shuffled"):
        home = str(tmp_path / name)
        options = Options(seeds=1, data_home=home)
        errors.append(motion_study(["motion segmentation"]).run(options).error[0])
        way, problem = RECIPES["motion segmentation"].way(), find_data("hopkins", home).problem("a")
        X = features_of(way.features, problem)
        model = fit(way.method, X, problem.n_clusters, 0, way.settings).model
        coefs.append(csr_array(getattr(model, "coef_", getattr(model, "affinity_matrix_", None))))
    assert abs(coefs[0] - coefs[1]).max() == 0
    assert errors[0] != errors[1]


def test_summary_by_hand():
    rows = [
        ("a", 2, (0.0, 8.0), 2.0),
        ("b", 3, (10.0, 12.0), 4.0),
        ("c", 2, (3.0, 5.0), 6.0),
        ("d", 2, (40.0, 60.0), 9.0),
    ]
    table = pd.DataFrame(
        {
            "recipe": recipe,
            "steps": "-",
            "sequence": name,
            "n_motions": n_motions,
            "seed": seed,
            "error": errors[seed],
            "seconds": seconds if recipe == "LSR 2F" else 2.0,
            "gap": np.nan if recipe == "LSR 2F" else 1e-3 * seconds,
        }
        for recipe in ("LSR 2F", "SSC circulated 2F")
        for name, n_motions, errors, seconds in rows
        for seed in (0, 1)
    )
    headings, lines = motion_lines(table)
    first = {line[2]: dict(zip(headings, line, strict=True)) for line in lines[:3]}
    assert first["2 motions"]["mean"] == f"{116 / 6:.2f}"
    assert first["3 motions"]["mean"] == "11.00"
    assert first["all"]["mean"] == f"{138 / 8:.2f}"
    assert [first[group]["median"] for group in first] == ["4.00", "11.00", "7.50"]
    assert first["all"]["over seeds"] == f"{53 / 4:.2f} to {85 / 4:.2f}"
    assert first["all"]["time ratio"] == "2.50"
    assert first["all"]["gap"] == "-"
    assert lines[5][-1] == "9e-03"
    assert lines[5][-2] == "1.00"


def test_frames_in_pixels_and_figures(options, tmp_path):
    points = pd.DataFrame(segmented_points(find_data("hopkins", options.data_home), "s1"))
    X, y = make_union_of_subspaces(
        15, n_subspaces=3, n_features=20, dimension=3, noise=0.0, random_state=1
    )
    np.testing.assert_allclose(points[["x", "y"]], (X[:, :2] + 1) * [320, 240])
    assert points.true.tolist() == y.tolist()
    assert (points.true == points.found).all()
    assert set(points.width) == {640}
    study = frames_study(("s0", "s3"))
    table = study.run(options)
    assert [line[0] for line in study.lines(table)[1]] == ["s0", "s3"]
    study.figures["motions.png"](table, tmp_path / "motions.png")
    study = motion_study(["LSR 2F", "LRSC 4n"])
    study.figures["errors.png"](study.run(options), tmp_path / "errors.png")
    for name in ("motions.png", "errors.png"):
        assert (tmp_path / name).stat().st_size > 5000


def test_bad_settings_and_missing_data_are_named(options, tmp_path):
    with pytest.raises(ValueError, match="recipes: must be among"):
        motion_study(["SSC by hand"])
    with pytest.raises(ValueError, match="sequences: Hopkins 155 has no 'cars'"):
        frames_study(("cars",)).run(options)
    with pytest.raises(FileNotFoundError, match="hopkins155"):
        motion_study().run(replace(options, data_home=str(tmp_path)))


# Mean error in % on 2 motions, 3 motions and all, of other code with the same recipes.
REFERENCES = {
    "SSC circulated 2F": (1.53, 4.41, 2.18),
    "SSC circulated 4n": (1.84, 4.40, 2.42),
    "SSC paper 2F": (1.58, 4.45, 2.23),
    "LRR growing penalty 2F + 1": (1.36, 1.66, 1.43),
    "LRSC 4n": (2.84, 4.65, 3.25),
    "LSR 2F": (3.66, 7.57, 4.54),
}


@pytest.mark.slow
@pytest.mark.parametrize("recipe", REFERENCES)
def test_recipes_reproduce_the_reference(real_data, recipe):
    _, lines = motion_lines(motion_study([recipe]).run(Options(seeds=1)))
    means = [float(line[3]) for line in lines]
    assert np.abs(np.subtract(means, REFERENCES[recipe])).max() < 0.15


@pytest.mark.slow
def test_motion_segmentation_is_better_than_every_published_recipe(real_data):
    _, lines = motion_lines(motion_study(["motion segmentation"]).run(Options(seeds=1)))
    assert float(lines[-1][3]) < 1.43
