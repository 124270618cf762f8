import numpy as np
import pytest
from scipy.io import savemat

from twinsolve.datasets import data_root, fetch_extended_yale_b


def test_extended_yale_b(real_data):
    faces = fetch_extended_yale_b()
    assert faces.data.shape == (2414, 2016)
    assert faces.images.shape == (2414, 48, 42)
    assert sorted(set(faces.target)) == list(range(38))
    assert faces.data.max() > 200
    assert (faces.images.reshape(2414, -1) == faces.data).all()
    # Upright: the mean face is symmetric from left to right, not from top to bottom.
    mean = faces.images.mean(axis=0)
    assert np.abs(mean - mean[:, ::-1]).mean() < np.abs(mean - mean[::-1]).mean()


def test_columns_become_upright_images(tmp_path):
    image = np.arange(2016).reshape(48, 42) % 251
    savemat(
        tmp_path / "ExtendedYaleB.mat",
        {"EYALEB_DATA": image.ravel(order="F")[:, None].astype(np.uint8), "EYALEB_LABEL": [[1]]},
    )
    data, target = fetch_extended_yale_b(data_home=str(tmp_path), return_X_y=True)
    assert (data.reshape(48, 42) == image).all()
    assert target.tolist() == [0]


def test_missing_and_foreign_files_are_named(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"ExtendedYaleB.mat is not in .*TWINSOLVE_DATA"):
        fetch_extended_yale_b(data_home=str(tmp_path))
    savemat(tmp_path / "ExtendedYaleB.mat", {"something": [[1]]})
    with pytest.raises(ValueError, match="is not Extended Yale B"):
        fetch_extended_yale_b(data_home=str(tmp_path))


def test_data_root_is_argument_then_variable_then_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("TWINSOLVE_DATA", str(tmp_path))
    assert data_root() == tmp_path
    assert data_root("elsewhere").name == "elsewhere"
    monkeypatch.delenv("TWINSOLVE_DATA")
    assert data_root().name == "twinsolve"
