"""Problems, features, methods and affinity steps by name."""

import gzip
import re
from dataclasses import replace
from pathlib import Path

import cloudpickle
import h5py
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy.sparse import csr_array, issparse

from twinsolve import datasets
from twinsolve.bench import Method, register_method
from twinsolve.bench.clustering import methods
from twinsolve.bench.clustering.clusters import cluster_job, clusters_study
from twinsolve.bench.clustering.data import find_data, halves_of
from twinsolve.bench.clustering.features import Points, check_features, features_of, is_costly
from twinsolve.bench.clustering.fitting import fit, quality
from twinsolve.bench.clustering.methods import METHODS, code_of, estimator, find_method
from twinsolve.bench.clustering.presets import PRESETS
from twinsolve.bench.clustering.problems import Problem
from twinsolve.bench.clustering.steps import affinity_of, check_chain, is_dense
from twinsolve.bench.jobs import Options
from twinsolve.bench.sources import source_of
from twinsolve.solvers import clustering
from twinsolve.unrolled import Softmax, named_operators, register_operator

from ...datasets.test_mnist import idx, write

SUBSPACES = "synthetic:n_samples=12,n_subspaces=2,n_features=12,dimension=2,noise=0.05"
POINTS = Points(find_data(SUBSPACES), "0", "unit", 0)
JOB = {
    "points": POINTS, "code": None, "chains": ["symmetrize"], "fit_seed": 0,
    "seeds": [0],
}  # fmt: skip


def test_a_generated_problem_is_known_by_name_trial_and_seed():
    problem = find_data(SUBSPACES).problem("3", 1)
    again, other = find_data(SUBSPACES).problem("3", 1), find_data(SUBSPACES).problem("2", 1)
    assert problem.X.shape == (24, 12)
    assert problem.n_clusters == 2
    assert_array_equal(problem.X, again.X)
    assert not np.allclose(problem.X, other.X)
    assert not np.allclose(problem.X, find_data(SUBSPACES).problem("3", 2).X)
    assert len(find_data(SUBSPACES).trials()) == 5
    assert find_data(SUBSPACES).trials(2) == ["0", "1"]


def test_outliers_are_no_cluster():
    problem = find_data("synthetic:n_samples=10,n_subspaces=2,outliers=0.3").problem()
    assert problem.n_clusters == 2
    assert (problem.labels == -1).sum() == 6


def test_rows_of_outliers_count_for_no_error_of_coefficients():
    method, X = METHODS["TSC"], np.array([[1, 0], [1, 0.1], [0, 1], [0.1, 1], [1, 1]])
    labels = np.array([0, 0, 1, 1, -1])
    fitted = fit(method, X, 2, 0, {"n_neighbors": 2})
    C = abs(fitted.coef.toarray()[:4])
    wrong = [C[i, labels != labels[i]].sum() / C[i].sum() for i in range(4)]
    row = quality(method, fitted, X, labels)
    assert C[:, 4].any()
    assert row["subspace_error"] == pytest.approx(np.mean(wrong), rel=1e-12)
    assert row["nonzeros"] == fitted.coef.nnz / 5


def test_a_subset_is_seeded_and_keeps_images_with_points():
    problem = find_data("digits:n_points=50").problem(seed=4)
    assert_array_equal(problem.images.reshape(50, -1), problem.X)
    assert_array_equal(problem.X, find_data("digits:n_points=50").problem(seed=4).X)
    for n_points in (5000, True, [5]):
        with pytest.raises(ValueError, match="n_points: must be a whole number in"):
            find_data(f"digits:n_points={n_points}").problem()


def test_a_trial_is_a_random_part_known_on_every_machine():
    """Pinned: published tables name their subsets by these numbers alone."""
    whole = find_data("digits").problem()
    name = "digits:classes=2-9,n_classes=3,n_points=40"
    parts = [find_data(name).problem(trial) for trial in find_data(name).trials(3)]
    assert [np.unique(part.labels).tolist() for part in parts] == [[5, 6, 8], [1, 7, 8], [4, 5, 7]]
    assert [part.n_clusters for part in parts] == [3, 3, 3]
    first = find_data("digits:n_points=5").problem("2", 3)
    rows = [np.flatnonzero((x == whole.X).all(axis=1)).tolist() for x in first.X]
    assert rows == [[45], [439], [1016], [1334], [1513]]
    assert_array_equal(first.labels, whole.labels[np.ravel(rows)])
    assert_array_equal(first.images.reshape(5, -1), first.X)
    assert find_data("digits").trials() == find_data("digits").trials(3) == ["0"]
    assert find_data("digits:n_points=5").trials() == ["0"]
    assert find_data("digits:classes=1-3").trials(3) == ["0"]


