"""The data of the check: their task numbers, and those of doing nothing."""

from dataclasses import replace

import numpy as np
import pytest
from skimage.metrics import peak_signal_noise_ratio
from sklearn.cluster import KMeans
from sklearn.metrics import adjusted_rand_score

from twinsolve.bench import check_twins
from twinsolve.bench.check.lines import better_than_nothing
from twinsolve.bench.check.samples import check_samples
from twinsolve.twins import catalogue, register, unregister

TWINS = {twin.name: twin for twin in catalogue()}
PACKAGED = ["digits", "subspaces", "china", "flower"]


@pytest.fixture(scope="module")
def data():
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("TWINSOLVE_DATA", raising=False)
        yield {sample.name: sample for sample in check_samples(0)}


def twins_without_gain(table):
    judged = table[table.task_number_nothing.notna()]
    gains = better_than_nothing(judged).groupby(judged.twin).any()
    return list(gains.index[~gains])


def test_a_few_twins_of_each_kind_do_better_than_nothing(monkeypatch):
    monkeypatch.delenv("TWINSOLVE_DATA", raising=False)
    of_tokens = ["softmax-attention", "sparsemax-attention", "neutreno-energy-minimum",
                 "ridge-attention", "self-expression-iterates"]  # fmt: skip
    of_patches = ["mahalanobis-attention", "learned-ista-step", "alibi", "spatial-gaussian",
                  "nonlocal-means-windowed", "boosted-residual"]  # fmt: skip
    table = check_twins(twins=of_tokens, data=["subspaces"])
    assert twins_without_gain(table) == []
    assert table.task_number_solver.min() > 0.9
    assert twins_without_gain(check_twins(twins=of_patches, data=["flower"])) == []


# They mix each token with an average of all: patches are blurred, and points fall together.
WITHOUT_GAIN = [
    "hopfield-limit", "linformer", "nystrom-attention", "nystrom-attention-limit",
    "token-statistics", "token-statistics-descent",
]  # fmt: skip


@pytest.mark.slow
def test_twins_but_those_that_average_all_tokens_do_better_than_nothing(monkeypatch):
    monkeypatch.delenv("TWINSOLVE_DATA", raising=False)
    table = check_twins(data=PACKAGED)
    assert twins_without_gain(table) == WITHOUT_GAIN
    assert set(table.twin[table.task_number_nothing.notna()]) == set(table.twin)
    assert (table.verdict == "holds").all()


def test_doing_nothing_is_kmeans_on_the_tokens(data):
    sample, twin = data["digits"], TWINS["softmax-attention"]
    kmeans = KMeans(10, n_init=5, random_state=0)
    expected = adjusted_rand_score(sample.labels, kmeans.fit_predict(sample.X))
    assert sample.number_of_nothing(twin, None) == expected
    few = np.arange(20, 60)
    expected = adjusted_rand_score(sample.labels[few], kmeans.fit_predict(sample.X[few]))
    assert sample.number_of_nothing(twin, few) == expected
    assert sample.number_of_nothing(twin, None) == sample.task_number(
        TWINS["layer-scale"], sample.X, None
    )


def test_doing_nothing_to_images_is_kmeans_on_their_pixels(data):
    sample, twin = data["digits"], TWINS["nonlocal-means"]
    (images,) = sample.inputs(twin)
    assert sample.number_of_nothing(twin, None) == sample.task_number(twin, images.numpy(), None)


@pytest.mark.parametrize("name", ["china", "flower"])
def test_doing_nothing_to_a_crop_leaves_it_noisy(data, name):
    sample = data[name]
    for twin in ("softmax-attention", "layer-scale", "nonlocal-means"):
        twin = TWINS[twin]
        expected = peak_signal_noise_ratio(sample.clean, sample.noisy, data_range=1.0)
        assert sample.number_of_nothing(twin, None) == expected
        identity = sample.inputs(twin)[-1].numpy()
        assert np.isclose(sample.task_number(twin, identity, None), expected, rtol=1e-12)
    few = np.arange(3, 9)
    clean, noisy = (image.ravel()[few] for image in (sample.clean, sample.noisy))
    expected = peak_signal_noise_ratio(clean, noisy, data_range=1.0)
    assert sample.number_of_nothing(twin, few) == expected


@pytest.mark.parametrize("name", PACKAGED)
def test_tokens_are_as_layer_norm_leaves_them(data, name):
    (X,) = data[name].inputs(TWINS["layer-scale"])
    assert np.isclose(float(X.square().mean()), 1, rtol=0.05)  # patches count borders twice


def test_keys_are_other_points_where_a_twin_needs_them(data):
    for sample in data.values():
        q, k, _ = sample.inputs(TWINS["ridge-attention"])
        assert (q != k).any(dim=2).all()
        for name in ("softmax-attention", "ridge-self-expression"):
            q, k, _ = sample.inputs(TWINS[name])
            assert (q[0] == k[0]).all()


def test_a_twin_is_judged_as_built_and_for_its_task(monkeypatch):
    monkeypatch.delenv("TWINSOLVE_DATA", raising=False)
    table = check_twins(twins=["layer-scale", "softmax-gain-bound"], data=["china"])
    judged = table.set_index("case").task_number_solver
    assert judged["as built"].isna().all()
    assert judged["for its task"].notna().all()
    assert table[table.case == "for its task"]["dtype"].tolist() == ["float64"] * 2
    assert (table.verdict == "holds").all()
    assert twins_without_gain(table) == []


def test_a_layer_that_is_wrong_for_its_task_alone_fails():
    twin = TWINS["layer-scale"]
    inputs = replace(twin.inputs, apply=lambda layer, X: 1.001 * layer(X))
    wrong = {**twin.task, "inputs": inputs}
    register(replace(twin, name="wrong-for-its-task", task=wrong))
    try:
        table = check_twins(twins=["wrong-for-its-task"], data=["china"])
    finally:
        unregister("wrong-for-its-task")
    assert set(table.case[table.verdict == "broken"]) == {"for its task"}


def test_clusters_of_a_graph_in_more_parts_than_classes_are_not_compared(data):
    sample, twin = data["digits"], {twin.name: twin for twin in catalogue()}["softmax-attention"]
    n, dim = sample.X.shape
    apart = np.hstack([sample.X, np.eye(n)[np.arange(n) ^ 1]])[None]
    assert np.isnan(sample.task_number(twin, apart, None))
    whole = apart.copy()
    whole[0, :, dim:] += 1e-3
    assert not np.isnan(sample.task_number(twin, whole, None))


def test_nothing_to_check_is_an_error():
    with pytest.raises(ValueError, match=r"nothing to check with data .*quick"):
        check_twins(data=["subspaces"], quick=True)
