import h5py
import numpy as np
import pytest
from scipy.io import savemat

from twinsolve.datasets import fetch_coil20, fetch_coil100, fetch_orl, fetch_usps, fetch_yale

SETS = [
    (fetch_coil20, "COIL20.mat", 32),
    (fetch_coil100, "COIL100.mat", 32),
    (fetch_orl, "ORL_32x32.mat", 32),
    (fetch_yale, "Yale_32x32.mat", 32),
    (fetch_usps, "USPS.mat", 16),
]


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


@pytest.mark.parametrize(("fetch", "name", "side"), SETS)
def test_columns_become_upright_images(fetch, name, side, tmp_path):
    image = np.arange(side**2).reshape(side, side) % 256
    rows = np.stack([image.ravel(order="F"), image.T.ravel(order="F")]).astype(np.uint8)
    savemat(tmp_path / name, {"fea": rows, "gnd": [[1], [2]]})
    found = fetch(data_home=str(tmp_path))
    assert (found.images == [image, image.T]).all()
    assert found.target.tolist() == [0, 1]
    data, target = fetch(data_home=str(tmp_path), return_X_y=True)
    assert data.dtype == np.float64
    assert (data == found.images.reshape(2, -1)).all()
    assert (target == found.target).all()


def test_foreign_files_are_named(tmp_path):
    for fetch, name, side in SETS:
        path = tmp_path / name
        columns = {"fea": np.ones((side**2, 3)), "gnd": [[1], [2], [3]]}
        for foreign in ({"something": [[1]]}, {"fea": np.ones((1, 1000)), "gnd": [[1]]}, columns):
            savemat(path, foreign)
            with pytest.raises(ValueError, match=rf"{name}: is not "):
                fetch(data_home=str(tmp_path))
        for labels, words in (
            ([[1]], "holds 2 images but 1 labels"),
            ([[1.5], [2]], "whole numbers"),
            ([[np.inf], [2]], "whole numbers"),
        ):
            savemat(path, {"fea": np.ones((2, side**2)), "gnd": labels})
            with pytest.raises(ValueError, match=words):
                fetch(data_home=str(tmp_path))
        savemat(path, {"fea": np.full((2, side**2), np.nan), "gnd": [[1], [2]]})
        with pytest.raises(ValueError, match="holds NaN"):
            fetch(data_home=str(tmp_path))


def test_matlab_7_3_files_are_read(tmp_path):
    """Such files are HDF5 behind a header of 512 bytes, with the axes in reverse order."""
    image = np.arange(1024.0).reshape(32, 32)
    path = tmp_path / "COIL20.mat"
    with h5py.File(path, "w", userblock_size=512) as file:
        file["fea"] = image.ravel(order="F")[:, None]
        file["gnd"] = [[1.0]]
    with open(path, "r+b") as file:
        file.write(b"MATLAB 7.3 MAT-file")
    assert (fetch_coil20(data_home=str(tmp_path)).images[0] == image).all()


def test_usps_in_hdf5_is_row_major_training_part_first(tmp_path):
    images = np.random.default_rng(0).uniform(size=(5, 16, 16)).astype(np.float32)
    with h5py.File(tmp_path / "usps.h5", "w") as file:
        file["train/data"], file["train/target"] = images[:3].reshape(3, -1), [0, 7, 9]
        file["test/data"], file["test/target"] = images[3:].reshape(2, -1), [2, 9]
    found = fetch_usps(data_home=str(tmp_path))
    assert (found.images == images).all()
    assert found.target.tolist() == [0, 7, 9, 2, 9]
    assert found.target_names[7] == "7"
    with h5py.File(tmp_path / "usps.h5", "a") as file:
        for part in ("train", "test"):
            file.move(f"{part}/data", f"{part}/upright")
            file[f"{part}/data"] = file[f"{part}/upright"][()].T[:, :2]
    with pytest.raises(ValueError, match=r"usps\.h5: is not USPS.*rows must have 256 pixels"):
        fetch_usps(data_home=str(tmp_path))
    with h5py.File(tmp_path / "usps.h5", "a") as file:
        del file["test/target"]
    with pytest.raises(ValueError, match=r"usps\.h5: is not USPS"):
        fetch_usps(data_home=str(tmp_path))