def test_no_two_picks_of_classes_are_the_same():
    picks = [find_data("digits:n_classes=8").problem(str(draw)) for draw in range(45)]
    assert len({tuple(np.unique(pick.labels)) for pick in picks}) == 45
    with pytest.raises(ValueError, match="there are 45 picks of 8 of 10 classes"):
        find_data("digits:n_classes=8").problem("45")


def test_classes_count_from_one_in_the_order_of_their_labels(tmp_path):
    X, y = np.arange(12.0)[:, None], np.repeat([7, 30, 4, 9], 3)
    np.savez(tmp_path / "mine.npz", X=X, y=y)
    name = str(tmp_path / "mine.npz")
    assert find_data(f"{name}:classes=2-3").problem().X.ravel().tolist() == [0, 1, 2, 9, 10, 11]
    assert find_data(f"{name}:classes=3-4").problem().X.ravel().tolist() == [3, 4, 5, 9, 10, 11]
    for wrong in ("0-2", "3-2", "2-5", "x", "1-2-3", "1.5"):
        with pytest.raises(ValueError, match=r"classes: must be FIRST-LAST or one of 1-4, got "):
            find_data(f"{name}:classes={wrong}").problem()
    with pytest.raises(ValueError, match=r"n_classes: must be a whole number in \[1, 2\], got 3"):
        find_data(f"{name}:classes=1-2,n_classes=3").problem()
    np.savez(tmp_path / "bare.npz", X=X)
    with pytest.raises(ValueError, match="n_classes: there are no labels"):
        find_data(f"{tmp_path / 'bare.npz'}:n_clusters=2,n_classes=1").problem()
    with pytest.raises(ValueError, match="synthetic has no setting 'classes'"):
        find_data("synthetic:classes=1-2").problem()


def test_generators_take_lists():
    problem = find_data("synthetic:n_subspaces=3,dimension=[1,2,3],n_samples=[4,5,6]").problem()
    sizes = [(problem.labels == label).sum() for label in range(3)]
    ranks = [np.linalg.matrix_rank(problem.X[problem.labels == label]) for label in range(3)]
    assert (sizes, ranks) == ([4, 5, 6], [1, 2, 3])


def test_halves_of_sequences_share_no_video():
    motions = {"a": 3, "a_g12": 2, "a_g13": 2, "b": 3, "b_g12": 2, "c": 2, "d": 2, "c_g1": 2}
    first, second = halves_of(motions)
    assert sorted(first + second) == sorted(motions)
    assert {len({"a", "b"} & set(half)) for half in (first, second)} == {1}
    for half in (first, second):
        assert ({"a", "a_g12", "a_g13"} & set(half)) in (set(), {"a", "a_g12", "a_g13"})


def test_the_two_sets_of_data_share_nothing(real_data):
    """Persons, objects and videos of the presets design and judge, whatever the seed of a run."""
    kinds = {"yaleb": 19, "coil20": 10}
    for name, count in kinds.items():
        numbers = {}
        for preset in ("design", "judge"):
            (data,) = (d for s in PRESETS[preset]["studies"] for d in s["data"] if name in d)
            part = find_data(data).part
            assert part["n_classes"] == {"yaleb": 5, "coil20": 6}[name]
            numbers[preset] = set(find_data(f"{name}:classes={part['classes']}").problem().labels)
        assert numbers["design"].isdisjoint(numbers["judge"])
        assert {len(found) for found in numbers.values()} == {count}
    halves = [find_data(f"hopkins:half={half}").trials(seed=half) for half in (1, 2)]
    assert sorted(halves[0] + halves[1]) == sorted(find_data("hopkins").trials())
    videos = [{re.sub(r"_g\d\d$", "", name) for name in half} for half in halves]
    assert videos[0].isdisjoint(videos[1])
    motions = [[find_data("hopkins").problem(name).n_clusters for name in half] for half in halves]
    assert [found.count(3) for found in motions] == [17, 18]
    with pytest.raises(ValueError, match=r"cannot make trial .* of hopkins:half=1"):
        find_data("hopkins:half=1").problem(halves[1][0])
    with pytest.raises(ValueError, match=r"half: must be a whole number in \[1, 2\], got 3"):
        find_data("hopkins:half=3").trials()
    shapes = {
        preset: {
            find_data(name).settings.get("shape", "closed")
            for study in PRESETS[preset]["studies"]
            for name in study["data"]
            if name.startswith("manifolds")
        }
        for preset in PRESETS
    }
    assert shapes.pop("judge").isdisjoint(set.union(*shapes.values()))


