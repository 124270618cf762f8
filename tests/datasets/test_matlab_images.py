import numpy as np
import pytest
from scipy.io import savemat

from twinsolve.datasets import fetch_coil20


def test_coil20(real_data):
    objects = fetch_coil20()
    assert objects.data.shape == (1440, 1024)
    assert objects.images.shape == (1440, 32, 32)
    assert np.bincount(objects.target).tolist() == [72] * 20
    assert 0.9 < objects.data.max() <= 1
    assert (objects.images.reshape(1440, -1) == objects.data).all()
    # Upright: turned on a table, the objects stay in their rows and move in their columns.
    mean = objects.images.reshape(20, 72, 32, 32).mean(axis=1)
    assert np.abs(np.diff(mean, axis=1)).mean() > np.abs(np.diff(mean, axis=2)).mean()


def test_columns_become_upright_images(tmp_path):
    image = np.arange(1024).reshape(32, 32) / 1024
    savemat(tmp_path / "COIL20.mat", {"fea": image.ravel(order="F")[None], "gnd": [[1]]})
    data, target = fetch_coil20(data_home=str(tmp_path), return_X_y=True)
    assert (data.reshape(32, 32) == image).all()
    assert target.tolist() == [0]


def test_missing_and_foreign_files_are_named(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"COIL20.mat is not in .*TWINSOLVE_DATA"):
        fetch_coil20(data_home=str(tmp_path))
    path = tmp_path / "COIL20.mat"
    for foreign in ({"something": [[1]]}, {"fea": np.ones((1, 1000)), "gnd": [[1]]}):
        savemat(path, foreign)
        with pytest.raises(ValueError, match="is not COIL-20"):
            fetch_coil20(data_home=str(tmp_path))
    savemat(path, {"fea": np.ones((2, 1024)), "gnd": [[1]]})
    with pytest.raises(ValueError, match="holds 2 images but 1 labels"):
        fetch_coil20(data_home=str(tmp_path))
