import numpy as np
import pytest
from scipy.io import savemat

from twinsolve.datasets import fetch_extended_yale_b, select_classes, yale_b_subsets


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


def test_foreign_files_are_named(tmp_path):
    rows = {"EYALEB_DATA": np.ones((3, 2016)), "EYALEB_LABEL": [[1, 1, 2]]}
    for foreign in ({"something": [[1]]}, rows):
        savemat(tmp_path / "ExtendedYaleB.mat", foreign)
        with pytest.raises(ValueError, match="is not Extended Yale B"):
            fetch_extended_yale_b(data_home=str(tmp_path))


@pytest.mark.parametrize(("n", "count"), [(2, 163), (10, 3), (38, 1)])
def test_standard_trials(n, count):
    subsets = yale_b_subsets(n)
    assert len(subsets) == len(set(subsets)) == count
    groups = [range(10), range(10, 20), range(20, 30), range(30, 38)]
    for subset in subsets:
        assert len(set(subset)) == n
        assert list(subset) == sorted(subset)
        assert n == 38 or sum(set(subset) <= set(group) for group in groups) == 1
    assert {subject for subset in subsets for subject in subset} == set(
        range(30 if n == 10 else 38)
    )


@pytest.mark.parametrize("n", [0, 11, 2.5])
def test_no_group_holds_so_many(n):
    with pytest.raises(ValueError, match="n_subjects: must be 1 to 10, or 38"):
        yale_b_subsets(n)


def test_selected_classes_count_in_the_order_asked_for():
    X = np.arange(10.0).reshape(5, 2)
    found, labels = select_classes(X, [3, 1, 3, 2, 1], [1, 3])
    assert (found == X[[0, 1, 2, 4]]).all()
    assert labels.tolist() == [1, 0, 1, 0]


def test_bad_selections_are_named():
    for y, classes, words in [
        ([0, 1], [0], "y: must have shape"),
        ([0, 1, 1], [0, 0], "classes: must be a list of different labels"),
        ([0, 1, 1], [0, 2, 5], r"classes: must be labels in y, got \[2, 5\]"),
    ]:
        with pytest.raises(ValueError, match=words):
            select_classes(np.ones((3, 2)), y, classes)