@pytest.mark.parametrize("name", ["mnist:subset=[1]", "own.npz:data_key=[1]"])
def test_lists_are_no_settings_of_what_is_loaded(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    np.savez("own.npz", X=np.eye(2), y=[0, 1])
    with pytest.raises(ValueError, match=r"(subset|data_key): must be a word or a number, got \[1"):
        find_data(name).problem()


def test_points_of_the_user(tmp_path):
    X, y = np.random.default_rng(0).standard_normal((6, 3)), np.array([3, 3, 7, 7, 7, 3])
    np.savez(tmp_path / "mine.npz", X=X, y=y)
    table = np.column_stack([X, y])
    np.savetxt(tmp_path / "mine.csv", table, delimiter=",", header="a,b,c,y", comments="")
    for name in ("mine.npz", "mine.csv"):
        problem = find_data(str(tmp_path / name)).problem()
        assert_allclose(problem.X, X)
        assert_array_equal(problem.labels, [0, 0, 1, 1, 1, 0])
        assert find_data(str(tmp_path / name)).content
    np.savez(tmp_path / "bare.npz", X=X)
    with pytest.raises(ValueError, match=r"bare\.npz: holds no labels"):
        find_data(str(tmp_path / "bare.npz")).problem()


def test_columns_of_a_users_table_are_dropped(tmp_path):
    name = str(tmp_path / "mine.csv")
    Path(name).write_text(",id,a,b,class\n0,7,5,1.5,u\n1,3,6,2.5,v\n2,9,8,0.5,v\n")
    assert find_data(name).problem().X.shape == (3, 3)
    assert "'id' may number the points: drop='id' leaves it out" in find_data(name).found
    for dropped, columns in (("id", 2), ("[id]", 2), ("[id,b]", 1), ("[1,b]", 1), ("[]", 4)):
        assert find_data(f"{name}:drop={dropped}").problem().X.shape == (3, columns)
        assert find_data(f"{name}:drop={dropped}").found.startswith(f"points in {columns} column")
    assert (
        find_data(f"{name}:drop=class,target_key=False,n_clusters=2").problem().labels.max() == -1
    )


def test_files_of_the_user_by_their_keys_and_with_the_file_beside_them(tmp_path):
    rng = np.random.default_rng(0)
    images, y = rng.integers(0, 256, (8, 5, 4), dtype=np.uint8), np.arange(8, dtype="u1") % 3
    with h5py.File(tmp_path / "mine.h5", "w") as file:
        file["train/codes"], file["2"] = images.reshape(8, 20) / 255, y
    name = f"{tmp_path / 'mine.h5'}:data_key=train/codes,target_key=2"
    assert_array_equal(find_data(name).problem().labels, y)
    for kind, array in (("images-idx3", images), ("labels-idx1", y)):
        (tmp_path / f"my-{kind}-ubyte.gz").write_bytes(gzip.compress(idx(array)))
    name = str(tmp_path / "my-images-idx3-ubyte.gz")
    problem = find_data(f"{name}:n_points=6").problem(seed=1)
    assert_array_equal(problem.images.reshape(6, 20), problem.X)
    assert problem.n_clusters == 3
    before = find_data(name).content
    labels = tmp_path / "my-labels-idx1-ubyte.gz"
    labels.write_bytes(gzip.compress(gzip.decompress(labels.read_bytes())[:-1] + b"\2"))
    assert find_data(name).content != before
    assert_array_equal(find_data(name).problem().labels[-2:], [0, 2])


def test_parts_of_a_data_set_and_all_its_files_count(tmp_path):
    home = str(tmp_path)
    assert find_data("mnist", home).content is None
    (tmp_path / "openml").mkdir()
    (tmp_path / "mnist").mkdir()
    assert find_data("mnist", home).content is None
    assert not find_data("mnist", home).at_hand
    write(tmp_path, "train", range(4))
    write(tmp_path, "t10k", range(3))
    sizes = {"mnist": 4, "mnist:subset=test": 3, "mnist:subset='all'": 7}
    assert {name: len(find_data(name, home).problem().X) for name in sizes} == sizes
    before = find_data("mnist:subset=test", home).content
    (tmp_path / "t10k-labels-idx1-ubyte").write_bytes(idx(np.zeros(3, "u1")))
    assert find_data("mnist:subset=test", home).content not in (before, None)


def test_features_by_name():
    problem = find_data("digits:n_points=30").problem()
    assert_array_equal(features_of("raw", problem), problem.X)
    assert_allclose(np.linalg.norm(features_of("unit", problem), axis=1), 1)
    assert features_of("pca-5", problem).shape == (30, 5)
    assert_allclose(np.linalg.norm(features_of("unit-pca-5", problem), axis=1), 1)
    assert features_of("4n", find_data(SUBSPACES).problem()).shape == (24, 8)
    assert_array_equal(features_of("2F+1", problem)[:, -1], 1)
    assert features_of("fourier-6", problem).shape == (30, 6)
    assert features_of("scattering-6", problem).shape == (30, 6)
    with pytest.raises(ValueError, match="features: need images"):
        features_of("scattering-6", find_data(SUBSPACES).problem())
    for wrong in ("pca", "pca-0", "colour"):
        with pytest.raises(ValueError, match="features: must be among raw"):
            check_features(wrong)


def test_scattering_of_images_that_blocks_do_not_fill():
    images = np.random.default_rng(0).integers(0, 256, size=(20, 12, 28), dtype="u1")
    images[3] = 0
    problem = Problem("", "", images.reshape(20, -1), np.zeros(20, int), 1, np.arange(20), images)
    padded = np.pad(images, ((0, 0), (2, 2), (2, 2)), mode="edge").astype(np.float32)
    maps = datasets.scattering_features(padded).reshape(20, -1, 2 * 4)
    for name, expected in {
        "scattering-20": maps,
        "relative-scattering-20": [[m / (abs(m).max() or 1) for m in image] for image in maps],
    }.items():
        # As many coordinates as images keep all products.
        X, S = features_of(name, problem), np.reshape(expected, (20, -1))
        assert_allclose(X @ X.T, S @ S.T, rtol=1e-3, atol=1e-3 * (S @ S.T).max())
    assert is_costly("unit-relative-scattering-20")


COEF = csr_array(np.random.default_rng(0).standard_normal((8, 8)) * (1 - np.eye(8)))


@pytest.mark.parametrize(
    ("chain", "by_hand"),
    [
        ("symmetrize", lambda C: clustering.symmetric_affinity(C)),
        ("scale-rows", lambda C: clustering.symmetric_affinity(clustering.scale_by_row_maximum(C))),
        ("unit-rows, symmetrize", lambda C: clustering.symmetric_affinity(clustering.unit_rows(C))),
        ("unit-rows", lambda C: clustering.symmetric_affinity(clustering.unit_rows(C))),
        (
            "keep-mass 0.5, scale-rows",
            lambda C: clustering.symmetric_affinity(
                clustering.scale_by_row_maximum(clustering.keep_l1_mass(C, 0.5))
            ),
        ),
        ("keep-largest 2", lambda C: clustering.symmetric_affinity(clustering.keep_largest(C, 2))),
        ("low-rank 2", lambda C: clustering.low_rank_affinity(C.toarray(), power=2)),
        ("low-rank-transposed", lambda C: clustering.low_rank_affinity(C.toarray().T, power=4)),
        (
            "svd-power 1 3",
            lambda C: clustering.svd_power_affinity(C, 2, dimension=1, power=3),
        ),
        ("softmax-rows", lambda C: clustering.symmetric_affinity(clustering.softmax_rows(abs(C)))),
        (
            "softmax-signed-rows",
            lambda C: clustering.symmetric_affinity(clustering.softmax_rows(C)),
        ),
    ],
)
def test_chains_are_the_named_steps(chain, by_hand):
    found, expected = affinity_of(chain, COEF, 2), by_hand(COEF)
    assert issparse(found) != is_dense(chain)
    for matrix in (found, affinity_of(chain, COEF.toarray(), 2)):
        dense = matrix.toarray() if issparse(matrix) else matrix
        wanted = expected.toarray() if issparse(expected) else expected
        # Sparse and dense sums differ in order only: rounding of numbers of size one.
        assert_allclose(dense, wanted, atol=1e-12)


@pytest.mark.parametrize(
    ("chain", "words"),
    [
        ("", "affinity: must be among"),
        ("symmetrize, keep-mass", "nothing can follow an affinity"),
        ("keep-mass 0.7 2", r"has too many values, it takes \['mass'\]"),
        ("keep-mass much", "cannot read 'keep-mass much'"),
        ("keepmass 0.7", "close ones are keep-mass"),
    ],
)
def test_unknown_steps_are_refused(chain, words):
    with pytest.raises(ValueError, match=words):
        check_chain(chain)


@pytest.mark.filterwarnings("ignore:affinity. eigenvalues")  # graphs of more components
@pytest.mark.parametrize("name", METHODS)
def test_every_method_runs_on_a_tiny_problem(name):
    method = METHODS[name]
    quick = {"max_iter": 3} if name.startswith(("unrolled", "SENet")) else {}
    changed = {"chains": ["symmetrize", "svd-power 2"], "seeds": [0, 1]}
    rows = cluster_job(**JOB | changed, method=name, settings=method.settings[0] | quick)
    assert {row["seed"] for row in rows} == {0, 1}
    assert all(0.5 <= row["accuracy"] <= 1 for row in rows)
    assert all(row["family"] == method.family for row in rows)
    if rows[0]["steps"] == "symmetrize":
        assert len(rows) == 4
        assert all(0 <= row["subspace_error"] <= 1 for row in rows)
        assert all(row["connectivity"] >= 0 for row in rows)
    if method.problem:
        assert rows[0]["objective_gap"] >= -1e-6  # the certified gap of the solution
        assert not rows[0]["objective_gap"] > rows[0]["gap_mean"] + 1e-6  # NaN without a gap
        assert -1 <= rows[0]["cosine"] <= 1


def test_many_iterations_of_attention_reach_the_problem_that_they_are_held_against():
    job = JOB | {"points": replace(POINTS, features="raw"), "method": "attention (ISTA)"}
    rows = cluster_job(**job, settings={"n_iter": 10_000, "lam": 1.0})
    assert abs(rows[0]["objective_gap"]) < 1e-6  # that of the solution
    assert rows[0]["cosine"] > 0.999


def test_a_method_is_registered_from_outside(monkeypatch):
    monkeypatch.setattr(methods, "METHODS", dict(METHODS))
    mine = Method("mine", "user", estimator("sklearn.cluster:Birch"), {"threshold": (0.5, 0.1)})
    register_method(mine)
    assert find_method("mine") is mine
    assert mine.settings == [{"threshold": 0.5}, {"threshold": 0.1}]
    assert code_of(mine)
    with pytest.raises(ValueError, match="'mine' is registered already"):
        register_method(Method("mine", "user", estimator("sklearn.cluster:KMeans")))


class Sharp(Softmax):
    """A user's operator."""

    def __init__(self, num_heads, head_dim):
        super().__init__(scale=2 * head_dim**-0.5)


def test_a_users_operator_is_clustered_by_its_name():
    message = r"no operator 'sharp' for attention \(NAME\).*register_operator adds"
    with pytest.raises(ValueError, match=message):
        find_method("attention (sharp)")
    register_operator("sharp", Sharp)
    try:
        method = cloudpickle.loads(cloudpickle.dumps(find_method("attention (sharp)")))
        cooler = find_method("attention (sharp):temperature=3")
    finally:
        del named_operators._FACTORIES["sharp"]
    assert [chosen["temperature"] for chosen in cooler.settings] == [3]
    problem = find_data(SUBSPACES).problem()
    model = method.make(2, 0, 1, temperature=10.0).fit(problem.X)  # as a worker, without the name
    assert type(model.operator_) is Sharp
    twice = METHODS["attention (softmax)"].make(2, 0, 1, temperature=20.0).fit(problem.X)
    assert_allclose(model.coef_, twice.coef_, rtol=1e-10)
    assert code_of(method) == source_of(Sharp)


def test_fits_are_repeated_only_where_the_seed_decides():
    """Labels of the k-means step aside: what a method leaves is the same for every seed."""
    X = features_of("unit", find_data(SUBSPACES).problem())
    for name in ("SSC", "unrolled (objective)", "SENet", "deep self-expression"):
        method = METHODS[name]
        trained = name.startswith(("unrolled", "SENet"))
        quick = {"max_iter": 3, "batch_size": 8} if trained else {}  # the seed deals the batches
        coefs = [
            np.asarray(fit(method, X, 2, seed, method.settings[0] | quick).coef @ np.eye(len(X)))
            for seed in (0, 1)
        ]
        assert (coefs[0] != coefs[1]).any() == method.random
    study = clusters_study(
        [SUBSPACES],
        ["TSC", "SENet"],
        affinity=["symmetrize"],
        settings={"TSC": [{}], "SENet": [{"max_iter": 2}]},
        n_trials=1,
        n_fits=3,
    )
    seeds = study.run(Options(seed=5, seeds=2)).groupby("method").fit_seed.unique()
    assert {name: found.tolist() for name, found in seeds.items()} == {
        "TSC": [5],
        "SENet": [5, 6, 7],
    }
