import numpy as np
import pytest

from twinsolve.datasets import make_rigid_motions


def test_trajectories_of_a_motion_lie_in_an_affine_subspace_of_dimension_three():
    X, y = make_rigid_motions((30, 40, 50), n_motions=3, n_frames=25, random_state=0)
    assert X.shape == (120, 50)
    assert np.bincount(y).tolist() == [30, 40, 50]
    for motion in range(3):
        points = X[y == motion]
        s = np.linalg.svd(points - points.mean(axis=0))[1]
        assert s[2] > 1
        assert s[3] < 1e-12 * s[0]
    s = np.linalg.svd(X - X.mean(axis=0))[1]
    assert s[3] > 10


def test_bodies_are_rigid():
    """In every frame two rows of a rotation, scaled alike: A A^T is a multiple of I."""
    X, _ = make_rigid_motions(60, n_motions=1, n_frames=10, random_state=3)
    moving = X - X.mean(axis=0)
    _, s, Vt = np.linalg.svd(moving, full_matrices=False)
    frames = (s[:3, None] * Vt[:3]).T.reshape(10, 2, 3)
    # Metric upgrade (Tomasi and Kanade): one symmetric Q makes all A Q A^T multiples of I.
    rows = []
    for a, b in frames:
        outer = [np.outer(a, a) - np.outer(b, b), (np.outer(a, b) + np.outer(b, a)) / 2]
        rows += [[m[i, j] * (1 + (i != j)) for i, j in zip(*np.triu_indices(3), strict=True)]
                 for m in outer]  # fmt: skip
    null = np.linalg.svd(np.array(rows))
    assert null[1][-1] < 1e-10 * null[1][0]
    Q = np.zeros((3, 3))
    Q[np.triu_indices(3)] = null[2][-1]
    Q = Q + Q.T - np.diag(np.diag(Q))
    eigenvalues = np.linalg.eigvalsh(Q)
    assert eigenvalues[0] * eigenvalues[-1] > 0


def test_steps_are_small_and_points_start_in_the_picture():
    X, _ = make_rigid_motions(100, n_motions=4, n_frames=30, random_state=1)
    frames = X.reshape(len(X), 30, 2)
    assert frames[:, 0].min() > 0
    assert (frames[:, 0].max(axis=0) < (640, 480)).all()
    assert np.abs(np.diff(frames, axis=1)).max() < 20


def test_noise_is_in_pixels():
    X, y = make_rigid_motions(400, n_frames=30, noise=2.0, random_state=0)
    for motion in range(2):
        points = X[y == motion]
        rest = np.linalg.svd(points - points.mean(axis=0))[1][3:]
        # 57 of 60 dimensions hold noise alone, 3 lose the noise along them.
        assert np.sqrt((rest**2).sum() / (399 * 57)) == pytest.approx(2, rel=0.05)


def test_one_frame_and_seed():
    first, again, other = (make_rigid_motions(5, n_frames=1, random_state=s)[0] for s in (0, 0, 1))
    assert first.shape == (10, 2)
    assert (first == again).all()
    assert (first != other).any()


def test_bad_settings_are_named():
    for settings, words in [
        ({"n_motions": 0}, "n_motions, n_frames: must be >= 1"),
        ({"n_frames": 0}, "n_motions, n_frames: must be >= 1"),
        ({"noise": -0.1}, "noise: must be finite and >= 0"),
        ({"n_samples": 0}, "n_samples: must hold one whole number >= 1 for each of 2"),
    ]:
        with pytest.raises(ValueError, match=words):
            make_rigid_motions(**settings)


def test_all_bodies_share_a_zoom():
    """Both grow by one factor; the mean of 8,000 squared distances errs by about 1 %."""
    zooms = []
    for seed in (4, 7):
        X, y = make_rigid_motions(8000, n_frames=2, random_state=seed)
        frames = X.reshape(len(X), 2, 2)
        spread = [frames[y == body].std(axis=0) for body in (0, 1)]
        first, second = (np.linalg.norm(s[1]) / np.linalg.norm(s[0]) for s in spread)
        assert abs(first - second) < 0.03
        assert 0.77 < first < 1.23
        zooms.append(first)
    assert max(zooms) - min(zooms) > 0.2
