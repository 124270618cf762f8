import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy.io import savemat

from twinsolve.datasets import (
    fetch_hopkins155,
    homogeneous_coordinates,
    load_points,
    project_trajectories,
)

RNG = np.random.default_rng(0)


def write(root, name, x, s, **more):
    (root / "hopkins155" / name).mkdir(parents=True, exist_ok=True)
    savemat(root / "hopkins155" / name / f"{name}_truth.mat", {"x": x, "s": s, **more})


def test_hopkins155(real_data):
    sequences = fetch_hopkins155()
    assert len(sequences) == 155
    assert np.bincount([sequence.n_motions for sequence in sequences]).tolist() == [0, 0, 120, 35]
    assert [s.name for s in sequences] == sorted(s.name for s in sequences)
    for sequence in sequences:
        assert len(sequence.X) == len(sequence.labels)
        assert sorted(set(sequence.labels)) == list(range(sequence.n_motions))
        assert np.isfinite(sequence.X).all()
    for s in sequences:
        assert (s.X.reshape(len(s.X), -1, 2).max(axis=(0, 1)) <= (s.width, s.height)).all()
    extra = {s.name for s in fetch_hopkins155(include_dancing=True)} - {s.name for s in sequences}
    assert extra == {"dancing"}


def test_axes_are_coordinate_point_frame(tmp_path):
    x = np.arange(24.0).reshape(3, 4, 2)
    write(tmp_path, "b", x, np.array([[1], [2], [1], [3]], dtype=np.uint8))
    write(tmp_path, "a", x[:, :2], np.array([[2], [1]], dtype=np.uint8))
    write(tmp_path, "dancing", x, np.ones((4, 1)))
    first, second = fetch_hopkins155(data_home=str(tmp_path))
    assert (first.name, second.name) == ("a", "b")
    for i in range(4):
        expected = [x[coordinate, i, frame] for frame in range(2) for coordinate in range(2)]
        assert second.X[i].tolist() == expected
    assert second.labels.tolist() == [0, 1, 0, 2]
    assert second.n_motions == 3
    assert second.width is None
    assert second.height is None


def test_a_sequence_is_read_alike_as_a_file_of_points(tmp_path):
    x = np.concatenate([RNG.standard_normal((2, 5, 4)), np.ones((1, 5, 4))])
    write(tmp_path, "a", x, [[1], [2], [1], [2], [2]], y=x / 2, K=np.eye(3), frames=[[4]])
    (sequence,) = fetch_hopkins155(data_home=str(tmp_path))
    assert sequence.data is sequence.X
    assert sequence.target is sequence.labels
    points = load_points(tmp_path / "hopkins155" / "a" / "a_truth.mat")
    assert (points.data == sequence.data).all()
    assert (points.target == sequence.target).all()
    assert "images" not in points


def test_frame_size_is_kept_and_bad_coordinates_are_refused(tmp_path):
    x = np.ones((3, 4, 2))
    write(tmp_path, "a", x, np.ones((4, 1)), width=640, height=480)
    (sequence,) = fetch_hopkins155(data_home=str(tmp_path))
    assert (sequence.width, sequence.height) == (640, 480)
    x[0, 1, 1] = np.nan
    write(tmp_path, "a", x, np.ones((4, 1)))
    with pytest.raises(ValueError, match=r"a_truth\.mat: holds NaN"):
        fetch_hopkins155(data_home=str(tmp_path))


def test_foreign_files_are_named(tmp_path):
    write(tmp_path, "odd", np.zeros((3, 4, 2)), np.ones((5, 1)))
    with pytest.raises(ValueError, match=r"x must have shape \(3, points, frames\)"):
        fetch_hopkins155(data_home=str(tmp_path))
    savemat(tmp_path / "hopkins155" / "odd" / "odd_truth.mat", {"y": [[1]]})
    with pytest.raises(ValueError, match="is not Hopkins 155"):
        fetch_hopkins155(data_home=str(tmp_path))


def test_projection_keeps_inner_products_and_does_not_centre():
    rng = np.random.default_rng(0)
    X = rng.standard_normal((9, 3)) @ rng.standard_normal((3, 14)) + 5
    found = project_trajectories(X, 4)
    assert found.shape == (9, 4)
    assert_allclose(found @ found.T, X @ X.T, atol=1e-10)
    leading = np.linalg.svd(X)[2][:2]
    assert_allclose(np.abs(project_trajectories(X, 2)), np.abs(X @ leading.T), atol=1e-10)
    assert project_trajectories(X, 99).shape == (9, 9)
    with pytest.raises(ValueError, match="dimension: must be >= 1"):
        project_trajectories(X, 0)


@pytest.mark.parametrize("X", [np.full((3, 2), np.nan), np.ones(3)])
@pytest.mark.parametrize("step", [lambda X: project_trajectories(X, 1), homogeneous_coordinates])
def test_bad_trajectories_are_refused(step, X):
    with pytest.raises(ValueError, match=r"NaN|2D array"):
        step(X)


def test_homogeneous_coordinates():
    found = homogeneous_coordinates(np.zeros((2, 3)))
    assert found.tolist() == [[0, 0, 0, 1], [0, 0, 0, 1]]
