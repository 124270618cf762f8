import re

import numpy as np
import pytest
from sklearn.datasets import load_digits

from twinsolve.bench.clustering.own import images_in_columns, readings
from twinsolve.bench.names import as_options
from twinsolve.datasets import fetch_coil20, fetch_extended_yale_b, make_union_of_subspaces

DIGITS = load_digits().data[:200]


def test_pixels_are_told_from_points():
    assert images_in_columns(DIGITS.T)[1:] == (8, 8)
    assert images_in_columns(DIGITS) is None
    sorted_points, _ = make_union_of_subspaces(40, n_subspaces=5, noise=0.2, random_state=0)
    noise = np.random.default_rng(0).standard_normal((240, 100))
    for points in (sorted_points, noise, np.cumsum(noise, axis=0), np.ones((64, 3))):
        assert images_in_columns(points) is None
        assert images_in_columns(points.T) is None


def test_pixels_of_real_images_are_told_from_points(real_data):
    assert images_in_columns(fetch_coil20().data[:360].T)[1:] == (32, 32)
    assert images_in_columns(fetch_coil20().data) is None
    faces = fetch_extended_yale_b().data
    assert set(images_in_columns(faces.T)[1:]) == {48, 42}
    assert images_in_columns(faces) is None


@pytest.mark.parametrize(
    ("points", "transpose", "advice"),
    [
        (DIGITS, False, None),
        (DIGITS[:20], False, None),  # fewer points than pixels are no reason to doubt
        (DIGITS.T, True, None),
        (DIGITS.T, False, "the rows look like the pixels of 8 x 8 images, .*: add --transpose to"),
        (DIGITS, True, "the columns look like the pixels of 8 x 8 .*: leave out --transpose to"),
        (np.eye(20)[:5] + 1, False, "fewer rows than columns: add --transpose if"),
        (np.eye(20)[:, :5] + 1, True, "fewer columns than rows: leave out --transpose if"),
    ],
)
def test_doubts_are_said_with_the_way_out(points, transpose, advice, tmp_path):
    path = tmp_path / "mine.npz"
    np.savez(path, X=points)
    lines = readings([f"{path}:n_clusters=2" + ",transpose=True" * transpose])
    n, d = points.T.shape if transpose else points.shape
    read = "columns" if transpose else "rows"
    assert f"{n} points ({read}) of {d} features; 2 clusters, no labels" in lines[0]
    assert [line[:9] for line in lines[1:]] == ["Warning: "] * (advice is not None)
    if advice:
        assert re.search(advice, lines[1])


def test_images_under_lights_in_turn_are_no_pixels(real_data, tmp_path):
    """Those of another person under the same light are alike, as pixels below each other are."""
    faces = fetch_extended_yale_b().data[:320]
    np.savez(tmp_path / "mine.npz", X=faces)
    assert len(readings([f"{tmp_path}/mine.npz:n_clusters=5"])) == 1
    np.savez(tmp_path / "mine.npz", X=faces.T)
    assert "the rows look like" in readings([f"{tmp_path}/mine.npz:n_clusters=5"])[1]


def test_messages_speak_of_options_where_they_name_settings_of_files():
    said = "data_key: name the points by data_key or target_key, transpose=True takes these"
    seen = "--data-key: name the points by --data-key or --target-key, --transpose takes these"
    assert as_options(said) == seen
    assert as_options("transpose: points are") == "--transpose: points are"
    as_typed = "no problem a.mat:n_clusters=5,transpose=True: no setting 'n_clusters'"
    assert as_options(as_typed) == as_typed
